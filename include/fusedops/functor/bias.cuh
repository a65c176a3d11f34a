// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Bias: v = v + bias, where the bias is a tensor that broadcasts or a number.
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Term>
struct Bias {
  Term term;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 1;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(term);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto bias = term.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] += bias[i];
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    sink.template add<0>(g, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
