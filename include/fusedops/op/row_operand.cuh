// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Operands of an operator itself, which have one number for each row: the function that reads them,
// and the one that passes their gradients, row by row, to the targets (row/target.cuh).
#pragma once

#include <fusedops/row/target.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The type of a row operand that a declaration does not have. It occupies no word of an argument.
struct NoOperand {};

/// Returns the number that an operand has for a row: an element of a tensor, a number that the call
/// gives, or zero for an absent operand.
template <class Compute, class Operand, class Row>
FUSEDOPS_HD Compute number_of(const Operand& operand, const Row& row) {
  if constexpr (detail::IsSame<Operand, Absent>::value) {
    return 0;
  } else {
    return operand.template fetch<1, Compute>(row, 0)[0];
  }
}

namespace detail {

template <class Op, class = void>
struct RowOperandsOf {
  static constexpr int value = 0;
};
template <class Op>
struct RowOperandsOf<Op, Void<decltype(Op::kRowOperands)>> {
  static constexpr int value = Op::kRowOperands;
};

template <int kOperand, int kCount, class Compute, class Sinks, class Lane, class Row>
FUSEDOPS_HD void add_row_gradients(const Compute (&gradients)[kCount], Sinks& sinks,
                                   const Lane& lane, const Row& row, const Visit& visit) {
  if constexpr (kOperand < kCount) {
    const Compute one[1] = {gradients[kOperand]};
    sinks.template add<kOfOperator, kOperand>(one, lane, row, 0, visit, 0, 0);
    add_row_gradients<kOperand + 1>(gradients, sinks, lane, row, visit);
  }
}

/// Adds the gradients of the operator's row operands that one row contributes. One thread of the
/// row adds them.
template <class Op, class Finish, class Sinks, class Lane, class Row>
FUSEDOPS_HD void add_row_gradients(const Finish& finish, Sinks& sinks, const Lane& lane,
                                   const Row& row, const Visit& visit) {
  if constexpr (RowOperandsOf<Op>::value > 0) {
    if (visit.here && lane.writes()) {
      typename Op::Compute gradients[Op::kRowOperands];
      finish.row_gradients(gradients);
      add_row_gradients<0>(gradients, sinks, lane, row, visit);
    }
  }
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
