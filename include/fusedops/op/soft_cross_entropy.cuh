// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy of a row v with weights p_j of its classes, probabilities most often:
//
//   loss = s * lse - sum_j p_j v_j,   s = sum_j p_j
//
// and its gradient. The weights are a tensor of x's size, which is read beside each tile
// (op/contract.cuh, 8: kBeside). The sum is one of p_j (v_j - maximum), so that nothing is lost where
// logits are large and close, and loss is s * log(sum) - that sum. A class without weight adds nothing,
// masked or not; one that has weight and is masked makes the loss +inf. All else is as in
// op/cross_entropy.cuh.
//
//   dv_j = softmax_j * (h ((1 - eps) s + eps) + ...) - h eps / n - h (1 - eps) p_j
#pragma once

#include <fusedops/op/cross_entropy_gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Compute_, bool kSmooths, bool kZ, bool kEntropy, class Target>
struct SoftCrossEntropy : CrossEntropy<Compute_, 0, kSmooths, kZ, kEntropy, Target> {
  using Base = CrossEntropy<Compute_, 0, kSmooths, kZ, kEntropy, Target>;
  using Compute = Compute_;
  static constexpr bool kBeside = true;

  struct Partial : Base::Partial {
    Compute share, along;  // the sums of p and of p * (v - maximum)
  };
  FUSEDOPS_HD static Partial identity() { return {Base::identity(), 0, 0}; }
  FUSEDOPS_HD const Target& beside() const { return this->target; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile, const Tile& weights) const {
    Partial part{Base::reduce(group, tile), 0, 0};
    const Compute base = Base::finite(part.max);
    part.share = group.sum(weights.sum([](Compute p) { return p; }));
    part.along = group.sum(weights.sum_with(tile, [base](Compute p, Compute v) {
      const Compute term = p * difference(v, base);
      return p == 0 ? Compute(0) : term;
    }));
    return part;
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    const Compute max = group.maximum(part.max);
    const Compute along = group.sum(moved(part, max));
    return {Base::combine(group, part), group.sum(part.share), along};
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    const Compute max = larger(a.max, b.max);
    return {Base::merge(a, b), a.share + b.share, moved(a, max) + moved(b, max)};
  }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}

  using typename Base::Begun;
  template <class Row, class Value>
  FUSEDOPS_HD Begun begin(const Row&, int64_t, const Value&) const {
    return {0, false};
  }

  struct Finish : Base::Finish {
    using Compute = Compute_;
    Compute share, along;

    FUSEDOPS_HD Compute loss() const {
      Compute found = share * this->log_sum - along;
      if constexpr (kSmooths) {
        const Compute mean = this->all.total * reciprocal(this->all.count);
        found = found + this->smoothing * (this->log_sum - (mean - this->base) - found);
      }
      if constexpr (kZ) {
        const Compute sum = this->base + this->log_sum;
        found += this->z_loss_factor * (sum * sum);
      }
      return found;
    }

    static constexpr int kKept = Base::Finish::kKept + 1;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      Compute others[Base::Finish::kKept];
      Base::Finish::keep(others);
      kept[0] = share;
      for (int i = 1; i < kKept; ++i) kept[i] = others[i - 1];
    }
  };
  template <class Row>
  FUSEDOPS_HD Finish finish(Partial all, const Begun& begun, const Row& row, int64_t cols) const {
    return {Base::finish(all, begun, row, cols), all.share, all.along};
  }

 private:
  /// The sum of a part relative to a maximum of at least its own.
  FUSEDOPS_HD static Compute moved(const Partial& part, Compute max) {
    const Compute further = part.share * (Base::finite(part.max) - Base::finite(max));
    return part.along + (part.share == 0 ? Compute(0) : further);
  }
};

template <class Compute_, bool kSmooths, bool kZ, bool kEntropy, class Target, class OfLoss,
          class OfLse, class OfLogProb, class OfEntropy>
struct SoftCrossEntropyGradient : CrossEntropyGradient<Compute_, 0, kSmooths, kZ, kEntropy, Target,
                                                       OfLoss, OfLse, OfLogProb, OfEntropy> {
  using Base = CrossEntropyGradient<Compute_, 0, kSmooths, kZ, kEntropy, Target, OfLoss, OfLse,
                                    OfLogProb, OfEntropy>;
  using Compute = Compute_;
  static constexpr int kKept = Base::kKept + 1;

  struct Row : Base::Row {
    Compute weights;  // their sum
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) {
    Compute others[Base::kKept];
    for (int i = 1; i < kKept; ++i) others[i - 1] = kept[i];
    return {Base::row(others), kept[0]};
  }

  /// The gradient of the losses by the weights, as a view.
  struct Weighted {
    const SoftCrossEntropyGradient& of;

    template <int N, class AnyRow>
    FUSEDOPS_HD void read(Compute (&g)[N], const AnyRow& row, int64_t col) const {
      of.target.read(g, row, col);
      const Compute loss = number_of<Compute>(of.of_loss, row);
      const Compute factor = kSmooths ? loss - loss * of.label_smoothing.value : loss;
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) g[i] = -(g[i] * factor);
    }
    template <int N, class AnyRow>
    FUSEDOPS_HD void prefetch(const AnyRow& row, int64_t col) const {
      of.target.template prefetch<N>(row, col);
    }
#if defined(FUSEDOPS_CUDA)
    template <class AnyRow, class By = Alone>
    __device__ __forceinline__ void prefetch_all(const AnyRow& row, int64_t begin, int64_t end,
                                                 By by = {}) const {
      of.target.prefetch_all(row, begin, end, by);
    }
#endif
  };
  FUSEDOPS_HD Weighted upstream() const { return {*this}; }

  using typename Base::Finish;
  using typename Base::Partial;
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial none, const AnyRow& row, int64_t cols) const {
    Finish finish = Base::finish(known, none, row, cols);
    const Compute loss = number_of<Compute>(this->of_loss, row);
    const Compute eps = kSmooths ? this->label_smoothing.value : Compute(0);
    finish.of_p += loss * ((1 - eps) * (known.weights - 1));
    return finish;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
