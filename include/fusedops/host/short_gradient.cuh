// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A gradient on a CPU of rows that are one tile of a constant size, without functors around the
// operator: a row is loaded, reduced and written without a loop that has a bound or a branch in it,
// so that a processor works on several rows at a time. The order of summation is that of HostTile.
#pragma once

#include <fusedops/host/first_columns.cuh>
#include <fusedops/host/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The packs of a row as the operator's gradient sees them: its results, or their gradients.
template <class Compute_, int kCount, int N>
struct TileOfPacks {
  using Compute = Compute_;
  Compute at[kCount][N];

  template <class F>
  FUSEDOPS_HD Compute sum(F f) const {
    return sum_with(*this, [&](Compute value, Compute) { return f(value); });
  }
  template <class F>
  FUSEDOPS_HD Compute sum_with(const TileOfPacks& other, F f) const {
    Compute partial[N] = {};
    each_number<0, kCount>([&](auto number) {
      constexpr int k = decltype(number)::value;
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) partial[i] += f(at[k][i], other.at[k][i]);
    });
    return folded(partial, [](Compute a, Compute b) { return a + b; });
  }
};

}  // namespace detail

/// Processes the rows begin <= row < end of one slice. kWhole: the packs that every row fills; each
/// pack after these may be cut by the end of the row, or lie beyond it.
template <class Schedule, int kWhole, class Op, class LoadT, class Upstream, class Kept, class To,
          class Sinks, class Lane, class Visits, class Rows>
inline void host_short_gradient(const Op& op, const LoadT& load, const Upstream& upstream,
                                const Kept& kept, const To& to, Sinks& sinks, const Lane& lane,
                                const Visits& visit_of, const Rows& rows, int64_t cols,
                                int64_t begin, int64_t end) {
  using Row = typename Rows::Index;
  using Compute = typename Op::Compute;
  constexpr int N = Schedule::kWidth, kPacks = Schedule::kColumns / N;
  constexpr bool kMasks = Op::kHasMasked;
  const int left = static_cast<int>(cols);
  for (int64_t number = begin; number < end; ++number) {
    const Row row = rows.index(number);
    detail::KeptOfRow<Op> of_row;
    of_row.read(kept, row);
    const typename Op::Row known = of_row.known();
    detail::TileOfPacks<Compute, kPacks, N> value, gradient;
    detail::each_number<0, kPacks>([&](auto pack) {
      constexpr int k = decltype(pack)::value;
      constexpr bool kCut = k >= kWhole;
      Compute v[N], g[N];
      if constexpr (kCut) {
        detail::load_first(load, v, row, k * N, left - k * N, Op::padding_value());
        detail::read_first(upstream, g, row, k * N, left - k * N, Compute(0));
      } else {
        load.template load<N>(v, row, k * N);
        upstream.read(g, row, k * N);
      }
      MaskedElements<N> masked;
      detail::make_results<Op>(v, known, masked);
      detail::select_masked<Op, kMasks>(v, g, masked);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        const Compute result = v[i];
        value.at[k][i] = !kCut || i < left - k * N ? result : Compute(0);
        gradient.at[k][i] = g[i];
      }
    });
    const typename Op::Partial part =
        op.merge(Op::identity(), op.reduce(Lanes<1>{}, value, gradient));
    const typename Op::Finish finish = op.finish(known, part, row, cols);
    const Visit visit = visit_of(number);
    detail::add_row_gradients<Op>(finish, sinks, lane, row, visit);
    if constexpr (!detail::IsSame<To, Absent>::value) {
      detail::each_number<0, kPacks>([&](auto pack) {
        constexpr int k = decltype(pack)::value;
        Compute g[N];
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) {
          const Compute y = value.at[k][i];
          const Compute of_value = finish(y, gradient.at[k][i]);
          g[i] = of_value;
          if constexpr (kMasks) g[i] = Op::is_masked_result(y) ? Compute(0) : of_value;
        }
        if constexpr (k >= kWhole) {
          detail::write_first(to, g, row, k * N, left - k * N);
        } else {
          to.write(g, row, k * N);
        }
      });
    }
    sinks.flush(lane, row, visit);
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
