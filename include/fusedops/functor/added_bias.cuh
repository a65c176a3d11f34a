// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// AddedBias: a bias that is in v already, since the product before it has added it. It leaves v as it is,
// and its gradient is that of a Bias. The sums of a product whose STORE begins with it begin with the bias
// (gemm/bias.cuh).
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Term>
struct AddedBias {
  Term term;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 1;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&)[N], const Row&, int64_t) const {}

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    sink.template add<0>(g, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
