// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Composition: a source and functors make a LOAD, functors and a target make a STORE. Functors run
// in the order of their declaration, except that masks run last: a masked element stays -inf
// whatever functor follows.
#pragma once

#include <fusedops/core/memory.cuh>
#include <fusedops/functor/chain.cuh>
#include <fusedops/functor/masked.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// A composed LOAD.
template <class Source, class... Functors>
struct Load {
  Source source;
  Chain<0, Functors...> chain;

  // Whether load, and revisit, give other values than the elements as they are read.
  static constexpr bool kComputes = sizeof...(Functors) > 0;
  static constexpr bool kComputesAgain =
      Chain<0, Functors...>::kSaves ? Chain<0, Functors...>::kComputesAfterSave : kComputes;

  // A stream is saved at masked elements as well, so then no column is skipped.
  static constexpr bool kSaves = Chain<0, Functors...>::kSaves;
  static constexpr bool kMasks = Chain<0, Functors...>::kMasks;
  static constexpr bool kBounds = Chain<0, Functors...>::kBounds && !kSaves;
  static constexpr bool kSkips = Chain<0, Functors...>::kSkips && !kSaves;
  static constexpr bool kMasksBounds = Chain<0, Functors...>::kMasksBounds;
  static constexpr bool kPairs = Chain<0, Functors...>::kPairs;
  static constexpr int kDistance = Chain<0, Functors...>::kDistance;

  /// The same functors with another source.
  template <class Other>
  FUSEDOPS_HD Load<Other, Functors...> from(const Other& other) const {
    return {other, chain};
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void load(Compute* dst, const Row& row, int64_t col) const {
    if constexpr (kPairs) {
      detail::each_pair<N>(chain.pair(), col, [&](auto width, int i, int64_t at) {
        constexpr int M = decltype(width)::value;
        Compute(&v)[M] = *reinterpret_cast<Compute(*)[M]>(dst + i);
        Compute w[M];
        source.read(v, row, col + i);
        if constexpr (!Chain<0, Functors...>::kNeighbours || M == 1) source.read(w, row, at);
        chain.paired(v, w, row, col + i, at);
      });
    } else {
      Compute(&v)[N] = *reinterpret_cast<Compute(*)[N]>(dst);
      source.read(v, row, col);
      chain.values(v, row, col);
      chain.masks(v, row, col);
    }
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void revisit(Compute* dst, const Row& row, int64_t col) const {
    if constexpr (Chain<0, Functors...>::kSaves) {
      Compute(&v)[N] = *reinterpret_cast<Compute(*)[N]>(dst);
      chain.after_save(v, row, col);
      chain.masks(v, row, col);
    } else {
      load<N>(dst, row, col);
    }
  }
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    return chain.columns(row, Columns{0, 0x7fffffffffffffff});
  }
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row& row, int64_t col) const {
    return chain.template any<N>(row, col);
  }
  /// Prefetches into L2 what a later load of these columns reads.
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    source.template prefetch<N>(row, col);
    chain.template prefetch<N>(row, col);
  }
#if defined(FUSEDOPS_CUDA)
  /// Prefetches the columns from `begin` to `end`; `by`: as in prefetch_bytes().
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    source.prefetch_all(row, begin, end, by);
    chain.prefetch_all(row, begin, end, by);
  }
#endif
  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(source);
    chain.operands(visit);
  }
  /// Turns the gradient of the LOAD's result into that of the source; recomputes what the functors
  /// read.
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Row& row, int64_t col, Sink& sink,
                            const Masked& masked) const {
    Compute v[N];
    source.read(v, row, col);
    chain.backward(g, v, row, col, sink, masked);
    // Selected after the functors: zero times an infinite scale would be NaN.
    if constexpr (!Chain<0, Functors...>::kStreamGradient) masked.select(g);
  }
  /// The same with a functor that reads a partner column; `gradient_at(g, column)` gives the gradient
  /// of the LOAD's result elsewhere in the row.
  template <int N, class Compute, class Row, class Sink, class GradientAt>
  FUSEDOPS_HD void paired_backward(Compute (&g)[N], const Row& row, int64_t col, const Sink& sink,
                                   const GradientAt& gradient_at) const {
    detail::each_pair<N>(chain.pair(), col, [&](auto width, int i, int64_t at) {
      constexpr int M = decltype(width)::value;
      Compute v[M], w[M], of_partner[M];
      source.read(v, row, col + i);
      if constexpr (!Chain<0, Functors...>::kNeighbours || M == 1) {
        source.read(w, row, at);
        gradient_at(of_partner, at);
      }
      auto mine = sink.from(i);
      chain.paired_backward(*reinterpret_cast<Compute(*)[M]>(g + i), of_partner, v, w, row, col + i,
                            at, mine, NoneMasked{});
    });
  }
};

/// A composed STORE; Functors is a Chain. kZeroes: it gets the results of a norm with masks, and
/// writes zero at masked elements.
template <class Target, class Functors, bool kZeroes = false>
struct Store {
  Target target;
  Functors chain;

  static constexpr bool kComputes = kZeroes || !detail::IsSame<Functors, Chain<0>>::value;
  static constexpr int kBlock = Functors::kBlock;
  static constexpr bool kPairs = Functors::kPairs;
  static constexpr int kDistance = Functors::kDistance;
  static_assert(!kPairs || !kZeroes,
                "fusedops: a functor that reads a partner column stands beside no masks");

