// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A row divided by its Euclidean norm: y = v / max(sqrt(sum v^2), eps).
//
// Squares are summed without scaling. The squares of values beyond 1.8e19 (float) overflow; then
// the row becomes NaN, as does a row that holds Inf or NaN, since a factor of zero would turn it
// into zeros. The squares of values below 1e-22 lose digits, which shows where eps is smaller
// still.
#pragma once

#include <fusedops/op/sum_of_squares.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Compute_>
struct L2Norm : SumOfSquares<Compute_> {
  using typename SumOfSquares<Compute_>::Compute;
  using typename SumOfSquares<Compute_>::Partial;

  struct Finish {
    using Compute = Compute_;
    Compute norm, factor;
    bool clamped;  // the norm is below eps, so that the factor is a constant
    FUSEDOPS_HD Compute operator()(Compute x) const { return product(x, factor); }
    FUSEDOPS_HD Finish of(Partial) const { return *this; }

    static constexpr int kKept = 2;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = factor;
      kept[1] = clamped ? Compute(0) : Compute(1);
    }
  };

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t) const {
    const Compute inverse = reciprocal_sqrt(part.squares);
    const Compute norm = part.squares > 0 ? part.squares * inverse : part.squares;
    const bool clamped = norm < this->eps.value;
    // Where the reciprocal overflows, as of a subnormal eps, the largest number stands for it:
    // times infinity a zero would be NaN.
    constexpr double kLargest = sizeof(Compute) == 4 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
    const Compute of_eps = smaller(Compute(1) / this->eps.value, Compute(kLargest));
    const Compute factor = clamped ? of_eps : inverse;
    return {norm, factor + (part.squares - part.squares), clamped};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
