// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward pass on a CPU: a thread processes slices of rows, each row as a GPU does, with the
// same operators, LOADs, STOREs and targets. Gradients that rows share are summed in memory.
#pragma once

#include <fusedops/host/rows.cuh>
#include <fusedops/row/through.cuh>

namespace fusedops {

namespace detail {

/// The one thread of a row, as the targets of operand gradients see it (RowLane on a GPU).
template <class Tile>
struct HostLane {
  Tile& tile;
  int64_t cols;

  template <class T>
  FUSEDOPS_HD T sum(T x) const {
    return x;
  }
  FUSEDOPS_HD bool writes() const { return true; }
  FUSEDOPS_HD bool writes_part() const { return true; }
  FUSEDOPS_HD int64_t part(int64_t slice) const { return slice; }

  template <class F>
  FUSEDOPS_HD void walk(F f) const {
    for (int64_t begin = 0; begin < cols; begin += Tile::kPacks * Tile::kWidth) {
      tile.begin(cols - begin, 0);
      walk_tile(tile, begin, f);
    }
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
  using RowTile =
      Tile<Compute, Schedule::kPacks, Schedule::kWidth, Schedule::kWidth, Schedule::kWidth, false>;
  using Row = typename Rows::Index;
  constexpr bool kMasks = Op::kHasMasked;
  constexpr bool kKeeps = !Schedule::Storage::kRevisits;
  constexpr bool kEverywhere = !Op::kMaskedIsConstant && Sinks<RowTile, StoreTargets>::kAny;
  const Alongside<LoadT, Upstream, Row, kEverywhere> along{load, upstream};
  const int64_t chunks = (cols + Schedule::kChunk - 1) / Schedule::kChunk;
  alignas(64) RowTile values[kKeeps ? Schedule::kChunks : 1];
  alignas(64) RowTile gradients[kKeeps ? Schedule::kChunks : 1];

  const detail::HostLane<RowTile> lane{values[0], cols};
  for (int64_t slice = first; slice < last; ++slice) {
    Sinks<RowTile, LoadTargets> load_sinks(load_targets);
    Sinks<RowTile, StoreTargets> store_sinks(store_targets);
    const int64_t begin = slices.begin(slice);
    const int64_t end = slices.end(slice, rows.count);
    for (int64_t number = begin; number < end; ++number) {
      const Row row = rows.index(number);
      const Visit visit{slice, static_cast<uint32_t>(number - begin),
                        static_cast<uint32_t>(end - begin), true, true};
      const Columns bounds = bounds_of(load, row, cols);
      Compute numbers[Op::kKept];
      kept.read(numbers, row, 0);
      const typename Op::Row known = Op::row(numbers);

      const auto fetch = [&](int64_t chunk, auto& sinks) {
        RowTile& value = values[kKeeps ? chunk : 0];
        RowTile& gradient = gradients[kKeeps ? chunk : 0];
        const int64_t col = chunk * Schedule::kChunk;
        value.begin(cols - col, 0);
        gradient.begin(cols - col, 0);
        load_tile<true>(value, load, row, col, bounds, Op::padding_value());
        load_tile<false>(gradient, along, row, col, bounds, Compute(0));
        through_store<Op, kMasks>(value, gradient, known, store, row, col, sinks, lane, visit);
      };
      typename Op::Partial part = Op::identity();
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        fetch(chunk, store_sinks);
        const int64_t at = kKeeps ? chunk : 0;
        part = op.merge(part, op.reduce(Lanes<1>{}, values[at], gradients[at]));
      }
      const typename Op::Finish finish = op.finish(known, part, row, cols);
      detail::add_row_gradients<Op>(finish, load_sinks, lane, row, visit);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t at = kKeeps ? chunk : 0;
        if constexpr (!kKeeps) {
          Sinks<RowTile, Targets<>> seen{Targets<>{}};  // the STORE's operands have their gradients
          fetch(chunk, seen);
        }
        through_load<Op, kMasks>(values[at], gradients[at], finish, load, to, row,
                                 chunk * Schedule::kChunk, load_sinks, lane, visit);
      }
      load_sinks.flush(lane, row, visit);
      store_sinks.flush(lane, row, visit);
    }
  }
}

}  // namespace fusedops
