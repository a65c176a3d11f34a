// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How a product's sums go from the warps that multiply to those that run the STORE: through shared
// memory, rounded to the factors' type as a product that is written to memory is.
#pragma once

#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/products.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// What one warp that multiplies hands over: its rows of a tile of kCols columns, 16 packs for each of
/// 32 lanes. Words of 16 bytes are exchanged within groups of 8 by the row's number, so that neither
/// who writes nor who reads meets a bank twice.
/// kBeside: of a row, the packs that a lane reads together, a half of the columns apart, 1 or 2.
template <int kCols, int kBeside = 1>
struct Handover {
  static constexpr int kPacks = 16, kBytes = kPacks * 32 * 16, kPitch = kCols * 2;
  /// Rows that a warp reads at once, and the lanes of each.
  static constexpr int kLanes = kCols / kPack / kBeside, kRowsAtOnce = 32 / kLanes;
  /// The packs of a lane, those beside each other counted once.
  static constexpr int kReads = kPacks / kBeside;
  static constexpr int kWarps = 8;
  /// Of shared memory: the rows of all warps, and their barriers.
  static constexpr int kShared = kWarps * kBytes + 2 * kWarps * 8;

  uint32_t rows;
  StageBarrier* full;
  StageBarrier* empty;

  /// That of the nth warp that multiplies; memory is aligned to 1024 bytes.
  __device__ __forceinline__ Handover(char* memory, int nth)
      : rows(detail::shared_address(memory) + nth * kBytes),
        full(reinterpret_cast<StageBarrier*>(memory + kWarps * kBytes) + nth),
        empty(full + kWarps) {}

  /// By one thread, before barriers are made visible.
  __device__ __forceinline__ static void make(char* memory) {
    for (int i = 0; i < kWarps; ++i) {
      const Handover one(memory, i);
      one.full->make(1);
      one.empty->make(1);
    }
  }

  /// By all lanes: waits until the last sums have been read, then hands over others. kInstructions of
  /// kRegisters each lie side by side (kAcross), or 16 rows below each other.
  template <class T, int kAcross, int kInstructions, int kRegisters>
  __device__ __forceinline__ void write(const float (&sums)[kInstructions][kRegisters],
                                        uint32_t parity) const {
    const int lane = lane_of_warp();
    const int row = lane % 16, high = lane / 16;
    empty->wait(parity ^ 1);
    FUSEDOPS_UNROLL
    for (int n = 0; n < kInstructions; ++n) {
      const uint32_t to = rows + (n / kAcross * 16 + row) * kPitch;
      FUSEDOPS_UNROLL
      for (int j = 0; j < kRegisters / 4; j += 2) {
        const int word = n % kAcross * (kRegisters / 4) + j + high;
        const float* of = sums[n] + j * 4;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + (word ^ (row % 8)) * 16),
                     "r"(pair_of<T>(of[0], of[1])), "r"(pair_of<T>(of[2], of[3])),
                     "r"(pair_of<T>(of[4], of[5])), "r"(pair_of<T>(of[6], of[7]))
                     : "memory");
      }
    }
    __syncwarp();
    if (lane == 0) full->arrive();
  }
  /// The same without sums, of which none will be used.
  __device__ __forceinline__ void pass(uint32_t parity) const {
    empty->wait(parity ^ 1);
    __syncwarp();
    if (lane_of_warp() == 0) full->arrive();
  }

  /// The nth pack of this lane, or the one beside it, as pairs of numbers.
  __device__ __forceinline__ void read(uint32_t (&pairs)[kPack / 2], int nth,
                                       int beside = 0) const {
    const int lane = lane_of_warp();
    const int row = nth * kRowsAtOnce + lane / kLanes, word = lane % kLanes + beside * kLanes;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(rows + row * kPitch + (word ^ (row % 8)) * 16)
                 : "memory");
  }
  /// The nth pack of this lane.
  template <class T>
  __device__ __forceinline__ void read(float (&values)[kPack], int nth) const {
    uint32_t pairs[kPack / 2];
    read(pairs, nth);
    FUSEDOPS_UNROLL
    for (int c = 0; c < 4; ++c) from_pair<T>(pairs[c], values[2 * c], values[2 * c + 1]);
  }
  /// By all lanes, after the last read.
  __device__ __forceinline__ void release() const {
    __syncwarp();
    if (lane_of_warp() == 0) empty->arrive();
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
