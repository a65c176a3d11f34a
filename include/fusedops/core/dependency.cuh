// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch (sm_90 and later): a kernel launched with that attribute starts
// while the previous kernel of the stream ends, and itself waits until that one's writes are
// visible.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

/// Grids of so few blocks leave multiprocessors free for the next one.
inline constexpr unsigned kFewBlocks = 128;

/// Waits for the previous kernel. It comes first in a kernel, before any access to memory, and does
/// nothing in a kernel launched without the attribute. A grid of few blocks then lets the next
/// kernel come up, which waits for this one in turn: 8 rows of 1024 columns take 2 to 9 percent less
/// time. Others release it when they end: earlier (griddepcontrol.launch_dependents) costs up to 15
/// percent of the bandwidth ceiling, at 512 columns. `releases`: false for the second stage of a
/// backward pass of many rows. Its few blocks are the end of a large computation, and the persistent
/// blocks of the next one would crowd on the SMs that they leave free: the backward pass of a LayerNorm
/// of 1023 float32 columns reached 75 percent in place of 86. With few rows the next kernel comes up
/// meanwhile: LayerNorm of 8 rows of 4096 columns of 16 bits takes 4.54 us so, 4.87 otherwise.
__device__ __forceinline__ void begin_after_previous(bool releases = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (releases && gridDim.x <= kFewBlocks) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
