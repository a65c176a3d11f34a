// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). Integer arithmetic alone, so the same bits on every device. It steps several
// counters at once: one on a GPU, as many as fill a vector on a CPU.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

template <int kCounters>
struct PhiloxCounters {
  uint32_t word[4][kCounters];
};

// A host compiler vectorizes this loop over counters only where it is a function of its own.
template <int kCounters>
#if defined(FUSEDOPS_CUDA)
FUSEDOPS_HD void
#else
__attribute__((noinline)) void
#endif
philox(PhiloxCounters<kCounters>& counters, uint32_t key0, uint32_t key1) {
  auto& c = counters.word;
  FUSEDOPS_UNROLL
  for (int round = 0; round < 10; ++round) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < kCounters; ++i) {
      const uint64_t product0 = uint64_t(0xD2511F53u) * c[0][i];
      const uint64_t product1 = uint64_t(0xCD9E8D57u) * c[2][i];
      c[0][i] = uint32_t(product1 >> 32) ^ c[1][i] ^ key0;
      c[1][i] = uint32_t(product1);
      c[2][i] = uint32_t(product0 >> 32) ^ c[3][i] ^ key1;
      c[3][i] = uint32_t(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace fusedops
