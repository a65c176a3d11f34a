// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel y = STORE(x @ w.T) for few rows of x, for sm_90a. Such a product reads w once and little
// else, so memory is its limit, and all multiprocessors have to read. Rows of w take the place of the 64
// rows of a wgmma, and those of x that of its columns, of which there may be few. The blocks of a cluster
// have parts of K of the same tile (split-K). Their sums stay in their shared memory, and each block adds
// up those of some rows in the order of the parts, runs the STORE and writes y.
//
// Bits of a row follow from N, K and the number of parts: the rows beside it change none.
#pragma once

#include <fusedops/gemm/bias.cuh>
#include <fusedops/gemm/products.cuh>
#include <fusedops/gemm/tile_order.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// A tile with room for kRows rows of x, kCols rows of w, up to 64 for each warpgroup that multiplies, and
/// the blocks that share its K. All tiles have the same number of rows of x, and copy no others. Whatever
/// lies where the others would be is multiplied as well, NaN or not: no row of a product changes another,
/// and nobody reads these.
///
/// kShares: whether two blocks, whose columns are neighbours, copy one half of x's rows each, to both.
template <class T_, int kRows_, int kCols_, int kStages_, int kSplit_, bool kShares_ = false,
          Major kMajor_ = Major::kK>
struct FewRows {
  using T = T_;
  static constexpr int kRows = kRows_, kCols = kCols_, kStages = kStages_, kSplit = kSplit_;
  static constexpr bool kShares = kShares_;
  static constexpr int kCluster = kShares ? 2 : kSplit;
  static constexpr Major kMajor = kMajor_;
  static_assert(!kShares || kSplit == 1, "blocks share x, or K");
  static constexpr int kWarpgroups = (kCols + 63) / 64;
  /// The threads that multiply, and then run the STORE; one warp more produces.
  static constexpr int kWorkers = kWarpgroups * 128, kThreads = kWorkers + 32;
  using Sums = float[kRows / 2];

  /// The sums of 64 columns in shared memory: rows of x, so far apart that no bank is written twice.
  static constexpr int kPitch = 64 + 4, kBytesSums = kWarpgroups * kRows * kPitch * 4;
  /// The rows of x of which a block runs the STORE, at most. A thread has a pack of every kApart-th one.
  static constexpr int kLanes = kCols / kPack, kApart = kWorkers / kLanes;
  static constexpr int kMine = (kRows + kSplit - 1) / kSplit;
  static constexpr int kPacks = (kMine + kApart - 1) / kApart;
  /// Of so many packs a thread reads the operands ahead: registers do not spill.
  static constexpr int kAhead = kPacks < 8 ? kPacks : 8;

  struct Ring : Stages<kStages, (kWarpgroups * 64 + kRows) * kStageBytes, 0> {
    static constexpr int kBytesW = kWarpgroups * 64 * kStageBytes;
    static constexpr int kBytes = kBytesW + kRows * kStageBytes;
    /// The bytes of w that the copies bring: MN-major boxes have 64 columns.
    static constexpr int kCopiedW = kMajor == Major::kK ? kCols * kStageBytes : kBytesW;
    static_assert(kBytesSums <= kStages * kBytes, "sums take the place of the stages");

    using Base = Stages<kStages, kBytes, 0>;
    using Base::Base, Base::stages;

    __device__ __forceinline__ uint32_t w(int stage) const {
      return detail::shared_address(stages) + stage * kBytes;
    }
    __device__ __forceinline__ uint32_t x(int stage) const { return w(stage) + kBytesW; }
  };

  /// Issues the products of a stage of the nth 64 rows of w.
  __device__ __forceinline__ static void multiply(Sums& sums, const Ring& ring, int stage, int nth,
                                                  bool adds) {
    const uint64_t w = wgmma_tile<kMajor>(ring.w(stage) + nth * 64 * kStageBytes);
    const uint64_t x = wgmma_tile(ring.x(stage));
    constexpr int kNext = kMajor == Major::kK ? 2 : 16 * 128 / 16;  // as in products.cuh
    wgmma_fence();
    FUSEDOPS_UNROLL
    for (int k = 0; k < kStageK<T> / 16; ++k) {
      wgmma<T, kMajor, Major::kK>(sums, w + k * kNext, x + k * 2, adds || k > 0);
    }
    wgmma_commit();
  }
};

