// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Which operand gradients are wanted, and where they are written. An operand is named by the side
// of the declaration, LOAD or STORE, the position of its functor there (counted from 0), and its
// number within the functor (fusedops/functors.cuh lists them).
//
//   gradients(in_load<0>(direct(dbias, cols)),                      of x's size
//             in_store<0, 0>(per_column(dgamma)),                   shared by all rows
//             in_load<1>(shared_by(8, broadcast(dpair, layout))))   shared by 8 neighbouring rows
//
// A layout with strides of 0 needs shared_by(), whose group is the product of its innermost
// dimensions of stride 0; strides of 0 elsewhere are refused. per_row() and single() receive sums
// over columns. Sums over rows are made in the compute type, in a fixed order that depends on rows,
// columns and device alone. accumulate(target) of any of these adds the gradient to what is there:
//
//   gradients(in_store<0, 0>(accumulate(per_column(dgamma))))    dgamma += ...
#pragma once

#include <fusedops/row/operand.cuh>
#include <fusedops/row/sinks.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The gradient of an operand that `group` neighbouring rows share; the number of rows is a
/// multiple of `group`.
template <class To>
struct SharedBy {
  int64_t group;
  To to;
};
template <class T, int kRank>
FUSEDOPS_HD SharedBy<Operand<T, Layout<kRank>>> shared_by(int64_t group,
                                                          const Operand<T, Layout<kRank>>& to) {
  return {group, to};
}

template <class To>
FUSEDOPS_HD SharedBy<Accumulated<To>> accumulate(const SharedBy<To>& target) {
  return {target.group, {target.to}};
}

namespace detail {

enum class Side { kLoad, kStore };

template <Side kSide_, int kFunctor_, int kOperand_, class To>
struct Wanted {
  static constexpr Side kSide = kSide_;
  static constexpr int kFunctor = kFunctor_, kOperand = kOperand_;
  To to;
};

template <class A, class B>
inline constexpr bool kSameOperand =
    A::kSide == B::kSide && A::kFunctor == B::kFunctor && A::kOperand == B::kOperand;

template <class... Items>
struct List {};
template <class First, class... Rest>
struct List<First, Rest...> {
  First first;
  List<Rest...> rest;
};

template <class...>
inline constexpr bool kDiffer = true;
template <class First, class... Rest>
inline constexpr bool kDiffer<First, Rest...> =
    !(kSameOperand<First, Rest> || ...) && kDiffer<Rest...>;

FUSEDOPS_HD List<> list() { return {}; }
template <class First, class... Rest>
FUSEDOPS_HD List<First, Rest...> list(const First& first, const Rest&... rest) {
  return {first, list(rest...)};
}

#if !defined(__CUDACC_RTC__)

template <class First, class... Rest>
List<First, Rest...> prepended(const First& first, const List<Rest...>& rest) {
  return {first, rest};
}

/// Calls f(item) for each item, in order.
template <class F>
void for_each(const List<>&, const F&) {}
template <class First, class... Rest, class F>
void for_each(const List<First, Rest...>& items, const F& f) {
  f(items.first);
  for_each(items.rest, f);
}

/// The list of f(item), in order.
template <class F>
List<> mapped(const List<>&, F&) {
  return {};
}
template <class First, class... Rest, class F>
auto mapped(const List<First, Rest...>& items, F& f) {
  const auto first = f(items.first);
  return prepended(first, mapped(items.rest, f));
}

#endif

/// What shares one element of a target: nothing, all rows, a group of neighbouring rows, the
/// columns of a row, or all of x.
enum class Sharing { kNone, kRows, kGroup, kColumns, kAll };

template <class To>
inline constexpr Sharing kSharingOf = Sharing::kNone;
template <class T>
inline constexpr Sharing kSharingOf<Operand<T, RowMap<0>>> = Sharing::kRows;
template <class To>
inline constexpr Sharing kSharingOf<SharedBy<To>> = Sharing::kGroup;
template <class T>
inline constexpr Sharing kSharingOf<View<T, 1, Column::kBroadcast, 1>> = Sharing::kColumns;
template <class T>
inline constexpr Sharing kSharingOf<View<T, 0, Column::kBroadcast, 1>> = Sharing::kAll;
template <class To>
inline constexpr Sharing kSharingOf<Accumulated<To>> = kSharingOf<To>;

}  // namespace detail

template <int kFunctor, int kOperand = 0, class To>
FUSEDOPS_HD detail::Wanted<detail::Side::kLoad, kFunctor, kOperand, To> in_load(const To& to) {
  detail::refuse_pointers<To>();
  return {to};
}
template <int kFunctor, int kOperand = 0, class To>
FUSEDOPS_HD detail::Wanted<detail::Side::kStore, kFunctor, kOperand, To> in_store(const To& to) {
  detail::refuse_pointers<To>();
  return {to};
}

#if !defined(__CUDACC_RTC__)

/// What gradient_workspace needs to know of gradients, where their targets are not there yet: how many
/// go to per_column() targets, how many to single() ones, and how many to shared_by() targets, which
/// `group` neighbouring rows share. Others need no workspace.
///
///   gradient_workspace<float>(gradient_sums<2>(), rows, cols, &bytes)  // of gamma and beta
template <int kPerColumn, int kSingle = 0, int kSharedBy = 0>
auto gradient_sums(int64_t group = 1) {
  static_assert(kPerColumn >= 0 && kSingle >= 0 && kSharedBy >= 0,
                "fusedops: gradient_sums<...> counts gradients of each kind; none is 0");
  // No functor has the number -1, so a dispatch refuses them.
  constexpr detail::Side kSide = detail::Side::kStore;
  float* const none = nullptr;
  if constexpr (kPerColumn > 0) {
    const detail::Wanted<kSide, -1, 0, decltype(per_column(none))> one{per_column(none)};
    return detail::prepended(one, gradient_sums<kPerColumn - 1, kSingle, kSharedBy>(group));
  } else if constexpr (kSingle > 0) {
    const detail::Wanted<kSide, -1, 0, decltype(single(none))> one{single(none)};
    return detail::prepended(one, gradient_sums<0, kSingle - 1, kSharedBy>(group));
  } else if constexpr (kSharedBy > 0) {
    using To = SharedBy<Operand<float, Layout<1>>>;
    const detail::Wanted<kSide, -1, 0, To> one{To{group, {}}};
    return detail::prepended(one, gradient_sums<0, 0, kSharedBy - 1>(group));
  } else {
    return detail::list();
  }
}

#endif

/// The gradients of operands that are wanted, none by default.
template <class... Wanted>
FUSEDOPS_HD detail::List<Wanted...> gradients(const Wanted&... wanted) {
  static_assert(detail::kDiffer<Wanted...>,
                "fusedops: gradients(...) names an operand twice; each has one gradient");
  return detail::list(wanted...);
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
