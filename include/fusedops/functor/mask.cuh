// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Mask: sets elements to -inf by a boolean tensor. It selects, so that no Inf or NaN under the mask
// reaches the result.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// What a flag is read into: on a CPU as wide as a float, so that both make vectors of one size.
#if defined(FUSEDOPS_CUDA)
using MaskFlag = uint8_t;
#else
using MaskFlag = uint32_t;
#endif

/// kKeep: true keeps an element (the convention of attention masks); otherwise true masks it (that
/// of torch's masked_fill).
template <class Flags, bool kKeep>
struct Mask {
  Flags flags;
  static constexpr bool kMasks = true;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(flags);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto flag = flags.template fetch<N, MaskFlag>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = (flag[i] != 0) == kKeep ? v[i] : -infinity<Compute>();
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
