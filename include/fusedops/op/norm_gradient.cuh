// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of LayerNorm and RMSNorm. With y the row's result (before the affine part, which is
// a functor of the STORE) and g the gradient of y:
//   LayerNorm  dv = rstd * (g - mean(g) - y * mean(g * y))
//   RMSNorm    dv = rstd * (g - y * mean(g * y))
// y is recomputed from v and the statistics that the forward pass saved.
#pragma once

#include <fusedops/op/sum_of_squares.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Compute_>
struct LayerNormGradient {
  using Compute = Compute_;
  Word<Compute> eps;
  static constexpr int kKept = 3;

  static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
  FUSEDOPS_HD static Compute padding_value() { return 0; }

  struct Row {
    Compute mean, rstd, shift;
    FUSEDOPS_HD Compute result(Compute v) const { return fused(difference(v, mean), rstd, shift); }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0], kept[1], kept[2]}; }

  struct alignas(2 * sizeof(Compute)) Partial {
    Compute plain, along;  // the sums of g and of g * y
  };
  FUSEDOPS_HD static Partial identity() { return {0, 0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, const Tile& y, const Tile& g) const {
    const Compute plain = g.sum([](Compute of_y) { return of_y; });
    const Compute along = g.sum_with(y, [](Compute of_y, Compute at) { return of_y * at; });
    return {group.sum(plain), group.sum(along)};
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    return {group.sum(part.plain), group.sum(part.along)};
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    return {a.plain + b.plain, a.along + b.along};
  }

  struct Finish {
    Compute rstd, plain, along;
    FUSEDOPS_HD Compute operator()(Compute y, Compute g) const {
      return rstd * ((g - plain) - y * along);
    }
  };
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t cols) const {
    const Compute count = static_cast<Compute>(cols);
    return {known.rstd, average(all.plain, count), average(all.along, count)};
  }
};

template <class Compute_>
struct RmsNormGradient : SumOfSquaresGradient<Compute_> {
  using typename SumOfSquaresGradient<Compute_>::Compute;
  using typename SumOfSquaresGradient<Compute_>::Partial;
  using typename SumOfSquaresGradient<Compute_>::Finish;
  static constexpr int kKept = 1;

  struct Row {
    Compute rstd;
    FUSEDOPS_HD Compute result(Compute v) const { return product(v, rstd); }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0]}; }

  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t cols) const {
    return {known.rstd, average(all.along, static_cast<Compute>(cols))};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
