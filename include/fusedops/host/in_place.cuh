// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A gradient on a CPU without functors around the operator: nothing that took time to compute would
// be kept in a buffer, so the row is read where it lies, once by the reductions and once by the
// gradient, the second time from a cache. A buffer takes room in that cache and bandwidth. The
// order of summation is that of HostTile.
#pragma once

#include <fusedops/host/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// What the last pack of a row holds of it, if it is cut by the end of the row.
template <int N, class Compute>
struct CutColumns {
  alignas(64) Compute v[N], g[N];

  /// Loads them, in pieces: well before they are read as a vector, which has to wait until pieces
  /// of it have been written.
  template <class LoadT, class Upstream, class Row>
  FUSEDOPS_HD void load(const LoadT& load, const Upstream& upstream, const Row& row, int64_t cols,
                        Compute padding) {
    const int64_t whole = cols / N * N;
    if (whole == cols) return;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      v[i] = padding;
      g[i] = 0;
    }
    if constexpr (N > 1) {
      pieces<N / 2>(0, static_cast<int>(cols - whole), [&](auto width, int place) {
        constexpr int M = decltype(width)::value;
        load.template load<M>(v + place, row, whole + place);
        upstream.read(values_at<M>(g + place), row, whole + place);
      });
    }
  }
};

/// The results of a row and their gradients, pack by pack.
template <class Op, int N, class LoadT, class Upstream, class Row>
struct RowInPlace {
  using Compute = typename Op::Compute;
  static constexpr int kPack = N;
  const LoadT& load;
  const Upstream& upstream;
  const CutColumns<N, Compute>& columns;
  typename Op::Row known;
  Row row;
  int64_t whole;  // columns of complete packs
  int cut;        // columns of the cut pack

  FUSEDOPS_HD void results(Compute (&v)[N], Compute (&g)[N]) const {
    MaskedElements<N> masked;
    make_results<Op>(v, known, masked);
    select_masked<Op, Op::kHasMasked>(v, g, masked);
  }
  /// A complete pack.
  FUSEDOPS_HD void read(Compute (&v)[N], Compute (&g)[N], int64_t col) const {
    load.template load<N>(v, row, col);
    upstream.read(g, row, col);
    results(v, g);
  }
  /// The cut one; both are 0 beyond the row.
  FUSEDOPS_HD void read_cut(Compute (&v)[N], Compute (&g)[N]) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      v[i] = columns.v[i];
      g[i] = columns.g[i];
    }
    results(v, g);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute result = v[i];
      v[i] = i < cut ? result : Compute(0);
    }
  }
};

/// A tile of such a row as the operator's gradient sees it: its results, or their gradients.
template <class Source>
struct TileInPlace {
  using Compute = typename Source::Compute;
  static constexpr int kLanes = Source::kPack;
  const Source& source;
  int64_t begin, end;  // columns
  bool of_results;

  template <class F>
  FUSEDOPS_HD Compute sum(F f) const {
    return sum_of_both([&](Compute v, Compute g) { return f(of_results ? v : g); });
  }
  template <class F>
  FUSEDOPS_HD Compute sum_with(const TileInPlace&, F f) const {
    return sum_of_both([&](Compute v, Compute g) { return of_results ? f(v, g) : f(g, v); });
  }

 private:
  template <class F>
  FUSEDOPS_HD Compute sum_of_both(F f) const {
    Compute partial[kLanes] = {};
    Compute v[kLanes], g[kLanes];
    const int64_t whole = smaller(end, source.whole);
    for (int64_t col = begin; col < whole; col += kLanes) {
      source.read(v, g, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) partial[i] += f(v[i], g[i]);
    }
    if (whole < end) {
      source.read_cut(v, g);
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) partial[i] += f(v[i], g[i]);
    }
    return folded(partial, [](Compute a, Compute b) { return a + b; });
  }
};

