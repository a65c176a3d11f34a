// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Softcap: v = cap * tanh(v / cap), where the cap is a number or a tensor that broadcasts. By is what
// tanh is computed by: pointwise::Precise or pointwise::HardwareTanh.
#pragma once

#include <fusedops/core/hardware_tanh.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Cap, class By = pointwise::Precise>
struct Softcap {
  Cap cap;
  static constexpr bool kNeedsInput = true;
  static constexpr int kGradients = 1;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(cap);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto limit = cap.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = limit[i] * By::tanh(share_of(v[i], limit[i]));
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const auto limit = cap.template fetch<N, Compute>(row, col);
    Compute of_cap[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute share = share_of(in[i], limit[i]);
      const Compute slope = By::tanh_slope(share);
      of_cap[i] = g[i] * of_limit(share, slope);
      g[i] *= slope;
    }
    sink.template add<0>(of_cap, row, col);
  }

 private:
  /// value / limit within 2 ulp: a cap that is a number is divided by once for all elements. Not an
  /// estimate, which would take the reciprocal of a huge cap for zero.
  template <class Compute>
  FUSEDOPS_HD static Compute share_of(Compute value, Compute limit) {
    return value * (Compute(1) / limit);
  }

  /// tanh(u) - u / cosh(u)^2, the derivative by the cap, with slope = 1 / cosh(u)^2. The two terms
  /// cancel where u is small, so there it is slope * (sinh(2u) - 2u) / 2 by the series of sinh.
  template <class Compute>
  FUSEDOPS_HD static Compute of_limit(Compute u, Compute slope) {
    constexpr int kTerms = sizeof(Compute) == 4 ? 7 : 11;  // The rest is below an ulp for |u| < 1.
    const Compute square = Compute(4) * u * u;
    Compute sum = 1;
    for (int k = kTerms; k > 0; --k) {
      sum = Compute(1) + square * (Compute(1) / Compute((2 * k + 2) * (2 * k + 3))) * sum;
    }
    const Compute series = slope * (Compute(2) / Compute(3)) * u * u * u * sum;
    return pointwise::fabs(u) < Compute(1) ? series : By::tanh(u) - u * slope;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
