// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The second stage of a backward pass: it adds up the partial sums of gradients that several slices
// share, in a fixed order.
#pragma once

#include <fusedops/core/lanes.cuh>
#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The partial sums of one gradient: for each of the `groups` rows of the result, `parts` rows of
/// `cols` columns, one after another.
template <class To, class Compute>
struct PartsOf {
  To to;
  Word<const Compute*> from;
  int64_t parts, groups, cols;
};

/// The partial sums of one gradient of which each result also adds up `pieces` neighbouring
/// columns: for each of the `groups` rows of the result, `parts` rows of `cols` times `pieces`
/// columns.
template <class To, class Compute>
struct PiecesOf {
  To to;
  Word<const Compute*> from;
  int64_t pieces, parts, groups, cols;
};

#if !defined(__CUDACC_RTC__)

/// Computes one row of one result on a CPU.
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

/// The order of summation, however many threads add up a column: first the parts that are 128
/// apart, then four neighbouring sums in pairs, then the 32 groups of four one by one.
inline constexpr int kSumApart = 128, kSumGroups = 32;

/// The columns and the threads of a block in the C++ entry points. The Python package chooses both
/// for each call (plan/second_stage.py).
inline constexpr int kSumColumns = 8, kSumThreads = kSumColumns * kSumApart;

namespace detail {

/// Elements of a word of 16 bytes.
template <class Compute>
inline constexpr int kMostWords = 16 / sizeof(Compute);

template <class Compute>
__device__ __forceinline__ Compute sum_of_group(const Compute* from, int64_t first, int64_t parts,
                                                int64_t cols) {
  Compute sum[4] = {};
  for (int64_t four = first; four < parts; four += kSumApart) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] += four + i < parts ? from[(four + i) * cols] : Compute(0);
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/// Sums a column by one thread.
template <class Compute>
__device__ __forceinline__ Compute sum_alone(const Compute* from, int64_t parts, int64_t cols) {
  Compute sum = 0;
#pragma unroll 4
  for (int64_t group = 0; group < kSumGroups; ++group) {
    if (4 * group >= parts) break;
    sum += sum_of_group(from, 4 * group, parts, cols);
  }
  return sum;
}

/// Sums a column by several threads, each of which takes one of 128 parts or one group of four. The
/// column's first thread returns the sum.
template <int kColumns, int kThreads, class Compute>
__device__ __forceinline__ Compute sum_together(const Compute* from, int64_t parts, int64_t cols) {
  static_assert(kThreads == kSumApart || kThreads == kSumGroups, "a thread has a part or a group");
  const int column = threadIdx.x % kColumns, place = threadIdx.x / kColumns;
  __shared__ Compute sums[kSumGroups][kColumns];
  Compute sum = 0;
  if constexpr (kThreads == kSumGroups) {
    sums[place][column] = sum_of_group(from, 4 * place, parts, cols);
  } else {
    static_assert(4 * kColumns == 32, "a group of parts is a warp's");
#pragma unroll 8
    for (int64_t part = place; part < parts; part += kSumApart) sum += from[part * cols];
    FUSEDOPS_UNROLL
    for (int step = kColumns; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 < kColumns) sums[threadIdx.x / 32][column] = sum;
  }
  __syncthreads();
  sum = 0;
  if (place > 0) return sum;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kSumGroups; ++i) sum += sums[i][column];
  return sum;
}

/// The same of kFour neighbouring columns by one thread for each group, whose reads are all in flight
/// together; `write(value, column)` gets the sums. `from` is aligned to four elements, and so is `cols`.
template <int kColumns, int kFour, class Compute, class F>
__device__ __forceinline__ void sum_side_by_side(const Compute* from, int64_t parts, int64_t cols,
                                                 bool here, const F& write) {
  constexpr int kAcross = kColumns / kFour;
  const int quad = threadIdx.x % kAcross, place = threadIdx.x / kAcross;
  __shared__ Compute sums[kSumGroups][kColumns];
  Compute sum[4][kFour] = {};
  if (here) {
#pragma unroll 4
    for (int64_t part = 4 * place; part < parts; part += kSumApart) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (part + i >= parts) continue;
        FUSEDOPS_UNROLL
        for (int j = 0; j < kFour; j += kMostWords<Compute>) {
          const auto word = read_input<kMostWords<Compute>>(from + (part + i) * cols + j);
          FUSEDOPS_UNROLL
          for (int k = 0; k < kMostWords<Compute>; ++k) sum[i][j + k] += word.at[k];
        }
      }
    }
  }
  FUSEDOPS_UNROLL
  for (int j = 0; j < kFour; ++j) {
    sums[place][quad * kFour + j] = (sum[0][j] + sum[1][j]) + (sum[2][j] + sum[3][j]);
  }
  __syncthreads();
  const int column = threadIdx.x;
  if (column >= kColumns) return;
  Compute all = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kSumGroups; ++i) all += sums[i][column];
  write(all, column);
}

