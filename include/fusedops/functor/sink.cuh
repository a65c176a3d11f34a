// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The way of an operand's gradient from the functor that makes it to the schedule that keeps it. A
// functor numbers its operands; the chain adds the functor's place, and drops what masks took out.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

/// Hands operand gradients of one functor on to the schedule's sink, marked with the functor's
/// place.
template <int kFunctor, class Sink>
struct SinkAt {
  Sink& sink;
  template <int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&gradient)[N], const Row& row, int64_t col) {
    sink.template add<kFunctor, kOperand>(gradient, row, col);
  }
};

/// Which of N elements are masked. Their gradients are zero, by selection: Inf and NaN under a
/// mask leak no more backward than forward.
template <int N>
struct MaskedElements {
#if defined(FUSEDOPS_CUDA)
  using Flag = bool;
#else
  using Flag = uint32_t;  // as wide as a float: of a bool GCC makes no vectors
#endif
  Flag at[N];
  template <class Compute>
  FUSEDOPS_HD void select(Compute (&gradient)[N]) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute given = gradient[i];  // loaded whatever is selected, or there are no vectors
      gradient[i] = at[i] ? Compute(0) : given;
    }
  }
};

/// No element is masked: nothing to select.
struct NoneMasked {
  template <int N, class Compute>
  FUSEDOPS_HD void select(Compute (&)[N]) const {}
};

/// Hands on the gradients of unmasked elements, and zero for masked ones.
template <class Sink, class Masked>
struct UnmaskedSink {
  Sink& sink;
  const Masked& masked;

  template <int kFunctor, int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&gradient)[N], const Row& row, int64_t col) {
    Compute selected[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) selected[i] = gradient[i];
    masked.select(selected);
    sink.template add<kFunctor, kOperand>(selected, row, col);
  }
};

}  // namespace fusedops
