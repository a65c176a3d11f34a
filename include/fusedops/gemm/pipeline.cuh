// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The ring of stages through which one producer hands parts of x and w to the warps that multiply.
// Each stage has 128 bytes of the K numbers of a tile's rows. The two blocks of a cluster share w: each copies
// one half of its rows, or a part of its columns where it is MN-major, to both. PTX ISA, "cp.async.bulk.tensor", "mbarrier".
#pragma once

#include <fusedops/core/cluster.cuh>
#include <fusedops/gemm/batch.cuh>
#include <fusedops/gemm/wgmma.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// A CUtensorMap, which the driver encodes.
struct alignas(64) TensorMap {
  uint64_t words[16];
};

/// The bytes of a row in a stage, the width of the swizzle, and the numbers of K that these are.
inline constexpr int kStageBytes = 128;
template <class Factor>
inline constexpr int kStageK = kStageBytes / int(sizeof(Factor));

/// The mbarrier of cluster.cuh for any number of arrivals, also from the other block.
struct StageBarrier : Barrier {
  __device__ __forceinline__ void make(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(detail::shared_address(this)),
                 "r"(arrivals));
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(detail::shared_address(this))
                 : "memory");
  }
  /// Arrives at the barrier that lies at this address in the block of this rank.
  __device__ __forceinline__ void arrive_in_block(int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 other;\n"
        "mapa.shared::cluster.u32 other, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [other];\n"
        "}\n" ::"r"(detail::shared_address(this)),
        "r"(rank)
        : "memory");
  }
  /// wait() for one thread alone.
  __device__ __forceinline__ void wait_alone(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}\n" ::"r"(detail::shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

/// The stages that the K numbers of a row fill.
template <class Factor>
__device__ __forceinline__ int stages_of(int k) {
  return (k + kStageK<Factor> - 1) / kStageK<Factor>;
}

/// Copies a box of the matrix, from column `k` and row `row` on, to shared memory of this block.
__device__ __forceinline__ void copy_box(const TensorMap& map, StageBarrier& barrier, void* to,
                                         int k, int row, OneProduct) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(detail::shared_address(to)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "r"(k), "r"(row)
      : "memory");
}
/// The same to both blocks of the cluster.
__device__ __forceinline__ void copy_box_to_both(const TensorMap& map, StageBarrier& barrier,
                                                 void* to, int k, int row, OneProduct) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(detail::shared_address(to)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "h"(uint16_t(3)), "r"(k), "r"(row)
      : "memory");
}

/// The same of one of many matrices.
__device__ __forceinline__ void copy_box(const TensorMap& map, StageBarrier& barrier, void* to,
                                         int k, int row, const OneOfMany& of) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(detail::shared_address(to)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "r"(k), "r"(row), "r"(of.at[0]),
      "r"(of.at[1]), "r"(of.at[2])
      : "memory");
}
__device__ __forceinline__ void copy_box_to_both(const TensorMap& map, StageBarrier& barrier,
                                                 void* to, int k, int row, const OneOfMany& of) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;" ::"r"(
          detail::shared_address(to)),
      "l"(&map), "r"(detail::shared_address(&barrier)), "h"(uint16_t(3)), "r"(k), "r"(row),
      "r"(of.at[0]), "r"(of.at[1]), "r"(of.at[2])
      : "memory");
}

/// The place in the ring, and the parity of its trip.
template <int kStages>
struct StageIndex {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ void skip(int steps) {
    const int to = stage + steps;
    parity ^= (to / kStages) & 1;
    stage = to % kStages;
  }
};

/// Stages of kBytes in shared memory, kBeside bytes after them, and the barriers of each stage.
template <int kStages, int kBytes, int kBeside>
struct Stages {
  static constexpr int kShared = 1024 + kStages * (kBytes + 2 * 8) + kBeside;

  char* stages;
  StageBarrier* full;
  StageBarrier* empty;

  __device__ __forceinline__ explicit Stages(char* memory) {
    const uint32_t begins = detail::shared_address(memory);
    stages = memory + (1024 - begins % 1024) % 1024;  // where the swizzle's pattern begins
    full = reinterpret_cast<StageBarrier*>(stages + kStages * kBytes + kBeside);
    empty = full + kStages;
  }
  /// By one thread. readers: the warps that read a stage.
  __device__ __forceinline__ void make(int readers) {
    for (int s = 0; s < kStages; ++s) {
      full[s].make(1);
      empty[s].make(readers);
    }
    Barrier::made();
  }
};

