// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy of a row v with the class t of its target: an operator without y (op/contract.cuh, 8).
//
//   loss = lse - v_t,   lse = log(sum_j exp(v_j)) = max + log(sum_j exp(v_j - max))
//
// The Partial of a part of a row is that of a softmax (op/softmax.cuh): its maximum and the sum of
// exp(v - maximum), merged by rescaling. The target's value is read on its own, before the reduction,
// so that no other element is compared with the target. loss is computed as log(sum) + (max - v_t):
// its error is a few roundings of log(sum) and of max - v_t, however large max is.
//
// Elements of value -inf, masked ones that is, are no classes. Label smoothing is over the classes
// that are left:
//   (1 - eps) * loss + eps * (lse - mean_j v_j)
// z_loss adds z_loss * lse^2. The statistic log_prob is v_t - lse; entropy is
// log(sum) - sum_j exp(v_j - max) (v_j - max) / sum; largest is max, NaN where one of the row's values is
// NaN or +inf; correct is 1 where no class is larger than the target's, else 0.
//
// A row whose target is kIgnore has the result 0 in all of these, whatever it holds. A target that is
// no column makes loss and log_prob NaN, and is not used as an address. So is the loss of a row
// without classes NaN; that of a masked target is +inf.
#pragma once

#include <fusedops/op/row_operand.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// What label smoothing knows of a part of a row: the sum of its classes' values, and their number.
template <class Compute, bool kThere>
struct ClassSum {
  Compute total, count;
};
template <class Compute>
struct ClassSum<Compute, false> {};
/// What the entropy knows of it: the sum of exp(v - maximum) * (v - maximum).
template <class Compute, bool kThere>
struct WeightedSum {
  Compute weighted;
};
template <class Compute>
struct WeightedSum<Compute, false> {};

}  // namespace detail

/// kSmooths, kZ: whether there is label smoothing, and a z_loss. kEntropy: whether the call returns
/// the statistic. Target: the operand with the class of each row.
template <class Compute_, int64_t kIgnore, bool kSmooths, bool kZ, bool kEntropy, class Target>
struct CrossEntropy {
  using Compute = Compute_;
  static constexpr bool kHasResult = false;
  Word<Compute> label_smoothing, z_loss;
  Target target;

