// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Softmax and log-softmax over a row. The Partial of a part of a row is its maximum and the sum of
// exp(x - maximum). Parts are merged by rescaling (Milakov and Gimelshein, "Online normalizer
// calculation for softmax", 2018), so a row may be reduced in any number of chunks.
//
// A sink is one more logit of a row. It takes part in the maximum and in the sum, and has no
// column.
//
// The results of an empty row, whose maximum is -inf, are zeros (log-softmax: -inf), or NaN if the
// declaration asks for that. The statistic lse, the logarithm of the sum of the exponentials, sink
// included, is computed as maximum + log(sum). Like the results, it is NaN for a row that holds NaN
// or +inf; it is -inf for an empty row.
#pragma once

#include <fusedops/op/row_operand.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The operands of a softmax and of its gradient: the sink and the gradient of lse. Those that the
/// declaration does not have occupy no word, but an argument has at least one word.
template <class Sink, class OfLse = NoOperand>
struct SoftmaxOperands {
  Sink sink;
  OfLse of_lse;
};
template <class Sink>
struct SoftmaxOperands<Sink, NoOperand> {
  Sink sink;
};
template <class OfLse>
struct SoftmaxOperands<NoOperand, OfLse> {
  OfLse of_lse;
};
template <>
struct SoftmaxOperands<NoOperand, NoOperand> {
  uint64_t unused;
};

/// The sum of a row, which is stored only if lse is computed from it.
template <class Compute, bool kLse>
struct SumForLse {
  Compute sum;
};
template <class Compute>
struct SumForLse<Compute, false> {
  FUSEDOPS_HD explicit SumForLse(Compute) {}
};

}  // namespace detail

/// kLse: whether the call returns the statistic lse.
template <class Compute_, bool kLog, bool kEmptyIsNan, bool kLse = false, class Sink = NoOperand>
struct Softmax {
  using Compute = Compute_;
  detail::SoftmaxOperands<Sink> operands;

  struct alignas(2 * sizeof(Compute)) Partial {
    Compute max, sum;
  };

  /// The value of elements that take no part in the reduction.
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }

  FUSEDOPS_HD static Partial identity() { return {-infinity<Compute>(), 0}; }

  /// Reduces the part of a row that a group of lanes holds, and returns it in every lane. A softmax
  /// replaces each element x of the tile by exp(x - maximum of the part), from which Finish
  /// computes the result, so that no element is exponentiated twice.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    const Compute max = group.maximum(tile.maximum());
    const Compute base = finite(max);
    const auto power = [base](Compute x) { return bounded_exponential(difference(x, base)); };
    return {max, group.sum(kLog ? tile.sum(power) : tile.apply_and_sum(power))};
  }

  /// Rewrites a tile that was loaded a second time as reduce() did. The Partial that it returns has
  /// no sum; Finish::of, for which it is meant, reads none.
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group group, Tile& tile) const {
    const Partial part{group.maximum(tile.maximum()), 0};
    rebuild(part, tile);
    return part;
  }
  /// Does the same to a tile whose part is known.
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial& part, Tile& tile) const {
    if constexpr (!kLog) {
      const Compute base = finite(part.max);
      tile.apply([base](Compute x) { return bounded_exponential(difference(x, base)); });
    }
  }

  /// Combines the parts of a row that the lanes of a group hold, one each.
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    const Compute max = group.maximum(part.max);
    return {max, group.sum(part.sum * bounded_exponential(part.max - finite(max)))};
  }

  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    const Compute max = larger(a.max, b.max);
    const Compute base = finite(max);
    return {max,
            a.sum * bounded_exponential(a.max - base) + b.sum * bounded_exponential(b.max - base)};
  }

  /// Computes the row's result from the values that reduce() left in the tiles.
  struct Finish {
    using Compute = Compute_;
    Compute base, factor;
    detail::SumForLse<Compute, kLse> all;

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
        if (part.max == base) return {base, factor};  // usually it is the row's only part
#endif
        // A part of masked elements alone has a maximum of -inf: its zeros get a factor of zero.
        return {base, bounded_exponential(part.max - base) * factor};
      }
    }

    /// The numbers from which the gradient recomputes the row's result (op/softmax_gradient.cuh).
    static constexpr int kKept = 2;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = base;
      kept[1] = factor;
    }

    FUSEDOPS_HD Compute lse() const { return base + logarithm(all.sum); }
  };

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row& row, int64_t) const {
    if constexpr (!detail::IsSame<Sink, NoOperand>::value) {
      part = merge(part, {number_of<Compute>(operands.sink, row), 1});
    }
    const Compute base = finite(part.max);
    const detail::SumForLse<Compute, kLse> all{part.sum};
    // A NaN beside masked elements makes the sum NaN, so such a row is not empty.
    if (part.max == -infinity<Compute>() && part.sum == 0) {
      return {base, kEmptyIsNan ? quiet_nan<Compute>() : Compute(0), all};
    }
    return {base, kLog ? logarithm(part.sum) : reciprocal(part.sum), all};
  }

 private:
  // Subtracting a maximum of -inf would turn an empty part into NaN.
  FUSEDOPS_HD static Compute finite(Compute max) {
    return max == -infinity<Compute>() ? Compute(0) : max;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
