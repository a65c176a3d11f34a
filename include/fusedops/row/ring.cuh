// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A ring of rows in shared memory for a backward kernel whose blocks stay: bulk copies bring what a
// row reads, x, the gradient of y and the numbers that the forward pass kept, several rows before its
// turn; where the row is a saved stream with a gradient of its own, that too. PTX ISA, "cp.async.bulk";
// sm_90 and later.
#pragma once

#include <fusedops/functor/compose.cuh>
#include <fusedops/functor/save.cuh>
#include <fusedops/row/staging.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// No ring: a row is read from global memory.
struct NoRing {
  template <class Row>
  __device__ __forceinline__ void fetch(const Row&, uint32_t, bool) {}
  template <class Row>
  __device__ __forceinline__ void fetch_joining(const Row&, uint32_t, bool) {}
  __device__ __forceinline__ void wait() {}
  __device__ __forceinline__ void wait_for_joining() {}
  template <class LoadT, class Row>
  __device__ __forceinline__ const LoadT& load(const LoadT& load, const Row&) const {
    return load;
  }
  template <class View, class Row>
  __device__ __forceinline__ const View& upstream(const View& view, const Row&) const {
    return view;
  }
  template <class View, class Row>
  __device__ __forceinline__ const View& kept(const View& view, const Row&) const {
    return view;
  }
  __device__ __forceinline__ void next() {}
};

/// The functor that adds the gradient of a stream, if that is the LOAD of a backward pass.
template <class LoadT>
struct Joining {
  using View = Absent;
  static constexpr int kBytes = 0;
};
template <class Source, class Upstream>
struct Joining<Load<Source, Joined<Upstream>>> {
  using View = Upstream;
  static constexpr int kBytes = sizeof(typename Upstream::Element);
};

/// kStages rows of a block. x and the gradients have whole aligned packs of 16 bytes; the kept
/// numbers of a row may lie anywhere in such words. All threads of the block make the same calls. The
/// gradient of a stream is read after the reduction, so its place is free one row later.
template <int kStages, class Schedule, class Op, class LoadT, class Upstream, class Kept>
class Ring {
  using X = typename decltype(LoadT::source)::Element;
  using Dy = typename Upstream::Element;
  static constexpr int kWord = 16;
  static constexpr int kOfX = Schedule::kTile * sizeof(X);
  static constexpr int kOfDy = Schedule::kTile * sizeof(Dy);
  static constexpr int kNumber = sizeof(typename Op::Compute);
  static constexpr int kOfKept =
      Op::kKept == 0 ? 0 : (Op::kKept * kNumber + 2 * kWord - kNumber - 1) / kWord * kWord;
  using JoiningView = typename Joining<LoadT>::View;
  static constexpr bool kJoins = Joining<LoadT>::kBytes > 0;
  static constexpr int kOfJoining = Schedule::kTile * Joining<LoadT>::kBytes;
  static constexpr int kStage = kOfX + kOfDy + kOfJoining;
  static constexpr int kLine = 128;  // the alignment of the copies: others write two lines for one
  static_assert(kStage % kLine == 0 && kOfX % kLine == 0 && kOfDy % kLine == 0,
                "warps have whole packs of 16 bytes");
  static_assert(
      Schedule::Storage::kOneTile && Schedule::kGroups > 1,
      "a block has its share of a row whole, and a barrier of the block in its reduction");
  static_assert(!LoadT::kComputes || kJoins, "functors of a LOAD read x again after the reduction");

 public:
  static constexpr int kBytes = kStages * (kStage + kOfKept) + kLine - kWord;

