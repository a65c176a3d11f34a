// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LOADs and STOREs of a user's own, in the plain form of the contract: OneFlow's published form. A
// schedule asks for packs of its own width; a plain type gets them in packs of N that it can take.
// It is copied and called non-const, a LOAD into its LoadType where it declares one. N is a power
// of two that divides the columns, and at most
//   16 / sizeof(T::StorageType)  where it declares what lies in memory,
//   4                            where it has CanPackAs, which then decides,
//   2                            otherwise.
// The end of an odd row comes in packs of 1.
#pragma once

#include <fusedops/core/dtype.cuh>
#include <fusedops/functor/contract.cuh>

namespace fusedops {

namespace detail {

template <class T, class = void>
struct MostOf {
  static constexpr int value = 2;
  static constexpr bool kAsks = false;
};
template <class T>
struct MostOf<T, Void<decltype(&T::CanPackAs)>> {
  static constexpr int value = 4;
  static constexpr bool kAsks = true;
};
template <class T, class = void>
struct StorageOf {
  static constexpr int value = MostOf<T>::value;
};
template <class T>
struct StorageOf<T, Void<typename T::StorageType>> {
  static constexpr int value = 16 / sizeof(typename T::StorageType);
};

template <class T, class Compute, class = void>
struct LoadTypeOf {
  using type = Compute;
};
template <class T, class Compute>
struct LoadTypeOf<T, Compute, Void<typename T::LoadType>> {
  using type = typename T::LoadType;
};

/// The member that a plain LOAD or STORE has; it need not be const.
template <class T, class Compute>
using PlainLoadCall = decltype(any_of<T>().template load<1>(
    any_of<typename LoadTypeOf<T, Compute>::type*>(), int64_t(0), int64_t(0)));
template <class T, class Compute>
using PlainStoreCall =
    decltype(any_of<T>().template store<1>(any_of<const Compute*>(), int64_t(0), int64_t(0)));

/// Whether a plain type can move packs of n columns.
template <class T>
bool packs_as(T copy, int n) {
  if constexpr (MostOf<T>::kAsks) {
    return copy.CanPackAs(n);
  } else {
    (void)copy;
    return true;
  }
}

/// The widest pack to try for N columns: in a kernel that knows better, not the widest.
template <int N, int kMost, class Row>
inline constexpr int kFirst = N < kMost                                              ? N
                              : AccessOf<Row>::value == Access::kNarrow && kMost > 1 ? kMost / 2
                                                                                     : kMost;

/// A user's LOAD: as a LOAD, as what a gradient reads, and as a declaration without functors.
template <class T, class Compute, int kMost_>
struct PlainLoad {
  static_assert(detected<PlainLoadCall, T, Compute>(),
                "fusedops: not a LOAD: it needs template <int N> void load(Compute* dst, int64_t "
                "row, int64_t col), or comes from load(source, functors...) (see "
                "fusedops/functor/contract.cuh)");
  T inner;
  int pack;  // N
  static constexpr int kMost = kMost_;
  static constexpr bool kBounds = has_columns<T, int64_t>();
  static constexpr bool kSkips = has_any<T, int64_t>();
  using Loaded = typename LoadTypeOf<T, Compute>::type;
  static constexpr bool kRevisits = has_revisit<T, Loaded, int64_t>();

  template <int N, class Row>
  FUSEDOPS_HD void load(Compute* dst, const Row& row, int64_t col) const {
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value, false>(dst, static_cast<int64_t>(row), col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void revisit(Compute* dst, const Row& row, int64_t col) const {
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value, kRevisits>(dst, static_cast<int64_t>(row),
                                                                  col);
  }
  FUSEDOPS_ANY_SIDE
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    return inner.columns(static_cast<int64_t>(row));
  }
  FUSEDOPS_ANY_SIDE
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row& row, int64_t col) const {
    return inner.template any<N>(static_cast<int64_t>(row), col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    load<N>(value, row, col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
  template <int N, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&)[N], const Row&, int64_t, Sink&, const Masked&) const {}

 private:
  FUSEDOPS_ANY_SIDE
  template <int N, int kPack, Access kAccess, bool kAgain>
  FUSEDOPS_HD void by(Compute* dst, int64_t row, int64_t col) const {
    if constexpr (kPack > 1 && kAccess != Access::kWide) {
      if (pack < kPack) return by<N, kPack / 2, kAccess, kAgain>(dst, row, col);
    }
    T mine = inner;
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kPack) {
      if constexpr (IsSame<Loaded, Compute>::value) {
        one<kPack, kAgain>(mine, dst + i, row, col + i);
      } else {
        Loaded loaded[kPack];
        one<kPack, kAgain>(mine, loaded, row, col + i);
        FUSEDOPS_UNROLL
        for (int j = 0; j < kPack; ++j) dst[i + j] = convert<Compute>(loaded[j]);
      }
    }
  }
  FUSEDOPS_ANY_SIDE
  template <int kPack, bool kAgain>
  FUSEDOPS_HD static void one(T& mine, Loaded* dst, int64_t row, int64_t col) {
    if constexpr (kAgain) {
      mine.template revisit<kPack>(dst, row, col);
    } else {
      mine.template load<kPack>(dst, row, col);
    }
  }
};

/// A user's STORE: as a STORE, and as where a gradient goes.
template <class T, class Compute, int kMost_>
struct PlainStore {
  static_assert(detected<PlainStoreCall, T, Compute>(),
                "fusedops: not a STORE: it needs template <int N> void store(const Compute* src, "
                "int64_t row, int64_t col), or comes from store(functors..., target) (see "
                "fusedops/functor/contract.cuh)");
  T inner;
  int pack;
  static constexpr int kMost = kMost_;

  template <int N, class Row>
  FUSEDOPS_HD void store(const Compute* src, const Row& row, int64_t col) {
    T copy = inner;
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value>(copy, src, static_cast<int64_t>(row), col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    T copy = inner;
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value>(copy, value, static_cast<int64_t>(row), col);
  }

 private:
  FUSEDOPS_ANY_SIDE
  template <int N, int kPack, Access kAccess>
  FUSEDOPS_HD void by(T& mine, const Compute* src, int64_t row, int64_t col) const {
    if constexpr (kPack > 1 && kAccess != Access::kWide) {
      if (pack < kPack) return by<N, kPack / 2, kAccess>(mine, src, row, col);
    }
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kPack) mine.template store<kPack>(src + i, row, col + i);
  }
};

}  // namespace detail

}  // namespace fusedops
