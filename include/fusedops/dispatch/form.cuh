// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch is given: LOADs and STOREs that are composed, operands, or types of a user's own;
// and what has to be known of them before a kernel is chosen: packs, and how their operands lie.
#pragma once

#include <fusedops/dispatch/plain.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/row/operand.cuh>

namespace fusedops {

namespace detail {

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

template <class T>
struct OnlyValues;

/// What there is to know of a type before it is dispatched: ours, or a plain one.
template <class T>
struct Form {
  static constexpr int kWidth = 4;  // of a schedule's packs: 16 bytes of the compute type
  static constexpr bool kPlain = true;
  static constexpr bool kMasks = false;
  static constexpr int kMost = IsOperand<T>::value ? 16 : StorageOf<T>::value;  // of N
};
template <class T>
struct Form<OnlyValues<T>> : Form<T> {};
template <class Source, class... Functors>
struct Form<Load<Source, Functors...>> {
  static constexpr int kWidth = 16 / sizeof(typename Source::Element);
  static constexpr bool kPlain = false;
  static constexpr bool kMasks = Load<Source, Functors...>::kMasks;
  static constexpr int kMost = 16;
};
template <class Target, class Functors>
struct Form<Store<Target, Functors>> {
  static_assert(!Functors::kMasks,
                "fusedops: a mask in a STORE: what is masked must be known before the reduction; "
                "it belongs in the LOAD of a softmax");
  static constexpr bool kPlain = false;
  static constexpr int kMost = 16;
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
  template <class T, class Compute, int kMost>
  FUSEDOPS_HD void operator()(const PlainLoad<T, Compute, kMost>& load) {
    wide = wide && load.pack == kMost;
  }
  template <class T, class Compute, int kMost>
  FUSEDOPS_HD void operator()(const PlainStore<T, Compute, kMost>& store) {
    wide = wide && store.pack == kMost;
  }
  template <class T>
  FUSEDOPS_HD void operator()(const OnlyValues<T>& load) {
    (*this)(static_cast<const T&>(load));
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
    int pack = most;
    while (pack > 1 && (cols % pack != 0 || !packs_as(given, pack))) pack /= 2;
    return pack;
  } else {
    return most;
  }
}

template <class Compute, int kMost, class T>
auto as_load(const T& given, int pack) {
  if constexpr (Form<T>::kPlain) {
    return PlainLoad<T, Compute, kMost>{given, pack};
  } else {
    return given;
  }
}
/// A gradient's own sources and targets: composed, plain, or an operand as it is.
template <class Compute, int kMost, class T>
auto as_source(const T& given, int pack) {
  if constexpr (!Form<T>::kPlain) {
    return AsOperand<T>{given};
  } else if constexpr (!IsOperand<T>::value) {
    return PlainLoad<T, Compute, kMost>{given, pack};
  } else {
    return given;
  }
}
template <class Compute, int kMost, class T>
auto as_target(const T& given, int pack) {
  if constexpr (!Form<T>::kPlain) {
    return AsOperand<T>{given};
  } else if constexpr (!IsOperand<T>::value) {
    return PlainStore<T, Compute, kMost>{given, pack};
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
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&)[N], const Row&, int64_t, Sink&, const Masked&) const {}
};
template <class T>
OnlyValues<T> only_values(const T& load) {
  return {load};
}

template <class Compute, int kMost, class T>
auto as_store(const T& given, int pack) {
  if constexpr (Form<T>::kPlain) {
    return PlainStore<T, Compute, kMost>{given, pack};
  } else {
    return given;
  }
}

}  // namespace detail

}  // namespace fusedops