/// What a block has to do: a tile, which has `tall` rows of x, of which one copy brings `box`, and the
/// stages of its part of K.
struct Part {
  int row, tall, box, col, first, last;
};
template <class Tiling>
__device__ __forceinline__ Part part_of(int rows, int k) {
  const int across = (rows + Tiling::kRows - 1) / Tiling::kRows;
  const int tile = blockIdx.x / Tiling::kCluster, rank = blockIdx.x % Tiling::kCluster;
  const int stages = stages_of<typename Tiling::T>(k), column = tile / across;
  // As FewRowsTiling in architectures.py. Where the swizzle's pattern begins there are whole eights.
  const int tall = (rows + across - 1) / across, row = (tile - column * across) * tall;
  if constexpr (Tiling::kShares) {
    return {row, tall, (tall + 15) / 16 * 8, (column * 2 + rank) * Tiling::kCols, 0, stages};
  }
  return {row,
          tall,
          tall,
          column * Tiling::kCols,
          stages * rank / Tiling::kSplit,
          stages * (rank + 1) / Tiling::kSplit};
}

/// By the one thread that produces.
template <class Tiling>
__device__ __forceinline__ void produce_part(typename Tiling::Ring& ring, const TensorMap& x,
                                             const TensorMap& w, const Part& part) {
  constexpr int kColumns = kStageK<typename Tiling::T>;
  StageIndex<Tiling::kStages> at;
  for (int step = part.first; step < part.last; ++step) {
    StageBarrier& barrier = ring.full[at.stage];
    char* to = ring.stages + at.stage * Tiling::Ring::kBytes;
    ring.empty[at.stage].wait_alone(at.parity ^ 1);
    barrier.expect(Tiling::Ring::kCopiedW + (Tiling::kShares ? 2 : 1) * part.box * kStageBytes);
    if constexpr (Tiling::kMajor == Major::kK) {
      copy_box(w, barrier, to, step * kColumns, part.col, OneProduct{});
    } else {
      for (int c = 0; c < Tiling::kCols; c += 64) {
        copy_box(w, barrier, to + c * kStageBytes, part.col + c, step * kColumns, OneProduct{});
      }
    }
    to += Tiling::Ring::kBytesW;
    if constexpr (Tiling::kShares) {
      const int below = rank_in_cluster() * part.box;
      copy_box_to_both(x, barrier, to + below * kStageBytes, step * kColumns, part.row + below,
                       OneProduct{});
    } else {
      copy_box(x, barrier, to, step * kColumns, part.row, OneProduct{});
    }
    at.next();
  }
}

/// By the nth warpgroup of those that multiply: leaves the sums in shared memory.
template <class Tiling>
__device__ __forceinline__ void multiply_part(typename Tiling::Ring& ring, int steps, int nth) {
  typename Tiling::Sums sums;
  set_zero(sums);
  StageIndex<Tiling::kStages> at;
  int before = 0;
  auto release = [&] {
    const int lane = lane_of_warp();
    if constexpr (Tiling::kShares) {
      if (lane < 2) ring.empty[before].arrive_in_block(lane);
    } else if (lane == 0) {
      ring.empty[before].arrive();
    }
  };
  for (int step = 0; step < steps; ++step) {
    ring.full[at.stage].wait(at.parity);
    Tiling::multiply(sums, ring, at.stage, nth, true);
    wgmma_wait<1>();
    if (step > 0) release();
    before = at.stage;
    at.next();
  }
  wgmma_wait<0>();
  wgmma_keep(sums);
  // Others may still multiply what the sums are written over.
  asm volatile("bar.sync 1, %0;" ::"n"(Tiling::kWorkers) : "memory");
  // A thread has two neighbouring rows of x for one row of w, and for the one 8 further.
  const int lane = lane_of_warp(), warp = threadIdx.x / 32 % 4;
  float* to = reinterpret_cast<float*>(ring.stages) + nth * (Tiling::kRows * Tiling::kPitch) +
              lane % 4 * 2 * Tiling::kPitch + warp * 16 + lane / 4;
  FUSEDOPS_UNROLL
  for (int j = 0; j < Tiling::kRows / 8; ++j) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < 4; ++i) to[(j * 8 + i % 2) * Tiling::kPitch + i / 2 * 8] = sums[j * 4 + i];
  }
}

/// Adds up the sums of a pack in the order of the parts. at: where they lie in each block.
template <class Tiling>
__device__ __forceinline__ void join(float (&values)[kPack], uint32_t at) {
  FUSEDOPS_UNROLL
  for (int rank = 0; rank < Tiling::kSplit; ++rank) {
    uint32_t from = at;
    if constexpr (Tiling::kSplit > 1) {
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(from) : "r"(at), "r"(rank));
    }
    float part[kPack];
    FUSEDOPS_UNROLL
    for (int i = 0; i < kPack; i += 4) {
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(part[i]), "=f"(part[i + 1]), "=f"(part[i + 2]), "=f"(part[i + 3])
                   : "r"(from + 4 * i)
                   : "memory");
    }
    FUSEDOPS_UNROLL
    for (int i = 0; i < kPack; ++i) values[i] = rank == 0 ? part[i] : values[i] + part[i];
  }
}

