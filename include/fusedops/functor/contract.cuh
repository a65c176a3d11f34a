// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of LOAD, STORE and functor, written once; every other page links here.
//
// LOAD     template <int N> void load(Compute* dst, int64_t row, int64_t col) const
// STORE    template <int N> void store(const Compute* src, int64_t row, int64_t col)
//   Called with 0 <= row < rows, col % N == 0 and col + N <= cols; the end of an odd row uses a
//   smaller N. Optional members of a LOAD:
//   - template <int N> void revisit(Compute* dst, int64_t row, int64_t col) const: the same values
//   for a second
//     visit, without side effects (default: load);
//   - Columns columns(int64_t row) const: what can be unmasked at all; nothing else is loaded
//   (default: all). A composed LOAD whose functors mask what they so leave out is called one pack
//   beyond it, too, within the row;
//   - template <int N> bool any(int64_t row, int64_t col) const: whether anything in a pack can be
//   unmasked
//     (default: true).
//
// functor  template <int N> void operator()(Compute (&v)[N], int64_t row, int64_t col) const
//   rewrites N values in place. Ours take the row as a template parameter, a RowIndex that holds
//   the coordinates as well and converts to int64_t, so a functor that declares int64_t works as it
//   is. Members found at compile time:
//   - static constexpr bool kMasks: it only sets values to -inf; masks are sticky, so a chain
//   applies them last;
//   - static constexpr bool kSaves, reread: it writes the value it makes, which a later visit reads
//   instead;
//   - static constexpr bool kStreamGradient: what it saves has a gradient of its own, which its backward
//   adds;
//   - template <int N, class Sink> void backward(Compute (&g)[N], const Compute (&in)[N], row, col,
//   Sink& sink)
//     const: turns the gradient of its output into that of its input and hands operand gradients to
//     sink.template add<k>(gradient, row, col), k the number of the operand within the functor;
//   - void operands(Visit& visit) const: calls visit(operand) for each tensor it reads or writes; a
//   dispatch then knows how they lie and reads whole packs without asking (default: it asks);
//   - static constexpr bool kNeedsInput: whether backward needs the values the functor saw;
//   - static constexpr int kGradients: how many operands backward hands gradients of to the sink; who
//   asks for another is told so (default: nobody is).
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {

/// A half-open range of columns.
struct Columns {
  int64_t begin, end;
};

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
using FunctorCall =
    decltype(any_of<const F>()(any_of<Compute[1]>(), any_of<const Row>(), int64_t(0)));
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
using NeedsInputFlag = Flag<F::kNeedsInput>;
template <class L>
using BoundsFlag = Flag<L::kBounds>;
template <class L>
using SkipsFlag = Flag<L::kSkips>;
template <class L>
using MasksBoundsFlag = Flag<L::kMasksBounds>;

template <class F>
inline constexpr bool masks_v = flag_v<false, MasksFlag, F>;
template <class F>
inline constexpr bool saves_v = flag_v<false, SavesFlag, F>;
template <class F>
inline constexpr bool has_stream_gradient_v = flag_v<false, StreamGradientFlag, F>;
template <class F>
inline constexpr bool needs_input_v = flag_v<true, NeedsInputFlag, F>;

template <class L, class Compute, class Row>
inline constexpr bool has_revisit_v = detected_v<RevisitCall, L, Compute, Row>;
template <class F, class Row>
inline constexpr bool has_columns_v = detected_v<ColumnsCall, F, Row>;
template <class F, class Row>
inline constexpr bool has_any_v = detected_v<AnyCall, F, Row>;
template <class F>
inline constexpr bool has_operands_v = detected_v<OperandsCall, F>;

/// Whether a LOAD says which columns can be unmasked. A composed LOAD has the member whatever its
/// functors say, and a flag that tells whether any of them does.
template <class L, class Row>
inline constexpr bool bounds_v = flag_v<has_columns_v<L, Row>, BoundsFlag, L>;
/// Whether a LOAD says which packs can be unmasked.
template <class L, class Row>
inline constexpr bool skips_v = flag_v<has_any_v<L, Row>, SkipsFlag, L>;
/// Whether a LOAD masks by itself all that it says cannot be unmasked, so that it may be called
/// there.
template <class L>
inline constexpr bool masks_bounds_v = flag_v<false, MasksBoundsFlag, L>;

/// The row as a functor may see it: without `operands`, nobody has asked how its operands lie.
template <class F, class Row>
FUSEDOPS_HD decltype(auto) row_for(const Row& row) {
  if constexpr (has_operands_v<F>) {
    return (row);
  } else {
    return unaware(row);
  }
}

}  // namespace detail

template <class L, class Compute, class Row = int64_t>
inline constexpr bool is_load_v = detail::detected_v<detail::LoadCall, L, Compute, Row>;
template <class S, class Compute, class Row = int64_t>
inline constexpr bool is_store_v = detail::detected_v<detail::StoreCall, S, Compute, Row>;
template <class F, class Compute, class Row = int64_t>
inline constexpr bool is_functor_v = detail::detected_v<detail::FunctorCall, F, Compute, Row>;

}  // namespace fusedops
