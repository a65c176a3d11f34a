// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011). It uses integers only, so every device gives the same
// bits. A GPU processes one counter at a time in 32-bit words; a CPU four, with each word in a
// 64-bit lane whose upper half is ignored.
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {

FUSEDOPS_HD void multiply_wide(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
#if defined(FUSEDOPS_ON_DEVICE)
  // One instruction. Of a product of two 64-bit numbers the compiler makes two, or three.
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
#else
  const uint64_t product = uint64_t(a) * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
#endif
}

#if !defined(FUSEDOPS_CUDA)
/// One word of four counters.
using FourWords = uint64_t __attribute__((vector_size(32)));

FUSEDOPS_HD void multiply_wide(FourWords a, uint32_t b, FourWords& high, FourWords& low) {
#if defined(__AVX2__) && !defined(__clang__)
  using Halves =
      int __attribute__((vector_size(32)));  // from the other form GCC does not make vpmuludq
  const FourWords factor = FourWords{} + b;
  const auto product = (FourWords)__builtin_ia32_pmuludq256((Halves)a, (Halves)factor);
#else
  const FourWords product = (a & 0xffffffffu) * b;
#endif
  high = product >> 32;
  low = product;
}
#endif

/// Replaces the four words of a counter by random bits.
template <class Word>
FUSEDOPS_HD void philox(Word (&c)[4], uint32_t key0, uint32_t key1) {
  FUSEDOPS_UNROLL
  for (int round = 0; round < 10; ++round) {
    Word high0, low0, high1, low1;
    multiply_wide(c[0], 0xD2511F53u, high0, low0);
    multiply_wide(c[2], 0xCD9E8D57u, high1, low1);
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

/// A sequence of counters: counter i is (first + i, low, middle, high).
struct PhiloxStream {
  uint32_t first, low, middle, high;
  uint32_t key0, key1;
};

/// Sixteen random bits for each of kCount elements; one counter serves eight elements.
template <int kCount>
class SixteenBits {
 public:
  FUSEDOPS_HD explicit SixteenBits(const PhiloxStream& s) {
#if defined(FUSEDOPS_CUDA)
    FUSEDOPS_UNROLL
    for (int i = 0; i < kCounters; ++i) {
      uint32_t c[4] = {s.first + i, s.low, s.middle, s.high};
      philox(c, s.key0, s.key1);
      FUSEDOPS_UNROLL
      for (int j = 0; j < 4; ++j) pair_[4 * i + j] = c[j];
    }
#else
    for (int i = 0; i < kCounters; i += 4) {
      const uint64_t first = s.first + static_cast<uint32_t>(i);
      const FourWords none = {};
      FourWords c[4] = {FourWords{0, 1, 2, 3} + first, none + s.low, none + s.middle,
                        none + s.high};
      philox(c, s.key0, s.key1);
      const FourWords lower = (c[0] & 0xffffffffu) | c[1] << 32;
      const FourWords upper = (c[2] & 0xffffffffu) | c[3] << 32;
      for (int j = 0; j < 4 && i + j < kCounters; ++j) {
        const uint64_t words[2] = {lower[j], upper[j]};
        __builtin_memcpy(half_ + 8 * (i + j), words,
                         sizeof(words));  // little-endian: the lower half comes first
      }
    }
#endif
  }

  /// The bits of element i in the upper half of a word; the lower half is unspecified. On a GPU i
  /// must be a compile-time constant after unrolling.
  FUSEDOPS_HD uint32_t upper(int i) const {
#if defined(FUSEDOPS_CUDA)
    return i % 2 == 0 ? pair_[i / 2] << 16 : pair_[i / 2];
#else
    return uint32_t(half_[i]) << 16;
#endif
  }

 private:
  static constexpr int kCounters = (kCount + 7) / 8;
#if defined(FUSEDOPS_CUDA)
  uint32_t pair_[4 * kCounters];
#else
  uint16_t half_[8 * kCounters];
#endif
};

}  // namespace fusedops