/// The ring in shared memory. kReaders: the warps of a block that read a stage; kScratch: bytes beside
/// the stages; kBytesBias: of a tile's bias, which a stage that the tile begins with brings, or 0.
/// kMajor, kMajorOfX: along which dimension w and x are contiguous.
template <int kTileM, int kTileN, int kStages, int kReaders, int kScratch_, int kBytesBias,
          Major kMajor, Major kMajorOfX>
struct Ring : Stages<kStages, (kTileM + kTileN) * kStageBytes, kScratch_ + kStages * kBytesBias> {
  static constexpr int kBytesX = kTileM * kStageBytes, kBytesW = kTileN * kStageBytes;
  static constexpr int kBytes = kBytesX + kBytesW, kBytesPart = 64 * kStageBytes;
  static constexpr int kScratch = kScratch_;

  using Base = Stages<kStages, kBytes, kScratch + kStages * kBytesBias>;
  using Base::Base, Base::empty, Base::full, Base::stages;

  /// By all threads of both blocks: neither uses a barrier before the other has made it.
  __device__ __forceinline__ void begin() {
    if (threadIdx.x == 0) Base::make(2 * kReaders);
    __syncthreads();
    cluster_arrive();
    cluster_wait();
  }
  /// By all threads: neither block ends while the other may still arrive at its barriers.
  __device__ __forceinline__ static void end() {
    __syncwarp();
    cluster_arrive_released();
    cluster_wait();
  }
  /// By the one thread that produces, from column k of the factors on. order: that of the tile; added: the
  /// bias, or none.
  template <class Order, class Bias>
  __device__ __forceinline__ void fill(StageIndex<kStages> at, const TensorMap& x,
                                       const TensorMap& w, int k, const Order& order,
                                       const typename Order::Tile& tile, const Bias& added) {
    const int row = tile.row;
    int col = order.row_of_w(tile);
    const auto x_of = order.x_of(tile);
    const auto w_of = order.w_of(tile);
    const int rank = rank_in_cluster();
    StageBarrier& barrier = full[at.stage];
    empty[at.stage].wait_alone(at.parity ^ 1);
    if constexpr (Bias::kAny && kBytesBias > 0) {
      barrier.expect(k == 0 ? kBytes + kBytesBias : kBytes);
      if (k == 0) detail::fetch_words(bias(at.stage), added.at(col), kBytesBias, barrier);
    } else if constexpr (Order::kRagged) {
      barrier.expect(kBytesW + order.parts(tile) * kBytesPart);
    } else {
      barrier.expect(kBytes);
    }
    char* to = stages + at.stage * kBytes;
    if constexpr (Order::kRagged) {
      for (int part = 0; part < order.parts(tile); ++part) {
        copy_box(x, barrier, to + part * kBytesPart, k, row + part * 64, x_of);
      }
    } else if constexpr (kMajorOfX == Major::kMN) {
      for (int r = 0; r < kTileM; r += 64) {
        copy_box(x, barrier, to + r * kStageBytes, row + r, k, x_of);
      }
    } else {
      copy_box(x, barrier, to, k, row, x_of);
    }
    // Of w's columns the second block copies a box of 64 less where there is an odd number of them.
    constexpr int kFirst = kMajor == Major::kK ? kTileN / 2 : (kTileN / 2 + 63) / 64 * 64;
    char* half = to + kBytesX + rank * (kFirst * kStageBytes);
    col += rank * (order.apart() + kFirst - kTileN / 2);
    if constexpr (kMajor == Major::kK) {
      copy_box_to_both(w, barrier, half, k, col, w_of);
    } else {
      for (int c = 0; c < kFirst; c += 64) {
        if (2 * kFirst > kTileN && rank * kFirst + c >= kTileN) continue;
        copy_box_to_both(w, barrier, half + c * kStageBytes, col + c, k, w_of);
      }
    }
  }
  /// By all lanes of a warp that has read the stage for the last time.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (lane < 2) empty[stage].arrive_in_block(lane);
  }
  __device__ __forceinline__ char* bias(int stage) const {
    return scratch() + kScratch + stage * kBytesBias;
  }
  /// Memory beside the stages, aligned to 1024 bytes, for exchanges among lanes and warps.
  __device__ __forceinline__ char* scratch() const { return stages + kStages * kBytes; }
  __device__ __forceinline__ uint32_t x(int stage) const {
    return detail::shared_address(stages) + stage * kBytes;
  }
  __device__ __forceinline__ uint32_t w(int stage) const { return x(stage) + kBytesX; }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
