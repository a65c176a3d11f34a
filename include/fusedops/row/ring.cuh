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
};
template <class Source, class Upstream>
struct Joining<Load<Source, Joined<Upstream>>> {
  using View = Upstream;
};

/// kStages rows of a block. Where a pack of x or of a gradient is not a whole aligned word of 16 bytes,
/// a row begins anywhere: the aligned words that hold it are copied, and it lies in a line of shared
/// memory as it does in one of global memory. The kept numbers of a row may lie anywhere, too. All
/// threads of the block make the same calls. The gradient of a stream is read after the reduction, so
/// its place is free one row later. kBefore: bytes of shared memory before the ring.
template <int kStages, class Schedule, class Op, class LoadT, class Upstream, class Kept,
          int kBefore = 0>
class Ring {
  using XView = decltype(LoadT::source);
  using JoiningView = typename Joining<LoadT>::View;
  static constexpr int kWord = 16;
  static constexpr int kLine = 128;  // the alignment of the copies: others write two lines for one

  /// Whether rows begin and end with an aligned word, and bytes that a row takes.
  template <class View>
  static constexpr bool kInWords = View::kAccess * sizeof(typename View::Element) == kWord;
  template <class View>
  static constexpr int kOfView =
      (Schedule::kTile * sizeof(typename View::Element) + kLine - 1) / kLine * kLine +
      (kInWords<View> ? 0 : kLine);
  static constexpr int kOfX = kOfView<XView>;
  static constexpr int kOfDy = kOfView<Upstream>;
  static constexpr int kNumber = sizeof(typename Op::Compute);
  static constexpr int kOfKept =
      Op::kKept == 0 ? 0 : (Op::kKept * kNumber + 2 * kWord - kNumber - 1) / kWord * kWord;
  static constexpr bool kJoins = !IsSame<JoiningView, Absent>::value;
  static constexpr int of_joining() {
    if constexpr (kJoins) {
      return kOfView<JoiningView>;
    } else {
      return 0;
    }
  }
  static constexpr int kStage = kOfX + kOfDy + of_joining();
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
    const Words kept = kept_of(row);
    full.expect(bytes_of(load_.source, row) + bytes_of(upstream_, row) + kept.bytes);
    if (columns() > 0) {
      copy(load_.source, row, to, full);
      copy(upstream_, row, to + kOfX, full);
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
      const auto& joining = load_.chain.first.upstream;
      full.expect(bytes_of(joining, row));
      if (columns() > 0) copy(joining, row, place(stage) + kOfX + kOfDy, full);
    }
  }

  /// Waits until the row is there, and until the gradient of the stream is.
  __device__ __forceinline__ void wait() { barriers()[stage_].wait(parity_); }
  __device__ __forceinline__ void wait_for_joining() {
    if constexpr (kJoins) barriers()[kStages + stage_].wait(parity_);
  }

  /// What reads the row from shared memory, in place of the LOAD and of the other views.
  template <class Row>
  __device__ __forceinline__ auto load(const LoadT& load, const Row& row) const {
    const auto x = staged(load.source, place(stage_), row);
    if constexpr (kJoins) {
      const auto joining = staged(load.chain.first.upstream, place(stage_) + kOfX + kOfDy, row);
      return Load<decltype(x), Joined<decltype(joining)>>{x, {{joining}, {}}};
    } else {
      return load.from(x);
    }
  }
  template <class Row>
  __device__ __forceinline__ auto upstream(const Upstream& view, const Row& row) const {
    return staged(view, place(stage_) + kOfX, row);
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

  /// The memory behind the ring, which begins with a word.
  __device__ __forceinline__ static char* behind() { return kept_at(kStages); }

  /// Goes on to the next row.
  __device__ __forceinline__ void next() {
    if (++stage_ < kStages) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  /// The aligned words that hold a part of a row.
  struct Words {
    uint64_t from;
    uint32_t bytes;
  };
  __device__ __forceinline__ static Words words_around(const void* first, uint32_t bytes) {
    const uint64_t at = reinterpret_cast<uint64_t>(first), from = at / kWord * kWord;
    return {from, static_cast<uint32_t>((at + bytes + kWord - 1) / kWord * kWord - from)};
  }
  /// Those of the kept numbers.
  template <class Row>
  __device__ __forceinline__ Words kept_of(const Row& row) const {
    if constexpr (kOfKept == 0) {
      return {0, 0};
    } else {
      return words_around(kept_.begin(unaware(row)), Op::kKept * kNumber);
    }
  }
  /// Those of the block's columns, and their bytes.
  template <class View, class Row>
  __device__ __forceinline__ Words words_of(const View& view, const Row& row) const {
    const auto* first = view.begin(row) + begin_;
    const uint32_t bytes = columns() * sizeof(*first);
    if constexpr (kInWords<View>) return {reinterpret_cast<uint64_t>(first), bytes};
    return words_around(first, bytes);
  }
  template <class View, class Row>
  __device__ __forceinline__ uint32_t bytes_of(const View& view, const Row& row) const {
    if constexpr (kInWords<View>) return columns() * sizeof(typename View::Element);
    return columns() > 0 ? words_of(view, row).bytes : 0;
  }
  /// Copies them to where they lie in a line; those of rows in whole words begin one.
  template <class View, class Row>
  __device__ __forceinline__ void copy(const View& view, const Row& row, char* to,
                                       Barrier& full) const {
    const Words words = words_of(view, row);
    if constexpr (!kInWords<View>) to += words.from % kLine;
    fetch_words(to, reinterpret_cast<const void*>(words.from), words.bytes, full);
  }

  __device__ __forceinline__ uint32_t columns() const { return begin_ < end_ ? end_ - begin_ : 0; }

  /// What reads the block's columns of a row from its place.
  template <class View, class Row>
  __device__ __forceinline__ auto staged(const View& view, char* memory, const Row& row) const {
    using T = typename View::Element;
    if constexpr (kInWords<View>) {
      return Staged<T, View::kAccess>{reinterpret_cast<T*>(memory) - begin_};
    } else {
      return Staged<T, View::kAccess>{in_shared<kLine>(memory, view.begin(row), begin_)};
    }
  }
  __device__ __forceinline__ static char* place(int stage) {
    extern __shared__ __align__(16) char shared_row[];
    const uint32_t beyond = (shared_address(shared_row) + kBefore) % kLine;
    return shared_row + kBefore + (kLine - beyond) % kLine + stage * kStage;
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

/// Where the results of a row leave from: the memory behind the ring, if they go through it.
template <bool kByWords, class Schedule, class Ring, class To>
__device__ __forceinline__ auto leaving_of(const Ring& ring, const To&, int begin, int end) {
  if constexpr (kByWords && !IsSame<To, Absent>::value) {
    return Leaving<Schedule, To>(ring.behind(), begin, end);
  } else {
    return Direct{};
  }
}

template <int kStages, int kBefore, class Schedule, class Op, class LoadT, class Upstream,
          class Kept>
__device__ __forceinline__ auto ring_of(const LoadT& load, const Upstream& upstream,
                                        const Kept& kept, int begin, int end) {
  if constexpr (kStages > 0) {
    return Ring<kStages, Schedule, Op, LoadT, Upstream, Kept, kBefore>(load, upstream, kept, begin,
                                                                       end);
  } else {
    return NoRing{};
  }
}

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
