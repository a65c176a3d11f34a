// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Tap: writes v to a tensor of its own, in a STORE; the chain continues with v as it is. In the
// backward pass the gradient of that tensor is added there.
#pragma once

#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Target: the tensor; Unread in the backward pass, where nothing is written. Upstream: the incoming
/// gradient of the tensor, or Absent.
template <class Target, class Upstream = Absent>
struct Tap {
  Target target;
  Upstream upstream;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(target);
    visit(upstream);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    if constexpr (!detail::IsSame<Target, Unread>::value) target.write(v, row, col);
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    if constexpr (!detail::IsSame<Upstream, Absent>::value) {
      const auto joining = upstream.template fetch<N, Compute>(row, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) g[i] += joining[i];
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
