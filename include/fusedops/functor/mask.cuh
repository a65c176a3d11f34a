// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Mask: a boolean tensor takes elements out of the row, by selection: what lies under the mask
// cannot leak.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// What a flag is read into: on a CPU as wide as a float, so that both make vectors of one size.
#if defined(FUSEDOPS_CUDA)
using MaskFlag = uint8_t;
#else
using MaskFlag = uint32_t;
#endif

/// kKeep: true takes part (the attention convention); otherwise true is masked out (torch's
/// masked_fill).
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

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    const auto flag = flags.template fetch<N, MaskFlag>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) g[i] = (flag[i] != 0) == kKeep ? g[i] : Compute(0);
  }
};

}  // namespace fusedops