  __device__ __forceinline__ Ring(const LoadT& load, const Upstream& upstream, const Kept& kept,
                                  int begin, int end)
      : load_(load), upstream_(upstream), kept_(kept), begin_(begin), end_(end) {
    if (threadIdx.x == 0) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kStages * (1 + kJoins); ++i) barriers()[i].make();
      Barrier::made();
    }
    __syncthreads();
  }

  /// Starts the copies of the row whose number among the block's is `turn`, if there is one
  /// (`mine`). The row that was in its place has been read by all threads.
  template <class Row>
  __device__ __forceinline__ void fetch(const Row& row, uint32_t turn, bool mine) {
    if (threadIdx.x != 0 || !mine) return;
    const int stage = static_cast<int>(turn % kStages);
    Barrier& full = barriers()[stage];
    char* to = place(stage);
    const uint32_t of_x = columns() * sizeof(X), of_dy = columns() * sizeof(Dy);
    const Words kept = words_of(row);
    full.expect(of_x + of_dy + kept.bytes);
    if (columns() > 0) {
      fetch_words(to, load_.source.begin(row) + begin_, of_x, full);
      fetch_words(to + kOfX, upstream_.begin(row) + begin_, of_dy, full);
    }
    if (kOfKept > 0) {
      fetch_words(kept_at(stage), reinterpret_cast<const void*>(kept.from), kept.bytes, full);
    }
  }

  /// The same for the gradient of the stream. The row that was in its place is done.
  template <class Row>
  __device__ __forceinline__ void fetch_joining(const Row& row, uint32_t turn, bool mine) {
    if constexpr (kJoins) {
      if (threadIdx.x != 0 || !mine) return;
      const int stage = static_cast<int>(turn % kStages);
      Barrier& full = barriers()[kStages + stage];
      const uint32_t bytes = columns() * Joining<LoadT>::kBytes;
      full.expect(bytes);
      if (bytes == 0) return;
      const auto* from = load_.chain.first.upstream.begin(row) + begin_;
      fetch_words(place(stage) + kOfX + kOfDy, from, bytes, full);
    }
  }

  /// Waits until the row is there, and until the gradient of the stream is.
  __device__ __forceinline__ void wait() { barriers()[stage_].wait(parity_); }
  __device__ __forceinline__ void wait_for_joining() {
    if constexpr (kJoins) barriers()[kStages + stage_].wait(parity_);
  }

  /// What reads the row from shared memory, in place of the LOAD and of the other views.
  template <class Row>
  __device__ __forceinline__ auto load(const LoadT& load, const Row&) const {
    const auto x = staged<decltype(LoadT::source)>(place(stage_));
    if constexpr (kJoins) {
      const auto joining = staged<JoiningView>(place(stage_) + kOfX + kOfDy);
      return Load<decltype(x), Joined<decltype(joining)>>{x, {{joining}, {}}};
    } else {
      return load.from(x);
    }
  }
  template <class Row>
  __device__ __forceinline__ auto upstream(const Upstream&, const Row&) const {
    return staged<Upstream>(place(stage_) + kOfX);
  }
  template <class Row>
  __device__ __forceinline__ auto kept(const Kept& view, const Row& row) const {
    if constexpr (kOfKept == 0) {
      return view;
    } else {
      using Number = typename Kept::Element;
      const uint64_t at = reinterpret_cast<uint64_t>(view.begin(unaware(row))) % kWord;
      return Staged<Number, 1>{reinterpret_cast<Number*>(kept_at(stage_) + at)};
    }
  }

  /// Goes on to the next row.
  __device__ __forceinline__ void next() {
    if (++stage_ < kStages) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  /// The aligned words that hold the kept numbers of a row.
  struct Words {
    uint64_t from;
    uint32_t bytes;
  };
  template <class Row>
  __device__ __forceinline__ Words words_of(const Row& row) const {
    if constexpr (kOfKept == 0) {
      return {0, 0};
    } else {
      const uint64_t at = reinterpret_cast<uint64_t>(kept_.begin(unaware(row)));
      const uint64_t end = at + Op::kKept * kNumber;
      return {at / kWord * kWord,
              static_cast<uint32_t>((end + kWord - 1) / kWord * kWord - at / kWord * kWord)};
    }
  }

  __device__ __forceinline__ uint32_t columns() const { return begin_ < end_ ? end_ - begin_ : 0; }

  /// `memory` holds the columns from the block's first on.
  template <class View>
  __device__ __forceinline__ auto staged(char* memory) const {
    using T = typename View::Element;
    return Staged<T, View::kAccess>{reinterpret_cast<T*>(memory) - begin_};
  }
  __device__ __forceinline__ static char* place(int stage) {
    extern __shared__ __align__(16) char shared_row[];
    const uint32_t beyond = shared_address(shared_row) % kLine;
    return shared_row + (kLine - beyond) % kLine + stage * kStage;
  }
  __device__ __forceinline__ static char* kept_at(int stage) {
    return place(kStages) + stage * kOfKept;
  }
  __device__ __forceinline__ static Barrier* barriers() {
    __shared__ Barrier full[kStages * (1 + kJoins)];
    return full;
  }

  const LoadT& load_;
  const Upstream& upstream_;
  const Kept& kept_;
  int begin_, end_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

template <int kStages, class Schedule, class Op, class LoadT, class Upstream, class Kept>
__device__ __forceinline__ auto ring_of(const LoadT& load, const Upstream& upstream,
                                        const Kept& kept, int begin, int end) {
  if constexpr (kStages > 0) {
    return Ring<kStages, Schedule, Op, LoadT, Upstream, Kept>(load, upstream, kept, begin, end);
  } else {
    return NoRing{};
  }
}

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
