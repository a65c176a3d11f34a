// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A chain of functors: what a LOAD or a STORE calls them through, forward, backward, and with the
// functor that reads a partner column.
#pragma once

#include <fusedops/core/memory.cuh>
#include <fusedops/functor/refusals.cuh>
#include <fusedops/functor/sink.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// A pack's width as a type.
template <int kWidth>
struct Width {
  static constexpr int value = kWidth;
};

namespace detail {

template <class F>
using NeighboursFlag = Flag<F::kNeighbours>;
template <class F>
FUSEDOPS_HD constexpr bool has_neighbours() {
  return flag<false, NeighboursFlag, F>();
}

/// Calls f(width, i, at) for the pieces of a pack, from its element i on, whose partners lie together:
/// in the piece itself, or from column `at` on.
template <int N, class Pair, class F>
FUSEDOPS_HD void each_pair(const Pair& pair, int64_t col, const F& f) {
  constexpr int M = Pair::kPairWidth < N ? Pair::kPairWidth : N;
  FUSEDOPS_UNROLL
  for (int i = 0; i < N; i += M) f(Width<M>{}, i, pair.partner(col + i));
}

template <int N, class Compute>
FUSEDOPS_HD void swap_neighbours(Compute (&to)[N], const Compute (&from)[N]) {
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) to[i] = from[i ^ 1];
}

/// Discards the gradients of operands.
struct NoSink {
  template <int kFunctor, int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&)[N], const Row&, int64_t) const {}
};

}  // namespace detail

/// Functors in the order of their declaration; kFirst is the position of the first.
template <int kFirst, class... Functors>
struct Chain {
  static constexpr bool kSaves = false;
  static constexpr bool kComputesAfterSave = false;
  static constexpr bool kStreamGradient = false;
  static constexpr bool kMasks = false;
  static constexpr bool kBounds = false;
  static constexpr bool kMasksBounds = true;
  static constexpr bool kSkips = false;
  static constexpr bool kEnds = false;
  static constexpr int kBlock = kNoBlock;
  static constexpr bool kPairs = false;
  static constexpr bool kNeighbours = false;
  static constexpr int kDistance = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void values(Compute (&)[N], const Row&, int64_t) const {}
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void masks(Compute (&)[N], const Row&, int64_t) const {}
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void after_save(Compute (&)[N], const Row&, int64_t) const {}
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By>
  __device__ __forceinline__ void prefetch_all(const Row&, int64_t, int64_t, By) const {}
#endif
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row&, Columns all) const {
    return all;
  }
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row&, int64_t) const {
    return true;
  }
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&)[N], Compute (&)[N], const Row&, int64_t, Sink&,
                            const Masked&) const {}
  template <class Visit>
  FUSEDOPS_HD void operands(Visit&) const {}
};

template <int kFirst, class F, class... Rest>
struct Chain<kFirst, F, Rest...> {
  F first;
  Chain<kFirst + 1, Rest...> rest;
  static_assert(
      !detail::ends<F>() || sizeof...(Rest) == 0,
      "fusedops: quantize() comes last in a STORE, before the target: what another functor "
      "makes of its result would be neither scaled nor in its largest value");

  static constexpr bool kBlockHere = detail::block_of<F>() != kNoBlock;
  static_assert(!kBlockHere || sizeof...(Rest) == 0,
                "fusedops: a functor that needs the largest of a block of columns comes last in a "
                "STORE, before the target");
  static constexpr int kBlock =
      kBlockHere ? detail::block_of<F>() : Chain<kFirst + 1, Rest...>::kBlock;

