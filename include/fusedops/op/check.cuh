// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks whether a type meets the contract of an operator or of an operator's gradient
// (op/contract.cuh); the compiler's message names the member that is missing.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/index.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

// The members are called with one lane and with a tile of one value.
template <class Op>
using OneTile = Tile<typename Op::Compute, 1, 1, 1, 1, true>;
template <class Op>
using OperatorTypes =
    Void<typename Op::Compute, typename Op::Partial, typename Op::Finish, OneTile<Op>>;
template <class Op>
using PaddingCall = decltype(accept<typename Op::Compute>(Op::padding_value()));
template <class Op>
using IdentityCall = decltype(accept<typename Op::Partial>(Op::identity()));
template <class Op>
using ReduceCall = decltype(accept<typename Op::Partial>(
    any_of<const Op>().reduce(Lanes<1>{}, any_of<OneTile<Op>>())));
template <class Op>
using RebuildCall = decltype(accept<typename Op::Partial>(
    any_of<const Op>().rebuild(Lanes<1>{}, any_of<OneTile<Op>>())));
template <class Result>
struct IfVoid;
template <>
struct IfVoid<void> {
  using type = void;
};
template <class Op>  // not the overload for a group of lanes, whose Group may be any type
using RebuildKnownCall = typename IfVoid<decltype(any_of<const Op>().rebuild(
    any_of<const typename Op::Partial>(), any_of<OneTile<Op>>()))>::type;
template <class Op>
using CombineCall = decltype(accept<typename Op::Partial>(
    any_of<const Op>().combine(Lanes<1>{}, any_of<typename Op::Partial>())));
template <class Op>
using MergeCall = decltype(accept<typename Op::Partial>(
    any_of<const Op>().merge(any_of<typename Op::Partial>(), any_of<typename Op::Partial>())));
template <class Op>
using FinishCall = decltype(accept<typename Op::Finish>(any_of<const Op>().finish(
    any_of<typename Op::Partial>(), any_of<const RowIndex<1>>(), int64_t(0))));
/// The call of `begin`, and of the `finish` that gets what it returns, with any function of a column.
template <class Op>
struct AnyValue {
  typename Op::Compute operator()(int64_t col) const;
};
template <class Op>
using BegunOf = decltype(any_of<const Op>().begin(any_of<const RowIndex<1>>(), int64_t(0),
                                                  any_of<const AnyValue<Op>>()));
template <class Op>
using FinishBegunCall = decltype(accept<typename Op::Finish>(
    any_of<const Op>().finish(any_of<typename Op::Partial>(), any_of<const BegunOf<Op>>(),
                              any_of<const RowIndex<1>>(), int64_t(0))));
template <class Op>
using ElementCall = decltype(accept<typename Op::Compute>(any_of<const typename Op::Finish>().of(
    any_of<typename Op::Partial>())(any_of<typename Op::Compute>())));
template <class Finish>
using KeepCall =
    decltype(any_of<const Finish>().keep(any_of<typename Finish::Compute[Finish::kKept]>()));

template <class Op>
using GradientTypes = Void<OperatorTypes<Op>, typename Op::Row>;
template <class Op>
using GradientConstants = Flag<(Op::kKept >= 0) && (Op::kHasMasked || Op::kMaskedIsConstant)>;
template <class Op>
using RowCall =
    decltype(accept<typename Op::Row>(Op::row(any_of<const typename Op::Compute[Op::kKept]>())));
template <class Op>
using ResultCall = decltype(accept<typename Op::Compute>(
    any_of<const typename Op::Row>().result(any_of<typename Op::Compute>())));
template <class Op>
using ReduceBothCall = decltype(accept<typename Op::Partial>(any_of<const Op>().reduce(
    Lanes<1>{}, any_of<const OneTile<Op>>(), any_of<const OneTile<Op>>())));
template <class Op>
using FinishRowCall = decltype(accept<typename Op::Finish>(
    any_of<const Op>().finish(any_of<const typename Op::Row>(), any_of<typename Op::Partial>(),
                              any_of<const RowIndex<1>>(), int64_t(0))));
template <class Op>
using GradientElementCall =
    decltype(accept<typename Op::Compute>(any_of<const typename Op::Finish>()(
        any_of<typename Op::Compute>(), any_of<typename Op::Compute>())));
template <class Op>
using MaskedCalls = decltype(accept<bool>(Op::is_masked(any_of<typename Op::Compute>())),
                             accept<bool>(Op::is_masked_result(Op::masked_result())));

