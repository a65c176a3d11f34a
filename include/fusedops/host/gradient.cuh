// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward pass on a CPU: a thread processes slices of rows, each row as a GPU does, with the
// same operators, LOADs, STOREs and targets. Gradients that rows share are summed in memory.
#pragma once

#include <fusedops/host/in_place.cuh>
#include <fusedops/host/rows.cuh>
#include <fusedops/host/short_gradient.cuh>
#include <fusedops/host/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The one thread of a row, as the targets of operand gradients see it (RowLane on a GPU).
struct HostLane {
  static constexpr bool kTogether = false;
  int64_t cols;

  template <class T>
  FUSEDOPS_HD T sum(T x) const {
    return x;
  }
  FUSEDOPS_HD bool writes() const { return true; }
  FUSEDOPS_HD bool writes_part() const { return true; }
  FUSEDOPS_HD int64_t part(int64_t slice) const { return slice; }

  /// Calls f(width, column, 0, 0) for all columns of a row.
  template <class F>
  FUSEDOPS_HD void walk(F f) const {
    constexpr int N = 32;
    int64_t col = 0;
    for (; col + N <= cols; col += N) f(Width<N>{}, col, 0, 0);
    pieces<N / 2>(0, static_cast<int>(cols - col),
                  [&](auto width, int place) { f(width, col + place, 0, 0); });
  }
};

}  // namespace detail

/// Processes the slices first <= slice < last on the calling thread.
template <class Schedule, class Op, class LoadT, class Upstream, class StoreT, class Kept, class To,
          class LoadTargets, class StoreTargets, class Rows>
