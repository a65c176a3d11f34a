// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of softmax and log-softmax. With y the row's result and g the gradient of y:
//   softmax      dv = y * (g - sum(g * y))
//   log-softmax  dv = g - exp(y) * sum(g)
// A gradient h of lse adds softmax(v) * h to dv; both formulas do so if h is subtracted from their
// sum. The gradient of a sink is -exp(sink - lse) * (sum - h).
// y is recomputed from v and the numbers that the forward pass saved: the row's maximum, and the
// reciprocal of the sum (log-softmax: the logarithm of the sum); FromResult reads y
// itself instead.
#pragma once

#include <fusedops/op/softmax.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// OfLse: the operand that holds the gradient of lse, if lse is an output.
template <class Compute_, bool kLog, bool kEmptyIsNan, bool kLse = false, class Sink = NoOperand,
          class OfLse = NoOperand>
struct SoftmaxGradient {
  using Compute = Compute_;
  detail::SoftmaxOperands<Sink, OfLse> operands;
  static constexpr bool kLogarithmic = kLog;
  static constexpr int kKept = 2;
  static constexpr bool kHasSink = !detail::IsSame<Sink, NoOperand>::value;
  static constexpr int kRowOperands = kHasSink ? 1 : 0;

  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }

  /// The saved numbers of a row.
  struct Row {
    Compute base, factor;
    FUSEDOPS_HD Compute result(Compute v) const {
      const Compute below = difference(v, base);
      return kLog ? difference(below, factor) : product(bounded_exponential(below), factor);
    }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {kept[0], kept[1]}; }
  /// Whether a result takes longer than reading it from a buffer.
  static constexpr bool kSlowResult = !kLog;

  /// An element of value -inf is masked. There the result of a log-softmax is a constant, whatever
  /// the STORE does. The result of a softmax is zero, on which the functors of the STORE act.
  static constexpr bool kHasMasked = true;
  static constexpr bool kMaskedIsConstant = kLog;
  FUSEDOPS_HD static bool is_masked(Compute v) { return v == -infinity<Compute>(); }

  /// The value that marks the result of a masked element between the two passes over the tile. The
  /// result of a softmax is never negative.
  FUSEDOPS_HD static Compute masked_result() { return kLog ? -infinity<Compute>() : Compute(-1); }
  FUSEDOPS_HD static bool is_masked_result(Compute y) { return y <= masked_result(); }

  struct Partial {
    Compute sum;
  };
  FUSEDOPS_HD static Partial identity() { return {0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, const Tile& y, const Tile& g) const {
    if constexpr (kLog) {
      return {group.sum(g.sum([](Compute of_y) { return of_y; }))};
    } else {
      return {group.sum(g.sum_with(y, [](Compute of_y, Compute at) { return of_y * at; }))};
    }
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    return {group.sum(part.sum)};
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial b) const { return {a.sum + b.sum}; }

  /// Turns the gradient of a result into the gradient of the value.
  struct Finish {
    Compute sum, of_sink;
    FUSEDOPS_HD Compute operator()(Compute y, Compute g) const {
      return kLog ? kept(y, g - bounded_exponential(y) * sum) : y * (g - sum);
    }
    FUSEDOPS_HD void row_gradients(Compute (&gradients)[1]) const { gradients[0] = of_sink; }
  };
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow& row, int64_t) const {
    Finish finish{all.sum, 0};
    if constexpr (!detail::IsSame<OfLse, NoOperand>::value) {
      finish.sum -= number_of<Compute>(operands.of_lse, row);
    }
    if constexpr (kHasSink) {
      const Compute sink = number_of<Compute>(operands.sink, row);
      const Compute y = known.result(sink);
      // A sink of -inf counts as absent and has gradient zero, whatever gradients come in.
      finish.of_sink = sink == -infinity<Compute>()
                           ? Compute(0)
                           : -(kLog ? bounded_exponential(y) : y) * finish.sum;
    }
    return finish;
  }

 private:
  // A result of -inf is a constant, whether a mask or the value itself caused it.
  FUSEDOPS_HD static Compute kept(Compute y, Compute gradient) {
    return y == -infinity<Compute>() ? Compute(0) : gradient;
  }
};

/// The same where what is loaded is not v but y, in the compute type: one exponential less for each
/// element. v = -inf has given a result of zero (log-softmax: -inf). So has a v far below the
/// maximum of a softmax, which counts as masked too: its gradient is zero either way.
template <class Of>
struct FromResult : Of {
  using Compute = typename Of::Compute;
  static constexpr bool kSlowResult = false;
  static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
  FUSEDOPS_HD static Compute padding_value() {
    return Of::kLogarithmic ? -infinity<Compute>() : Compute(0);
  }

  struct Row : Of::Row {
    FUSEDOPS_HD Compute result(Compute y) const { return y; }
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[Of::kKept]) { return {Of::row(kept)}; }

  // By selection: an incoming gradient of Inf or NaN at a masked element stays there.
  template <class Group, class Tile>
  FUSEDOPS_HD typename Of::Partial reduce(Group group, const Tile& y, const Tile& g) const {
    return {group.sum(g.sum_with(y, [](Compute of_y, Compute at) {
      const Compute term = Of::kLogarithmic ? of_y : of_y * at;
      return at == padding_value() ? Compute(0) : term;
    }))};
  }

  struct Finish : Of::Finish {
    FUSEDOPS_HD Compute operator()(Compute y, Compute g) const {
      const Compute gradient = Of::Finish::operator()(y, g);
      return y == padding_value() ? Compute(0) : gradient;
    }
  };
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, typename Of::Partial all, const AnyRow& row,
                            int64_t cols) const {
    return {Of::finish(known, all, row, cols)};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
