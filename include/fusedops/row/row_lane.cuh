// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads of one row in a backward kernel, as the targets of operand gradients (row/target.cuh)
// use them: sums over the row, over the rows of a block, and sums kept in shared memory from row to
// row.
#pragma once

#include <fusedops/row/block_sums.cuh>
#include <fusedops/row/kernel.cuh>
#include <fusedops/row/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// The threads of one row in a backward kernel.
template <class Schedule, class Tile>
struct RowLane {
  using Compute = typename Tile::Compute;
  Tile& tile;
  int64_t cols;
  int first_col, of_chunk;
  Share share;
  int thread;

  /// The sum of one number per thread over the threads of the row.
  __device__ __forceinline__ Compute sum(Compute x) const {
    x = Lanes<Schedule::kLanes>{}.sum(x);
    if constexpr (Schedule::kGroups > 1) {
      __shared__ Compute parts[Schedule::kGroups];
      __syncthreads();
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
      __syncthreads();
      x = 0;
      for (int i = 0; i < Schedule::groups(); ++i) x += parts[i];
    }
    if constexpr (Schedule::kBlocks > 1) {
      __shared__ Compute of_blocks[Schedule::kBlocks];
      cluster_arrive();  // all blocks have read the last sum
      cluster_wait();
      if (threadIdx.x < Schedule::kBlocks) {
        write_in_block(&of_blocks[Schedule::rank(blockIdx.x)], x, static_cast<int>(threadIdx.x));
      }
      cluster_arrive_released();
      cluster_wait();
      x = 0;
      for (int i = 0; i < Schedule::kBlocks; ++i) x += of_blocks[i];
    }
    return x;
  }
  __device__ __forceinline__ bool writes() const {
    return thread == 0 && Schedule::rank(blockIdx.x) == 0;
  }

  /// The rows of a block make one part of a sum. It is added up by all threads of the block
  /// (kTogether: row/block_sums.cuh) or by those of the first row.
  static constexpr bool kTogether = BlockSums<Schedule, Tile>::kTogether;
  __device__ __forceinline__ int64_t part(int64_t slice) const { return slice / Schedule::kRows; }

  /// Adds up the block's sums, which are in registers or `offset` elements into the shared memory,
  /// and calls write(values, column) for neighbouring columns.
  template <class F>
  __device__ __forceinline__ void add_up(const Compute (&sums)[Tile::kPacks][Tile::kWidth],
                                         F write) const {
    BlockSums<Schedule, Tile>::add_up(sums, cols, write);
  }
  template <class F>
  __device__ __forceinline__ void add_up(int64_t offset, F write) const {
    extern __shared__ __align__(16) char shared_row[];
    BlockSums<Schedule, Tile>::add_up(reinterpret_cast<Compute*>(shared_row) + offset, cols, write);
  }

  /// The threads of the first row.
  __device__ __forceinline__ bool writes_part() const { return threadIdx.x < Schedule::kThreads; }

  /// Adds the sums of the block's other rows to those of the first.
  __device__ __forceinline__ void combine(Compute (&sums)[Tile::kPacks][Tile::kWidth]) const {
    if constexpr (Schedule::kRows > 1) {
      constexpr int kBlock = Schedule::kThreads * Schedule::kRows;
      __shared__ Compute all[Tile::kPacks * Tile::kWidth][kBlock];
      __syncthreads();
      FUSEDOPS_UNROLL
      for (int i = 0; i < Tile::kPacks * Tile::kWidth; ++i) {
        all[i][threadIdx.x] = sums[i / Tile::kWidth][i % Tile::kWidth];
      }
      __syncthreads();
      if (!writes_part()) return;
      FUSEDOPS_UNROLL
      for (int i = 0; i < Tile::kPacks * Tile::kWidth; ++i) {
        for (int other = 1; other < Schedule::kRows; ++other) {
          sums[i / Tile::kWidth][i % Tile::kWidth] += all[i][other * Schedule::kThreads + thread];
        }
      }
    }
  }

  /// Reads and writes N sums of this thread in shared memory. A thread reads only what it wrote, so
  /// no barrier is needed; neighbouring threads access neighbouring words, without bank conflicts.
  template <int N>
  __device__ __forceinline__ void get(int64_t offset, int pack, int first, Compute (&values)[N],
                                      int by = threadIdx.x) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kWord<N>) {
      const auto word = *shared_word<kWord<N>>(offset, pack, first + i, by);
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWord<N>; ++j) values[i + j] = word.at[j];
    }
  }
  template <int N>
  __device__ __forceinline__ void put(int64_t offset, int pack, int first,
                                      const Compute (&values)[N]) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kWord<N>) {
      Pack<Compute, kWord<N>> word;
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWord<N>; ++j) word.at[j] = values[i + j];
      *shared_word<kWord<N>>(offset, pack, first + i, threadIdx.x) = word;
    }
  }
  /// wait(): until all rows of the block have written their sums; get_all(): the sums over these
  /// rows.
  __device__ __forceinline__ void wait() const {
    if constexpr (Schedule::kRows > 1) __syncthreads();
  }
  template <int N>
  __device__ __forceinline__ void get_all(int64_t offset, int pack, int first,
                                          Compute (&values)[N]) const {
    get(offset, pack, first, values);
    for (int other = 1; other < Schedule::kRows; ++other) {
      Compute more[N];
      get(offset, pack, first, more, other * Schedule::kThreads + thread);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) values[i] += more[i];
    }
  }

  template <class F>
  __device__ __forceinline__ void walk(F f) const {
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      const int begin = chunk * of_chunk;
      tile.begin(Schedule::left(cols, begin, of_chunk) - first_col, 0);
      walk_tile(tile, begin + first_col, f);
    }
  }

 private:
  static constexpr int kMost = BlockSums<Schedule, Tile>::kMost;
  template <int N>
  static constexpr int kWord = smaller<int>(N, kMost);

  template <int kCount>
  __device__ __forceinline__ static Pack<Compute, kCount>* shared_word(int64_t offset, int pack,
                                                                       int element, int by) {
    extern __shared__ __align__(16) char shared_row[];
    const int block = Schedule::threads() * Schedule::kRows;
    const int word = (pack * Tile::kWidth + element) / kMost * block + by;
    return reinterpret_cast<Pack<Compute, kCount>*>(reinterpret_cast<Compute*>(shared_row) +
                                                    offset + word * kMost + element % kMost);
  }
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