  /// The same functors with another target.
  template <class Other>
  FUSEDOPS_HD Store<Other, Functors, kZeroes> to(const Other& other) const {
    return {other, chain};
  }
  FUSEDOPS_HD Store<Target, Functors, true> zero_where_masked() const { return {target, chain}; }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void store(const Compute* src, const Row& row, int64_t col) const {
    static_assert(
        kBlock == kNoBlock,
        "fusedops: the largest of a block of columns is not known here: the epilogue of a "
        "product, say, sees no row");
    Compute v[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = src[i];
    make(v, row, col);
    detail::refuse_to_round<Target, Functors::kEnds>();
    target.write(v, row, col);
  }
  /// Turns results into what the target, or the functor of blocks, gets.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void make(Compute (&v)[N], const Row& row, int64_t col) const {
    Compute src[kZeroes ? N : 1];
    if constexpr (kZeroes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) src[i] = v[i];
    }
    chain.values(v, row, col);
    if constexpr (kZeroes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        const Compute made = v[i];
        v[i] = src[i] == detail::kMaskedResult<Compute> ? Compute(0) : made;
      }
    }
  }
  /// Where the STORE ends in a functor of blocks, the rest of what is stored: row/blocks.cuh.
  template <int N, class Compute, class Row, class Found>
  FUSEDOPS_HD void store_in_block(Compute (&v)[N], const Row& row, int64_t col,
                                  const Found& found) const {
    detail::refuse_to_round<Target, Functors::kEnds>();
    chain.in_block(v, row, col, found);
    target.write(v, row, col);
  }
  /// The values at the partners of N columns, each by fetch(values, column), but for those that lie
  /// in the pack.
  template <int N, class Compute, class Fetch>
  FUSEDOPS_HD void fetch_partners(Compute* partners, int64_t col, const Fetch& fetch) const {
    detail::each_pair<N>(chain.pair(), col, [&](auto width, int i, int64_t at) {
      constexpr int M = decltype(width)::value;
      if constexpr (!Functors::kNeighbours || M == 1) {
        fetch(*reinterpret_cast<Compute(*)[M]>(partners + i), at);
      }
    });
  }
  /// store() with a functor that reads a partner column, and the row's results at the partners.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void store_paired(const Compute* src, const Compute* partners, const Row& row,
                                int64_t col) const {
    detail::each_pair<N>(chain.pair(), col, [&](auto width, int i, int64_t at) {
      constexpr int M = decltype(width)::value;
      Compute v[M], w[M];
      FUSEDOPS_VECTOR
      for (int j = 0; j < M; ++j) {
        v[j] = src[i + j];
        w[j] = partners[i + j];
      }
      chain.paired(v, w, row, col + i, at);
      detail::refuse_to_round<Target, Functors::kEnds>();
      target.write(v, row, hidden(col + i));
    });
  }
  /// backward() likewise; `at_partner(g, result, column)` gives both elsewhere in the row.
  template <int N, class Compute, class Row, class Sink, class AtPartner>
  FUSEDOPS_HD void paired_backward(Compute (&g)[N], const Compute (&result)[N], const Row& row,
                                   int64_t col, const Sink& sink,
                                   const AtPartner& at_partner) const {
    detail::each_pair<N>(chain.pair(), col, [&](auto width, int i, int64_t at) {
      constexpr int M = decltype(width)::value;
      Compute v[M], w[M], of_partner[M];
      FUSEDOPS_VECTOR
      for (int j = 0; j < M; ++j) v[j] = result[i + j];
      if constexpr (!Functors::kNeighbours || M == 1) at_partner(of_partner, w, at);
      auto mine = sink.from(i);
      chain.paired_backward(*reinterpret_cast<Compute(*)[M]>(g + i), of_partner, v, w, row, col + i,
                            at, mine, NoneMasked{});
    });
  }
  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(target);
    chain.operands(visit);
  }
  /// Turns the gradient of what was stored into that of the row's result; `result` is the input of
  /// the STORE.
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&result)[N], const Row& row,
                            int64_t col, Sink& sink, const Masked& masked) const {
    Compute v[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = result[i];
    chain.backward(g, v, row, col, sink, masked);
  }
};

namespace detail {

template <int kFirst>
FUSEDOPS_HD Chain<kFirst> chain() {
  return {};
}
template <int kFirst, class F, class... Rest>
FUSEDOPS_HD Chain<kFirst, F, Rest...> chain(const F& first, const Rest&... rest) {
  return {first, chain<kFirst + 1>(rest...)};
}

template <int kFirst, class Target>
FUSEDOPS_HD Store<Target, Chain<kFirst>> store_from(const Target& target) {
  return {target, {}};
}
template <int kSecond, class F, class Target, class... Rest>
FUSEDOPS_HD Store<Target, Chain<kSecond - 1, F, Rest...>> with_first(
    const F& first, const Store<Target, Chain<kSecond, Rest...>>& then) {
  return {then.target, {first, then.chain}};
}
template <int kFirst, class F, class Next, class... Rest>
FUSEDOPS_HD auto store_from(const F& first, const Next& next, const Rest&... rest) {
  return with_first(first, store_from<kFirst + 1>(next, rest...));
}

}  // namespace detail

/// load(source, f1, f2, ...): reads the source, then applies f1, then f2.
template <class Source, class... Functors>
FUSEDOPS_HD Load<Source, Functors...> load(const Source& source, const Functors&... functors) {
  detail::refuse_pointers<Source, Functors...>();
  detail::refuse_as_source<Source>();
  detail::refuse_constructors<Source, Functors...>();
  return {source, detail::chain<0>(functors...)};
}

/// store(f1, f2, ..., target): applies f1, then f2, then writes to the target.
template <class First, class... Rest>
FUSEDOPS_HD auto store(const First& first, const Rest&... rest) {
  detail::refuse_pointers<First, Rest...>();
  detail::refuse_as_target<First, Rest...>();
  detail::refuse_constructors<First, Rest...>();
  return detail::store_from<0>(first, rest...);
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
