// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Shared-memory staging of rows whose addresses are not aligned, so that a thread could only move
// single elements. A block's share of a row is read by one bulk copy of the aligned 16-byte words
// that hold it, overwritten in place by the results, and written in 16-byte words except for its
// ends. PTX ISA, "cp.async.bulk"; sm_90 and later.
#pragma once

#include <fusedops/core/cluster.cuh>
#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// A row in shared memory, as the source of a LOAD and the target of a STORE. `first` is the
/// address that its first column would have; W columns are one access, as in global memory.
template <class T, int W>
struct Staged {
  View<T, 0, Column::kContiguous, W> row;
  __device__ __forceinline__ explicit Staged(T* first) : row{first, {}, 1} {}

  template <int N, class Compute, class Row>
  __device__ __forceinline__ void read(Compute (&value)[N], const Row& any, int64_t col) const {
    row.read_again(value, any, static_cast<int>(col));
  }
  template <int N, class Compute, class Row>
  __device__ __forceinline__ void write(const Compute (&value)[N], const Row& any,
                                        int64_t col) const {
    row.write(value, any, static_cast<int>(col));
  }
};

/// The address that the first column of a row would have where its columns from `begin` on lie in
/// `memory` as in global memory: what is aligned to kAlign bytes there is so here.
template <int kAlign, class T>
__device__ __forceinline__ T* in_shared(char* memory, T* first, int begin) {
  memory += reinterpret_cast<uint64_t>(first + begin) % kAlign;
  return reinterpret_cast<T*>(memory) - begin;
}

/// Writes the columns from `begin` to `end`, one at least, of a row that lies in shared memory as in
/// global memory, in aligned words of 16 bytes but for its ends. Called by kThreads threads, of which
/// this is `thread`. kOneByOne: a thread moves a word at a time, which takes the fewest registers.
template <int kThreads, bool kOneByOne, class T>
__device__ __forceinline__ void write_in_words(T* to, const T* from, int begin, int end,
                                               int thread) {
  constexpr int kWord = 16, kPerWord = kWord / sizeof(T);
  static_assert(kThreads >= kPerWord, "a thread has one column of an end at most");
  const int misplaced =
      static_cast<int>(reinterpret_cast<uint64_t>(to + begin) % kWord / sizeof(T));
  const int first = smaller(begin + (kPerWord - misplaced) % kPerWord, end);
  const int words = (end - first) / kPerWord;
  const auto move = [&](int i) {
    const int col = first + i * kPerWord;
    *reinterpret_cast<uint4*>(to + col) = *reinterpret_cast<const uint4*>(from + col);
  };
  if constexpr (kOneByOne) {
#pragma unroll 1
    for (int i = thread; i < words; i += kThreads) move(i);
  } else {
    for (int i = thread; i < words; i += kThreads) move(i);
  }
  const int last = first + words * kPerWord;
  if (begin + thread < first) to[begin + thread] = from[begin + thread];
  if (last + thread < end) to[last + thread] = from[last + thread];
}

/// No staging: LOAD and STORE are used as they are.
struct Unstaged {
  template <class LoadT, class Row>
  __device__ __forceinline__ void fetch(const LoadT&, const Row&, bool) {}
  template <class LoadT, class Row>
  __device__ __forceinline__ const LoadT& in(const LoadT& load, const Row&) {
    return load;
  }
  template <class StoreT, class Row>
  __device__ __forceinline__ StoreT& out(StoreT& store, const Row&) {
    return store;
  }
  template <class StoreT, class Row>
  __device__ __forceinline__ void flush(const StoreT&, const Row&, bool) {}
  __device__ __forceinline__ void reuse() {}
};

