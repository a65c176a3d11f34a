// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Scale: v = v * scale, where the scale is a number or a tensor that broadcasts.
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Factor>
struct Scale {
  Factor factor;
  static constexpr bool kNeedsInput = true;  // the gradient of the scale reads it
  static constexpr int kGradients = 1;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(factor);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto scale = factor.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] *= scale[i];
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const auto scale = factor.template fetch<N, Compute>(row, col);
    Compute of_scale[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      of_scale[i] = g[i] * in[i];
      g[i] *= scale[i];
    }
    sink.template add<0>(of_scale, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