  struct alignas(2 * sizeof(Compute)) Partial : detail::ClassSum<Compute, kSmooths>,
                                                detail::WeightedSum<Compute, kEntropy> {
    Compute max, sum;
  };

  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static Partial identity() {
    Partial none;
    none.max = -infinity<Compute>();
    none.sum = 0;
    if constexpr (kSmooths) none.total = none.count = 0;
    if constexpr (kEntropy) none.weighted = 0;
    return none;
  }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    Partial part;
    part.max = group.maximum(tile.maximum());
    const Compute base = finite(part.max);
    part.sum =
        group.sum(tile.sum([base](Compute x) { return bounded_exponential(difference(x, base)); }));
    if constexpr (kEntropy) {
      part.weighted = group.sum(tile.sum([base](Compute x) {
        const Compute below = difference(x, base);
        const Compute term = bounded_exponential(below) * below;
        return x == -infinity<Compute>() ? Compute(0) : term;
      }));
    }
    if constexpr (kSmooths) {
      part.total =
          group.sum(tile.sum([](Compute x) { return x == -infinity<Compute>() ? Compute(0) : x; }));
      part.count = group.sum(
          tile.sum([](Compute x) { return x == -infinity<Compute>() ? Compute(0) : Compute(1); }));
    }
    return part;
  }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}

  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    Partial all = rescaled(part, group.maximum(part.max));
    all.sum = group.sum(all.sum);
    if constexpr (kEntropy) all.weighted = group.sum(all.weighted);
    if constexpr (kSmooths) {
      all.total = group.sum(all.total);
      all.count = group.sum(all.count);
    }
    return all;
  }

  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    const Compute max = larger(a.max, b.max);
    Partial all = rescaled(a, max);
    const Partial other = rescaled(b, max);
    all.sum += other.sum;
    if constexpr (kEntropy) all.weighted += other.weighted;
    if constexpr (kSmooths) {
      all.total += other.total;
      all.count += other.count;
    }
    return all;
  }

  /// What is known of a row before its reduction.
  struct Begun {
    Compute at;  // the target's value; NaN if the target is no column
    bool ignored;
  };
  template <class Row, class Value>
  FUSEDOPS_HD Begun begin(const Row& row, int64_t cols, const Value& value) const {
    const int64_t label = target.template fetch<1, int64_t>(row, 0)[0];
    const bool ignored = label == kIgnore;
    const bool known = static_cast<uint64_t>(label) < static_cast<uint64_t>(cols);
    return {known && !ignored ? value(label) : quiet_nan<Compute>(), ignored};
  }

  struct Finish {
    using Compute = Compute_;
    Partial all;
    Compute at, base, log_sum, smoothing, z_loss_factor;
    bool ignored;

    FUSEDOPS_HD Compute loss() const {
      Compute found = log_sum - difference(at, base);
      if constexpr (kSmooths) {
        const Compute even = log_sum - (all.total * reciprocal(all.count) - base);
        found = found + smoothing * (even - found);
        // A masked target has no finite part in that.
        if (at == -infinity<Compute>()) found = log_sum - at;
      }
      if constexpr (kZ) {
        const Compute sum = base + log_sum;
        found += z_loss_factor * (sum * sum);
      }
      return shown(found);
    }
    FUSEDOPS_HD Compute lse() const { return shown(base + log_sum); }
    FUSEDOPS_HD Compute log_prob() const { return shown(difference(at, base) - log_sum); }
    FUSEDOPS_HD Compute entropy() const { return shown(entropy_of_row()); }
    FUSEDOPS_HD Compute largest() const { return shown(all.sum == all.sum ? all.max : all.sum); }
    FUSEDOPS_HD Compute correct() const {
      return shown(at >= base && all.sum == all.sum ? Compute(1) : Compute(0));
    }

    /// The numbers that the gradient reads (op/cross_entropy_gradient.cuh). A logarithm of +inf, which
    /// no sum has, stands for a row that is ignored; NaN makes that of one without a target.
    static constexpr int kKept = 2 + (kSmooths ? 1 : 0) + (kEntropy ? 1 : 0);
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = ignored ? Compute(0) : base;
      kept[1] = ignored ? infinity<Compute>() : at == at ? log_sum : at;
      if constexpr (kSmooths) kept[2] = shown(smoothing * reciprocal(all.count));
      if constexpr (kEntropy) kept[kKept - 1] = entropy();
    }

   private:
    FUSEDOPS_HD Compute shown(Compute value) const { return ignored ? Compute(0) : value; }
    FUSEDOPS_HD Compute entropy_of_row() const {
      if constexpr (kEntropy) {
        return log_sum - all.weighted * reciprocal(all.sum);
      } else {
        return 0;
      }
    }
  };

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial all, const Begun& begun, const Row&, int64_t) const {
    return {all,          begun.at,     finite(all.max), logarithm(all.sum), label_smoothing.value,
            z_loss.value, begun.ignored};
  }

 protected:
  FUSEDOPS_HD static Compute finite(Compute max) {
    return max == -infinity<Compute>() ? Compute(0) : max;
  }
  /// A part with its sums relative to a maximum of at least its own.
  FUSEDOPS_HD static Partial rescaled(Partial part, Compute max) {
    const Compute down = part.max - finite(max);
    const Compute factor = bounded_exponential(down);
    if constexpr (kEntropy) {
      const Compute moved = factor * (part.weighted + down * part.sum);
      part.weighted = part.max == -infinity<Compute>() ? Compute(0) : moved;
    }
    part.sum *= factor;
    part.max = max;
    return part;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
