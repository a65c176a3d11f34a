// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward kernel of an operator that reduces nothing, for a GPU: each block has one chunk of
// its rows, loads a tile and stores it. Chunks do not know of one another, so a row has as many
// blocks as it has chunks, on every architecture, and the tile changes no bit.
#pragma once

#include <fusedops/row/kernel.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

/// The arguments are those of row_kernel; nothing is prefetched.
template <class Schedule, class Op, class LoadT, class StoreT, class Statistics, class Rows>
__device__ __forceinline__ void map_kernel(const Op& op, const LoadT& load, StoreT store,
                                           const Statistics&, const Rows& rows, int64_t cols,
                                           int64_t = 0, int64_t even = 0) {
  static_assert(detail::check_operator<Op>());
  static_assert(!detail::reduces<Op>(), "an operator that reduces has row_kernel");
  using Compute = typename Op::Compute;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  static_assert(detail::check_sides<LoadT, StoreT, Compute, Row>());

  const int of_chunk = Schedule::chunk_cols(even);
  const int chunks = Schedule::chunks(cols, of_chunk);
  const Share share = Schedule::share(blockIdx.x, chunks);
  const int first_col = threadIdx.x % Schedule::kThreads * Schedule::kWidth;
  const int64_t begin = int64_t(share.begin) * of_chunk;
  const int64_t apart = Schedule::rows_apart(gridDim.x / chunks);
  const int64_t place = threadIdx.x / Schedule::kThreads;
  if constexpr (detail::block_of<StoreT>() == kNoBlock) {
    for (int64_t number = Schedule::first_row(blockIdx.x / chunks) + place; number < rows.count;
         number += apart) {
      const Row row = rows.index(number);
      RowTile tile;
      tile.begin(Schedule::left(cols, begin, of_chunk) - first_col, 0);
      if constexpr (detail::pairs_in_thread<RowTile, LoadT>()) {
        load_tile_of_pairs(tile, load, row, begin + first_col);
      } else {
        load_tile<false>(tile, load, row, begin + first_col, bounds_of(load, row, cols),
                         Op::padding_value());
        if constexpr (detail::pairs<LoadT>()) detail::row_is_read<Schedule>();
      }
      const int64_t to = detail::pairs<LoadT>() ? hidden(begin + first_col) : begin + first_col;
      store_tile(tile, store, row, to, op.finish(Op::identity(), row, cols));
    }
  } else {
    static_assert(detail::block_of<StoreT>() != kWholeRow,
                  "fusedops: chunks of a row do not know of one another: the largest of a whole "
                  "row takes row_kernel");
    // All lanes reach every shuffle, also those that have no row.
    for (int64_t first = Schedule::first_row(blockIdx.x / chunks); first < rows.count;
         first += apart) {
      const bool mine = Schedule::kRows == 1 || first + place < rows.count;
      const Row row = rows.index(mine ? first + place : first);
      RowTile tile;
      tile.begin(Schedule::left(cols, begin, of_chunk) - first_col, 0);
      if (mine) {
        load_tile<false>(tile, load, row, begin + first_col, bounds_of(load, row, cols),
                         Op::padding_value());
      } else {
        tile.fill(Op::padding_value());
      }
      store_blocks<Schedule::kLanes>(tile, store, row, begin + first_col,
                                     op.finish(Op::identity(), row, cols), mine);
    }
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
