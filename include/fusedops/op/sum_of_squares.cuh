// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The reduction of RMSNorm and L2Norm, which know the sum of the squares of a part of a row, and
// that of their gradients, which know the sum of g * y. Both leave the values of a tile as they
// are.
#pragma once

#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Derived adds Finish and finish().
template <class Compute_>
struct SumOfSquares {
  using Compute = Compute_;
  Word<Compute> eps;

  struct Partial {
    Compute squares;
  };

  FUSEDOPS_HD static Compute padding_value() { return 0; }

  FUSEDOPS_HD static Partial identity() { return {0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    return {group.sum(tile.sum([](Compute x) { return x * x; }))};
  }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}

  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    return {group.sum(part.squares)};
  }

  FUSEDOPS_HD Partial merge(Partial a, Partial b) const { return {a.squares + b.squares}; }
};

/// Derived adds kKept, Row, row() and finish().
template <class Compute_>
struct SumOfSquaresGradient {
  using Compute = Compute_;
  Word<Compute> eps;

  static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
  FUSEDOPS_HD static Compute padding_value() { return 0; }

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
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