/// The operator's sums over a row, chunk by chunk.
template <class Schedule, class Op, class Source>
FUSEDOPS_HD typename Op::Partial reduce_in_place(const Op& op, const Source& source, int64_t cols) {
  using RowTile = TileInPlace<Source>;
  typename Op::Partial part = Op::identity();
  for (int64_t begin = 0; begin < cols; begin += Schedule::kChunk) {
    const int64_t end = smaller<int64_t>(begin + Schedule::kChunk, cols);
    part = op.merge(part, op.reduce(Lanes<1>{}, RowTile{source, begin, end, true},
                                    RowTile{source, begin, end, false}));
  }
  return part;
}

/// The gradient of the row's values, once that of its results has been reduced.
template <class Op, class Source, class Finish, class To, class Sinks, class Lane>
FUSEDOPS_HD void write_in_place(const Source& source, const Finish& finish, const To& to,
                                Sinks& sinks, const Lane& lane, const Visit& visit) {
  constexpr int N = Source::kPack;
  typename Op::Compute v[N], g[N];
  for (int64_t col = 0; col < source.whole; col += N) {
    source.read(v, g, col);
    host_pack_through_load<Op, Op::kHasMasked, N>(v, g, WholePack<N>{}, 0, finish, source.load, to,
                                                  source.row, col, sinks, lane, visit, source);
  }
  if (source.cut > 0) {
    source.read_cut(v, g);
    host_pack_through_load<Op, Op::kHasMasked, N>(v, g, CutPack<N>{source.cut}, 0, finish,
                                                  source.load, to, source.row, source.whole, sinks,
                                                  lane, visit, source);
  }
}

template <class Op>
using SlowResult = Flag<Op::kSlowResult>;
template <class StoreT>
using StoresAsIs = Flag<!StoreT::kComputes>;

/// Whether nothing but the operator computes, and it makes results in no time.
template <class Op, class LoadT, class StoreT>
FUSEDOPS_HD constexpr bool in_place() {
  return reduces<Op>() && !flag<false, SlowResult, Op>() && !flag<true, ComputesFlag, LoadT>() &&
         flag<false, StoresAsIs, StoreT>();
}

}  // namespace detail

/// Processes the rows begin <= row < end of one slice.
template <class Schedule, class Op, class LoadT, class Upstream, class Kept, class To, class Sinks,
          class Lane, class Visits, class Rows>
inline void host_gradient_in_place(const Op& op, const LoadT& load, const Upstream& upstream,
                                   const Kept& kept, const To& to, Sinks& sinks, const Lane& lane,
                                   const Visits& visit_of, const Rows& rows, int64_t cols,
                                   int64_t begin, int64_t end) {
  using Row = typename Rows::Index;
  using Compute = typename Op::Compute;
  constexpr int N = Schedule::kWidth;
  detail::CutColumns<N, Compute> columns[2];  // of this row and the next
  if (begin < end)
    columns[begin % 2].load(load, upstream, rows.index(begin), cols, Op::padding_value());
  for (int64_t number = begin; number < end; ++number) {
    const Row row = rows.index(number);
    const int64_t next = smaller(number + 1, end - 1);
    columns[(number + 1) % 2].load(load, upstream, rows.index(next), cols, Op::padding_value());
    Compute numbers[Op::kKept];
    kept.read(numbers, row, 0);
    const detail::RowInPlace<Op, N, LoadT, Upstream, Row> source{
        load, upstream,     columns[number % 2],       Op::row(numbers),
        row,  cols / N * N, static_cast<int>(cols % N)};
    const typename Op::Partial part = detail::reduce_in_place<Schedule>(op, source, cols);
    const typename Op::Finish finish = op.finish(source.known, part, row, cols);
    const Visit visit = visit_of(number);
    detail::add_row_gradients<Op>(finish, sinks, lane, row, visit);
    detail::write_in_place<Op>(source, finish, to, sinks, lane, visit);
    sinks.flush(lane, row, visit);
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
