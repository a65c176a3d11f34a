// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward kernel for a GPU where nothing stands between x and its gradient but an operator that
// reduces nothing, and all of what comes to the result is in one column of each row: cross entropy of
// logits that no functor made. It has the bits of gradient_kernel in a third of its instructions.
#pragma once

#include <fusedops/row/kernel.cuh>
#include <fusedops/row/slices.cuh>
#include <fusedops/row/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

template <class Upstream>
using OneColumnFlag = Flag<Upstream::kOneColumn>;
template <class StoreT>
using StoreComputesFlag = Flag<StoreT::kComputes>;

/// Whether a backward pass has this kernel. A LOAD of another kind than load() may compute anything.
template <class Schedule, class Op, class LoadT, class Upstream, class StoreT, class To,
          class LoadTargets, class StoreTargets>
FUSEDOPS_HD constexpr bool goes_straight() {
  return Schedule::kApart && !reduces<Op>() && flag<false, OneColumnFlag, Upstream>() &&
         !flag<true, ComputesFlag, LoadT>() && !flag<true, StoreComputesFlag, StoreT>() &&
         !IsSame<To, Absent>::value && IsSame<LoadTargets, Targets<>>::value &&
         IsSame<StoreTargets, Targets<>>::value;
}

}  // namespace detail

/// The arguments are those of gradient_kernel.
template <class Schedule, class Op, class LoadT, class Upstream, class Kept, class To, class Rows>
__device__ __forceinline__ void straight_kernel(const Op& op, const LoadT& load,
                                                const Upstream& upstream, const Kept& kept,
                                                const To& to, const Slices& slices,
                                                const Rows& rows, int64_t cols, int64_t even) {
  using Compute = typename Op::Compute;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  const int of_chunk = Schedule::chunk_cols(even);
  const int chunks = Schedule::chunks(cols, of_chunk);
  // The first blocks take the last rows, which the forward pass has left in the L2 cache.
  const unsigned block = gridDim.x - 1 - blockIdx.x;
  const int begin = Schedule::share(block, chunks).begin * of_chunk;
  const int first_col = threadIdx.x % Schedule::kThreads * Schedule::kWidth;
  const int64_t slice = Schedule::first_row(block / chunks) + threadIdx.x / Schedule::kThreads;
  const RowRange of_slice = slices.of(slice, rows.count);
  const int col = begin + first_col;
  RowTile value;
  value.begin(Schedule::left(cols, begin, of_chunk) - first_col, 0);

  for (int64_t number = of_slice.begin; number < of_slice.end; ++number) {
    // All that the row is made of is loaded at once: nothing waits for anything else.
    const Row row = rows.index(number);
    if constexpr (RowTile::kWhole) {
      FUSEDOPS_UNROLL
      for (int k = 0; k < RowTile::kPacks; ++k) {
        if (value.complete(k)) {
          load.template load<RowTile::kWidth>(value.at[k], row,
                                              col + int64_t(k) * RowTile::kStride);
        }
      }
    } else {
      load_tile<true>(value, load, row, col, Columns{0, cols}, Op::padding_value());
    }
    constexpr int kCols = RowTile::kPacks * RowTile::kStride;
    const int64_t away = upstream.column(row) - col;
    const int place = static_cast<uint64_t>(away) < kCols ? static_cast<int>(away) : -1;
    detail::KeptOfRow<Op> of_row;
    of_row.read(kept, unaware(row));
    const typename Op::Row known = of_row.known();
    const auto gradient_of = op.straight(known, op.finish(known, Op::identity(), row, cols));

    const Compute there = upstream.at_column(row);
    walk_tile(value, col, [&](auto width, int64_t at, int pack, int first) {
      constexpr int N = decltype(width)::value;
      const Compute* v = value.at[pack] + first;
      const int here = place - (pack * RowTile::kStride + first);
      Compute g[N];
      if (N == 1 || static_cast<uint32_t>(here) < N) {
        FUSEDOPS_UNROLL
        for (int i = 0; i < N; ++i) g[i] = gradient_of(v[i], i == here ? there : Compute(0));
      } else {  // most packs: without the selection
        FUSEDOPS_UNROLL
        for (int i = 0; i < N; ++i) g[i] = gradient_of(v[i], Compute(0));
      }
      to.write(g, row, at);
    });
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
