// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How operand gradients go from a functor to the accumulators of the kernel (row/sinks.cuh). A
// functor numbers its operands; the chain adds the functor's position, and clears masked elements.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Forwards the operand gradients of functor number kFunctor to the kernel's sink.
template <int kFunctor, class Sink>
struct SinkAt {
  Sink& sink;
  template <int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&gradient)[N], const Row& row, int64_t col) {
    sink.template add<kFunctor, kOperand>(gradient, row, col);
  }
};

/// Which of N elements are masked. Their gradients are set to zero by selection, so that Inf and
/// NaN under a mask do not spread.
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

/// The same where no element is masked.
struct NoneMasked {
  template <int N, class Compute>
  FUSEDOPS_HD void select(Compute (&)[N]) const {}
};

/// Forwards the gradients of unmasked elements, and zero for masked ones.
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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
