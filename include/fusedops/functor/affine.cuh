// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Affine: v = v * gamma + beta, or v * (1 + gamma) + beta; gamma, beta or both may be
// Absent.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// kZeroCentred: gamma is stored as its difference from 1, and the sum is in the compute type.
template <class Gamma, class Beta, bool kZeroCentred = false>
struct Affine {
  Gamma gamma;
  Beta beta;
  static constexpr bool kHasGamma = !detail::IsSame<Gamma, Absent>::value;
  static constexpr bool kHasBeta = !detail::IsSame<Beta, Absent>::value;
  static constexpr bool kNeedsInput = kHasGamma;  // the gradient of gamma reads it
  static constexpr int kGradients = 2;
  FUSEDOPS_HD static constexpr bool has_gradient(int operand) {
    return operand == 0 ? kHasGamma : kHasBeta;
  }

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(gamma);
    visit(beta);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    if constexpr (kHasGamma && kHasBeta) {
      const auto scale = gamma.template fetch<N, Compute>(row, col);
      const auto shift = beta.template fetch<N, Compute>(row, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) v[i] = fused(v[i], factor(scale[i]), shift[i]);
    } else if constexpr (kHasGamma) {
      const auto scale = gamma.template fetch<N, Compute>(row, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) v[i] *= factor(scale[i]);
    } else if constexpr (kHasBeta) {
      const auto shift = beta.template fetch<N, Compute>(row, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) v[i] += shift[i];
    }
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    if constexpr (kHasBeta) sink.template add<1>(g, row, col);
    if constexpr (kHasGamma) {
      const auto scale = gamma.template fetch<N, Compute>(row, col);
      Compute of_gamma[N];
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        of_gamma[i] = g[i] * in[i];
        g[i] *= factor(scale[i]);
      }
      sink.template add<0>(of_gamma, row, col);
    }
  }

 private:
  template <class Compute>
  FUSEDOPS_HD static Compute factor(Compute gamma) {
    return kZeroCentred ? Compute(1) + gamma : gamma;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
