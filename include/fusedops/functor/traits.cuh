// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Which members a LOAD, a STORE or a functor has. functor/contract.cuh says what each of them means.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// A half-open range of columns.
struct Columns {
  int64_t begin, end;
};

/// The kBlock of a functor that sees one element at a time, and of one that needs the whole row.
inline constexpr int kNoBlock = -1, kWholeRow = 0;

namespace detail {

struct Ignore {
  template <class T>
  FUSEDOPS_HD void operator()(const T&) const {}
};

// What the members are called with.
template <class L, class Compute, class Row>
using LoadCall = decltype(any_of<const L>().template load<1>(any_of<Compute*>(),
                                                             any_of<const Row>(), int64_t(0)));
template <class L, class Compute, class Row>
using RevisitCall = decltype(any_of<const L>().template revisit<1>(
    any_of<Compute*>(), any_of<const Row>(), int64_t(0)));
template <class S, class Compute, class Row>
using StoreCall = decltype(any_of<S>().template store<1>(any_of<const Compute*>(),
                                                         any_of<const Row>(), int64_t(0)));
template <class F, class Compute, class Row>
using PairedCall = decltype(any_of<const F>().paired(
    any_of<Compute[1]>(), any_of<const Compute[1]>(), any_of<const Row>(), int64_t(0)));
template <class F, class Compute, class Row>
using FunctorCall =
    decltype(any_of<const F>()(any_of<Compute[1]>(), any_of<const Row>(), int64_t(0)));
template <class F, class Compute, class Row>
using RereadCall =
    decltype(any_of<const F>().reread(any_of<Compute[1]>(), any_of<const Row>(), int64_t(0)));
template <class F, class Compute, class Row, class Sink>
using BackwardCall =
    decltype(any_of<const F>().backward(any_of<Compute[1]>(), any_of<const Compute[1]>(),
                                        any_of<const Row>(), int64_t(0), any_of<Sink>()));
template <class F, class Row>
using ColumnsCall = decltype(any_of<const F>().columns(any_of<const Row>()));
template <class F, class Row>
using AnyCall = decltype(any_of<const F>().template any<1>(any_of<const Row>(), int64_t(0)));
template <class F, class Row>
using PrefetchCall =
    decltype(any_of<const F>().template prefetch<1>(any_of<const Row>(), int64_t(0)));
template <class F, class Row, class By>
using PrefetchAllCall = decltype(any_of<const F>().prefetch_all(any_of<const Row>(), int64_t(0),
                                                                int64_t(0), any_of<By>()));
template <class F>
using OperandsCall = decltype(any_of<const F>().operands(any_of<Ignore>()));

// Flags.
template <class F>
using MasksFlag = Flag<F::kMasks>;
template <class F>
using SavesFlag = Flag<F::kSaves>;
template <class F>
using StreamGradientFlag = Flag<F::kStreamGradient>;
template <class F>
using MovesWithQueryFlag = Flag<F::kMovesWithQuery>;
template <class F>
using NeedsInputFlag = Flag<F::kNeedsInput>;
template <class F>
using EndsFlag = Flag<F::kEnds>;
template <int kValue>
struct Number {
  FUSEDOPS_HD static constexpr int get() { return kValue; }
};
template <class F>
using BlockNumber = Number<F::kBlock>;
template <class F>
using PairsFlag = Flag<F::kPairs>;
template <class L>
using ComputesFlag = Flag<L::kComputes>;
template <class L>
using BoundsFlag = Flag<L::kBounds>;
template <class L>
using SkipsFlag = Flag<L::kSkips>;
template <class L>
using MasksBoundsFlag = Flag<L::kMasksBounds>;

template <class F>
FUSEDOPS_HD constexpr bool masks() {
  return flag<false, MasksFlag, F>();
}
template <class F>
FUSEDOPS_HD constexpr bool saves() {
  return flag<false, SavesFlag, F>();
}
template <class F>
FUSEDOPS_HD constexpr bool has_stream_gradient() {
  return flag<false, StreamGradientFlag, F>();
}
template <class F>
FUSEDOPS_HD constexpr bool moves_with_query() {
  return flag<false, MovesWithQueryFlag, F>();
}
template <class F>
FUSEDOPS_HD constexpr bool needs_input() {
  return flag<true, NeedsInputFlag, F>();
}
template <class F>
FUSEDOPS_HD constexpr bool ends() {
  return flag<false, EndsFlag, F>();
}

/// The kBlock of a functor, or of a STORE.
template <class F>
FUSEDOPS_HD constexpr int block_of() {
  return DetectedOr<Number<kNoBlock>, BlockNumber, F>::get();
}

template <class F>
using DistanceNumber = Number<F::kDistance>;
/// The kDistance of a functor, or of a LOAD or STORE.
template <class F>
FUSEDOPS_HD constexpr int distance_of() {
  return DetectedOr<Number<0>, DistanceNumber, F>::get();
}

/// Of a functor, or of a LOAD or STORE that has one: whether it reads a partner column.
template <class F>
FUSEDOPS_HD constexpr bool pairs() {
  return flag<false, PairsFlag, F>();
}

template <class L, class Compute, class Row>
FUSEDOPS_HD constexpr bool has_revisit() {
  return detected<RevisitCall, L, Compute, Row>();
}
template <class F, class Row>
FUSEDOPS_HD constexpr bool has_columns() {
  return detected<ColumnsCall, F, Row>();
}
template <class F, class Row>
FUSEDOPS_HD constexpr bool has_any() {
  return detected<AnyCall, F, Row>();
}
template <class F>
FUSEDOPS_HD constexpr bool has_operands() {
  return detected<OperandsCall, F>();
}

/// Whether a LOAD gives a range of columns that can be unmasked. A composed LOAD always has the
/// member, and a flag that tells whether any of its functors has it.
template <class L, class Row>
FUSEDOPS_HD constexpr bool bounds() {
  return flag<has_columns<L, Row>(), BoundsFlag, L>();
}
/// Whether a LOAD tells which packs can be unmasked; likewise.
template <class L, class Row>
FUSEDOPS_HD constexpr bool skips() {
  return flag<has_any<L, Row>(), SkipsFlag, L>();
}
/// Whether the functors of a LOAD mask everything outside of its range, so that it may be called
/// there.
template <class L>
FUSEDOPS_HD constexpr bool masks_bounds() {
  return flag<false, MasksBoundsFlag, L>();
}

/// The row as a functor gets it: without `operands` its alignment was not checked, and the row
/// carries no promise about it.
template <class F, class Row>
FUSEDOPS_HD decltype(auto) row_for(const Row& row) {
  if constexpr (has_operands<F>()) {
    return (row);
  } else {
    return unaware(row);
  }
}

}  // namespace detail