template <class Op>
using ReducesFlag = Flag<Op::kReduces>;
/// Whether the operator reduces rows; false for one whose results are functions of single elements.
template <class Op>
FUSEDOPS_HD constexpr bool reduces() {
  return flag<true, ReducesFlag, Op>();
}
template <class Op>
using HasResultFlag = Flag<Op::kHasResult>;
/// Whether the operator has a result of x's size; false for one whose results are numbers of rows.
template <class Op>
FUSEDOPS_HD constexpr bool has_result() {
  return flag<true, HasResultFlag, Op>();
}
template <class Op>
using BesideFlag = Flag<Op::kBeside>;
/// Whether the reduction reads a tensor of x's size beside the values of the LOAD.
template <class Op>
FUSEDOPS_HD constexpr bool reads_beside() {
  return flag<false, BesideFlag, Op>();
}
template <class Op>
using ReduceBesideCall = decltype(accept<typename Op::Partial>(
    any_of<const Op>().reduce(Lanes<1>{}, any_of<OneTile<Op>>(), any_of<const OneTile<Op>>())));
template <class Op>
FUSEDOPS_HD constexpr bool has_reduce() {
  if constexpr (reads_beside<Op>()) {
    return detected<ReduceBesideCall, Op>();
  } else {
    return detected<ReduceCall, Op>();
  }
}
/// Whether there are the calls that make a row's results of its Partial.
template <class Op>
FUSEDOPS_HD constexpr bool finishes() {
  if constexpr (has_result<Op>()) {
    return detected<FinishCall, Op>();
  } else {
    return detected<FinishBegunCall, Op>();
  }
}
template <class Op>
FUSEDOPS_HD constexpr bool has_elements() {
  return !has_result<Op>() || detected<ElementCall, Op>();
}
/// Whether the backward pass has a use for the values of the LOAD, beside what its functors read.
template <class Op, class StoreT>
FUSEDOPS_HD constexpr bool uses_values() {
  return reduces<Op>() || Op::kHasMasked || flag<true, ComputesFlag, StoreT>();
}
template <class Op>
using KeepsNothing = Flag<Op::kKept == 0>;
/// Whether there is Row row(kept), or nothing is kept of a row.
template <class Op>
FUSEDOPS_HD constexpr bool knows_row() {
  if constexpr (reduces<Op>()) {
    return detected<RowCall, Op>();
  } else {
    return flag<false, KeepsNothing, Op>() || detected<RowCall, Op>();
  }
}

/// Whether a Partial can move through shared memory.
template <class Op>
using MovesFlag =
    Flag<__is_trivially_copyable(typename Op::Partial) && sizeof(typename Op::Partial) % 4 == 0>;
template <class Op>
FUSEDOPS_HD constexpr bool moves() {
  return flag<false, MovesFlag, Op>();
}
template <class Op>
using HasMaskedFlag = Flag<Op::kHasMasked>;

/// Refuses a type that is not an operator, and names what it lacks. The types are checked first,
/// since all other checks need them.
template <class Op>
FUSEDOPS_HD constexpr bool check_operator() {
  constexpr bool kTypes = detected<OperatorTypes, Op>();
  static_assert(kTypes,
                "fusedops: not an operator: it needs the types Compute, Partial and Finish (see "
                "fusedops/op/contract.cuh)");
  static_assert(!kTypes || moves<Op>(),
                "fusedops: not an operator: it needs a Partial that is trivially copyable and a "
                "multiple of 4 bytes (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<PaddingCall, Op>(),
                "fusedops: not an operator: it needs static Compute padding_value() (see "
                "fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<IdentityCall, Op>(),
                "fusedops: not an operator: it needs static Partial identity() (see "
                "fusedops/op/contract.cuh)");
  static_assert(!kTypes || has_reduce<Op>(),
                "fusedops: not an operator: it needs template <class Group, class Tile> Partial "
                "reduce(Group group, Tile& tile) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<RebuildCall, Op>(),
                "fusedops: not an operator: it needs template <class Group, class Tile> Partial "
                "rebuild(Group group, Tile& tile) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<RebuildKnownCall, Op>(),
                "fusedops: not an operator: it needs template <class Tile> void rebuild(const "
                "Partial& part, Tile& tile) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<CombineCall, Op>(),
                "fusedops: not an operator: it needs template <class Group> Partial combine(Group "
                "group, Partial part) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<MergeCall, Op>(),
                "fusedops: not an operator: it needs Partial merge(Partial a, Partial b) const "
                "(see fusedops/op/contract.cuh)");
  static_assert(
      !kTypes || !has_result<Op>() || finishes<Op>(),
      "fusedops: not an operator: it needs template <class Row> Finish finish(Partial part, "
      "const Row& row, int64_t cols) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || has_result<Op>() || finishes<Op>(),
                "fusedops: not an operator: without a result it needs begin(row, cols, value) and "
                "finish(all, "
                "begun, row, cols), both const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || has_elements<Op>(),
                "fusedops: not an operator: it needs Finish::of(Partial part) const, which gives a "
                "function from Compute to Compute (see fusedops/op/contract.cuh)");
  return true;
}