/// Adds the bias of a pack, if any, and rounds as a product that is written to memory is.
template <bool kAdds, class T>
__device__ __forceinline__ void add_and_round(float (&values)[kPack], const uint4& bias) {
  const Pack<uint32_t, 4> pairs = bit_cast<Pack<uint32_t, 4>>(bias);
  FUSEDOPS_UNROLL
  for (int c = 0; c < kPack; c += 2) {
    if constexpr (kAdds) {
      float first, second;
      from_pair<T>(pairs.at[c / 2], first, second);
      values[c] += first;
      values[c + 1] += second;
    }
    from_pair<T>(pair_of<T>(values[c], values[c + 1]), values[c], values[c + 1]);
  }
}

/// By all threads: waits until the sums of all parts are there, runs the STORE of this block's rows, and
/// stays until others have read its sums, or its barriers. Threads that only produced have no packs.
template <class Tiling, class Epilogue, class Rows>
__device__ __forceinline__ void finish(const typename Tiling::Ring& ring, Epilogue epilogue,
                                       const Rows& rows, int n, const Part& part) {
  using T = typename Tiling::T;
  const auto added = bias_of(epilogue);
  constexpr bool kAdds = decltype(added)::kAny;
  const int thread = threadIdx.x, nth = thread / Tiling::kLanes, lane = thread % Tiling::kLanes;
  const int mine = (part.tall + Tiling::kSplit - 1) / Tiling::kSplit;
  const int own = static_cast<int>(blockIdx.x % Tiling::kSplit) * mine;
  const int end = min(min(own + mine, part.tall), static_cast<int>(rows.count) - part.row);
  const int col = part.col + lane * kPack;
  const bool works = nth < Tiling::kApart && col < n;
  uint4 bias = {};  // read ahead, as other operands are
  if constexpr (kAdds) {
    if (works) bias = bit_cast<uint4>(read_input<kPack>(added.at(col)));
  }
  const uint32_t sums =
      detail::shared_address(ring.stages) +
      ((lane / 8 * Tiling::kRows + own + nth) * Tiling::kPitch + lane % 8 * kPack) * 4;
  for (int first = 0; first < Tiling::kPacks; first += Tiling::kAhead) {
    Packs<typename Rows::Index, 1> packs[Tiling::kAhead];
    bool has[Tiling::kAhead];
    FUSEDOPS_UNROLL
    for (int p = 0; p < Tiling::kAhead; ++p) {
      const int below = own + (first + p) * Tiling::kApart + nth;
      has[p] = works && below < end;
      packs[p].rows[0] = rows.index(has[p] ? part.row + below : 0);
      packs[p].col = has[p] ? col : 0;
      if (has[p]) epilogue.issue(packs[p]);
    }
    if (first == 0) {
      __syncwarp();
      if constexpr (Tiling::kSplit == 1) {
        __syncthreads();
      } else {
        cluster_arrive_released();
        cluster_wait();
      }
    }
    FUSEDOPS_UNROLL
    for (int p = 0; p < Tiling::kAhead; ++p) {
      if (!has[p]) continue;
      join<Tiling>(packs[p].values[0], sums + (first + p) * (Tiling::kApart * Tiling::kPitch * 4));
      add_and_round<kAdds, T>(packs[p].values[0], bias);
      epilogue.run(packs[p]);
    }
  }
  if constexpr (Tiling::kCluster > 1) {
    __syncwarp();
    cluster_arrive_released();
    cluster_wait();
  }
}

/// epilogue: a Forward. A block has one tile, or a part of one.
template <class Tiling, class Epilogue, class Rows>
__device__ __forceinline__ void few_rows_kernel(const TensorMap& x, const TensorMap& w,
                                                const Epilogue& epilogue, const Rows& rows,
                                                int64_t n, int64_t k) {
  extern __shared__ __align__(16) char memory[];
  typename Tiling::Ring ring(memory);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  const Part part = part_of<Tiling>(static_cast<int>(rows.count), static_cast<int>(k));
  if (threadIdx.x == 0) ring.make(Tiling::kWorkers / 32 * (Tiling::kShares ? 2 : 1));
  __syncthreads();
  if constexpr (Tiling::kShares) {  // neither uses a barrier before the other has made it
    cluster_arrive();
    cluster_wait();
  }
  if (warp < Tiling::kWorkers / 32) {
    multiply_part<Tiling>(ring, part.last - part.first, warp / 4);
  } else if (lane_of_warp() == 0) {
    produce_part<Tiling>(ring, x, w, part);
  }
  __syncwarp();
  finish<Tiling>(ring, epilogue, rows, static_cast<int>(n), part);
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
