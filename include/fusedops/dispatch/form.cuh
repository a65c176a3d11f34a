// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch may be given: composed LOADs and STOREs, operands, and user types of the plain
// form (dispatch/plain.cuh); and what must be known of each before a kernel is chosen: the width of
// its packs, and whether all of its operands are aligned to them.
#pragma once

#include <fusedops/dispatch/plain.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/row/operand.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// A composed LOAD or STORE where a gradient reads or writes elementwise values.
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
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    inner.prefetch_all(row, begin, end, by);
  }
#endif
};

/// A LOAD without a gradient of its own: the gradient wanted is that of what it reads.
template <class T>
struct OnlyValues : T {
  template <int N, class Compute, class Row, class Sink, class Masked>
  FUSEDOPS_HD void backward(Compute (&)[N], const Row&, int64_t, Sink&, const Masked&) const {}
};
template <class T>
FUSEDOPS_HD OnlyValues<T> only_values(const T& load) {
  return {load};
}

/// What is known of a type that a dispatch is given; here, of a type of the plain form. kWidth: the
/// pack width of its schedules, for 16 bytes of the compute type or, where it is known, of what lies
/// in memory; kMost: the widest pack that it takes; kLoad, kStore: whether it is composed by load()
/// or store().
template <class T>
struct Form {
  static constexpr bool kPlain = true, kOperand = false, kMasks = false;
  static constexpr bool kLoad = false, kStore = false;
  static constexpr int kMost = widest_pack<T>(), kWidth = larger(4, kMost);
};
template <class T, class Map>
struct Form<Operand<T, Map>> {
  static constexpr bool kPlain = false, kOperand = true, kMasks = false;
  static constexpr bool kLoad = false, kStore = false;
  static constexpr int kWidth = 4, kMost = 16;
};
template <class T, class Compute, int kPack>
struct Form<PlainLoad<T, Compute, kPack>> : Form<T> {};
template <class To>
struct Form<Accumulated<To>> : Form<To> {};
template <class T>
struct Form<OnlyValues<T>> : Form<T> {};
template <class Source, class... Functors>
struct Form<Load<Source, Functors...>> {
  static constexpr bool kPlain = false, kOperand = false;
  static constexpr bool kLoad = true, kStore = false;
  static constexpr bool kMasks = Load<Source, Functors...>::kMasks;
  static constexpr int kWidth = 16 / sizeof(typename Source::Element), kMost = 16;
};
template <class Target, class Functors>
struct Form<Store<Target, Functors>> {
  static_assert(!Functors::kMasks,
                "fusedops: a mask in a STORE: what is masked must be known before the reduction; "
                "it belongs in the LOAD of a softmax");
  static constexpr bool kPlain = false, kOperand = false;
  static constexpr bool kLoad = false, kStore = true;
  static constexpr int kMost = 16;
};

template <class LoadT>
constexpr void refuse_masks_in_norm() {
  static_assert(!Form<LoadT>::kMasks,
                "fusedops: a mask in the LOAD of a norm: a masked element leaves the row, which a "
                "norm has no meaning for");
}

/// Whether a LOAD says where it reads, so that later rows can be prefetched: a composed one of an
/// operand.
template <class LoadT>
struct ReadsOperand {
  static constexpr bool value = false;
  static constexpr int kBytes = 1;
};
template <class T, class Map, class... Functors>
struct ReadsOperand<Load<Operand<T, Map>, Functors...>> {
  static constexpr bool value = true;
  static constexpr int kBytes = sizeof(T);
};
template <class T, class Map>
struct ReadsOperand<Operand<T, Map>> : ReadsOperand<Load<Operand<T, Map>>> {};
template <class T>
struct ReadsOperand<OnlyValues<T>> : ReadsOperand<T> {};
template <class T>
struct ReadsOperand<AsOperand<T>> : ReadsOperand<T> {};
template <class... Loads>
FUSEDOPS_HD constexpr bool reads_ahead() {
  return (ReadsOperand<typename Plain<Loads>::type>::value && ...);
}
/// How many rows ahead: 4 MiB of each tensor, which is far less than the L2 cache has, and more than
/// all blocks process at a time. Short rows have no prefetch: so far ahead there is no row.
template <class LoadT>
FUSEDOPS_HD int64_t rows_ahead(int64_t cols) {
  constexpr int64_t kBytes = 4 << 20, kShort = 8 << 10;
  const int64_t row = cols * ReadsOperand<LoadT>::kBytes;
  return row < kShort ? int64_t(1) << 62 : larger<int64_t>(1, kBytes / row);
}

