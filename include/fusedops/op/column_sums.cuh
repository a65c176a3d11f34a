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

inline constexpr int kSumThreads = 1024;

/// Columns that a block sums: of many parts a sector of memory each, and as many parts at a time as
/// there are threads; of few parts so many that no thread is without one (fusedops/backward.py).
inline constexpr int kSumColumns = 8;

template <int kColumns, class To, class Compute>
__device__ __forceinline__ void column_sums(const PartsOf<To, Compute>& all, int64_t block) {
  constexpr int kAtOnce = kSumThreads / kColumns;
  constexpr int kLeft = kColumns < 32 ? kSumThreads / 32 : kAtOnce;  // after the lanes of a warp
  const int64_t blocks_of_row = (all.cols + kColumns - 1) / kColumns;
  const int64_t group = block / blocks_of_row;
  const int64_t col = block % blocks_of_row * kColumns + threadIdx.x % kColumns;
  Compute sum = 0;
  if (col < all.cols) {
    const Compute* from = all.from.value + group * all.parts * all.cols + col;
#pragma unroll 8
    for (int64_t part = threadIdx.x / kColumns; part < all.parts; part += kAtOnce) {
      sum += from[part * all.cols];
    }
  }
  FUSEDOPS_UNROLL
  for (int step = kColumns; step < 32; step *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  __shared__ Compute sums[kLeft][kColumns];
  const int thread = threadIdx.x;
  if (kColumns >= 32 || thread % 32 < kColumns) {
    sums[thread * kLeft / kSumThreads][thread % kColumns] = sum;
  }
  __syncthreads();
  if (thread >= kColumns || col >= all.cols) return;
  sum = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kLeft; ++i) sum += sums[i][thread];
  const Compute value[1] = {sum};
  all.to.write(value, RowIndex<1>{group, {group}}, col);
}

/// Each block does one block of one of the sums.
template <int kColumns = kSumColumns, class First, class... Rest>
__device__ __forceinline__ void all_column_sums(int64_t block, const First& first,
                                                const Rest&... rest) {
  const int64_t blocks = (first.cols + kColumns - 1) / kColumns * first.groups;
  if (block < blocks) return column_sums<kColumns>(first, block);
  if constexpr (sizeof...(Rest) > 0) all_column_sums<kColumns>(block - blocks, rest...);
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
