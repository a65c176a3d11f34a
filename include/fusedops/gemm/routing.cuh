// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What stands around products of groups (gemm/groups.cuh) whose rows are tokens, each copied for some of the
// groups: the order of rows by group, copies of tokens to rows, and sums of a token's rows. A choice is one
// of the groups of a token; choice i is that of token i / choices.
#pragma once

#include <fusedops/core/dependency.cuh>
#include <fusedops/core/memory.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// Sorts choices by group, those of one group in their order, and numbers of no group behind all others: a
/// counting sort. Each block counts the rows of all blocks by itself, so blocks need not meet, and each
/// warp has neighbouring rows, counts them alone and then knows where its rows of each group begin. Numbers
/// are added by atomics where their sum alone matters.
///
/// rows: of the groups in all; each: those of a block. order: the choice of each row
/// of the groups; place: the row of each choice; offsets: where each group begins, and at last `rows`.
/// sorted: the weights of choices in that order.
template <int kThreads, class Index, class T>
__device__ __forceinline__ void route(const Index* group_of, const T* weights, int64_t rows,
                                      int64_t groups, int64_t each, int64_t* order, int64_t* place,
                                      int32_t* offsets, T* sorted) {
  constexpr int kWarps = kThreads / 32;
  extern __shared__ __align__(16) char memory[];
  const int count = static_cast<int>(rows), none = static_cast<int>(groups), bins = none + 1;
  // Of each group: its rows in a warp, then where these begin among those of the group; its rows before
  // this block's, then all of them and where they begin; and its rows behind this block's.
  int* const of_warps = reinterpret_cast<int*>(memory);
  int* const before = of_warps + kWarps * bins;
  int* const behind = before + bins;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  int* const own = of_warps + warp * bins;
  const auto bin_of = [&](int choice) {
    const Index group = __ldg(group_of + choice);
    return group >= 0 && group < groups ? static_cast<int>(group) : none;
  };
  // The lanes whose choice is of the same group as this one's; none of a lane without a choice.
  const auto equal_lanes = [&](int bin) {
    const unsigned equal = __match_any_sync(0xffffffffu, bin);
    return bin < 0 ? 0u : equal;
  };
  const unsigned lower = (1u << lane) - 1;

#pragma unroll 1
  for (int i = thread; i < (kWarps + 2) * bins; i += kThreads) of_warps[i] = 0;
  __syncthreads();
  const int of_block = static_cast<int>(each), of_warp = (of_block + kThreads - 1) / kThreads * 32;
  const int first = static_cast<int>(blockIdx.x) * of_block;
  const int last = first + of_block < count ? first + of_block : count;
  const int begin = first + warp * of_warp;  // a warp may have none
  const int end = begin + of_warp < last ? begin + of_warp : last;
#pragma unroll 4
  for (int i = thread; i < first; i += kThreads) atomicAdd(before + bin_of(i), 1);
#pragma unroll 4
  for (int i = last + thread; i < count; i += kThreads) atomicAdd(behind + bin_of(i), 1);
#pragma unroll 1  // a kernel of a few microseconds waits for its code, too
  for (int i = begin; i < end; i += 32) {
    const int bin = i + lane < end ? bin_of(i + lane) : -1;
    const unsigned equal = equal_lanes(bin);
    if (equal != 0 && (equal & lower) == 0) own[bin] += __popc(equal);
    __syncwarp();
  }
  __syncthreads();

#pragma unroll 1
  for (int bin = thread; bin < bins; bin += kThreads) {
    int sum = before[bin];
    FUSEDOPS_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const int mine = of_warps[w * bins + bin];
      of_warps[w * bins + bin] = sum;
      sum += mine;
    }
    before[bin] = sum + behind[bin];
  }
  __syncthreads();
  if (warp == 0) {  // a lane has neighbouring groups
    const int of_lane = (bins + 31) / 32, from = lane * of_lane;
    const int to = from + of_lane < bins ? from + of_lane : bins;
    int sum = 0;
#pragma unroll 1
    for (int bin = from; bin < to; ++bin) sum += before[bin];
    int all = sum;
    FUSEDOPS_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, all, step);
      if (lane >= step) all += below;
    }
    all -= sum;
#pragma unroll 1
    for (int bin = from; bin < to; ++bin) {
      const int mine = before[bin];
      before[bin] = all;
      if (blockIdx.x == 0) offsets[bin] = bin < none ? all : count;
      all += mine;
    }
  }
  __syncthreads();