/// Sums `terms` pieces by one warp: each part has `pieces` of them, and parts are `apart` elements
/// apart. Each lane adds up its own terms, then the warp adds up its lanes, all of which get the
/// sum.
template <class Index, class Compute>
__device__ __forceinline__ Compute sum_of_pieces(const Compute* from, Index pieces, Index terms,
                                                 int64_t apart) {
  Compute sum[4] = {};
  for (Index first = threadIdx.x % 32; first < terms; first += 128) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Index term = first + 32 * i;
      const Index part = term / pieces;
      sum[i] += term < terms ? from[part * apart + (term - part * pieces)] : Compute(0);
    }
  }
  return Lanes<32>{}.sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace detail

/// Sums each column by one warp.
template <int kColumns, int kThreads, int kOfThread, class To, class Compute>
__device__ __forceinline__ void column_sums(const PiecesOf<To, Compute>& all, int64_t block) {
  constexpr int kWarps = kColumns * kThreads / kOfThread / 32;
  const int64_t blocks_of_row = (all.cols + kColumns - 1) / kColumns;
  const int64_t group = block / blocks_of_row;
  const int64_t apart = all.cols * all.pieces;
  const int64_t terms = all.parts * all.pieces;
  for (int column = threadIdx.x / 32; column < kColumns; column += kWarps) {
    const int64_t col = block % blocks_of_row * kColumns + column;
    if (col >= all.cols) return;
    const Compute* from = all.from.value + group * all.parts * apart + col * all.pieces;
    Compute value[1];
    if (terms < int64_t(1) << 31) {  // 64-bit division is slow
      value[0] = detail::sum_of_pieces(from, static_cast<uint32_t>(all.pieces),
                                       static_cast<uint32_t>(terms), apart);
    } else {
      value[0] = detail::sum_of_pieces(from, all.pieces, terms, apart);
    }
    if (threadIdx.x % 32 == 0) all.to.write(value, RowIndex<1>{group, {group}}, col);
  }
}

template <int kColumns, int kThreads, int kOfThread, class To, class Compute>
__device__ __forceinline__ void column_sums(const PartsOf<To, Compute>& all, int64_t block) {
  const int64_t blocks_of_row = (all.cols + kColumns - 1) / kColumns;
  const int64_t group = block / blocks_of_row;
  const int64_t begin = block % blocks_of_row * kColumns;
  const int64_t col = begin + threadIdx.x % (kColumns / kOfThread) * kOfThread;
  const bool here = col < all.cols;
  const Compute* from = all.from.value + group * all.parts * all.cols + (here ? col : 0);
  if constexpr (kOfThread > 1) {
    static_assert(kThreads == kSumGroups, "a thread has a group of parts");
    detail::sum_side_by_side<kColumns, kOfThread>(
        from, all.parts, all.cols, here, [&](Compute sum, int column) {
          const Compute value[1] = {sum};
          if (begin + column < all.cols) {
            all.to.write(value, RowIndex<1>{group, {group}}, begin + column);
          }
        });
  } else {
    Compute value[1];
    if constexpr (kThreads == 1) {
      value[0] = detail::sum_alone(from, all.parts, all.cols);
    } else {
      value[0] = detail::sum_together<kColumns, kThreads>(from, all.parts, all.cols);
    }
    if (threadIdx.x < kColumns && here) all.to.write(value, RowIndex<1>{group, {group}}, col);
  }
}

/// Computes one block of one of the sums; kThreads threads add up a column, or kOfThread neighbouring
/// ones.
template <int kColumns = kSumColumns, int kThreads = kSumApart, int kOfThread = 1, class First,
          class... Rest>
__device__ __forceinline__ void all_column_sums(int64_t block, const First& first,
                                                const Rest&... rest) {
  const int64_t blocks = (first.cols + kColumns - 1) / kColumns * first.groups;
  if (block < blocks) return column_sums<kColumns, kThreads, kOfThread>(first, block);
  if constexpr (sizeof...(Rest) > 0) {
    all_column_sums<kColumns, kThreads, kOfThread>(block - blocks, rest...);
  }
}

#else

/// Computes row `number`, counted over the rows of all sums.
template <class First, class... Rest>
inline void all_column_sums(int64_t number, const First& first, const Rest&... rest) {
  if (number < first.groups) return host_column_sums(first, number);
  if constexpr (sizeof...(Rest) > 0) all_column_sums(number - first.groups, rest...);
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