  static constexpr bool kSavesHere = detail::saves<F>();
  static constexpr bool kSavesLater = Chain<kFirst + 1, Rest...>::kSaves;
  static constexpr bool kSaves = kSavesHere || kSavesLater;
  static constexpr bool kComputesAfterSave =
      kSavesLater ? Chain<kFirst + 1, Rest...>::kComputesAfterSave : sizeof...(Rest) > 0;
  static constexpr bool kStreamGradient =
      detail::has_stream_gradient<F>() || Chain<kFirst + 1, Rest...>::kStreamGradient;
  static constexpr bool kMasks = detail::masks<F>() || Chain<kFirst + 1, Rest...>::kMasks;
  static constexpr bool kBounds =
      detail::has_columns<F, RowIndex<1>>() || Chain<kFirst + 1, Rest...>::kBounds;
  static constexpr bool kMasksBounds =
      (!detail::has_columns<F, RowIndex<1>>() || detail::masks<F>()) &&
      Chain<kFirst + 1, Rest...>::kMasksBounds;
  static constexpr bool kSkips =
      detail::has_any<F, RowIndex<1>>() || Chain<kFirst + 1, Rest...>::kSkips;
  static constexpr bool kEnds = detail::ends<F>() || Chain<kFirst + 1, Rest...>::kEnds;
  static constexpr bool kPairsHere = detail::pairs<F>();
  static constexpr bool kPairs = kPairsHere || Chain<kFirst + 1, Rest...>::kPairs;
  static constexpr bool kNeighbours =
      detail::has_neighbours<F>() || Chain<kFirst + 1, Rest...>::kNeighbours;
  static constexpr int kDistance =
      kPairsHere ? detail::distance_of<F>() : Chain<kFirst + 1, Rest...>::kDistance;
  static_assert(!kPairsHere || !Chain<kFirst + 1, Rest...>::kPairs,
                "fusedops: two functors that read a partner column: a declaration has one at most");
  static_assert(!kPairs || (!kMasks && !kSaves),
                "fusedops: a functor that reads a partner column stands beside no masks and no "
                "saved streams");

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void values(Compute (&v)[N], const Row& row, int64_t col) const {
    static_assert(
        kBlockHere || is_functor_v<F, Compute, Row>,
        "fusedops: not a functor: it needs template <int N> void operator()(Compute (&v)[N], "
        "int64_t row, int64_t col) const (see fusedops/functor/contract.cuh)");
    static_assert(!kBlockHere || detail::detected<detail::BlockCall, F, Compute, Row>(),
                  "fusedops: not a functor of blocks: kBlock asks for measure(v), of_block(row, "
                  "largest), operator()(v, row, col, found) and keep(row, block, largest) (see "
                  "fusedops/functor/contract.cuh)");
    static_assert(!detail::saves<F>() || detail::detected<detail::RereadCall, F, Compute, Row>(),
                  "fusedops: a functor that saves (kSaves) without template <int N> void "
                  "reread(Compute (&v)[N], int64_t row, int64_t col) const (see "
                  "fusedops/functor/contract.cuh)");
    static_assert(!kPairsHere,
                  "fusedops: a functor that reads a partner column cannot stand here: kernels of "
                  "row ops made by the Python package call it, other dispatches and products do "
                  "not");
    if constexpr (!detail::masks<F>() && !kBlockHere) first(v, detail::row_for<F>(row), col);
    rest.values(v, row, col);
  }
  /// What the functor of blocks does, which `values` leaves out.
  template <int N, class Compute>
  FUSEDOPS_HD uint32_t measure(const Compute (&v)[N]) const {
    if constexpr (kBlockHere) {
      return first.measure(v);
    } else {
      return rest.measure(v);
    }
  }
  template <class Row>
  FUSEDOPS_HD auto of_block(const Row& row, uint32_t largest) const {
    if constexpr (kBlockHere) {
      return first.of_block(detail::row_for<F>(row), largest);
    } else {
      return rest.of_block(row, largest);
    }
  }
  template <int N, class Compute, class Row, class Found>
  FUSEDOPS_HD void in_block(Compute (&v)[N], const Row& row, int64_t col,
                            const Found& found) const {
    if constexpr (kBlockHere) {
      first(v, detail::row_for<F>(row), col, found);
    } else {
      rest.in_block(v, row, col, found);
    }
  }
  template <class Row>
  FUSEDOPS_HD void keep(const Row& row, int64_t block, uint32_t largest) const {
    if constexpr (kBlockHere) {
      first.keep(detail::row_for<F>(row), block, largest);
    } else {
      rest.keep(row, block, largest);
    }
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void masks(Compute (&v)[N], const Row& row, int64_t col) const {
    if constexpr (detail::masks<F>()) first(v, detail::row_for<F>(row), col);
    rest.masks(v, row, col);
  }
  /// The functor that reads a partner column.
  FUSEDOPS_HD const auto& pair() const {
    if constexpr (kPairsHere) {
      return first;
    } else {
      return rest.pair();
    }
  }
  /// The values of a pack with a functor that reads its partners, which lie from column `at` on and
  /// whose values on entry are `w`; where they lie in the pack, `w` is not read.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void paired(Compute (&v)[N], Compute (&w)[N], const Row& row, int64_t col,
                          int64_t at) const {
    constexpr bool kWithin = kNeighbours && N > 1;
    if constexpr (kPairsHere) {
      if constexpr (kWithin) detail::swap_neighbours(w, v);
      first.paired(v, w, detail::row_for<F>(row), col);
      rest.values(v, row, col);
    } else {
      first(v, detail::row_for<F>(row), col);
      if constexpr (!kWithin) first(w, detail::row_for<F>(row), at);
      rest.paired(v, w, row, col, at);
    }
  }
  /// Recomputes the values from the last saved stream on.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void after_save(Compute (&v)[N], const Row& row, int64_t col) const {
    if constexpr (kSavesLater) {
      rest.after_save(v, row, col);
    } else if constexpr (kSavesHere) {
      first.reread(v, detail::row_for<F>(row), col);
      rest.values(v, row, col);
    }
  }
  /// Prefetches the saved streams and their gradients, usually the only operands of x's size.
  static constexpr bool kStreamsHere = kSavesHere || detail::has_stream_gradient<F>();
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    if constexpr (kStreamsHere && detail::detected<detail::PrefetchCall, F, Row>()) {
      first.template prefetch<N>(detail::row_for<F>(row), col);
    }
    rest.template prefetch<N>(row, col);
  }
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    if constexpr (kStreamsHere && detail::detected<detail::PrefetchAllCall, F, Row, By>()) {
      first.prefetch_all(detail::row_for<F>(row), begin, end, by);
    }
    rest.prefetch_all(row, begin, end, by);
  }
