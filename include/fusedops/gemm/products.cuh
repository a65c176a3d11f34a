// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What a warp that multiplies does with one stage, and where the sums then are.
#pragma once

#include <fusedops/gemm/pipeline.cuh>
#include <fusedops/gemm/wgmma.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// A tile of a product of two matrices of T, with 16 bits; what the kernels are compiled for.
///
/// kTileM, kTileN: rows of x and of w. kInTurns: whether a warpgroup has a tile alone, or half of one.
template <class T_, int kTileM_, int kTileN_, int kStages_, bool kInTurns_>
struct Tiling {
  using T = T_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_;
  static constexpr bool kInTurns = kInTurns_;
  static constexpr int kThreads = 384;  // one warpgroup that produces, two that multiply
  static constexpr int kHalves = kInTurns ? kTileM / 64 : kTileM / 128;  // 64 rows of a warpgroup
  static_assert(kHalves * kTileN == 256, "128 registers of a thread hold sums");
  using Ring = gemm::Ring<kTileM, kTileN, kStages, kInTurns ? 4 : 8>;

  /// The sums of a thread: of each half, of 8 columns, of the row and the row 8 below, two columns.
  using Sums = float[kHalves][kTileN / 2];

  /// Issues the products of a stage. below: the first of the warpgroup's rows in the tile.
  __device__ __forceinline__ static void multiply(Sums& sums, const Ring& ring, int stage,
                                                  int below, bool adds) {
    const uint64_t x = wgmma_tile(ring.x(stage) + below * kStageK * 2);
    const uint64_t w = wgmma_tile(ring.w(stage));
    wgmma_fence();
    FUSEDOPS_UNROLL
    for (int k = 0; k < kStageK / 16; ++k) {
      FUSEDOPS_UNROLL
      for (int h = 0; h < kHalves; ++h) {
        wgmma<T>(sums[h], x + h * (64 * kStageK * 2 / 16) + k * 2, w + k * 2, adds || k > 0);
      }
    }
    wgmma_commit();
  }
};

/// Registers of a multiprocessor's 65536: a producer needs few, sums many.
__device__ __forceinline__ void keep_few_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
}
__device__ __forceinline__ void take_many_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
}

/// Two values rounded to 16 bits, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pair_of(float first, float second) {
  if constexpr (detail::IsSame<T, half>::value) {
    return bit_cast<uint32_t>(__floats2half2_rn(first, second));
  } else {
    return bit_cast<uint32_t>(__floats2bfloat162_rn(first, second));
  }
}
template <class T>
__device__ __forceinline__ void from_pair(uint32_t pair, float& first, float& second) {
  if constexpr (detail::IsSame<T, half>::value) {
    const float2 both = __half22float2(bit_cast<__half2>(pair));
    first = both.x;
    second = both.y;
  } else {
    first = bit_cast<float>(pair << 16);
    second = bit_cast<float>(pair & 0xffff0000u);
  }
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
