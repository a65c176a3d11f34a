// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The second stage of gradients that slices share: adds up their parts, in a fixed order.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// `parts` rows of `cols` columns follow one another for each of `groups` rows of the result.
template <class To, class Compute>
struct PartsOf {
  To to;
  Word<const Compute*> from;
  int64_t parts, groups, cols;
};

#if !defined(__CUDACC_RTC__)

/// One row of one sum, on a CPU.
template <class To, class Compute>
inline void host_column_sums(const PartsOf<To, Compute>& all, int64_t group) {
  constexpr int kWidth = 64;
  for (int64_t col = 0; col < all.cols; col += kWidth) {
    const int64_t count = smaller<int64_t>(all.cols - col, kWidth);
    const Compute* from = all.from.value + group * all.parts * all.cols + col;
    Compute sum[kWidth] = {};
    for (int64_t part = 0; part < all.parts; ++part) {
      for (int64_t i = 0; i < count; ++i) sum[i] += from[part * all.cols + i];
    }
    for (int64_t i = 0; i < count; ++i) {
      const Compute value[1] = {sum[i]};
      all.to.write(value, RowIndex<1>{group, {group}}, col + i);
    }
  }
}

#endif

#if defined(FUSEDOPS_CUDA)

/// A block sums kSumColumns columns: a sector of memory for each part, and as many parts at a time
/// as there are threads.
inline constexpr int kSumColumns = 8;
inline constexpr int kSumThreads = 1024;

template <class To, class Compute>
__device__ __forceinline__ void column_sums(const PartsOf<To, Compute>& all, int64_t block) {
  constexpr int kAtOnce = kSumThreads / kSumColumns;
  constexpr int kWarps = kSumThreads / 32;
  const int64_t blocks_of_row = (all.cols + kSumColumns - 1) / kSumColumns;
  const int64_t group = block / blocks_of_row;
  const int64_t col = block % blocks_of_row * kSumColumns + threadIdx.x % kSumColumns;
  Compute sum = 0;
  if (col < all.cols) {
    const Compute* from = all.from.value + group * all.parts * all.cols + col;
#pragma unroll 8
    for (int64_t part = threadIdx.x / kSumColumns; part < all.parts; part += kAtOnce) {
      sum += from[part * all.cols];
    }
  }
  FUSEDOPS_UNROLL
  for (int step = kSumColumns; step < 32; step *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  __shared__ Compute sums[kWarps][kSumColumns];
  if (threadIdx.x % 32 < kSumColumns) sums[threadIdx.x / 32][threadIdx.x % 32] = sum;
  __syncthreads();
  if (threadIdx.x >= kSumColumns || col >= all.cols) return;
  sum = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kWarps; ++i) sum += sums[i][threadIdx.x];
  const Compute value[1] = {sum};
  all.to.write(value, RowIndex<1>{group, {group}}, col);
}

/// Each block does one block of one of the sums.
template <class First, class... Rest>
__device__ __forceinline__ void all_column_sums(int64_t block, const First& first,
                                                const Rest&... rest) {
  const int64_t blocks = (first.cols + kSumColumns - 1) / kSumColumns * first.groups;
  if (block < blocks) return column_sums(first, block);
  if constexpr (sizeof...(Rest) > 0) all_column_sums(block - blocks, rest...);
}

#else

/// Row `number` of all rows of all sums.
template <class First, class... Rest>
inline void all_column_sums(int64_t number, const First& first, const Rest&... rest) {
  if (number < first.groups) return host_column_sums(first, number);
  if constexpr (sizeof...(Rest) > 0) all_column_sums(number - first.groups, rest...);
}

#endif

}  // namespace fusedops