/// Refuses a type that is not the gradient of an operator, and names what it lacks.
template <class Op>
FUSEDOPS_HD constexpr bool check_gradient() {
  constexpr bool kTypes = detected<GradientTypes, Op>();
  constexpr bool kConstants = detected<GradientConstants, Op>();
  static_assert(kTypes,
                "fusedops: not the gradient of an operator: it needs the types Compute, Row, "
                "Partial and Finish (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || moves<Op>(),
                "fusedops: not the gradient of an operator: it needs a Partial that is trivially "
                "copyable and a multiple of 4 bytes (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || kConstants,
                "fusedops: not the gradient of an operator: it needs the constants int kKept, bool "
                "kHasMasked and bool kMaskedIsConstant (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<PaddingCall, Op>(),
                "fusedops: not the gradient of an operator: it needs static Compute "
                "padding_value() (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<IdentityCall, Op>(),
                "fusedops: not the gradient of an operator: it needs static Partial identity() "
                "(see fusedops/op/contract.cuh)");
  static_assert(!kTypes || !kConstants || knows_row<Op>(),
                "fusedops: not the gradient of an operator: it needs static Row row(const Compute "
                "(&kept)[kKept]) (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<ResultCall, Op>(),
                "fusedops: not the gradient of an operator: it needs Compute Row::result(Compute "
                "v) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<ReduceBothCall, Op>(),
                "fusedops: not the gradient of an operator: it needs template <class Group, class "
                "Tile> Partial reduce(Group group, const Tile& y, const Tile& g) const (see "
                "fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<CombineCall, Op>(),
                "fusedops: not the gradient of an operator: it needs template <class Group> "
                "Partial combine(Group group, Partial part) const (see fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<MergeCall, Op>(),
                "fusedops: not the gradient of an operator: it needs Partial merge(Partial a, "
                "Partial b) const (see fusedops/op/contract.cuh)");
  static_assert(
      !kTypes || detected<FinishRowCall, Op>(),
      "fusedops: not the gradient of an operator: it needs template <class AnyRow> Finish "
      "finish(const Row& known, Partial all, const AnyRow& row, int64_t cols) const (see "
      "fusedops/op/contract.cuh)");
  static_assert(!kTypes || detected<GradientElementCall, Op>(),
                "fusedops: not the gradient of an operator: it needs Compute "
                "Finish::operator()(Compute y, Compute g) const (see fusedops/op/contract.cuh)");
  static_assert(
      !kTypes || !flag<false, HasMaskedFlag, Op>() || detected<MaskedCalls, Op>(),
      "fusedops: not the gradient of an operator: it needs is_masked(v), masked_result() and "
      "is_masked_result(y), all static, since kHasMasked is true (see fusedops/op/contract.cuh)");
  return true;
}

}  // namespace detail

template <class Op>
inline constexpr bool is_operator_v =
    detail::detected<detail::OperatorTypes, Op>() && detail::moves<Op>() &&
    detail::detected<detail::PaddingCall, Op>() && detail::detected<detail::IdentityCall, Op>() &&
    detail::has_reduce<Op>() && detail::detected<detail::RebuildCall, Op>() &&
    detail::detected<detail::RebuildKnownCall, Op>() &&
    detail::detected<detail::CombineCall, Op>() && detail::detected<detail::MergeCall, Op>() &&
    detail::finishes<Op>() && detail::has_elements<Op>();

template <class Op>
inline constexpr bool is_operator_gradient_v =
    detail::detected<detail::GradientTypes, Op>() && detail::moves<Op>() &&
    detail::detected<detail::GradientConstants, Op>() &&
    detail::detected<detail::PaddingCall, Op>() && detail::detected<detail::IdentityCall, Op>() &&
    detail::knows_row<Op>() && detail::detected<detail::ResultCall, Op>() &&
    detail::detected<detail::ReduceBothCall, Op>() && detail::detected<detail::CombineCall, Op>() &&
    detail::detected<detail::MergeCall, Op>() && detail::detected<detail::FinishRowCall, Op>() &&
    detail::detected<detail::GradientElementCall, Op>() &&
    (!detail::flag<false, detail::HasMaskedFlag, Op>() ||
     detail::detected<detail::MaskedCalls, Op>());

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
