// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Combines the partial results of a row's reduction. A part is the reduction of one chunk by one
// group of lanes. The chunks of each group are combined first, 32 at a time, by the lanes of a
// warp; then the groups. One block that processes the chunks in turn and the blocks of a cluster
// with one or more chunks each use the same order, so the bits do not depend on the storage.
#pragma once

#include <fusedops/core/cluster.cuh>
#include <fusedops/core/lanes.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// The parts of one row. All threads of the row's blocks make the same calls.
template <class Schedule, class Op>
class Parts {
  using Partial = typename Op::Partial;
  static constexpr int kBlocks = Schedule::kBlocks;
  static constexpr int kGroups = Schedule::kGroups;
  static constexpr int kWarps = Schedule::kThreads * Schedule::kRows / 32;  // of the block
  static constexpr bool kOneTile = Schedule::Storage::kOneTile;
  // Where one block holds the row in one tile, a part stays in registers.
  static constexpr bool kExchanges = kBlocks > 1 || (!kOneTile && Schedule::kLanes == 32);
  static constexpr int kChunksPerFold = 32;  // chunks that the lanes of a warp combine
  static constexpr int kSlots = kOneTile ? kBlocks : kChunksPerFold;

 public:
  /// Bytes of static shared memory; the schedules reserve them (schedule/forward.py).
  static constexpr int kShared = kExchanges ? 2 * (kSlots + 1) * kWarps * int(sizeof(Partial)) : 0;

  /// Initializes the barriers; called by all threads, before __syncthreads().
  __device__ __forceinline__ static void prepare() {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        barriers()[0].make();
        barriers()[1].make();
        Barrier::made();
      }
    }
  }

  /// Adds the part of this thread's group for a chunk. In a cluster it is sent to all blocks, and
  /// chunks come in any order.
  __device__ __forceinline__ void add(const Op& op, const Partial& part, int chunk) {
    if constexpr (kBlocks > 1) {
      const int lane = threadIdx.x % 32;
      if (lane < kBlocks) send(&slot(chunk), part, barriers()[turn_], lane);
    } else if constexpr (kExchanges) {
      if (chunk % kChunksPerFold == 0 && chunk > 0) fold(op, chunk);
      if (threadIdx.x % 32 == 0) slot(chunk % kChunksPerFold) = part;
    } else {
      all_ = part;  // the chunk is the row
    }
  }

  /// The combined result of the row, in every thread.
  __device__ __forceinline__ Partial all(const Op& op, int chunks) {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        barriers()[turn_].expect(chunks * Schedule::groups() * int(sizeof(Partial)));
      }
      barriers()[turn_].wait(parity_);
      parity_ ^= turn_;
      all_ = combined(op, chunks);
    } else if constexpr (kExchanges) {
      __syncwarp();
      if (chunks == 1) {
        all_ = slot(0);
      } else {
        all_ = combined(op, (chunks - 1) % kChunksPerFold + 1);
        if (chunks > kChunksPerFold) all_ = op.merge(before_, all_);
      }
    }
    if constexpr (kGroups > 1) all_ = groups(op);
    turn_ ^= 1;
    return all_;
  }

  /// of(chunk) is the part of this thread's group in the row of the last all(). remembers(chunks):
  /// whether the parts of a row with that many chunks are still there.
  __device__ __forceinline__ static constexpr bool remembers(int chunks) {
    return kExchanges && chunks <= kChunksPerFold;
  }
  __device__ __forceinline__ const Partial& of(int chunk) const {
    return slots()[turn_ ^ 1][chunk][threadIdx.x / 32];
  }

 private:
  using Slots = Partial[2][kSlots][kExchanges ? kWarps : 1];

  // Two buffers alternate from row to row: the parts of the next row may be written while those of
  // the last are still read.
  __device__ __forceinline__ static Slots& slots() {
    __shared__ Slots parts;
    return parts;
  }
  __device__ __forceinline__ static Barrier* barriers() {
    __shared__ Barrier each[2];
    return each;
  }
  __device__ __forceinline__ Partial& slot(int chunk) const {
    return slots()[turn_][chunk][threadIdx.x / 32];
  }

  __device__ __forceinline__ Partial combined(const Op& op, int count) const {
    constexpr int kLanes = power_of_two(kSlots);
    const int lane = threadIdx.x % kLanes;
    return op.combine(Lanes<kLanes>{}, lane < count ? slot(lane) : Op::identity());
  }

  __device__ __forceinline__ void fold(const Op& op, int chunk) {
    __syncwarp();
    const Partial part = combined(op, kChunksPerFold);
    before_ = chunk == kChunksPerFold ? part : op.merge(before_, part);
    __syncwarp();
  }

  __device__ __forceinline__ Partial groups(const Op& op) const {
    constexpr int kLanes = power_of_two(kGroups);
    __shared__ Partial parts[2][kGroups];
    const int lane = threadIdx.x % 32;
    if (lane == 0) parts[turn_][threadIdx.x / 32] = all_;
    __syncthreads();
    const int group = lane % kLanes;
    return op.combine(Lanes<kLanes>{},
                      group < Schedule::groups() ? parts[turn_][group] : Op::identity());
  }

  Partial all_, before_;
  int turn_ = 0;
  int parity_ = 0;
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