#endif
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row, Columns all) const {
    all = rest.columns(row, all);
    if constexpr (detail::has_columns<F, Row>()) {
      const Columns mine = first.columns(detail::row_for<F>(row));
      all.begin = mine.begin > all.begin ? mine.begin : all.begin;
      all.end = mine.end < all.end ? mine.end : all.end;
    }
    return all;
  }
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row& row, int64_t col) const {
    if constexpr (detail::has_any<F, Row>()) {
      if (!first.template any<N>(detail::row_for<F>(row), col)) return false;
    }
    return rest.template any<N>(row, col);
  }
  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    if constexpr (detail::has_operands<F>()) first.operands(visit);
    rest.operands(visit);
  }
  /// The backward pass as a recursion: recompute the output of the first functor, run the rest
  /// backward, then the first functor.
  ///
  ///   v: on entry the input of the first functor, afterwards unspecified
  ///   g: on entry the gradient of the chain's result, on exit that of the first functor's input
  ///
  /// An input is copied only where its functor's gradient reads it; a saved stream is read, not
  /// written. Masks apply after the last saved stream: if the stream has a gradient of its own,
  /// masked elements have a gradient in front of it.
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&g)[N], Compute (&v)[N], const Row& row, int64_t col,
                            Sink& sink, const Masked& masked) const {
    if constexpr (detail::masks<F>()) {
      rest.backward(g, v, row, col, sink, masked);
    } else {
      using Mine = SinkAt<kFirst, Sink>;
      static_assert(detail::detected<detail::BackwardCall, F, Compute, Row, Mine>(),
                    "fusedops: a functor without a gradient: it needs template <int N, class Sink> "
                    "void backward(Compute (&g)[N], const Compute (&in)[N], int64_t row, int64_t "
                    "col, Sink& sink) const (see fusedops/functor/contract.cuh)");
      Compute seen[N];
      if constexpr (detail::needs_input<F>()) {
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) seen[i] = v[i];
      }
      if constexpr (kSavesHere) {
        first.reread(v, detail::row_for<F>(row), col);
      } else {
        first(v, detail::row_for<F>(row), col);
      }
      rest.backward(g, v, row, col, sink, masked);
      if constexpr (kSavesHere && !kSavesLater) masked.select(g);
      if constexpr (kStreamGradient) {
        SinkAt<kFirst, Sink> mine{sink};
        first.backward(g, seen, detail::row_for<F>(row), col, mine);
      } else {
        UnmaskedSink<Sink, Masked> kept{sink, masked};
        SinkAt<kFirst, UnmaskedSink<Sink, Masked>> mine{kept};
        first.backward(g, seen, detail::row_for<F>(row), col, mine);
      }
    }
  }

  /// The same with a functor that reads partners: `w` and `of_partner` are v and g at the partners,
  /// from column `at` on; where these lie in the pack, neither is read.
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void paired_backward(Compute (&g)[N], Compute (&of_partner)[N], Compute (&v)[N],
                                   Compute (&w)[N], const Row& row, int64_t col, int64_t at,
                                   Sink& sink, const Masked& masked) const {
    constexpr bool kWithin = kNeighbours && N > 1;
    Compute seen[N], other[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) seen[i] = v[i];
    SinkAt<kFirst, Sink> mine{sink};
    if constexpr (kPairsHere) {
      if constexpr (kWithin) {
        detail::swap_neighbours(other, v);
      } else {
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) other[i] = w[i];
      }
      first.paired(v, other, detail::row_for<F>(row), col);
      rest.backward(g, v, row, col, sink, masked);
      if constexpr (kWithin) {
        detail::swap_neighbours(of_partner, g);
      } else {
        detail::NoSink none;
        first.paired(w, seen, detail::row_for<F>(row), at);
        rest.backward(of_partner, w, row, at, none, masked);
      }
      first.paired_backward(g, of_partner, seen, other, detail::row_for<F>(row), col, mine);
    } else {
      first(v, detail::row_for<F>(row), col);
      if constexpr (!kWithin) first(w, detail::row_for<F>(row), at);
      rest.paired_backward(g, of_partner, v, w, row, col, at, sink, masked);
      first.backward(g, seen, detail::row_for<F>(row), col, mine);
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
