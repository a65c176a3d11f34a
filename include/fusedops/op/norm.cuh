// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and RMSNorm over a row, without the affine part, which is a functor of the STORE.
//
// The Partial of a LayerNorm is the number of columns in a part of a row, their mean, and the sum
// of their squared deviations. The mean is stored as a float and its rounding error. The deviations
// are those from the part's own mean: the second pass of a two-pass algorithm, over values that are
// still in registers. Where y has 8 bits, a part whose mean does not exceed its deviation takes one
// pass, which sums the squares of the values. Parts are merged as in Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances" (1979). The columns
// are added up as x / 2^k, so that values near the largest float do not overflow. Squares of large
// values may overflow; then the row becomes NaN, as does a row that holds Inf or NaN, since a
// reciprocal deviation of zero would turn it into zeros.
#pragma once

#include <fusedops/op/sum_of_squares.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Returns 1 / sqrt(variance + eps), or NaN where the variance is infinite or NaN, which is where
/// squares have overflowed or the row holds Inf or NaN. Corrections may leave the variance slightly
/// below zero. larger() drops NaN; the difference at the end, zero for every finite variance,
/// brings it back. A comparison would become a branch, after which the STORE's operands are loaded
/// too late.
template <class Compute>
FUSEDOPS_HD Compute reciprocal_deviation(Compute variance, Compute eps) {
  return reciprocal_sqrt(larger(variance, Compute(0)) + eps) + (variance - variance);
}

/// Whether squares are summed beside the values, so that a row takes one pass where the mean does not
/// exceed the deviation. core/pointwise.cuh says in which kernels instructions count so much.
FUSEDOPS_HD constexpr bool takes_one_pass() {
#if defined(FUSEDOPS_ON_DEVICE) && defined(FUSEDOPS_ROUNDED_ARGUMENTS)
  return true;
#else
  return false;
#endif
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
    if constexpr (detail::takes_one_pass()) {
      const Compute all = group.sum(tile.sum([](Compute x) { return x * x; }));
      const Compute of_mean = product(mean, mean * count);
      const Compute squares = all - of_mean;
      // Then no more than a bit of the sum cancels; a row with NaN takes two passes.
      const bool clear = of_mean <= squares;
      if (!group.any(!clear)) return {count, mean, 0, squares};
      const Partial exact = two_passes(group, tile, count, mean);
      return clear ? Partial{count, mean, 0, squares} : exact;
    } else {
      return two_passes(group, tile, count, mean);
    }
  }

  /// Does nothing to a tile that was loaded a second time: results are computed from the values as
  /// they were loaded.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}

  /// Combines the parts of all lanes by two rounds of two independent sums.
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
    // The exact rounding error of that addition (Knuth's two-sum).
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

    /// One multiply-add an element. Where the mean exceeds the deviation, their quotient has too few
    /// digits behind the point, so it is subtracted first.
    struct Scaled {
      Compute rstd, shift;
      FUSEDOPS_HD Compute operator()(Compute x) const { return fused(x, rstd, shift); }
    };
    template <class Tile>
    FUSEDOPS_HD Scaled over(Tile& tile) const {
      const Compute share = mean * rstd;
      if (share * share <= 1) return {rstd, fused(-mean, rstd, shift)};
      const Compute subtracted = mean;
      tile.apply([subtracted](Compute x) { return difference(x, subtracted); });
      return {rstd, shift};
    }

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
  /// The part of a group whose mean is known.
  template <class Group, class Tile>
  FUSEDOPS_HD static Partial two_passes(Group group, Tile& tile, Compute count, Compute mean) {
    tile.fill_absent(mean);
    const Compute squares = group.sum(
        tile.sum([mean](Compute x) { return difference(x, mean) * difference(x, mean); }));
    // The mean has an error of about one ulp, which matters where the mean exceeds the deviation:
    // there the deviations are summed as well, to find that error. Elsewhere the roundings of the
    // deviations themselves are no smaller.
    const bool matters = mean * mean * count > squares || squares == 0;
    // `matters` is the same in all lanes of a group, and may differ between groups.
    if (kSkips<Group, Tile> && !group.any(matters)) return {count, mean, 0, squares};
    const Compute from = kForgets<Group, Tile> ? group.of_another(mean) : mean;
    const Compute off = group.sum(tile.sum([from](Compute x) { return difference(x, from); }));
    const Compute low = matters && count > 0 ? off * inverse(tile, count) : Compute(0);
    return {count, mean, low, matters ? squares - off * low : squares};  // off may be infinite
  }

  /// Whether a thread has registers for its deviations beside its values, of which it sums up the
  /// squares, and then, where that matters, themselves. Of 64 values they took 255 in place of 128.
  template <class Group, class Tile>
  static constexpr bool kFew =
      Group::kCount == 1 || (!detail::takes_one_pass() && Tile::kPacks * Tile::kWidth <= 32);
  /// Whether the sum of deviations is skipped where it does not matter. One H200, percent of a copy:
  /// 131072 columns of 32 bits, 16 packs a thread, 76 so, and 93 without; 65536 of 16 bits 97 and 91.
  template <class Group, class Tile>
  static constexpr bool kSkips =
      kFew<Group, Tile> || detail::takes_one_pass() || Tile::kPacks <= 8 || Tile::kWidth == 2;
  /// Whether deviations are computed again for their sum, which a branch would keep alive.
  template <class Group, class Tile>
  static constexpr bool kForgets = kSkips<Group, Tile> && !kFew<Group, Tile>;

  /// The reciprocal of the number of columns that a group holds, a constant if every pack is
  /// complete.
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
    Compute mean, rstd;  // RMSNorm subtracts no mean: it is zero
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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
