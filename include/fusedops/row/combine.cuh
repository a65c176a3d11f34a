// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How what is known of the parts of a row becomes what is known of the row. A part is what one
// group of lanes has reduced of one chunk. First the chunks of each group are combined, 32 at a
// time, by the lanes of a warp; then the groups. That order does not depend on whether one block
// has met the chunks in turn or the blocks of a cluster have one or more each, so neither do the
// bits.
#pragma once

#include <fusedops/core/cluster.cuh>
#include <fusedops/core/lanes.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// The parts of one row. All threads of its blocks make the same calls.
template <class Schedule, class Op>
class Parts {
  using Partial = typename Op::Partial;
  static constexpr int kBlocks = Schedule::kBlocks;
  static constexpr int kGroups = Schedule::kGroups;
  static constexpr int kWarps = Schedule::kThreads * Schedule::kRows / 32;  // of all rows
  static constexpr bool kOneTile = Schedule::Storage::kOneTile;
  // A part of a row that one block meets at once stays in registers.
  static constexpr bool kExchanges = kBlocks > 1 || (!kOneTile && Schedule::kLanes == 32);
  static constexpr int kAtOnce = 32;  // chunks that lanes combine
  static constexpr int kSlots = kOneTile ? kBlocks : kAtOnce;

 public:
  /// Bytes of static shared memory.
  static constexpr int kShared = kExchanges ? 2 * (kSlots + 1) * kWarps * int(sizeof(Partial)) : 0;

  /// Before any other thread of the block goes on: all call it, then __syncthreads().
  __device__ __forceinline__ static void prepare() {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        barriers()[0].make();
        barriers()[1].make();
        Barrier::made();
      }
    }
  }

  /// What this thread's group knows of a chunk; a cluster is told of each, in any order.
  __device__ __forceinline__ void add(const Op& op, const Partial& part, int chunk) {
    if constexpr (kBlocks > 1) {
      const int lane = threadIdx.x % 32;
      if (lane < kBlocks) send(&slot(chunk), part, barriers()[turn_], lane);
    } else if constexpr (kExchanges) {
      if (chunk % kAtOnce == 0 && chunk > 0) fold(op, chunk);
      if (threadIdx.x % 32 == 0) slot(chunk % kAtOnce) = part;
    } else {
      all_ = part;  // a chunk is a row
    }
  }

  /// What is known of the row, in every thread.
  __device__ __forceinline__ Partial all(const Op& op, int chunks) {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        barriers()[turn_].expect(chunks * kGroups * int(sizeof(Partial)));
      }
      barriers()[turn_].wait(parity_);
      parity_ ^= turn_;
      all_ = combined(op, chunks);
    } else if constexpr (kExchanges) {
      __syncwarp();
      if (chunks == 1) {
        all_ = slot(0);
      } else {
        all_ = combined(op, (chunks - 1) % kAtOnce + 1);
        if (chunks > kAtOnce) all_ = op.merge(before_, all_);
      }
    }
    if constexpr (kGroups > 1) all_ = groups(op);
    turn_ ^= 1;
    return all_;
  }

  /// What this thread's group knew of a chunk of the row that all() was asked for last, if that is
  /// still known: of a row of many chunks it is not.
  __device__ __forceinline__ static constexpr bool remembers(int chunks) {
    return kExchanges && chunks <= kAtOnce;
  }
  __device__ __forceinline__ const Partial& of(int chunk) const {
    return slots()[turn_ ^ 1][chunk][threadIdx.x / 32];
  }

 private:
  using Slots = Partial[2][kSlots][kExchanges ? kWarps : 1];

  // Buffers alternate from row to row: who still reads one row's parts and who writes the next
  // row's do not meet.
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
    const Partial part = combined(op, kAtOnce);
    before_ = chunk == kAtOnce ? part : op.merge(before_, part);
    __syncwarp();
  }

  __device__ __forceinline__ Partial groups(const Op& op) const {
    constexpr int kLanes = power_of_two(kGroups);
    __shared__ Partial parts[2][kGroups];
    const int lane = threadIdx.x % 32;
    if (lane == 0) parts[turn_][threadIdx.x / 32] = all_;
    __syncthreads();
    const int group = lane % kLanes;
    return op.combine(Lanes<kLanes>{}, group < kGroups ? parts[turn_][group] : Op::identity());
  }

  Partial all_, before_;
  int turn_ = 0;
  int parity_ = 0;
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
