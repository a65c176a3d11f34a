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

#include <fusedops/row/index.cuh>

namespace fusedops {

/// A half-open range of columns.
struct Columns {
  int64_t begin, end;
};

namespace detail {

template <class T>
T& any_of();  // stands for a value in unevaluated contexts, as std::declval does

template <class A, class B>
struct IsSame {
  static constexpr bool value = false;
};
template <class A>
struct IsSame<A, A> {
  static constexpr bool value = true;
};

template <class...>
struct MakeVoid {
  using type = void;
};
template <class... T>
using Void = typename MakeVoid<T...>::type;

template <class L, class Compute, class Row, class = void>
struct IsLoad {
  static constexpr bool value = false;
};
template <class L, class Compute, class Row>
struct IsLoad<L, Compute, Row,
              Void<decltype(any_of<const L>().template load<1>(any_of<Compute*>(),
                                                               any_of<const Row>(), int64_t(0)))>> {
  static constexpr bool value = true;
};

template <class S, class Compute, class Row, class = void>
struct IsStore {
  static constexpr bool value = false;
};
template <class S, class Compute, class Row>
struct IsStore<S, Compute, Row,
               Void<decltype(any_of<S>().template store<1>(any_of<const Compute*>(),
                                                           any_of<const Row>(), int64_t(0)))>> {
  static constexpr bool value = true;
};

template <class F, class Compute, class Row, class = void>
struct IsFunctor {
  static constexpr bool value = false;
};
template <class F, class Compute, class Row>
struct IsFunctor<
    F, Compute, Row,
    Void<decltype(any_of<const F>()(any_of<Compute[1]>(), any_of<const Row>(), int64_t(0)))>> {
  static constexpr bool value = true;
};

template <class F, class = void>
struct Masks {
  static constexpr bool value = false;
};
template <class F>
struct Masks<F, Void<decltype(F::kMasks)>> {
  static constexpr bool value = F::kMasks;
};

template <class F, class = void>
struct Saves {
  static constexpr bool value = false;
};
template <class F>
struct Saves<F, Void<decltype(F::kSaves)>> {
  static constexpr bool value = F::kSaves;
};

template <class F, class = void>
struct Joins {
  static constexpr bool value = false;
};
template <class F>
struct Joins<F, Void<decltype(F::kStreamGradient)>> {
  static constexpr bool value = F::kStreamGradient;
};

struct Ignore {
  template <class T>
  FUSEDOPS_HD void operator()(const T&) const {}
};

template <class F, class = void>
struct HasOperands {
  static constexpr bool value = false;
};
template <class F>
struct HasOperands<F, Void<decltype(any_of<const F>().operands(any_of<Ignore>()))>> {
  static constexpr bool value = true;
};

/// The row as a functor may see it: whose operands were not asked how they lie does not learn it.
template <class F, class Row>
FUSEDOPS_HD decltype(auto) row_for(const Row& row) {
  if constexpr (HasOperands<F>::value) {
    return (row);
  } else {
    return unaware(row);
  }
}

template <class F, class = void>
struct NeedsInput {
  static constexpr bool value = true;
};
template <class F>
struct NeedsInput<F, Void<decltype(F::kNeedsInput)>> {
  static constexpr bool value = F::kNeedsInput;
};

template <class F, class Row, class = void>
struct HasColumns {
  static constexpr bool value = false;
};
template <class F, class Row>
struct HasColumns<F, Row, Void<decltype(any_of<const F>().columns(any_of<const Row>()))>> {
  static constexpr bool value = true;
};

template <class F, class Row, class = void>
struct HasAny {
  static constexpr bool value = false;
};
template <class F, class Row>
struct HasAny<F, Row,
              Void<decltype(any_of<const F>().template any<1>(any_of<const Row>(), int64_t(0)))>> {
  static constexpr bool value = true;
};

/// Whether a LOAD says which columns can be unmasked (a composed one knows whether any functor
/// does).
template <class L, class Row, class = void>
struct Bounds {
  static constexpr bool value = HasColumns<L, Row>::value;
};
template <class L, class Row>
struct Bounds<L, Row, Void<decltype(L::kBounds)>> {
  static constexpr bool value = L::kBounds;
};

/// Whether a LOAD masks by itself all that it says cannot be unmasked, so that it may be called there.
template <class L, class = void>
struct MasksBounds {
  static constexpr bool value = false;
};
template <class L>
struct MasksBounds<L, Void<decltype(L::kMasksBounds)>> {
  static constexpr bool value = L::kMasksBounds;
};

/// Whether a LOAD says which packs can be unmasked.
template <class L, class Row, class = void>
struct Skips {
  static constexpr bool value = HasAny<L, Row>::value;
};
template <class L, class Row>
struct Skips<L, Row, Void<decltype(L::kSkips)>> {
  static constexpr bool value = L::kSkips;
};

template <class L, class Compute, class Row, class = void>
struct HasRevisit {
  static constexpr bool value = false;
};
template <class L, class Compute, class Row>
struct HasRevisit<L, Compute, Row,
                  Void<decltype(any_of<const L>().template revisit<1>(
                      any_of<Compute*>(), any_of<const Row>(), int64_t(0)))>> {
  static constexpr bool value = true;
};

}  // namespace detail

template <class L, class Compute, class Row = int64_t>
inline constexpr bool is_load_v = detail::IsLoad<L, Compute, Row>::value;
template <class S, class Compute, class Row = int64_t>
inline constexpr bool is_store_v = detail::IsStore<S, Compute, Row>::value;
template <class F, class Compute, class Row = int64_t>
inline constexpr bool is_functor_v = detail::IsFunctor<F, Compute, Row>::value;

}  // namespace fusedops
