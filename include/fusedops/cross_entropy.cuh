// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy and its gradient, for C++ and CUDA projects. Include this page alone.
//
//   #include <fusedops/cross_entropy.cuh>
//   using namespace fusedops;
//
//   cudaError_t losses(cudaStream_t stream, const bfloat16* logits, const int64_t* labels,
//                      float* loss, float* kept, bfloat16* dlogits, int64_t rows, int64_t cols) {
//     const auto in = load(direct(logits, cols), softcap(30.f));
//     const auto of = per_row(labels);
//     const cudaError_t status = dispatch_cross_entropy<float>(stream, in, of, loss, rows, cols, kept);
//     if (status != cudaSuccess) return status;
//     const float dloss = 1.f / static_cast<float>(rows);  // of the mean
//     return dispatch_cross_entropy_gradient<float>(stream, in, of, kept, dloss,
//                                                   direct(dlogits, cols), gradients(), nullptr, 0,
//                                                   rows, cols);
//   }
//
// dispatch_cross_entropy<Compute>(where, load, target, loss, rows, cols, kept, lse, terms)
//   where, load, rows, cols and the result: as in softmax.cuh. The logits are read once, and nothing
//            of their size is written. Elements that a mask leaves out are no classes.
//   target   the class of each row, of any integers: per_row(labels), or per_row(labels, stride).
//            Rows of class -100, or of the second template argument if there is one, do not count:
//            their numbers, and all of their gradient, are 0, whatever they hold.
//   loss     null, or (rows) numbers of Compute: log(sum(exp(v))) - v[target]. It is NaN where the
//            target is no column, which is not used as an address.
//   kept     null, or (rows, kCrossEntropyKept) numbers of Compute that the gradient reads: the
//            maximum of each row and the logarithm of its sum. With LossTerms it has one more.
//   lse      null, or (rows) numbers of Compute: log(sum(exp(v))).
//   terms    LossTerms{label_smoothing, z_loss}: the loss is
//            (1 - label_smoothing) * (lse - v[target]) + label_smoothing * (lse - mean(v))
//            + z_loss * lse^2, where the mean is over classes. Without it neither is compiled.
//
// dispatch_cross_entropy_gradient<Compute>(where, load, target, kept, dloss, dx, wanted, workspace,
//                                          bytes, rows, cols, terms)
//   load, target, kept, terms  those of the forward pass; so is the second template argument.
//   dloss    the gradient of each loss: per_row(pointer), single(pointer) or a number.
//   dx       direct() or broadcast(); may be Absent{}, or the memory of the logits, if it has their
//            dtype and layout. accumulate(dx) adds to what is there.
//   wanted, workspace, bytes   as in softmax.cuh, for operands of the LOAD.
//   The logits are read once more. No kernel waits for a whole row, so rows may have any length.
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/dispatch/gradient.cuh>
#include <fusedops/functors.cuh>
#include <fusedops/op/cross_entropy.cuh>
#include <fusedops/op/cross_entropy_gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// How many numbers of each row `kept` holds; with LossTerms it is one more.
inline constexpr int kCrossEntropyKept = 2;

/// What a cross entropy has beside the log-probability of the target.
struct LossTerms {
  double label_smoothing = 0, z_loss = 0;
};

namespace detail {

/// Writes what a call wants of each row; null pointers are skipped.
template <class Compute>
struct KeepLoss {
  Compute *loss, *lse, *kept;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    const int64_t at = row;
    write_kept(finish, kept, at);
    if (loss != nullptr) loss[at] = finish.loss();
    if (lse != nullptr) lse[at] = finish.lse();
  }
};

/// The rows of zeros with the target's gradient, of an operator that the argument holds itself.
template <class Op>
struct UpstreamOf {
  Op op;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    op.upstream().read(value, row, col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row&, int64_t, int64_t, By = {}) const {}
#endif
};

/// A gradient of all losses: an operand, or one number for all.
template <class Compute, class Given>
auto as_row_operand(const Given& given) {
  if constexpr (__is_class(Given)) {
    return given;
  } else {
    return Value<Compute>{{static_cast<Compute>(given)}};
  }
}

template <class Terms>
constexpr bool has_terms() {
  static_assert(IsSame<Terms, LossTerms>::value || IsSame<Terms, Absent>::value,
                "fusedops: the last argument of a cross entropy is LossTerms{smoothing, z_loss}");
  return IsSame<Terms, LossTerms>::value;
}
template <class Compute, class Terms>
Word<Compute> smoothing_of(const Terms& terms) {
  if constexpr (has_terms<Terms>()) {
    return {static_cast<Compute>(terms.label_smoothing)};
  } else {
    return {0};
  }
}
template <class Compute, class Terms>
Word<Compute> z_loss_of(const Terms& terms) {
  if constexpr (has_terms<Terms>()) {
    return {static_cast<Compute>(terms.z_loss)};
  } else {
    return {0};
  }
}

}  // namespace detail

#if !defined(__CUDACC_RTC__)

/// loss = log(sum(exp(v))) - v[target] of each row, v what `load` reads of it.
template <class Compute, int64_t kIgnored = -100, class LoadT, class Target, class Cols,
          class Terms = Absent, class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_cross_entropy(
    const Where& where, LoadT load, Target target, Compute* loss, int64_t rows, Cols cols,
    Compute* kept = nullptr, Compute* lse = nullptr, Terms terms = Terms()) {
  constexpr bool kTerms = detail::has_terms<Terms>();
  using Op = CrossEntropy<Compute, kIgnored, kTerms, kTerms, false, Target>;
  detail::Operands all{rows};
  all(target);
  if (rows > 0 && !all.fits) return detail::invalid_value(detail::place(where));
  const Op op{detail::smoothing_of<Compute>(terms), detail::z_loss_of<Compute>(terms), target};
  const detail::KeepLoss<Compute> keep{loss, lse, kept};
  return detail::dispatch_rows<detail::LossLadder>(where, op, load, store(Absent{}), keep, rows,
                                                   cols);
}

/// dv = dloss * (softmax(v) - [column = target]), and on through the functors of the LOAD.
template <class Compute, int64_t kIgnored = -100, class LoadT, class Target, class OfLoss, class Dx,
          class Wanted, class Cols, class Terms = Absent, class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_cross_entropy_gradient(
    const Where& where, LoadT load, Target target, const Compute* kept, OfLoss dloss, Dx dx,
    Wanted wanted, void* workspace, size_t bytes, int64_t rows, Cols cols, Terms terms = Terms()) {
  constexpr bool kTerms = detail::has_terms<Terms>();
  const auto of_loss = detail::as_row_operand<Compute>(dloss);
  using Op =
      CrossEntropyGradient<Compute, kIgnored, kTerms, kTerms, false, Target,
                           typename detail::Plain<decltype(of_loss)>::type, Absent, Absent, Absent>;
  detail::Operands all{rows};
  all(target);
  all(of_loss);
  if (rows > 0 && !all.fits) return detail::invalid_value(detail::place(where));
  const Op op{detail::smoothing_of<Compute>(terms),
              detail::z_loss_of<Compute>(terms),
              target,
              of_loss,
              {},
              {},
              {}};
  return detail::dispatch_gradient<detail::LossGradientLadder>(
      where, op, load, store(Absent{}), direct(kept, Op::kKept), detail::UpstreamOf<Op>{op}, dx,
      wanted, workspace, bytes, rows, cols);
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
