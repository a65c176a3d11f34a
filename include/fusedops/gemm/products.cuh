// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What a warp that multiplies does with one stage, and where the sums then are.
#pragma once

#include <fusedops/gemm/pipeline.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The type to which a product is rounded before the STORE gets it: that of its factors, or bfloat16 of
/// factors of 8 bits.
template <class Factor>
struct Rounded {
  using Type = Factor;
};
template <>
struct Rounded<float8_e4m3> {
  using Type = bfloat16;
};
template <>
struct Rounded<float8_e5m2> {
  using Type = bfloat16;
};

/// A tile of a product of two matrices of Factor, with 8 or 16 bits; what the kernels are compiled for. Which
/// there are, `TILINGS` in schedule/architectures.py says.
///
/// kTileM, kTileN: rows of x and of w. kInTurns: whether a warpgroup has a tile alone, or half of one: both
/// together on a large tile read less from the L2 cache and from shared memory. kPacks: how many packs of a
/// lane go through each functor together, 1, 2 or 4.
template <class Factor_, int kTileM_, int kTileN_, int kStages_, bool kInTurns_, int kPacks_,
          Major kMajor>
struct Tiling {
  using Factor = Factor_;
  using T = typename Rounded<Factor>::Type;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kStages = kStages_;
  static constexpr bool kInTurns = kInTurns_;
  /// One warpgroup that produces, two that multiply, and one for the STORE.
  static constexpr int kThreads = 512, kPacks = kPacks_;
  static constexpr int kHalves = kInTurns ? kTileM / 64 : kTileM / 128;  // 64 rows of a warpgroup
  /// Instructions beside each other. One of 256 columns needs more registers than a thread of so large a
  /// block begins with, which ptxas refuses, whatever the thread takes later.
  static constexpr int kAcross = kTileN > 192 ? 2 : 1;
  /// Whether the sum of each stage is added to the others by additions of float32. Tensor cores keep no
  /// more than 14 bits of a sum of products of 8 bits, so it has the registers of a second one.
  static constexpr bool kPromotes = sizeof(Factor) == 1;
  /// The registers of a thread that multiplies, and those of them that hold sums; the epilogue has the rest.
  static constexpr int kSums = (kPromotes ? 2 : 1) * kHalves * kTileN / 2, kRegisters = kSums + 40;
  static_assert(kSums <= 128 && kRegisters % 8 == 0, "as setmaxnreg takes them");
  /// What a warp hands over: packs of a lane.
  static constexpr int kHandedPacks = kHalves * kTileN / 16;
  static constexpr int kScratch = 8 * kHandedPacks * 512 + 128;  // Handover::kShared
  using Ring = gemm::Ring<kTileM, kTileN, kStages, kInTurns ? 4 : 8, kScratch,
                          kInTurns || kPromotes ? 0 : kTileN * 2, kMajor>;

  /// The sums of a thread: of each instruction, of 8 columns, of the row and the row 8 below, two
  /// columns.
  using Sums = float[kHalves * kAcross][kTileN / kAcross / 2];

  /// Issues the products of a stage. below: the first of the warpgroup's rows in the tile.
  __device__ __forceinline__ static void multiply(Sums& sums, const Ring& ring, int stage,
                                                  int below, bool adds) {
    const uint64_t x = wgmma_tile(ring.x(stage) + below * kStageBytes);
    const uint64_t w = wgmma_tile<kMajor>(ring.w(stage));
    // From 32 bytes of K to the next ones, in words of 16 bytes: along rows, or 16 rows below.
    constexpr int kNext = kMajor == Major::kK ? 2 : 16 * 128 / 16;
    wgmma_fence();
    FUSEDOPS_UNROLL
    for (int k = 0; k < kStageBytes / 32; ++k) {
      FUSEDOPS_UNROLL
      for (int h = 0; h < kHalves; ++h) {
        FUSEDOPS_UNROLL
        for (int a = 0; a < kAcross; ++a) {
          wgmma<Factor, Major::kK, kMajor>(
              sums[h * kAcross + a], x + h * (64 * kStageBytes / 16) + k * 2,
              w + a * (kTileN / kAcross * kStageBytes / 16) + k * kNext, adds || k > 0);
        }
      }
    }
    wgmma_commit();
  }
};

/// Gives each thread of the calling warpgroup so many of a multiprocessor's 65536 registers: a producer
/// needs few, sums many.
template <class Tiling, int kCount>
__device__ __forceinline__ void set_registers() {
  if constexpr (kCount < 65536 / Tiling::kThreads) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

/// A warpgroup's turn to multiply. Waiting for it also orders the parities of the ring: while the
/// other has not seen its last stage, that of a trip long past would read as that of the next.
struct Turn {
  int mine;

  __device__ __forceinline__ void wait() const {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + mine) : "memory");
  }
  __device__ __forceinline__ void pass_on() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - mine) : "memory");
  }
};

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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