inline void host_gradient(const Op& op, const LoadT& load, const Upstream& upstream,
                          const StoreT& store, const Kept& kept, const To& to,
                          const LoadTargets& load_targets, const StoreTargets& store_targets,
                          const Slices& slices, const Rows& rows, int64_t cols, int64_t first,
                          int64_t last) {
  static_assert(detail::check_gradient<Op>());
  using Compute = typename Op::Compute;
  using RowTile = typename Schedule::template Tile<Compute>;
  using SinkTile = typename Schedule::template SinkTile<Compute>;
  using Row = typename Rows::Index;
  constexpr bool kMasks = Op::kHasMasked;
  constexpr bool kKeeps = !Schedule::Storage::kRevisits;
  constexpr bool kEverywhere = !Op::kMaskedIsConstant && Sinks<SinkTile, StoreTargets>::kAny;
  const Alongside<LoadT, Upstream, Row, kEverywhere> along{load, upstream};
  const int64_t chunks = Schedule::kIsShort ? 1 : (cols + Schedule::kChunk - 1) / Schedule::kChunk;
  constexpr bool kInPlace = detail::in_place<Op, LoadT, StoreT>();
  const int64_t held = kInPlace || !detail::reduces<Op>() ? 1
                       : Schedule::kIsShort               ? Schedule::kRows
                       : kKeeps                           ? chunks
                                                          : 1;
  RowTile* const values = FUSEDOPS_ON_STACK(RowTile, held);
  RowTile* const gradients = FUSEDOPS_ON_STACK(RowTile, held);
  typename Op::Partial parts[Schedule::kRows];

  const detail::HostLane lane{cols};
  const auto known_of = [&](const Row& row) {
    detail::KeptOfRow<Op> of_row;
    of_row.read(kept, row);
    return of_row.known();
  };
  const auto others_of = [&](const Row& row) {
    return elsewhere<Op>(load, upstream, store, known_of(row));
  };
  // Chunk `chunk` of a row, in tile number `at`.
  const auto begin_chunk = [&](int64_t at, const Row& row, int64_t chunk) {
    const int64_t col = chunk * Schedule::kChunk;
    values[at].begin(cols - col);
    gradients[at].begin(cols - col);
    host_load_cut<Op>(values[at], gradients[at], load, along, row, col, bounds_of(load, row, cols));
  };
  const auto fetch = [&](int64_t at, const Row& row, int64_t chunk, auto& sinks,
                         const Visit& visit) {
    const bool ends = chunk + 1 >= chunks;
    const int64_t later = smaller<int64_t>(row.row + 1, rows.count - 1);
    const HostAhead<Row> ahead{ends ? rows.index(later) : row,
                               ends ? 0 : (chunk + 1) * Schedule::kChunk};
    host_through_store<Op, kMasks>(values[at], gradients[at], load, along, known_of(row), store,
                                   row, chunk * Schedule::kChunk, bounds_of(load, row, cols), ahead,
                                   sinks, lane, visit, others_of(row));
  };
  for (int64_t slice = first; slice < last; ++slice) {
    Sinks<SinkTile, LoadTargets> load_sinks(load_targets);
    Sinks<SinkTile, StoreTargets> store_sinks(store_targets);
    const RowRange of_slice = slices.of(slice, rows.count);
    const int64_t begin = of_slice.begin, end = of_slice.end;
    const auto visit_of = [&](int64_t number) {
      return Visit{slice, static_cast<uint32_t>(number - begin), static_cast<uint32_t>(end - begin),
                   true, true};
    };
    if constexpr (!detail::reduces<Op>()) {
      for (int64_t number = begin; number < end; ++number) {
        const Row row = rows.index(number);
        const Visit visit = visit_of(number);
        const typename Op::Finish finish = op.finish(known_of(row), Op::identity(), row, cols);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          begin_chunk(0, row, chunk);
          fetch(0, row, chunk, store_sinks, visit);
          host_through_load<Op, kMasks>(values[0], gradients[0], finish, load, to, row,
                                        chunk * Schedule::kChunk, load_sinks, lane, visit,
                                        others_of(row));
        }
        store_sinks.flush(lane, row, visit);
        load_sinks.flush(lane, row, visit);
      }
      continue;
    }
    if constexpr (kInPlace && Schedule::kIsShort) {
      constexpr int kPacks = Schedule::kColumns / Schedule::kWidth;
      const auto process = [&](auto whole) {
        host_short_gradient<Schedule, decltype(whole)::value>(
            op, load, upstream, kept, to, load_sinks, lane, visit_of, rows, cols, begin, end);
      };
      if (cols == Schedule::kColumns) {
        process(Width<kPacks>{});
      } else if (2 * cols >= Schedule::kColumns) {
        process(Width<kPacks / 2>{});
      } else {
        process(Width<0>{});
      }
      continue;
    }
    if constexpr (kInPlace) {
      host_gradient_in_place<Schedule>(op, load, upstream, kept, to, load_sinks, lane, visit_of,
                                       rows, cols, begin, end);
      continue;
    }
    for (int64_t number = begin; number < end; number += Schedule::kRows) {
      const int count = static_cast<int>(smaller<int64_t>(end - number, Schedule::kRows));
      if constexpr (Schedule::kRows > 1) {
        for (int i = 0; i < count; ++i) begin_chunk(i, rows.index(number + i), 0);
      }
      for (int i = 0; i < count; ++i) {
        const Row row = rows.index(number + i);
        const Visit visit = visit_of(number + i);
        typename Op::Partial part = Op::identity();
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          const int64_t at = kKeeps ? i * Schedule::kChunks + chunk : 0;
          if constexpr (Schedule::kRows == 1) begin_chunk(at, row, chunk);
          fetch(at, row, chunk, store_sinks, visit);
          if constexpr (Schedule::kRows == 1) {
            part = op.merge(part, op.reduce(Lanes<1>{}, values[at], gradients[at]));
          }
        }
        parts[i] = part;
        store_sinks.flush(lane, row, visit);
      }
      if constexpr (Schedule::kRows > 1) {
        for (int i = 0; i < count; ++i) {
          parts[i] = op.merge(Op::identity(), op.reduce(Lanes<1>{}, values[i], gradients[i]));
        }
      }
      for (int i = 0; i < count; ++i) {
        const Row row = rows.index(number + i);
        const Visit visit = visit_of(number + i);
        const typename Op::Finish finish = op.finish(known_of(row), parts[i], row, cols);
        detail::add_row_gradients<Op>(finish, load_sinks, lane, row, visit);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          const int64_t at = kKeeps ? i * Schedule::kChunks + chunk : 0;
          if constexpr (!kKeeps) {
            Sinks<SinkTile, Targets<>> seen{Targets<>{}};  // operands of the STORE have had theirs
            begin_chunk(at, row, chunk);
            fetch(at, row, chunk, seen, visit);
          }
          host_through_load<Op, kMasks>(values[at], gradients[at], finish, load, to, row,
                                        chunk * Schedule::kChunk, load_sinks, lane, visit,
                                        others_of(row));
        }
        load_sinks.flush(lane, row, visit);
      }
    }
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
