// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The row kernel of the GPU: one text for every operator, every LOAD and STORE, and every schedule.
//
// A schedule is a tile (threads per row x packs per thread x pack width) and a storage. Threads of
// a row own its packs in turn, so a row is cut into chunks of one tile a thread. Each group of
// lanes (a warp, or the part of a warp that holds a row) reduces its part of a chunk; a group's
// parts are merged chunk by chunk; the groups of a row are combined once, through shared memory,
// behind the only barrier. That order depends on the tile alone, and the tile on operator, columns
// and types alone.
#pragma once

#include <fusedops/functor/contract.cuh>
#include <fusedops/row/fetch.cuh>
#include <fusedops/row/storage.cuh>

namespace fusedops {

/// kThreads: threads per row, a power of two up to 32 or a multiple of 32. kRows: rows per block at
/// a time.
template <class Storage_, int kThreads_, int kPacks_, int kWidth_, int kRows_, bool kExact_>
struct Schedule {
  using Storage = Storage_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kPacks = kPacks_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kRows = kRows_;
  static constexpr bool kExact = kExact_;
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;
  static constexpr int kGroups = kThreads / kLanes;  // groups of lanes in a row
  static constexpr int kChunk = kThreads * kPacks * kWidth;
  static_assert(kGroups == 1 || kRows == 1, "a row of several warps has the block to itself");
  static_assert(kGroups <= 32, "at most 1024 threads a row");
};

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Combines what the groups of a row know. `turn` alternates from row to row: a group that is still
/// reading one row's parts and one that writes the next row's do not meet.
template <class Schedule, class Op>
__device__ __forceinline__ typename Op::Partial combine_groups(const Op& op,
                                                               typename Op::Partial part,
                                                               int turn) {
  constexpr int kLanes = power_of_two(Schedule::kGroups);
  __shared__ typename Op::Partial parts[2][Schedule::kGroups];
  const int lane = threadIdx.x % 32;
  if (lane == 0) parts[turn][threadIdx.x / 32] = part;
  __syncthreads();
  const int group = lane % kLanes;
  part = group < Schedule::kGroups ? parts[turn][group] : Op::nothing();
  return op.combine(Lanes<kLanes>{}, part);
}

}  // namespace detail

template <class Schedule, class Op, class LoadT, class StoreT, class Statistics, class Rows>
__device__ __forceinline__ void row_kernel(const Op& op, const LoadT& load, StoreT store,
                                           const Statistics& statistics, const Rows& rows,
                                           int64_t cols) {
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using Row = typename Rows::Index;
  using RowTile =
      Tile<Compute, Schedule::kPacks, Schedule::kWidth, Schedule::kThreads * Schedule::kWidth,
           Schedule::kLanes * Schedule::kWidth, Schedule::kExact>;
  static_assert(
      is_load_v<LoadT, Compute, Row>,
      "fusedops: not a LOAD: it needs template <int N> void load(Compute* dst, int64_t row, "
      "int64_t col) const (see fusedops/functor/contract.cuh)");
  static_assert(is_store_v<StoreT, Compute, Row>,
                "fusedops: not a STORE: it needs template <int N> void store(const Compute* src, "
                "int64_t row, "
                "int64_t col) (see fusedops/functor/contract.cuh)");
  extern __shared__ __align__(16) char shared_row[];

  const int thread = threadIdx.x % Schedule::kThreads;
  const int64_t first_col = int64_t(thread) * Schedule::kWidth;
  const int64_t group_col =
      int64_t(thread / Schedule::kLanes) * (Schedule::kLanes * Schedule::kWidth);
  const int64_t chunks = Storage::kOneTile ? 1 : (cols + Schedule::kChunk - 1) / Schedule::kChunk;
  int turn = 0;
  RowTile tile;

  // The bound is the same for all threads of a block, so every lane reaches every shuffle and
  // barrier, and the compiler knows it.
  for (int64_t first = int64_t(blockIdx.x) * Schedule::kRows; first < rows.count;
       first += int64_t(gridDim.x) * Schedule::kRows) {
    const int64_t number = first + threadIdx.x / Schedule::kThreads;
    const bool mine = Schedule::kRows == 1 || number < rows.count;
    const Row row = rows.index(mine ? number : first);
    const Columns bounds = bounds_of(load, row, cols);

    // Rows that share a block go through the chunks together.
    constexpr bool kSkipsChunks = !Storage::kOneTile && Schedule::kRows == 1;
    const Columns within = kSkipsChunks
                               ? chunks_within<LoadT, Row>(bounds, Schedule::kChunk, chunks)
                               : Columns{0, chunks};

    typename Op::Partial part = Op::nothing();  // what this thread's group knows of the row
    for (int64_t chunk = within.begin; chunk < within.end; ++chunk) {
      const int64_t begin = chunk * Schedule::kChunk;
      tile.left = cols - begin - first_col;
      tile.group_left = cols - begin - group_col;
      if (mine) {
        load_tile<false>(tile, load, row, begin + first_col, bounds, Op::neutral());
      } else {
        tile.fill(Op::neutral());
      }
      if constexpr (!Storage::kOneTile && !Storage::kRevisits) {
        Storage::template put<Schedule::kThreads * Schedule::kRows>(shared_row, tile, chunk,
                                                                    threadIdx.x);
      }
      const typename Op::Partial of_chunk = op.reduce(Lanes<Schedule::kLanes>{}, tile);
      part = chunk == within.begin ? of_chunk : op.merge(part, of_chunk);
    }
    typename Op::Partial of_row = part;
    if constexpr (Schedule::kGroups > 1) {
      of_row = detail::combine_groups<Schedule>(op, part, turn);
      turn ^= 1;
    }
    const typename Op::Finish finish = op.finish(of_row, cols);
    if (mine && thread == 0) statistics.write(finish, row);

    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t begin = chunk * Schedule::kChunk;
      tile.left = cols - begin - first_col;
      if constexpr (Storage::kRevisits) {
        if (mine) load_tile<true>(tile, load, row, begin + first_col, bounds, Op::neutral());
      } else if constexpr (!Storage::kOneTile) {
        if (chunk >= within.begin && chunk < within.end) {
          Storage::template get<Schedule::kThreads * Schedule::kRows>(shared_row, tile, chunk,
                                                                      threadIdx.x);
        } else {
          tile.fill(Op::neutral());
        }
      }
      if constexpr (!Storage::kOneTile) part = op.again(Lanes<Schedule::kLanes>{}, tile);
      if (mine) store_tile(tile, store, row, begin + first_col, finish.of(part));
    }
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