template <class L, class Compute, class Row = int64_t>
inline constexpr bool is_load_v = detail::detected<detail::LoadCall, L, Compute, Row>();
template <class S, class Compute, class Row = int64_t>
inline constexpr bool is_store_v = detail::detected<detail::StoreCall, S, Compute, Row>();
template <class F, class Compute, class Row = int64_t>
inline constexpr bool is_functor_v = detail::detected<detail::FunctorCall, F, Compute, Row>() ||
                                     detail::detected<detail::PairedCall, F, Compute, Row>();

namespace detail {

template <class F, class Compute, class Row>
using BlockCall = decltype(any_of<const F>()(
    any_of<Compute[1]>(), any_of<const Row>(), int64_t(0),
    any_of<const F>().of_block(any_of<const Row>(),
                               any_of<const F>().measure(any_of<const Compute[1]>()))));

/// Refuses what is not a LOAD or not a STORE.
template <class LoadT, class StoreT, class Compute, class Row>
FUSEDOPS_HD constexpr bool check_sides() {
  static_assert(detected<LoadCall, LoadT, Compute, Row>(),
                "fusedops: not a LOAD: it needs template <int N> void load(Compute* dst, int64_t "
                "row, int64_t col) const (see fusedops/functor/contract.cuh)");
  static_assert(detected<StoreCall, StoreT, Compute, Row>(),
                "fusedops: not a STORE: it needs template <int N> void store(const Compute* src, "
                "int64_t row, int64_t col) (see fusedops/functor/contract.cuh)");
  return true;
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
