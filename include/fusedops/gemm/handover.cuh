// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How a product's sums go from the warps that multiply to those that run the STORE: through shared
// memory, rounded as a product that is written to memory is.
#pragma once

#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/products.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// What one warp that multiplies hands over: its rows of a tile, packs for each of 32 lanes. Words of 16 bytes are exchanged within groups of 8 by the row's number, so that neither
/// who writes nor who reads meets a bank twice.
/// kHalves: where a pack of the other half of the product is that a lane reads with each pack.
template <class Tiling, Halves kHalves = Halves::kNone>
struct Handover {
  using T = typename Tiling::T;
  static constexpr int kCols = Tiling::kTileN, kPitch = kCols * 2;
  static constexpr int kPacks = Tiling::kHandedPacks, kBytes = kPacks * 32 * 16;
  /// The packs of a row that lanes read, each by one, and of how many neighbouring rows a warp reads all by
  /// how many reads: of 24 packs, 4 rows by 3 reads.
  static constexpr int kBeside = kHalves == Halves::kNone ? 1 : 2;
  static constexpr int kLanes = kCols / kPack / kBeside;
  static constexpr int kRowsAtOnce = 32 % kLanes == 0 ? 32 / kLanes : 4;
  static constexpr int kTurns = kRowsAtOnce * kLanes / 32;
  static_assert(kRowsAtOnce * kLanes % 32 == 0 && (kTurns == 1 || kBeside == 1), "all lanes read");
  /// How often a lane reads.
  static constexpr int kReads = kPacks / kBeside;
  static constexpr int kWarps = 8;
  /// Of shared memory: the rows of all warps, and their barriers.
  static constexpr int kShared = kWarps * kBytes + 2 * kWarps * 8;
  static_assert(kShared == Tiling::kScratch, "beside the stages");

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

  /// By all lanes: waits until the last sums have been read, then hands over others. Those of
  /// each instruction lie side by side (kAcross), or 16 rows below each other.
  __device__ __forceinline__ void write(const typename Tiling::Sums& sums, uint32_t parity) const {
    constexpr int kAcross = Tiling::kAcross, kInstructions = Tiling::kHalves * kAcross;
    constexpr int kRegisters = kCols / kAcross / 2;
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

  /// The row and the pack of a lane's first pack, and how many rows its nth one lies below that, and how many
  /// packs to the right. Those of a column follow each other, kRowsAtOnce apart, in 16 rows, then come those of
  /// another column.
  __device__ __forceinline__ static constexpr int first_row(int lane) { return row_at(lane); }
  __device__ __forceinline__ static constexpr int first_pack(int lane) {
    return lane - row_at(lane) * kLanes;
  }
  __device__ __forceinline__ static constexpr int below(int nth, int lane) {
    if constexpr (kTurns == 1) return nth * kRowsAtOnce;
    return nth / kReads * 16 + nth % (16 / kRowsAtOnce) * kRowsAtOnce + rows_down(nth, lane);
  }
  __device__ __forceinline__ static constexpr int beside(int nth, int lane) {
    if constexpr (kTurns == 1) return 0;
    return turn_of(nth) * 32 - rows_down(nth, lane) * kLanes;
  }

  /// The nth pack of this lane of x.
  __device__ __forceinline__ void read(float (&values)[kPack], int nth) const {
    static_assert(kHalves == Halves::kNone, "the other half is read with it");
    uint32_t pairs[4];
    read_word(pairs, nth, 0);
    FUSEDOPS_UNROLL
    for (int c = 0; c < 4; ++c) from_pair<T>(pairs[c], values[2 * c], values[2 * c + 1]);
  }
  /// The same with that of the other half, as pairs of numbers.
  __device__ __forceinline__ void read(float (&values)[kPack], uint32_t (&other)[kPack / 2],
                                       int nth) const {
    uint32_t first[4], second[4];
    read_word(first, nth, 0);
    read_word(second, nth, 1);
    FUSEDOPS_UNROLL
    for (int c = 0; c < 4; ++c) {
      if constexpr (kHalves == Halves::kBelow) {
        from_pair<T>(first[c], values[2 * c], values[2 * c + 1]);
        other[c] = second[c];
      } else {  // each pair is one of either half
        const uint32_t (&from)[4] = c < 2 ? first : second;
        const uint32_t low = from[c % 2 * 2], high = from[c % 2 * 2 + 1];
        from_pair<T>(__byte_perm(low, high, 0x5410), values[2 * c], values[2 * c + 1]);
        other[c] = __byte_perm(low, high, 0x7632);
      }
    }
  }
  /// By all lanes, after the last read.
  __device__ __forceinline__ void release() const {
    __syncwarp();
    if (lane_of_warp() == 0) empty->arrive();
  }

 private:
  /// The row of one of the packs of neighbouring rows: place / kLanes, without a wide multiplication, which
  /// would hold up the product.
  __device__ __forceinline__ static constexpr int row_at(int place) {
    static_assert(kTurns == 1 || kLanes == 24, "43 / 1024 is a little more than 1 / 24");
    return kTurns == 1 ? place / kLanes : place * 43 >> 10;
  }
  __device__ __forceinline__ static constexpr int turn_of(int nth) {
    return nth / (16 / kRowsAtOnce) % kTurns;
  }
  /// The rows from a lane's first pack to that of the nth one's turn.
  __device__ __forceinline__ static constexpr int rows_down(int nth, int lane) {
    return row_at(turn_of(nth) * 32 + lane) - row_at(lane);
  }
  /// The nth word of 16 bytes of this lane, or the one of the other half.
  __device__ __forceinline__ void read_word(uint32_t (&pairs)[4], int nth, int other) const {
    const int lane = lane_of_warp(), row = below(nth, lane) + first_row(lane);
    const int pack = first_pack(lane) + beside(nth, lane);
    const int word = kHalves == Halves::kBetween ? pack * 2 + other : pack + other * kLanes;
    // row % 8 of an int would take four instructions.
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pairs[0]), "=r"(pairs[1]), "=r"(pairs[2]), "=r"(pairs[3])
                 : "r"(rows + row * kPitch + (word ^ (row & 7)) * 16)
                 : "memory");
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
