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

#include <fusedops/functor/compose.cuh>
#include <fusedops/row/operand.cuh>

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

/// Whether a type has the member that a plain LOAD or STORE has; it need not be const.
template <class T, class Compute, class = void>
struct IsPlainLoad {
  static constexpr bool value = false;
};
template <class T, class Compute>
struct IsPlainLoad<
    T, Compute,
    Void<decltype(any_of<T>().template load<1>(any_of<typename LoadTypeOf<T, Compute>::type*>(),
                                               int64_t(0), int64_t(0)))>> {
  static constexpr bool value = true;
};
template <class T, class Compute, class = void>
struct IsPlainStore {
  static constexpr bool value = false;
};
template <class T, class Compute>
struct IsPlainStore<T, Compute,
                    Void<decltype(any_of<T>().template store<1>(any_of<const Compute*>(),
                                                                int64_t(0), int64_t(0)))>> {
  static constexpr bool value = true;
};

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
template <class T, class Compute>
struct PlainLoad {
  static_assert(IsPlainLoad<T, Compute>::value,
                "fusedops: not a LOAD: it needs template <int N> void load(Compute* dst, int64_t "
                "row, int64_t col), or comes from load(source, functors...) (see "
                "fusedops/functor/contract.cuh)");
  T inner;
  int pack;  // N
  static constexpr int kMost = StorageOf<T>::value;

