// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Programmatic dependent launch (sm_90 on): a kernel that is launched for it is brought up while
// the one before it in the stream ends, and waits by itself until that one's memory can be read.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

/// Stands first in a kernel: no memory may be read or written before it. Does nothing in a kernel
/// that was launched without the attribute. Dependents are not released before the kernel ends: to
/// release them at the beginning (griddepcontrol.launch_dependents) costs up to 11 percent of the
/// ceiling, at 256 columns.
__device__ __forceinline__ void begin_after_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

}  // namespace fusedops
