// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What masks made from indices share: they keep a range of columns of each row, read no tensor of
// the row's size, and tell the schedule the range, so that nothing outside is loaded.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>

namespace fusedops {

/// Derived provides Columns columns(row).
template <class Derived>
struct KeepColumns {
  static constexpr bool kMasks = true;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const Columns keep = static_cast<const Derived*>(this)->columns(row);
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) {
      v[i] = col + i >= keep.begin && col + i < keep.end ? v[i] : -infinity<Compute>();
    }
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    const Columns keep = static_cast<const Derived*>(this)->columns(row);
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i)
      g[i] = col + i >= keep.begin && col + i < keep.end ? g[i] : Compute(0);
  }
};

}  // namespace fusedops
