// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of L2Norm. With y the row's result, n its norm and g the gradient of y:
//   dv = (g - y * sum(g * y)) / n, or g / eps where the norm is below eps
#pragma once

#include <fusedops/row/tile.cuh>

namespace fusedops {

template <class Compute_>
struct L2NormGradient {
  using Compute = Compute_;
  Word<Compute> eps;
  static constexpr int kKept = 2;

  static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
  FUSEDOPS_HD static Compute padding_value() { return 0; }

  struct Row {
    Compute factor, share;  // the share is 0 where the factor is a constant, else 1
    FUSEDOPS_HD Compute result(Compute v) const { return product(v, factor); }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0], kept[1]}; }

  struct Partial {
    Compute along;
  };
  FUSEDOPS_HD static Partial identity() { return {0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, const Tile& y, const Tile& g) const {
    return {group.sum(g.sum_with(y, [](Compute of_y, Compute at) { return of_y * at; }))};
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    return {group.sum(part.along)};
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial b) const { return {a.along + b.along}; }

  struct Finish {
    Compute factor, along;
    FUSEDOPS_HD Compute operator()(Compute y, Compute g) const { return factor * (g - y * along); }
  };
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t) const {
    return {known.factor, known.share * all.along};
  }
};

}  // namespace fusedops
