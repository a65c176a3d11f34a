// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads that run host kernels: one pool a process, made at first use and grown on demand.
#pragma once

#include <cstdint>

namespace fusedops::runtime {

/// A host kernel: rows [row_begin, row_end) of the work that `words` describes.
using HostKernel = void (*)(const void* words, int64_t row_begin, int64_t row_end);

/// Runs `kernel` over all rows, `grain` at a time, on at most `threads` threads, the caller's among
/// them; returns when all is done. Runs inline where there is one piece, one thread, or where
/// another thread holds the pool (two callers are then parallel already). Needs no GIL. A forked
/// child makes a pool of its own.
void run_rows(HostKernel kernel, const void* words, int64_t rows, int64_t grain, int threads);

}  // namespace fusedops::runtime