#pragma unroll 1
  for (int i = begin; i < end; i += 32) {
    const int choice = i + lane < end ? i + lane : end - 1;
    const auto weight = read_input<1>(weights + choice);
    const int bin = i + lane < end ? bin_of(choice) : -1;
    const unsigned equal = equal_lanes(bin);
    const int at = equal != 0 ? before[bin] + own[bin] + __popc(equal & lower) : 0;
    __syncwarp();
    if (equal != 0) {
      if ((equal & lower) == 0) own[bin] += __popc(equal);
      order[at] = choice;
      place[choice] = at;
      write(sorted + at, weight);
    }
    __syncwarp();
  }
}

/// Sorts choices, and copies each token, whose rows are `apart` numbers apart, to its rows. Blocks have whole
/// tokens: a block copies its own as soon as it knows their places.
template <int kThreads, class Index, class T, class X, int W>
__device__ __forceinline__ void route_and_copy(const Index* group_of, const T* weights,
                                               int64_t rows, int64_t groups, int64_t each,
                                               int64_t* order, int64_t* place, int32_t* offsets,
                                               T* sorted, const X* x, int64_t apart,
                                               int64_t choices, int64_t cols, X* to) {
  route<kThreads>(group_of, weights, rows, groups, each, order, place, offsets, sorted);
  __syncthreads();
  const int count = static_cast<int>(rows), of_token = static_cast<int>(choices);
  const int first = static_cast<int>(blockIdx.x * each);
  const int own = first + static_cast<int>(each) < count ? static_cast<int>(each) : count - first;
  const int packs = static_cast<int>(cols) / W;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < own / of_token * packs; i += kThreads) {
    const int token = i / packs, choice = first + token * of_token;
    const int64_t col = hidden(int64_t(i - token * packs) * W);
    const auto pack = read_input<W>(x + choice / of_token * apart + col);
#pragma unroll 1
    for (int j = 0; j < of_token; ++j) write(to + place[choice + j] * cols + col, pack);
  }
}

/// A pack of the columns of a token, of which a thread has one: blocks go along columns first.
template <int kThreads, int W>
struct PackOfToken {
  int64_t token, col;

  __device__ __forceinline__ explicit PackOfToken(int64_t cols) {
    const unsigned blocks = static_cast<unsigned>((cols + kThreads * W - 1) / (kThreads * W));
    const unsigned of = blockIdx.x / blocks;
    token = of;
    col = hidden((int64_t(blockIdx.x - of * blocks) * kThreads + threadIdx.x) * W);
  }
};

/// Copies each token, whose rows are `apart` numbers apart, to its rows.
template <int kThreads, class T, int W>
__device__ __forceinline__ void copy_tokens(const T* x, int64_t apart, const int64_t* place,
                                            int64_t choices, int64_t cols, T* rows) {
  const PackOfToken<kThreads, W> at(cols);
  if (at.col >= cols) return;
  const auto pack = read_input<W>(x + at.token * apart + at.col);
#pragma unroll 4
  for (int64_t i = at.token * choices; i < (at.token + 1) * choices; ++i) {
    write(rows + __ldg(place + i) * cols + at.col, pack);
  }
}

/// Sums the rows of each token in the order of its choices, in Compute, and converts the sum to T: 16-bit
/// numbers are rounded once. place: the row of each choice; null where rows are in that order.
template <int kThreads, class T, int W, class Compute>
__device__ __forceinline__ void sum_choices(const T* rows, int64_t apart, const int64_t* place,
                                            int64_t choices, int64_t cols, T* y) {
  constexpr int kAtOnce = 8;  // rows that are read before the first is added
  const PackOfToken<kThreads, W> at(cols);
  if (at.col >= cols) return;
  Compute sums[W] = {};
  const int64_t first = at.token * choices;
  for (int64_t begin = 0; begin < choices; begin += kAtOnce) {
    Pack<T, W> packs[kAtOnce];
    FUSEDOPS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i < choices) {
        const int64_t choice = first + begin + i;
        const int64_t row = place == nullptr ? choice : __ldg(place + choice);
        packs[i] = read_input<W>(rows + row * apart + at.col);
      }
    }
    FUSEDOPS_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i < choices) {
        FUSEDOPS_UNROLL
        for (int j = 0; j < W; ++j) sums[j] += convert<Compute>(packs[i].at[j]);
      }
    }
  }
  Pack<T, W> pack;
  FUSEDOPS_UNROLL
  for (int j = 0; j < W; ++j) pack.at[j] = convert<T>(sums[j]);
  write(y + at.token * cols + at.col, pack);
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
