// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// wgmma leaves pairs of neighbouring columns in a thread: four neighbouring lanes hold 8 columns of a
// row, and 8 columns on the next ones. They exchange them, so that each has 8 neighbouring columns of
// one row: wide accesses, and one draw of the random generator in place of four.
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Transposes the 4 x 4 items of four neighbouring lanes; twice is as before. The lanes of the warp
/// are converged.
template <class Item, int kItems>
__device__ __forceinline__ void exchange(Item (&items)[4][kItems]) {
  FUSEDOPS_UNROLL
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (threadIdx.x & step) != 0;
    FUSEDOPS_UNROLL
    for (int low = 0; low < 4; ++low) {
      if ((low & step) != 0) continue;
      FUSEDOPS_UNROLL
      for (int i = 0; i < kItems; ++i) {
        Item& first = items[low][i];
        Item& second = items[low | step][i];
        const Item got = __shfl_xor_sync(0xffffffffu, upper ? first : second, step);
        if (upper) {  // not through a reference to either: these are registers
          first = got;
        } else {
          second = got;
        }
      }
    }
  }
}

/// The same for pairs of 16 bits, through shared memory of the warp: the instruction stmatrix writes
/// what takes four shuffles and eight selections otherwise. All lanes; kBytes for each of two calls in
/// a row, since a lane may write for the next one while others read.
struct PairExchange {
  static constexpr int kBytes = 512;
  uint32_t to, from;

  __device__ __forceinline__ explicit PairExchange(uint32_t shared) {
    // Matrix m, of 8 x 8, has 128 bytes; its rows are turned by 2 m, so that banks are read evenly.
    const uint32_t lane = threadIdx.x % 32;
    to = shared + lane / 8 * 128 + (lane % 8 + lane / 8 * 2) % 8 * 16;
    from = shared + lane % 4 * 128 + (lane / 4 + lane % 4 * 2) % 8 * 16;
  }
  template <int kNth>
  __device__ __forceinline__ void operator()(uint32_t (&pairs)[4]) const {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     to + kNth * kBytes),
                 "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3])
                 : "memory");
    __syncwarp();
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(from + kNth * kBytes)
                 : "memory");
  }
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
