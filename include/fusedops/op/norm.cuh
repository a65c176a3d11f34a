// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm over a row, without the affine part, which is a functor of the STORE.
//
// What is known of part of a row: how many columns, their mean, and the sum of squares about it.
// The mean is kept as a float and its rounding error, the squares are centred (the second pass of a
// two-pass algorithm; the values are at hand), and parts are merged as in Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances" (1979). The sums are
// of x / 2^k, so that values near the largest float do not overflow. The squares of large values may,
// and then the row becomes NaN, as does one that holds Inf or NaN: a reciprocal deviation of zero
// would make zeros of it.
#pragma once

#include <fusedops/op/sum_of_squares.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {

namespace detail {

/// 1 / sqrt(variance + eps), or NaN where the variance is infinite or NaN: then squares have
/// overflowed, or the row holds Inf or NaN. Corrections may leave a variance a little below zero;
/// larger() drops NaN, and the difference, which is zero of all numbers, brings it back. A comparison
/// would become a branch, behind which the operands of the STORE are loaded too late.
template <class Compute>
FUSEDOPS_HD Compute reciprocal_deviation(Compute variance, Compute eps) {
  return reciprocal_sqrt(larger(variance, Compute(0)) + eps) + (variance - variance);
}

}  // namespace detail

template <class Compute_>
struct LayerNorm {
  using Compute = Compute_;
  Word<Compute> eps;

  struct alignas(16) Partial {
    Compute count, mean, low, squares;  // the mean is mean + low
  };

  FUSEDOPS_HD static Compute padding_value() { return 0; }

  FUSEDOPS_HD static Partial identity() { return {0, 0, 0, 0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    constexpr int kPower = detail::power_of_two(Tile::kPacks * Tile::kSpan);
    constexpr Compute kMost = kPower;
    constexpr Compute kShrink = Compute(1) / kPower;
    const Compute count = static_cast<Compute>(tile.group_count());
    const Compute sum = group.sum(tile.sum([](Compute x) { return x * kShrink; }));
    const Compute share = kMost * inverse(tile, count);
    const Compute mean = count > 0 ? sum * share : Compute(0);
    tile.fill_absent(mean);
    const Compute squares = group.sum(
        tile.sum([mean](Compute x) { return difference(x, mean) * difference(x, mean); }));
    // The mean is off by an ulp or so of itself, which matters where it exceeds the deviation: then
    // the deviations are summed as well to find by how much. Elsewhere their own rounding is no less.
    const bool matters = mean * mean * count > squares || squares == 0;
    // Lanes agree within a group, not across groups.
    if (kBranches<Group, Tile> && !group.any(matters)) return {count, mean, 0, squares};
    const Compute off = group.sum(tile.sum([mean](Compute x) { return difference(x, mean); }));
    const Compute low = matters && count > 0 ? off * inverse(tile, count) : Compute(0);
    return {count, mean, low, matters ? squares - off * low : squares};  // off may be infinite
  }

  /// A tile that was loaded a second time needs nothing: results are made from the values
  /// themselves.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}

  /// Two rounds of sums, each of two sums that do not wait for one another.
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    constexpr Compute kShrink = Compute(1) / (1ll << 31);  // more columns than a row has
    const Compute count = group.sum(part.count);
    const Compute sum = group.sum(part.mean * (part.count * kShrink));
    const Compute inverse = count > 0 ? reciprocal(count) : Compute(0);
    const Compute mean = sum * (inverse / kShrink);
    const Compute share = part.count * inverse;
    const Compute off = (part.mean - mean) + part.low;
    const Compute low = group.sum(off * share);
    const Compute squares = group.sum(part.squares + part.count * off * off);
    return {count, mean, low, squares - count * low * low};
  }

  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    if (!(b.count > 0)) return a;
    if (!(a.count > 0)) return b;
    const Compute count = a.count + b.count;
    const Compute share = b.count * reciprocal(count);
    const Compute delta = (b.mean - a.mean) + (b.low - a.low);
    const Compute step = delta * share;
    const Compute mean = a.mean + step;
    // What the addition lost, exactly (Knuth's two-sum).
    const Compute taken = mean - a.mean;
    const Compute lost = (a.mean - (mean - taken)) + (step - taken);
    return {count, mean, lost + a.low, a.squares + b.squares + delta * delta * a.count * share};
  }

  struct Finish {
    using Compute = Compute_;
    Compute mean, rstd, shift;
    FUSEDOPS_HD Compute operator()(Compute x) const {
      return fused(difference(x, mean), rstd, shift);
    }
    FUSEDOPS_HD Finish of(Partial) const { return *this; }

    static constexpr int kKept = 3;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = mean;
      kept[1] = rstd;
      kept[2] = shift;
    }
  };

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t cols) const {
    const Compute variance = average(part.squares, static_cast<Compute>(cols));
    const Compute rstd = detail::reciprocal_deviation<Compute>(variance, eps);
    return {part.mean, rstd, -part.low * rstd};
  }

 private:
  /// Whether to leave out what seldom matters. Where a thread holds many values, one more addition
  /// each, beside the squares, costs less than a branch, which keeps so much alive that 64 values
  /// take 255 registers in place of 128.
  template <class Group, class Tile>
  static constexpr bool kBranches = Group::kCount == 1 || Tile::kPacks * Tile::kWidth <= 32;

  /// One over the columns that a group holds, a constant where every pack is complete.
  template <class Tile>
  FUSEDOPS_HD static Compute inverse(const Tile&, Compute count) {
    if constexpr (Tile::kExact) {
      return Compute(1) / (Tile::kSpan * Tile::kPacks);
    } else {
      return reciprocal(count);
    }
  }
};

template <class Compute_>
struct RmsNorm : SumOfSquares<Compute_> {
  using typename SumOfSquares<Compute_>::Compute;
  using typename SumOfSquares<Compute_>::Partial;

  struct Finish {
    using Compute = Compute_;
    Compute mean, rstd;  // the mean is that which is subtracted: zero
    FUSEDOPS_HD Compute operator()(Compute x) const { return product(x, rstd); }
    FUSEDOPS_HD Finish of(Partial) const { return *this; }

    static constexpr int kKept = 1;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const { kept[0] = rstd; }
  };

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t cols) const {
    const Compute variance = average(part.squares, static_cast<Compute>(cols));
    return {0, detail::reciprocal_deviation<Compute>(variance, this->eps)};
  }
};

}  // namespace fusedops
