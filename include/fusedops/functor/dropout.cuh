// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Dropout: keeps an element with probability 1 - p and scales it so that the expectation is exact. Whether an
// element is kept is a function of (seed, offset, logical row, column) alone: docs/dropout.md. One Philox call
// serves eight columns, sixteen bits each.
#pragma once

#include <fusedops/core/philox.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {

template <class Compute, int kRank>
struct Dropout {
  uint64_t seed;
  uint64_t offset;     // with the functor's slot already added; less than 2^48
  uint64_t threshold;  // of 65536: an element is dropped when its sixteen bits are below
  Word<Compute> scale;
  RowMap<kRank> logical_row;
  static constexpr bool kNeedsInput = false;

  template <int N, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    constexpr int kCalls = (N + 7) / 8;
    const PhiloxCounters<kCalls> bits = draw<kCalls>(logical_row(row), col / 8);
    // Sixteen bits >= threshold, compared in the upper half of a word.
    const uint32_t below = (static_cast<uint32_t>(threshold) << 16) - 1;
    const Compute factor = scale;
    if constexpr (N % 8 == 0) {
      uint32_t pair[N / 2];
      FUSEDOPS_UNROLL
      for (int call = 0; call < kCalls; ++call) {
        FUSEDOPS_UNROLL
        for (int j = 0; j < 4; ++j) pair[call * 4 + j] = bits.word[j][call];
      }
      FUSEDOPS_UNROLL
      for (int k = 0; k < N / 2; ++k) {
        v[2 * k] = (pair[k] << 16) > below ? v[2 * k] * factor : Compute(0);
        v[2 * k + 1] = pair[k] > below ? v[2 * k + 1] * factor : Compute(0);
      }
    } else {  // part of one call: N is 1, 2 or 4 and divides the column
      const int lane = static_cast<int>(col % 8);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) {
        const uint32_t pair = select(bits, (lane + i) / 2);
        v[i] = ((lane + i) % 2 == 0 ? pair << 16 : pair) > below ? v[i] * factor : Compute(0);
      }
    }
  }

  template <int N, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col, Sink&) const {
    (*this)(g, row, col);  // the same elements, the same scale
  }

 private:
  template <int kCalls>
  FUSEDOPS_HD PhiloxCounters<kCalls> draw(int64_t logical, int64_t call) const {
    PhiloxCounters<kCalls> counters;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kCalls; ++i) {
      counters.word[0][i] = static_cast<uint32_t>(call) + static_cast<uint32_t>(i);
      counters.word[1][i] = static_cast<uint32_t>(logical);
      counters.word[2][i] = static_cast<uint32_t>(offset);
      counters.word[3][i] = static_cast<uint32_t>(static_cast<uint64_t>(logical) >> 32 << 16) |
                            static_cast<uint32_t>(offset >> 32);
    }
    philox(counters, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    return counters;
  }

  // Selections instead of an index: a run-time index would move the words to local memory.
  FUSEDOPS_HD static uint32_t select(const PhiloxCounters<1>& bits, int i) {
    const uint32_t low = i == 0 ? bits.word[0][0] : bits.word[1][0];
    const uint32_t high = i == 2 ? bits.word[2][0] : bits.word[3][0];
    return i < 2 ? low : high;
  }
};

}  // namespace fusedops
