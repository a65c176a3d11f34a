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
/// lane go through each functor together, 1, 2 or 4. kMajor, kMajorOfX: along which dimension w and x are
/// contiguous.
template <class Factor_, int kTileM_, int kTileN_, int kStages_, bool kInTurns_, int kPacks_,
          Major kMajor, Major kMajorOfX = Major::kK>
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
  /// Bytes beside the stages: Handover::kShared. x.T @ w has no STORE and no bias, and CopiedRows::kShared.
  static constexpr bool kHandsOver = kMajorOfX == Major::kK;
  static constexpr int kScratch =
      kHandsOver ? 8 * kHandedPacks * 512 + 128 : kTileM * (kTileN * 2 + 16) + 128;
  using Ring = gemm::Ring<kTileM, kTileN, kStages, kInTurns ? 4 : 8, kScratch,
                          kInTurns || kPromotes || !kHandsOver ? 0 : kTileN * 2, kMajor, kMajorOfX>;

  /// The sums of a thread: of each instruction, of 8 columns, of the row and the row 8 below, two
  /// columns.
  using Sums = float[kHalves * kAcross][kTileN / kAcross / 2];

  /// Issues the products of a stage. below: the first of the warpgroup's rows in the tile.
  __device__ __forceinline__ static void multiply(Sums& sums, const Ring& ring, int stage,
                                                  int below, bool adds) {
    const uint64_t x = wgmma_tile<kMajorOfX>(ring.x(stage) + below * kStageBytes);
    const uint64_t w = wgmma_tile<kMajor>(ring.w(stage));
    wgmma_fence();
    FUSEDOPS_UNROLL
    for (int k = 0; k < kStageBytes / 32; ++k) issue(sums, x, w, k, adds || k > 0);
    wgmma_commit();
  }

  /// The same of the first `depth` rows of a stage, where both factors are MN-major; waits for the products.
  /// What lies below is of no use, and may be NaN or Inf, so up to the next multiple of 16 rows, which an
  /// instruction multiplies, it is set to zero. Both warpgroups do so in w, and need not wait for each other.
  __device__ __forceinline__ static void multiply_first(Sums& sums, const Ring& ring, int stage,
                                                        int below, int depth, bool adds) {
    static_assert(kMajor == Major::kMN && kMajorOfX == Major::kMN, "K goes down the rows");
    static_assert(kHalves == 1 && kTileN % 64 == 0, "boxes of 64 columns");
    const uint32_t own = ring.x(stage) + below * kStageBytes;
    if (depth % 16 > 0) {
      const int thread = threadIdx.x % 128, row = depth / 16 * 16 + thread / 8;
      const uint32_t word = row * kStageBytes + thread % 8 * 16;
      if (row >= depth) {
        set_word_zero(own + word);
        FUSEDOPS_UNROLL
        for (int c = 0; c < kTileN; c += 64) set_word_zero(ring.w(stage) + c * kStageBytes + word);
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync %0, 128;" ::"r"(1 + below / 64) : "memory");
    }
    const uint64_t x = wgmma_tile<kMajorOfX>(own), w = wgmma_tile<kMajor>(ring.w(stage));
#pragma unroll 1
    for (int k = 0; k * 16 < depth; ++k) {
      wgmma_fence();
      issue(sums, x, w, k, adds || k > 0);
      wgmma_commit();
      wgmma_wait<0>();
    }
  }

 private:
  /// The products of the kth 32 bytes of K of a stage.
  __device__ __forceinline__ static void issue(Sums& sums, uint64_t x, uint64_t w, int k,
                                               bool adds) {
    // From these to the next ones, in words of 16 bytes: along rows, or 16 rows below.
    constexpr int kNext = kMajor == Major::kK ? 2 : 16 * 128 / 16;
    constexpr int kNextOfX = kMajorOfX == Major::kK ? 2 : 16 * 128 / 16;
    FUSEDOPS_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      FUSEDOPS_UNROLL
      for (int a = 0; a < kAcross; ++a) {
        wgmma<Factor, kMajorOfX, kMajor>(
            sums[h * kAcross + a], x + h * (64 * kStageBytes / 16) + k * kNextOfX,
            w + a * (kTileN / kAcross * kStageBytes / 16) + k * kNext, adds);
      }
    }
  }
  /// Of 16 bytes of shared memory.
  __device__ __forceinline__ static void set_word_zero(uint32_t at) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
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
