// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of cross entropy. With p the softmax of the row, t its target, lse its logarithm, n its
// number of classes, H its entropy, and h the gradients of the loss, of lse, log_prob and entropy:
//
//   dv_j = p_j * (h_loss (1 + 2 z_loss lse) + h_lse - h_log_prob - h_entropy (log p_j + H))
//          - h_loss eps / n
//          + [j = t] (h_log_prob - h_loss (1 - eps))
//
// Nothing is summed over the row: p follows from v and from two numbers that the forward pass kept,
// the maximum and the logarithm of the sum. So any part of a row is a kernel's work of its own, and
// reads each logit once. The result y of the contract is log p, and what comes to the STORE, which is
// empty, is the last line of the formula: a row of zeros but for the target's column (`upstream`).
#pragma once

#include <fusedops/op/cross_entropy.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The parameters are those of CrossEntropy, and the operands with the gradients of the statistics.
template <class Compute_, int64_t kIgnore, bool kSmooths, bool kZ, bool kEntropy, class Target,
          class OfLoss, class OfLse, class OfLogProb, class OfEntropy>
struct CrossEntropyGradient {
  using Compute = Compute_;
  static constexpr bool kReduces = false, kHasResult = false;
  Word<Compute> label_smoothing, z_loss;
  Target target;
  OfLoss of_loss;
  OfLse of_lse;
  OfLogProb of_log_prob;
  OfEntropy of_entropy;

  static constexpr int kKept = 2 + (kSmooths ? 1 : 0) + (kEntropy ? 1 : 0);
  static constexpr bool kHasMasked = true, kMaskedIsConstant = true;
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static bool is_masked(Compute v) { return v == -infinity<Compute>(); }
  FUSEDOPS_HD static Compute masked_result() { return -infinity<Compute>(); }
  FUSEDOPS_HD static bool is_masked_result(Compute y) { return y == -infinity<Compute>(); }

  struct Row {
    Compute base, log_sum, share, entropy;
    /// log p; in a row that is ignored every element counts as masked, by selection.
    FUSEDOPS_HD Compute result(Compute v) const {
      const Compute found = difference(difference(v, base), log_sum);
      return log_sum == infinity<Compute>() ? -infinity<Compute>() : found;
    }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) {
    Row known{kept[0], kept[1], 0, 0};
    if constexpr (kSmooths) known.share = kept[2];
    if constexpr (kEntropy) known.entropy = kept[kKept - 1];
    return known;
  }

  /// A row of zeros, but for the column of the target: a view that no memory holds.
  struct AtTarget {
    const CrossEntropyGradient& of;
    static constexpr bool kOneColumn = true;

    template <class AnyRow>
    FUSEDOPS_HD int64_t column(const AnyRow& row) const {
      return of.target.template fetch<1, int64_t>(row, 0)[0];
    }
    template <class AnyRow>
    FUSEDOPS_HD Compute at_column(const AnyRow& row) const {
      return of.at_target(row);
    }
    template <int N, class AnyRow>
    FUSEDOPS_HD void read(Compute (&g)[N], const AnyRow& row, int64_t col) const {
      const int64_t place = column(row) - col;
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) g[i] = 0;
      if (static_cast<uint64_t>(place) < static_cast<uint64_t>(N)) {
        const Compute there = at_column(row);
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) g[i] = static_cast<int>(place) == i ? there : Compute(0);
      }
    }
    template <int N, class AnyRow>
    FUSEDOPS_HD void prefetch(const AnyRow&, int64_t) const {}
#if defined(FUSEDOPS_CUDA)
    template <class AnyRow, class By = Alone>
    __device__ __forceinline__ void prefetch_all(const AnyRow&, int64_t, int64_t, By = {}) const {}
#endif
  };
  FUSEDOPS_HD AtTarget upstream() const { return {*this}; }

  struct Partial {
    uint32_t unused;
  };
  FUSEDOPS_HD static Partial identity() { return {0}; }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group, const Tile&, const Tile&) const {
    return identity();
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group, Partial part) const {
    return part;
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial) const { return a; }

  struct Finish {
    Compute of_p, share, of_entropy, entropy;
    FUSEDOPS_HD Compute operator()(Compute y, Compute g) const {
      const Compute found = unmasked(y, g);
      return y == -infinity<Compute>() ? Compute(0) : found;
    }
    FUSEDOPS_HD Compute unmasked(Compute y, Compute g) const {
      // What is rounded is fixed: where g is known to be 0, the compiler would fuse other operations.
      const Compute factor = kEntropy ? fused(-of_entropy, y + entropy, of_p) : of_p;
      const Compute found = fused(bounded_exponential(y), factor, g);
      return kSmooths ? difference(found, share) : found;
    }
  };
  /// From an element to its gradient with one selection, which has all conditions of `result`, of the
  /// masks and of Finish.
  struct Straight {
    Row known;
    Finish finish;
    FUSEDOPS_HD Compute operator()(Compute v, Compute g) const {
      const Compute y = difference(difference(v, known.base), known.log_sum);
      const Compute found = finish.unmasked(y, g);
      const bool nothing = (known.log_sum == infinity<Compute>()) | (v == -infinity<Compute>()) |
                           (y == -infinity<Compute>());
      return nothing ? Compute(0) : found;
    }
  };
  FUSEDOPS_HD static Straight straight(const Row& known, const Finish& finish) {
    return {known, finish};
  }
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial, const AnyRow& row, int64_t) const {
    const Compute loss = number_of<Compute>(of_loss, row);
    Compute of_p = loss;
    if constexpr (kZ) of_p += loss * 2 * z_loss.value * (known.base + known.log_sum);
    of_p += number_of<Compute>(of_lse, row) - number_of<Compute>(of_log_prob, row);
    return {of_p, loss * known.share, number_of<Compute>(of_entropy, row), known.entropy};
  }

 private:
  template <class AnyRow>
  FUSEDOPS_HD Compute at_target(const AnyRow& row) const {
    const Compute loss = number_of<Compute>(of_loss, row);
    const Compute share = kSmooths ? loss - loss * label_smoothing.value : loss;
    return number_of<Compute>(of_log_prob, row) - share;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
