// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A group of lanes that reduces together by warp shuffles: a power of two of neighbouring lanes of
// a warp, or the single "lane" of a CPU thread. Every lane gets the result. The order of additions
// is fixed: a butterfly over a commutative operation, so that all lanes agree to the bit.
#pragma once

#include <fusedops/core/math.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <int kLanes>
struct Lanes {
  static_assert(kLanes >= 1 && kLanes <= 32 && (kLanes & (kLanes - 1)) == 0,
                "a group of lanes is a power of two up to a warp");
  static constexpr int kCount = kLanes;

#if defined(FUSEDOPS_ON_DEVICE)
  // All 32 lanes of the warp execute the shuffles, including those whose row lies beyond the last:
  // the kernels ensure that.
  template <class T>
  FUSEDOPS_HD T sum(T x) const {
    FUSEDOPS_UNROLL
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
  template <class T>
  FUSEDOPS_HD T maximum(T x) const {
    FUSEDOPS_UNROLL
    for (int step = kLanes / 2; step > 0; step /= 2) {
      x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
  }
  /// Whether the condition holds in any lane of the warp, which may contain several groups.
  FUSEDOPS_HD bool any(bool holds) const { return __any_sync(0xffffffffu, holds); }
  /// x, which all lanes of the group have, from a neighbour: a compiler does not know it as x, and so
  /// keeps nothing that it has computed from x to use it again.
  template <class T>
  FUSEDOPS_HD T of_another(T x) const {
    return __shfl_xor_sync(0xffffffffu, x, 1);
  }
#else
  FUSEDOPS_HD bool any(bool holds) const { return holds; }
  template <class T>
  FUSEDOPS_HD T of_another(T x) const {
    return x;
  }
  template <class T>
  FUSEDOPS_HD T sum(T x) const {
    return x;
  }
  template <class T>
  FUSEDOPS_HD T maximum(T x) const {
    return x;
  }
#endif
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
