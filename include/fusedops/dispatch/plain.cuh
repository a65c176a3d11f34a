// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LOADs and STOREs that users write, in the plain form of the contract, which is OneFlow's
// published form. A schedule moves packs of its own width; a plain type gets them in packs of N
// columns that it can take. It is copied and called non-const; a LOAD writes its LoadType where it
// declares one. N is a power of two that divides the columns, and at most
//   16 / sizeof(T::StorageType)  where the type declares what lies in memory,
//   4                            where it has CanPackAs, which then decides,
//   2                            otherwise.
// The end of an odd row comes in packs of 1.
#pragma once

#include <fusedops/core/dtype.cuh>
#include <fusedops/functor/contract.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class T>
using CanPackAsMember = decltype(&T::CanPackAs);
template <class T>
using StorageTypeOf = typename T::StorageType;
template <class T>
using LoadTypeOf = typename T::LoadType;

/// The widest pack that a plain type takes.
template <class T>
constexpr int widest_pack() {
  if constexpr (detected<StorageTypeOf, T>()) {
    return 16 / sizeof(StorageTypeOf<T>);
  } else {
    return detected<CanPackAsMember, T>() ? 4 : 2;
  }
}

/// Whether a plain type can move packs of n columns.
template <class T>
bool packs_as(T copy, int n) {
  if constexpr (detected<CanPackAsMember, T>()) {
    return copy.CanPackAs(n);
  } else {
    (void)copy;
    (void)n;
    return true;
  }
}

/// The members of a plain LOAD and STORE; they need not be const.
template <class T, class Compute>
using PlainLoadCall = decltype(any_of<T>().template load<1>(
    any_of<DetectedOr<Compute, LoadTypeOf, T>*>(), int64_t(0), int64_t(0)));
template <class T, class Compute>
using PlainStoreCall =
    decltype(any_of<T>().template store<1>(any_of<const Compute*>(), int64_t(0), int64_t(0)));

/// The widest pack to try for N columns: less than the widest in a kernel that was launched because
/// some operand does not allow that.
template <int N, int kMost, class Row>
inline constexpr int kFirst = N < kMost                                              ? N
                              : AccessOf<Row>::value == Access::kNarrow && kMost > 1 ? kMost / 2
                                                                                     : kMost;

/// A user's type within a kernel's argument, on copies of which members may be called that are not
/// const. One that is not trivially copyable is held and copied by bytes, as the launch of a kernel
/// copies it: its constructors and its destructor may be for the host alone, as a virtual one is.
template <class T, bool kPlainly = __is_trivially_copyable(T)>
struct Held {
  T it;
  FUSEDOPS_HD static Held of(const T& given) { return {given}; }
  FUSEDOPS_HD T& get() { return it; }
  FUSEDOPS_HD const T& get() const { return it; }
};
template <class T>
struct Held<T, false> {
  alignas(T) unsigned char bytes[sizeof(T)];
  static Held of(const T& given) {
    Held held;
    __builtin_memcpy(held.bytes, &given, sizeof(T));
    return held;
  }
  FUSEDOPS_HD T& get() { return *reinterpret_cast<T*>(bytes); }
  FUSEDOPS_HD const T& get() const { return *reinterpret_cast<const T*>(bytes); }
};

/// A user's LOAD, where a LOAD is wanted and where a gradient reads elementwise values.
template <class T, class Compute, int kMost_>
struct PlainLoad {
  static_assert(detected<PlainLoadCall, T, Compute>(),
                "fusedops: not a LOAD: it needs template <int N> void load(Compute* dst, int64_t "
                "row, int64_t col), or comes from load(source, functors...) (see "
                "fusedops/functor/contract.cuh)");
  Held<T> inner;
  int pack;  // N
  static constexpr int kMost = kMost_;
  static constexpr bool kBounds = has_columns<T, int64_t>();
  static constexpr bool kSkips = has_any<T, int64_t>();
  using Loaded = DetectedOr<Compute, LoadTypeOf, T>;
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
    return inner.get().columns(static_cast<int64_t>(row));
  }
  FUSEDOPS_ANY_SIDE
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row& row, int64_t col) const {
    return inner.get().template any<N>(static_cast<int64_t>(row), col);
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
  template <int N, int kPack, Access kAccess, bool kRevisit>
  FUSEDOPS_HD void by(Compute* dst, int64_t row, int64_t col) const {
    if constexpr (kPack > 1 && kAccess != Access::kWide) {
      if (pack < kPack) return by<N, kPack / 2, kAccess, kRevisit>(dst, row, col);
    }
    Held<T> mine = inner;
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kPack) {
      if constexpr (IsSame<Loaded, Compute>::value) {
        one<kPack, kRevisit>(mine.get(), dst + i, row, col + i);
      } else {
        Loaded loaded[kPack];
        one<kPack, kRevisit>(mine.get(), loaded, row, col + i);
        FUSEDOPS_UNROLL
        for (int j = 0; j < kPack; ++j) dst[i + j] = convert<Compute>(loaded[j]);
      }
    }
  }
  FUSEDOPS_ANY_SIDE
  template <int kPack, bool kRevisit>
  FUSEDOPS_HD static void one(T& mine, Loaded* dst, int64_t row, int64_t col) {
    if constexpr (kRevisit) {
      mine.template revisit<kPack>(dst, row, col);
    } else {
      mine.template load<kPack>(dst, row, col);
    }
  }
};

/// A user's STORE, where a STORE is wanted and where a gradient writes elementwise values.
template <class T, class Compute, int kMost_>
struct PlainStore {
  static_assert(detected<PlainStoreCall, T, Compute>(),
                "fusedops: not a STORE: it needs template <int N> void store(const Compute* src, "
                "int64_t row, int64_t col), or comes from store(functors..., target) (see "
                "fusedops/functor/contract.cuh)");
  Held<T> inner;
  int pack;
  static constexpr int kMost = kMost_;

  template <int N, class Row>
  FUSEDOPS_HD void store(const Compute* src, const Row& row, int64_t col) {
    Held<T> copy = inner;
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value>(copy.get(), src, static_cast<int64_t>(row),
                                                       col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    Held<T> copy = inner;
    by<N, kFirst<N, kMost, Row>, AccessOf<Row>::value>(copy.get(), value, static_cast<int64_t>(row),
                                                       col);
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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
