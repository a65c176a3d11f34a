// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads that run CPU kernels. Where torch has loaded an OpenMP runtime, its team of threads
// is used: after each operator of torch that team spins for the next one, and other threads would
// have to wait for its cores (an operator of torch, then one of fusedops, on two cores: 494 us with
// one team, 870 us with two). Otherwise, and in a forked child, where the parent's team does not
// exist, a pool of this module does the work.
#pragma once

#include <cstdint>

namespace fusedops::runtime {

/// A CPU kernel: processes the rows [row_begin, row_end) of the call that `words` describes.
using HostKernel = void (*)(const void* words, int64_t row_begin, int64_t row_end);

/// Runs `kernel` over all rows, `grain` at a time, on at most `threads` threads including the
/// caller's; returns when all rows are done. A single piece or a single thread runs inline; so does
/// a call that finds the pool busy, since two callers are parallel already. Needs no GIL.
void run_rows(HostKernel kernel, const void* words, int64_t rows, int64_t grain, int threads);

/// A test hook: whether to use the pool in place of torch's team.
void use_own_threads(bool own);

}  // namespace fusedops::runtime
