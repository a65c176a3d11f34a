// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Cast: rounds the value to a storage type, as x.to(dtype) does within a chain of torch operations.
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Storage>
struct Cast {
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) v[i] = convert<Compute>(convert<Storage>(v[i]));
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    (*this)(g, row, col);  // torch rounds the gradient of a cast as well
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
