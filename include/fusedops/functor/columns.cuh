// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The base of masks made from indices: each keeps one range of columns per row, reads no tensor of
// x's size, and gives the range to the schedule, so that nothing outside of it is loaded.
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

 private:
  /// The range relative to the first column of a pack, in 32-bit numbers, which are cheap to
  /// compare.
  struct Kept {
    int begin, end;
    FUSEDOPS_HD bool operator()(int i) const { return i >= begin && i < end; }
  };
  FUSEDOPS_HD static int steps_to(int64_t column, int64_t col) {
    constexpr int64_t kFar = int64_t(1) << 30;
    const int64_t apart = larger<int64_t>(column, 0) - col;  // a length may have any value
    return static_cast<int>(larger(smaller(apart, kFar), -kFar));
  }
  template <class Row>
  FUSEDOPS_HD Kept from(const Row& row, int64_t col) const {
    const Columns keep = static_cast<const Derived*>(this)->columns(row);
    return {steps_to(keep.begin, col), steps_to(keep.end, col)};
  }
};

}  // namespace fusedops
