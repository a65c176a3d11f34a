// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The base of masks made from indices: each keeps one range of columns per row, reads no tensor of
// x's size, and gives the range to the schedule, so that nothing outside of it is loaded.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Derived provides Columns columns(row), and may set kFromStart: each range begins with the first column.
template <class Derived>
struct KeepColumns {
  static constexpr bool kMasks = true;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;
  static constexpr bool kFromStart = false;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const Columns keep = static_cast<const Derived*>(this)->columns(row);
    const int end = steps_to<N>(keep.end, col);
    if constexpr (Derived::kFromStart) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) v[i] = i < end ? v[i] : -infinity<Compute>();
    } else {
      const int begin = steps_to<N>(keep.begin, col);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) v[i] = i >= begin && i < end ? v[i] : -infinity<Compute>();
    }
  }

 private:
  /// How many of the N columns of a pack come before this one, which may be any number: 32 bits are
  /// cheap to compare.
  template <int N>
  FUSEDOPS_HD static int steps_to(int64_t column, int64_t col) {
    return static_cast<int>(smaller(larger(column, col), col + N) - col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
