// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Softmax and log-softmax over a row. What is known of part of a row is its maximum and the sum of
// exp(x - maximum); parts are merged by rescaling (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018), so a row may arrive in any number of chunks.
//
// An empty row, one whose maximum is -inf, gives zeros (log-softmax: -inf), or NaN where asked for.
#pragma once

#include <fusedops/row/tile.cuh>

namespace fusedops {

template <class Compute_, bool kLog, bool kEmptyIsNan>
struct Softmax {
  using Compute = Compute_;
  uint64_t unused;  // operators are arguments too; this one has none

  struct alignas(2 * sizeof(Compute)) Partial {
    Compute max, sum;
  };

  /// The value that takes no part.
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }

  FUSEDOPS_HD static Partial identity() { return {-infinity<Compute>(), 0}; }

  /// The part of a row that a group of lanes holds; every lane gets it. Rewrites the tile to what
  /// finishing starts from: softmax keeps exp(x - maximum of the part), so that no element is
  /// exponentiated twice.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    const Compute max = group.maximum(tile.maximum());
    const Compute base = finite(max);
    const auto power = [base](Compute x) { return exponential(difference(x, base)); };
    return {max, group.sum(kLog ? tile.sum(power) : tile.apply_and_sum(power))};
  }

  /// Rewrites a tile that was loaded a second time as reduce() did; what it returns suits
  /// Finish::of alone.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group group, Tile& tile) const {
    const Partial part{group.maximum(tile.maximum()), 0};
    rebuild(part, tile);
    return part;
  }
  /// The same where the part is known.
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial& part, Tile& tile) const {
    if constexpr (!kLog) {
      const Compute base = finite(part.max);
      tile.apply([base](Compute x) { return exponential(difference(x, base)); });
    }
  }

  /// Parts of a row held by the lanes of a group, one each.
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    const Compute max = group.maximum(part.max);
    return {max, group.sum(part.sum * exponential(part.max - finite(max)))};
  }

  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    const Compute max = larger(a.max, b.max);
    const Compute base = finite(max);
    return {max, a.sum * exponential(a.max - base) + b.sum * exponential(b.max - base)};
  }

  /// Turns what reduce() left of a part of the row into the row's result.
  struct Finish {
    using Compute = Compute_;
    Compute base, factor;

    struct Element {
      Compute base, factor;
      FUSEDOPS_HD Compute operator()(Compute x) const {
        if constexpr (kLog) {
          return difference(difference(x, base), factor);
        } else {
          return product(x, factor);
        }
      }
    };
    FUSEDOPS_HD Element of(Partial part) const {
      if constexpr (kLog) {
        return {base, factor};
      } else {
#if !defined(FUSEDOPS_CUDA)
        if (part.max == base) return {base, factor};  // the row's only part, as a rule
#endif
        // A part without an unmasked element has a maximum of -inf: its zeros get a factor of zero.
        return {base, exponential(part.max - base) * factor};
      }
    }

    /// What the gradient makes the row's result from: op/softmax_gradient.cuh.
    static constexpr int kKept = 2;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = base;
      kept[1] = factor;
    }
  };

  FUSEDOPS_HD Finish finish(Partial row, int64_t) const {
    const Compute base = finite(row.max);
    // NaN among masked elements has a sum that is NaN, so that row is not empty.
    if (row.max == -infinity<Compute>() && row.sum == 0) {
      return {base, kEmptyIsNan ? quiet_nan<Compute>() : Compute(0)};
    }
    return {base, kLog ? logarithm(row.sum) : reciprocal(row.sum)};
  }

 private:
  // Subtracting a maximum of -inf would make NaN of an empty part.
  FUSEDOPS_HD static Compute finite(Compute max) {
    return max == -infinity<Compute>() ? Compute(0) : max;
  }
};

}  // namespace fusedops