  template <int N, class Row>
  FUSEDOPS_HD void load(Compute* dst, const Row& row, int64_t col) const {
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value>(dst, static_cast<int64_t>(row), col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    load<N>(value, row, col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
  template <int N, class Row, class Sink, class Gone>
  FUSEDOPS_HD void backward(Compute (&)[N], const Row&, int64_t, Sink&, const Gone&) const {}

 private:
  FUSEDOPS_ANY_SIDE
  template <int N, int kPack, Access kAccess>
  FUSEDOPS_HD void by(Compute* dst, int64_t row, int64_t col) const {
    if constexpr (kPack > 1 && kAccess != Access::kWide) {
      if (pack < kPack) return by<N, kPack / 2, kAccess>(dst, row, col);
    }
    using Loaded = typename LoadTypeOf<T, Compute>::type;
    T mine = inner;
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kPack) {
      if constexpr (IsSame<Loaded, Compute>::value) {
        mine.template load<kPack>(dst + i, row, col + i);
      } else {
        Loaded loaded[kPack];
        mine.template load<kPack>(loaded, row, col + i);
        FUSEDOPS_UNROLL
        for (int j = 0; j < kPack; ++j) dst[i + j] = convert<Compute>(loaded[j]);
      }
    }
  }
};

/// A user's STORE: as a STORE, and as where a gradient goes.
template <class T, class Compute>
struct PlainStore {
  static_assert(IsPlainStore<T, Compute>::value,
                "fusedops: not a STORE: it needs template <int N> void store(const Compute* src, "
                "int64_t row, int64_t col), or comes from store(functors..., target) (see "
                "fusedops/functor/contract.cuh)");
  T inner;
  int pack;
  static constexpr int kMost = StorageOf<T>::value;

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

/// A composed LOAD or STORE where a gradient reads or writes one value an element.
template <class Inner>
struct AsOperand {
  Inner inner;
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    inner.template load<N>(static_cast<Compute*>(value), row, col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    inner.template prefetch<N>(row, col);
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    inner.template store<N>(static_cast<const Compute*>(value), row, col);
  }
};

template <class T>
struct IsOperand {
  static constexpr bool value = false;
};
template <class T, class Map>
struct IsOperand<Operand<T, Map>> {
  static constexpr bool value = true;
};

/// What there is to know of a type before it is dispatched: ours, or a plain one.
template <class T>
struct Form {
  static constexpr int kWidth = 4;  // of a schedule's packs: 16 bytes of the compute type
  static constexpr bool kPlain = true;
  static constexpr int kMost = StorageOf<T>::value;
};
template <class T>
struct OnlyValues;
template <class T>
struct Form<OnlyValues<T>> : Form<T> {};
template <class Source, class... Functors>
struct Form<Load<Source, Functors...>> {
  static constexpr int kWidth = 16 / sizeof(typename Source::Element);
  static constexpr bool kPlain = false;
};
template <class Target, class Functors>
struct Form<Store<Target, Functors>> {
  static constexpr bool kPlain = false;
};

/// Whether every pack of `width` columns of what it visits is one aligned access.
struct AllWide {
  bool wide = true;
  template <class T>
  FUSEDOPS_HD void operator()(const T&) {}
  template <class T, class Map>
  FUSEDOPS_HD void operator()(const Operand<T, Map>& operand) {
    wide = wide && operand.width >= 16 / int(sizeof(T));
  }
  template <class T, class Compute>
  FUSEDOPS_HD void operator()(const PlainLoad<T, Compute>& load) {
    wide = wide && load.pack == PlainLoad<T, Compute>::kMost;
  }
  template <class T, class Compute>
  FUSEDOPS_HD void operator()(const PlainStore<T, Compute>& store) {
    wide = wide && store.pack == PlainStore<T, Compute>::kMost;
  }
  template <class Source, class... Functors>
  FUSEDOPS_HD void operator()(const Load<Source, Functors...>& load) {
    load.operands(*this);
  }
  template <class Target, class Functors>
  FUSEDOPS_HD void operator()(const Store<Target, Functors>& store) {
    store.operands(*this);
  }
  template <class Inner>
  FUSEDOPS_HD void operator()(const AsOperand<Inner>& composed) {
    (*this)(composed.inner);
  }
};

/// The largest pack that divides the columns and suits a plain type.
template <class T>
int pack_of(const T& given, int64_t cols, int most) {
  if constexpr (Form<T>::kPlain && !IsOperand<T>::value) {
    int pack = most < Form<T>::kMost ? most : Form<T>::kMost;
    while (pack > 1 && (cols % pack != 0 || !packs_as(given, pack))) pack /= 2;
    return pack;
  } else {
    return most;
  }
}

template <class Compute, class T>
auto as_load(const T& given, int pack) {
  if constexpr (Form<T>::kPlain) {
    return PlainLoad<T, Compute>{given, pack};
  } else {
    return given;
  }
}
/// A gradient's own sources and targets: composed, plain, or an operand as it is.
template <class Compute, class T>
auto as_source(const T& given, int pack) {
  if constexpr (!Form<T>::kPlain) {
    return AsOperand<T>{given};
  } else if constexpr (!IsOperand<T>::value) {
    return PlainLoad<T, Compute>{given, pack};
  } else {
    return given;
  }
}
template <class Compute, class T>
auto as_target(const T& given, int pack) {
  if constexpr (!Form<T>::kPlain) {
    return AsOperand<T>{given};
  } else if constexpr (!IsOperand<T>::value) {
    return PlainStore<T, Compute>{given, pack};
  } else {
    return given;
  }
}

/// A STORE whose functors alone matter.
template <class T>
auto as_declared(const T& given) {
  if constexpr (Form<T>::kPlain) {
    return store(Absent{});
  } else {
    return given;
  }
}

/// A LOAD whose gradient nobody asks for: what it reads is what the gradient is of.
template <class T>
struct OnlyValues : T {
  template <int N, class Compute, class Row, class Sink, class Gone>
  FUSEDOPS_HD void backward(Compute (&)[N], const Row&, int64_t, Sink&, const Gone&) const {}
};
template <class T>
OnlyValues<T> only_values(const T& load) {
  return {load};
}

template <class Compute, class T>
auto as_store(const T& given, int pack) {
  if constexpr (Form<T>::kPlain) {
    return PlainStore<T, Compute>{given, pack};
  } else {
    return given;
  }
}

}  // namespace detail

}  // namespace fusedops
