// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Adds up what the rows of a block have summed, once they have visited all rows of their slices.
// All threads of the block take part: each adds up some columns over the rows, or over a section of
// them where there are more threads than columns.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/core/memory.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// A thread's sums are `words` of neighbouring columns: element j of word i of thread t of row r is
/// all[(i * block + r * threads + t) * kMost + j].
template <class Schedule, class Tile>
class BlockSums {
  using Compute = typename Tile::Compute;
  static constexpr int kThreads = Schedule::kThreads;
  static constexpr int kRows = Schedule::kRows;
  static constexpr int kBlock = kThreads * kRows;

 public:
  /// Whether it pays. One H200, LayerNorm, 16 bits, percent of the ceiling: 32 columns 51 so, 46
  /// where the threads of the first row add up; 128 columns in blocks of 8 rows 73 and 76.
  static constexpr bool kTogether = kRows >= 32 || (kRows > 1 && kBlock >= 256);

  /// Elements of a word of shared memory, 16 bytes at most.
  static constexpr int kMost = smaller<int>(16 / sizeof(Compute), Tile::kWidth);

  /// Adds up sums in registers; calls write(values, column) for neighbouring columns.
  template <class F>
  __device__ __forceinline__ static void add_up(const Compute (&sums)[Tile::kPacks][Tile::kWidth],
                                                int64_t cols, F write) {
    Compute* all = room();
    __syncthreads();  // the sums of another operand may still be read
    FUSEDOPS_UNROLL
    for (int i = 0; i < kWords; ++i) {
      Pack<Compute, kMost> word;
      FUSEDOPS_UNROLL
      for (int j = 0; j < kMost; ++j) {
        const int element = i * kMost + j;
        word.at[j] = sums[element / Tile::kWidth][element % Tile::kWidth];
      }
      reinterpret_cast<Pack<Compute, kMost>*>(all)[i * kBlock + threadIdx.x] = word;
    }
    add_up(all, cols, write);
  }

  /// The same for sums in shared memory.
  template <class F>
  __device__ __forceinline__ static void add_up(Compute* all, int64_t cols, F write) {
    constexpr int kShare = (kRows + kSections - 1) / kSections;  // rows of a section
    constexpr int kWork = kItems * kSections;
    __syncthreads();
    FUSEDOPS_UNROLL
    for (int turn = 0; turn < (kWork + kBlock - 1) / kBlock; ++turn) {
      const int at = turn * kBlock + threadIdx.x;
      if (kWork % kBlock != 0 && at >= kWork) break;
      const int item = at % kItems, first = at / kItems * kShare;
      const Some sum = total<kShare>([&](int row) {
        const bool there = kShare * kSections == kRows || first + row < kRows;
        return there ? *some(all, item, first + row) : Some{};
      });
      if constexpr (kSections > 1) {
        *some(all, item, first) = sum;  // no other section reads it
      } else {
        give(sum, item, cols, write);
      }
    }
    if constexpr (kSections > 1) {
      __syncthreads();
      const int item = threadIdx.x;
      if (item >= kItems) return;
      give(total<kSections>([&](int i) { return *some(all, item, i * kShare); }), item, cols,
           write);
    }
  }

 private:
  static constexpr int kWords = Tile::kPacks * Tile::kWidth / kMost;  // of a thread
  static constexpr int kColumns = kWords * kMost * kThreads;
  // Neighbouring columns that a thread adds up at a time: few enough that all threads have some.
  static constexpr int kSome = smaller(kMost, power_of_two((kColumns + kBlock - 1) / kBlock));
  static constexpr int kItems = kColumns / kSome;
  using Some = Pack<Compute, kSome>;

  static constexpr int sections() {
    int count = 1;
    while (kRows > 32 && kRows > 16 * count && 2 * count * kItems <= kBlock) count *= 2;
    return count;
  }
  static constexpr int kSections = sections();

  __device__ __forceinline__ static Compute* room() {
    __shared__ __align__(16) Compute all[kColumns * kRows];
    return all;
  }

  __device__ __forceinline__ static Some* some(Compute* all, int item, int row) {
    const int word = item * kSome / kMost;
    const int place = word / kThreads * kBlock + row * kThreads + word % kThreads;
    return reinterpret_cast<Some*>(all + place * kMost + item * kSome % kMost);
  }

  template <int kCount, class F>
  __device__ __forceinline__ static Some total(F term) {
    Some sum = term(0);
#pragma unroll 16
    for (int i = 1; i < kCount; ++i) {
      const Some more = term(i);
      FUSEDOPS_UNROLL
      for (int j = 0; j < kSome; ++j) sum.at[j] += more.at[j];
    }
    return sum;
  }

  template <class F>
  __device__ __forceinline__ static void give(const Some& sum, int item, int64_t cols, F write) {
    const int word = item * kSome / kMost;
    const int element = word / kThreads * kMost + item * kSome % kMost;
    const int64_t col = int64_t(element / Tile::kWidth) * Tile::kStride +
                        word % kThreads * Tile::kWidth + element % Tile::kWidth;
    if constexpr (Tile::kExact) {
      write(sum.at, col);
    } else if (col + kSome <= cols) {
      write(sum.at, col);
    } else {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kSome; ++j) {
        const Compute value[1] = {sum.at[j]};
        if (col + j < cols) write(value, col + j);
      }
    }
  }
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
