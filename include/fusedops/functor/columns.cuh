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
    const Kept kept = from(row, col);
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) v[i] = kept(i) ? v[i] : -infinity<Compute>();
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    const Kept kept = from(row, col);
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) g[i] = kept(i) ? g[i] : Compute(0);
  }

 private:
  /// The range counted from a pack's first column, in numbers that are cheap to compare.
  struct Kept {
    int begin, end;
    FUSEDOPS_HD bool operator()(int i) const { return i >= begin && i < end; }
  };
  FUSEDOPS_HD static int steps_to(int64_t column, int64_t col) {
    constexpr int64_t kFar = int64_t(1) << 30;
    const int64_t apart = larger<int64_t>(column, 0) - col;  // a length may be any 64 bits
    return static_cast<int>(larger(smaller(apart, kFar), -kFar));
  }
  template <class Row>
  FUSEDOPS_HD Kept from(const Row& row, int64_t col) const {
    const Columns keep = static_cast<const Derived*>(this)->columns(row);
    return {steps_to(keep.begin, col), steps_to(keep.end, col)};
  }
};

}  // namespace fusedops