/// The staging buffer of a block's rows. All threads of the block make the same calls.
template <class Schedule, class X, class Y>
class Stage {
  using In = typename X::Element;
  using Out = typename Y::Element;
  static constexpr int kWord = 16;
  static constexpr int kWider = sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out);
  static_assert(Schedule::Storage::kOneTile, "a block has its share of a row whole");

 public:
  /// Bytes of shared memory per row: it may begin and end anywhere in a 16-byte word.
  static constexpr int kBytes = (Schedule::kTile * kWider + 2 * kWord - 1) / kWord * kWord;

  __device__ __forceinline__ Stage(int thread, int64_t cols, int of_chunk)
      : thread_(thread),
        begin_(Schedule::rank(blockIdx.x) * of_chunk),
        end_(static_cast<int>(smaller<int64_t>(begin_ + of_chunk, cols))) {
    if (thread_ == 0) {
      barrier().make();
      Barrier::made();
    }
    __syncthreads();
  }

  /// Starts the copy of a row, if there is one (`mine`).
  template <class LoadT, class Row>
  __device__ __forceinline__ void fetch(const LoadT& load, const Row& row, bool mine) {
    if (thread_ != 0) return;
    const In* first = load.source.begin(row);
    const uint64_t from = reinterpret_cast<uint64_t>(first + begin_) / kWord * kWord;
    const uint64_t to = (reinterpret_cast<uint64_t>(first + end_) + kWord - 1) / kWord * kWord;
    const uint32_t bytes = mine && begin_ < end_ ? static_cast<uint32_t>(to - from) : 0;
    barrier().expect(bytes);
    if (bytes > 0) fetch_words(buffer(), reinterpret_cast<const void*>(from), bytes, barrier());
  }

  /// Waits for the copy; returns the LOAD that reads the row from shared memory.
  template <class LoadT, class Row>
  __device__ __forceinline__ auto in(const LoadT& load, const Row& row) {
    barrier().wait(parity_);
    parity_ ^= 1;
    return load.from(Staged<In, X::kAccess>{here(load.source.begin(row))});
  }

  /// Waits until all threads have read; returns the STORE that writes to shared memory.
  template <class StoreT, class Row>
  __device__ __forceinline__ auto out(const StoreT& store, const Row& row) {
    together();
    return store.to(Staged<Out, Y::kAccess>{here(store.target.begin(row))});
  }

  /// Waits until all threads have stored; writes the results to global memory.
  template <class StoreT, class Row>
  __device__ __forceinline__ void flush(const StoreT& store, const Row& row, bool mine) {
    together();
    if (!mine || begin_ >= end_) return;
    Out* to = store.target.begin(row);
    write_in_words<Schedule::kThreads, false>(to, here(to), begin_, end_, thread_);
  }

  /// Called before the next row is fetched: orders these accesses before its asynchronous copy.
  __device__ __forceinline__ void reuse() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    together();
  }

 private:
  __device__ __forceinline__ static void together() {
    if constexpr (Schedule::kGroups > 1) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }

  __device__ __forceinline__ static int of_block() { return threadIdx.x / Schedule::kThreads; }
  __device__ __forceinline__ static Barrier& barrier() {
    __shared__ Barrier barriers[Schedule::kRows];
    return barriers[of_block()];
  }
  __device__ __forceinline__ static char* buffer() {
    extern __shared__ __align__(16) char shared_row[];
    return shared_row + of_block() * kBytes;
  }

  /// The address that the first column of a row would have in shared memory.
  template <class T>
  __device__ __forceinline__ T* here(T* first) const {
    return in_shared<kWord>(buffer(), first, begin_);
  }

  int thread_, begin_, end_;
  uint32_t parity_ = 0;
};

/// The results of a row in shared memory, from where they leave in words of 16 bytes. All threads of a
/// block, which has one row, make the same calls, with a barrier between a row and the next.
template <class Schedule, class To>
class Leaving {
  using T = typename To::Element;
  static constexpr int kWord = 16;

 public:
  /// Bytes of shared memory: a row may begin and end anywhere in a word.
  static constexpr int kBytes =
      (Schedule::kTile * static_cast<int>(sizeof(T)) + 2 * kWord - 1) / kWord * kWord;

  __device__ __forceinline__ Leaving(char* memory, int begin, int end)
      : memory_(memory), begin_(begin), end_(end) {}

  /// What the results of a row are written to.
  template <class Row>
  __device__ __forceinline__ auto to(const To& view, const Row& row) const {
    T* first = in_shared<kWord>(memory_, view.begin(row), begin_);
    return View<T, 0, Column::kContiguous, To::kAccess>{first, {}, 1};
  }

  /// Waits until all threads have written; writes the results to global memory.
  template <class Row>
  __device__ __forceinline__ void flush(const To& view, const Row& row, bool mine) const {
    __syncthreads();
    if (!mine || begin_ >= end_) return;
    T* to = view.begin(row);
    // Sums over rows leave no registers for more than a word.
    write_in_words<Schedule::kThreads, true>(to, in_shared<kWord>(memory_, to, begin_), begin_,
                                             end_, static_cast<int>(threadIdx.x));
  }

 private:
  char* memory_;
  int begin_, end_;
};

/// Results that are written as they are made.
struct Direct {
  template <class View, class Row>
  __device__ __forceinline__ const View& to(const View& view, const Row&) const {
    return view;
  }
  template <class View, class Row>
  __device__ __forceinline__ void flush(const View&, const Row&, bool) const {}
};

/// The staging of a kernel's rows, or none.
template <bool kStages, class Schedule, class LoadT, class StoreT>
__device__ __forceinline__ auto stage_of(const LoadT&, const StoreT&, int thread, int64_t cols,
                                         int of_chunk) {
  if constexpr (kStages) {
    return Stage<Schedule, decltype(LoadT::source), decltype(StoreT::target)>(thread, cols,
                                                                              of_chunk);
  } else {
    return Unstaged{};
  }
}

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