/// What is asked of the operands that it is called with. wide: whether every pack of each is one
/// aligned access; fits: whether there is memory for each, and a layout has all rows of the dispatch.
struct Operands {
  int64_t rows;
  bool wide = true, fits = true;

  template <class T>
  FUSEDOPS_HD void operator()(const T&) {}
  template <class T, int kRank, Column kColumn, int W>
  FUSEDOPS_HD void operator()(const View<T, kRank, kColumn, W>& view) {
    fits = fits && view.data != nullptr;
  }
  template <class V>
  FUSEDOPS_HD void operator()(const ReadOnly<V>& view) {
    (*this)(static_cast<const V&>(view));
  }
  template <class T, class Map>
  FUSEDOPS_HD void operator()(const Operand<T, Map>& operand) {
    wide = wide && operand.width >= 16 / int(sizeof(T));
    fits = fits && operand.data != nullptr && has_rows(operand.rows);
  }
  template <class To>
  FUSEDOPS_HD void operator()(const Accumulated<To>& target) {
    (*this)(target.to);
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

 private:
  template <class Map>
  FUSEDOPS_HD bool has_rows(const Map&) const {
    return true;
  }
  template <int kRank>
  FUSEDOPS_HD bool has_rows(const Layout<kRank>& layout) const {
    return layout.count() >= rows;
  }
};

/// The widest pack, up to `most`, that divides the columns and that a plain type takes.
template <class T>
int pack_of(const T& given, int64_t cols, int most) {
  int pack = most;
  if constexpr (Form<T>::kPlain) {
    while (pack > 1 && (cols % pack != 0 || !packs_as(given, pack))) pack /= 2;
  }
  return pack;
}

/// What a kernel takes in place of a given LOAD, of a given STORE, and of what a gradient reads and
/// writes elementwise.
template <class Compute, int kMost, class T>
auto as_load(const T& given, int pack) {
  if constexpr (Form<T>::kPlain || Form<T>::kOperand) {
    return PlainLoad<T, Compute, kMost>{Held<T>::of(given), pack};
  } else {
    return given;
  }
}
template <class Compute, int kMost, class T>
auto as_store(const T& given, int pack) {
  if constexpr (Form<T>::kPlain || Form<T>::kOperand) {
    return PlainStore<T, Compute, kMost>{Held<T>::of(given), pack};
  } else {
    return given;
  }
}
template <class Compute, int kMost, class T>
auto as_source(const T& given, int pack) {
  if constexpr (Form<T>::kOperand) {
    return given;
  } else if constexpr (Form<T>::kPlain) {
    return as_load<Compute, kMost>(given, pack);
  } else {
    return AsOperand<T>{given};
  }
}
template <class Compute, int kMost, class T>
auto as_target(const T& given, int pack) {
  if constexpr (Form<T>::kOperand) {
    return given;
  } else if constexpr (Form<T>::kPlain) {
    return as_store<Compute, kMost>(given, pack);
  } else {
    return AsOperand<T>{given};
  }
}

/// The functors of a STORE, whose target a gradient does not write.
template <class T>
auto as_declared(const T& given) {
  if constexpr (Form<T>::kPlain || Form<T>::kOperand) {
    return store(Absent{});
  } else {
    return given;
  }
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
