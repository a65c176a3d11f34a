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
inline namespace FUSEDOPS_ABI {

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

FUSEDOPS_HD void multiply_wide(const FourWords& a, uint32_t b, FourWords& high, FourWords& low) {
#if defined(__AVX2__) && !defined(__clang__)
  using Halves =
      int __attribute__((vector_size(32)));  // from the other form GCC does not make vpmuludq
  const FourWords factor = FourWords{} + b;
  const auto product = reinterpret_cast<FourWords>(
      __builtin_ia32_pmuludq256(reinterpret_cast<Halves>(a), reinterpret_cast<Halves>(factor)));
#else
  const FourWords product = (a & 0xffffffffu) * b;
#endif
  high = product >> 32;
  low = product;
}
#endif

inline constexpr uint32_t kFactor0 = 0xD2511F53u, kFactor1 = 0xCD9E8D57u;
inline constexpr uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;

/// Replaces the four words of a counter by random bits, after some rounds that have been made.
template <int kMade = 0, class Word>
FUSEDOPS_HD void philox(Word (&c)[4], uint32_t key0, uint32_t key1) {
  FUSEDOPS_UNROLL
  for (int round = kMade; round < 10; ++round) {
    const uint32_t turn = static_cast<uint32_t>(round);
    Word high0, low0, high1, low1;
    multiply_wide(c[0], kFactor0, high0, low0);
    multiply_wide(c[2], kFactor1, high1, low1);
    c[0] = high1 ^ c[1] ^ (key0 + turn * kStep0);
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ (key1 + turn * kStep1);
    c[3] = low0;
  }
}

/// A sequence of counters: counter i is (first + i, low, middle, high).
struct PhiloxStream {
  uint32_t first, low, middle, high;
  uint32_t key0, key1;
};

/// Counters that differ in their second word alone, such as those of a column: of the six products of
/// their first three rounds four are the same for all.
class PhiloxColumn {
 public:
  FUSEDOPS_HD explicit PhiloxColumn(const PhiloxStream& s) : key0_(s.key0), key1_(s.key1) {
    uint32_t high0, low0, high1, low1;
    multiply_wide(s.first, kFactor0, high0, low0);
    multiply_wide(s.middle, kFactor1, high1, low1);
    first_ = high1 ^ key0_;
    const uint32_t c1 = low1, c2 = high0 ^ s.high ^ key1_, c3 = low0;
    multiply_wide(c2, kFactor1, high1, low1);
    const uint32_t c0 = high1 ^ c1 ^ (key0_ + kStep0);
    second_ = c3 ^ (key1_ + kStep1);
    multiply_wide(c0, kFactor0, high0, low0);
    third_[0] = low1 ^ (key0_ + 2 * kStep0);
    third_[1] = high0 ^ (key1_ + 2 * kStep1);
    third_[2] = low0;
  }

  /// The random bits of the counter with this second word.
  FUSEDOPS_HD void bits(uint32_t low, uint32_t (&c)[4]) const {
    uint32_t high0, low0, high1, low1;
    multiply_wide(first_ ^ low, kFactor0, high0, low0);
    multiply_wide(high0 ^ second_, kFactor1, high1, low1);
    c[0] = high1 ^ third_[0];
    c[1] = low1;
    c[2] = low0 ^ third_[1];
    c[3] = third_[2];
    philox<3>(c, key0_, key1_);
  }

 private:
  uint32_t key0_, key1_;
  uint32_t first_, second_, third_[3];  // what words of rounds 1 to 3 are joined with
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
#if defined(FUSEDOPS_CUDA)
  /// Of eight elements: those of the counter of a column whose second word is `low`.
  FUSEDOPS_HD SixteenBits(const PhiloxColumn& column, uint32_t low) {
    static_assert(kCounters == 1);
    column.bits(low, pair_);
  }
#endif

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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
