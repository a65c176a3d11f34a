// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of L2Norm. With y the row's result, n its norm and g the gradient of y:
//   dv = (g - y * sum(g * y)) / n, or g / eps where the norm is below eps
#pragma once

#include <fusedops/op/sum_of_squares.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Compute_>
struct L2NormGradient : SumOfSquaresGradient<Compute_> {
  using typename SumOfSquaresGradient<Compute_>::Compute;
  using typename SumOfSquaresGradient<Compute_>::Partial;
  using typename SumOfSquaresGradient<Compute_>::Finish;
  static constexpr int kKept = 2;

  struct Row {
    Compute factor, share;  // the share is 0 where the factor is a constant, else 1
    FUSEDOPS_HD Compute result(Compute v) const { return product(v, factor); }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0], kept[1]}; }

  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t) const {
    return {known.factor, known.share * all.along};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
