// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads that run host kernels. Where torch brings OpenMP's runtime along, its team is used:
// after each of torch's operators that team spins for the next one, and threads of our own would
// have to wait for its cores (an operator of torch, then one of ours, on two cores: 494 us with one
// team, 870 us with two). Elsewhere, and in a forked child, whose parent's team does not survive,
// a pool of our own does the same work.
#pragma once

#include <cstdint>

namespace fusedops::runtime {

/// A host kernel: rows [row_begin, row_end) of the work that `words` describes.
using HostKernel = void (*)(const void* words, int64_t row_begin, int64_t row_end);

/// Runs `kernel` over all rows, `grain` at a time, on at most `threads` threads, the caller's among
/// them; returns when all is done. One piece or one thread runs inline; so does a caller that finds
/// our own pool taken, since two callers are parallel already. Needs no GIL.
void run_rows(HostKernel kernel, const void* words, int64_t rows, int64_t grain, int threads);

/// A test hook: whether to leave torch's team alone and use the pool.
void use_own_threads(bool own);

}  // namespace fusedops::runtime
