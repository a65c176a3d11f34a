// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// wgmma leaves pairs of neighbouring columns in a thread: four neighbouring lanes hold 8 columns of a
// row, and 8 columns on the next ones. They exchange them, so that each has 8 neighbouring columns of
// one row: wide accesses, and one draw of the random generator in place of four.
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Transposes the 4 x 4 items of four neighbouring lanes; twice is as before. The lanes of the warp
/// are converged.
template <class Item, int kItems>
__device__ __forceinline__ void exchange(Item (&items)[4][kItems]) {
  FUSEDOPS_UNROLL
  for (int step = 1; step < 4; step *= 2) {
    const bool upper = (threadIdx.x & step) != 0;
    FUSEDOPS_UNROLL
    for (int low = 0; low < 4; ++low) {
      if ((low & step) != 0) continue;
      FUSEDOPS_UNROLL
      for (int i = 0; i < kItems; ++i) {
        Item& first = items[low][i];
        Item& second = items[low | step][i];
        const Item got = __shfl_xor_sync(0xffffffffu, upper ? first : second, step);
        if (upper) {  // not through a reference to either: these are registers
          first = got;
        } else {
          second = got;
        }
      }
    }
  }
}

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
