// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What the blocks of a kernel do while the previous kernel still runs (core/dependency.cuh). They may
// not read memory, which that one may still write. But they may have the rows that they read first
// brought to the L2 cache: all writes of a device meet there, so what is read later is what was written.
#pragma once

#include <fusedops/core/dependency.cuh>
#include <fusedops/core/memory.cuh>
#include <fusedops/row/kernel.cuh>
#include <fusedops/row/slices.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The rows of a forward pass: each is a slice.
struct SingleRows {
  FUSEDOPS_HD RowRange of(int64_t row, int64_t count) const {
    return {row, row < count ? row + 1 : row};
  }
};

/// The same with so many rows abreast: the first of each group of threads.
template <int kAbreast>
struct FirstAbreast {
  FUSEDOPS_HD RowRange of(int64_t group, int64_t count) const {
    return SingleRows{}.of(group * kAbreast, count);
  }
};

#if defined(FUSEDOPS_CUDA)

/// Has the lines of an argument brought to the constant cache, in which a new kernel has none of it.
template <class Arguments>
__device__ __forceinline__ void touch(const Arguments& arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kLine = 8;  // words of 8 bytes
  const uint64_t* words = reinterpret_cast<const uint64_t*>(&arguments);
  uint64_t all = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < static_cast<int>(sizeof(Arguments) / 8); i += kLine) all |= words[i];
  // A use without any effect, since a compiler drops loads that have none.
  asm volatile(
      "{\n.reg .pred none;\nsetp.eq.u64 none, %0, 0;\n@none nanosleep.u32 0;\n}" ::"l"(all));
#endif
}

/// Threads that a large device holds at a time, about. Blocks after these begin when others have
/// ended, and read at once.
inline constexpr unsigned kFirstThreads = 1u << 18;

namespace detail {

/// Prefetches the first row of the slice of each thread from `views`.
template <class Schedule, class Slices, class Rows, class... Views>
__device__ __forceinline__ void prefetch_first(const Slices& slices, const Rows& rows, int64_t cols,
                                               int64_t even, const Views&... views) {
  const int of_chunk = Schedule::chunk_cols(even);
  const int chunks = Schedule::chunks(cols, of_chunk);
  const Share share = Schedule::share(blockIdx.x, chunks);
  const int64_t slice = Schedule::first_row(blockIdx.x) + threadIdx.x / Schedule::kThreads;
  const RowRange mine = slices.of(slice, rows.count);
  if (mine.begin >= mine.end) return;
  const auto row = rows.index(mine.begin);
  const int64_t begin = smaller<int64_t>(int64_t(share.begin) * of_chunk, cols);
  const int64_t end = smaller<int64_t>(int64_t(share.end) * of_chunk, cols);
  const ByLine<Schedule::kThreads> by{static_cast<int>(threadIdx.x) % Schedule::kThreads};
  (views.prefetch_all(row, begin, end, by), ...);
}

/// Prefetches the rows of the block, where they lie one behind the other: few instructions of one thread.
template <class Schedule, class T, int W>
__device__ __forceinline__ void prefetch_block(int64_t count, int64_t cols,
                                               const View<T, 1, Column::kContiguous, W>& view) {
  if (threadIdx.x != 0 || view.rows.stride[0] != cols) return;
  const int64_t first = Schedule::first_row(blockIdx.x);
  const int64_t last = smaller<int64_t>(first + Schedule::kRows, count);
  prefetch_bytes(view.data + first * cols, view.data + last * cols, Alone{});
}
template <class Schedule, class Other>
__device__ __forceinline__ void prefetch_block(int64_t, int64_t, const Other&) {}

}  // namespace detail

/// Begins a kernel, as begin_after_previous() of core/dependency.cuh. A grid of few blocks first touches
/// its argument and prefetches the first row of each slice from `views`: it comes up early, and
/// waits. In large grids what the first blocks gain so is less than the instructions of all cost,
/// unless one thread prefetches all rows of a block at once (kLarge).
template <class Schedule, bool kLarge = false, class Arguments, class Slices, class Rows,
          class... Views>
__device__ __forceinline__ void begin_with_rows(const Arguments& arguments, const Slices& slices,
                                                const Rows& rows, int64_t cols, int64_t even,
                                                const Views&... views) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (gridDim.x <= kFewBlocks) {
    touch(arguments);
    detail::prefetch_first<Schedule>(slices, rows, cols, even, views...);
  } else if (kLarge && blockIdx.x < kFirstThreads / (Schedule::kThreads * Schedule::kRows)) {
    (detail::prefetch_block<Schedule>(rows.count, cols, views), ...);
  }
  begin_after_previous();
#endif
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
