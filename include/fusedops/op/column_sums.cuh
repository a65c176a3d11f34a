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

/// Columns that a block sums, of many parts: a sector of memory each, and as many parts at a time as
/// there are threads. Of few parts a thread has a column (fusedops/backward.py).
inline constexpr int kSumThreads = 1024, kSumColumns = 8;

namespace detail {

// The order of additions, whoever does them: parts 128 apart, then four neighbours in pairs, then the
// groups of four one by one.
inline constexpr int kSumApart = kSumThreads / kSumColumns, kSumGroups = kSumApart / 4;

/// Every thread a column, of no more parts than are apart: nothing to exchange.
template <class Compute>
__device__ __forceinline__ Compute sum_of_few(const Compute* from, int64_t parts, int64_t cols) {
  Compute sum = 0;
#pragma unroll 4
  for (int64_t four = 0; four < parts; four += 4) {
    Compute part[4];
    FUSEDOPS_UNROLL
    for (int i = 0; i < 4; ++i) part[i] = four + i < parts ? from[(four + i) * cols] : Compute(0);
    sum += (part[0] + part[1]) + (part[2] + part[3]);
  }
  return sum;
}

/// Every thread a part of a column; the column's first thread has the sum.
template <class Compute>
__device__ __forceinline__ Compute sum_of_many(const Compute* from, int64_t parts, int64_t cols) {
  const int column = threadIdx.x % kSumColumns;
  Compute sum = 0;
#pragma unroll 8
  for (int64_t part = threadIdx.x / kSumColumns; part < parts; part += kSumApart) {
    sum += from[part * cols];
  }
  FUSEDOPS_UNROLL
  for (int step = kSumColumns; step < 32; step *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  __shared__ Compute sums[kSumGroups][kSumColumns];
  if (threadIdx.x % 32 < kSumColumns) sums[threadIdx.x / 32][column] = sum;
  __syncthreads();
  sum = 0;
  if (threadIdx.x >= kSumColumns) return sum;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kSumGroups; ++i) sum += sums[i][column];
  return sum;
}

}  // namespace detail

template <int kColumns, class To, class Compute>
__device__ __forceinline__ void column_sums(const PartsOf<To, Compute>& all, int64_t block) {
  const int64_t blocks_of_row = (all.cols + kColumns - 1) / kColumns;
  const int64_t group = block / blocks_of_row;
  const int64_t col = block % blocks_of_row * kColumns + threadIdx.x % kColumns;
  const bool here = col < all.cols;
  const Compute* from = all.from.value + group * all.parts * all.cols + (here ? col : 0);
  Compute value[1];
  if constexpr (kColumns == kSumColumns) {
    value[0] = detail::sum_of_many(from, all.parts, all.cols);
  } else {
    value[0] = detail::sum_of_few(from, all.parts, all.cols);
  }
  if (threadIdx.x < kColumns && here) all.to.write(value, RowIndex<1>{group, {group}}, col);
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
