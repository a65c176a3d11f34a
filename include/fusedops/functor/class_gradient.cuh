// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// ClassGradient: the gradient of a cross entropy by the logits v of a row, for a product's STORE:
//
//   of_loss * (exp(v - lse) - [column = label])
//
// lse is the logarithm of the row's sum; +inf stands for a row that is ignored, which has zeros, as
// masked logits of -inf have. It is op/cross_entropy_gradient.cuh where a pass before has found the
// numbers of the rows. It has no gradient itself.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Lse, class OfLoss, class Label>
struct ClassGradient {
  Lse lse;
  OfLoss of_loss;
  Label label;
  static constexpr bool kNeedsInput = false;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const Compute sum = lse.template fetch<1, Compute>(row, 0)[0];
    const Compute slope = of_loss.template fetch<1, Compute>(row, 0)[0];
    const int64_t place = label.template fetch<1, int64_t>(row, 0)[0] - col;
    const bool has_label = static_cast<uint64_t>(place) < static_cast<uint64_t>(N);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const bool nothing = (sum == infinity<Compute>()) | (v[i] == -infinity<Compute>());
      Compute found = bounded_exponential(v[i] - sum) * slope;
      if (has_label && static_cast<int>(place) == i) found -= slope;
      v[i] = nothing ? Compute(0) : found;
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
