// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The short list of row schedules that a dispatch chooses from, and ranges of columns known at
// compile time, which shorten it. A rung is so many threads with so many values each; the lowest
// one that holds the columns is taken, so a row's reduction tree follows from its columns and
// types. Rows that no rung holds are cut into chunks.
#pragma once

#include <fusedops/row/kernel.cuh>

namespace fusedops {

/// A number of columns that is known to lie between two at compile time: cols<1, 1024>(n). Fewer
/// kernels are compiled; a number outside is an error when dispatched.
template <int64_t kLow, int64_t kHigh>
struct cols {
  static_assert(kLow >= 1 && kLow <= kHigh && kHigh <= 0x7fffffff,
                "fusedops: cols<low, high> needs 1 <= low <= high < 2^31");
  int64_t count;
  explicit constexpr cols(int64_t n) : count(n) {}
};

namespace detail {

template <class Given>
struct RangeOf {
  static constexpr int64_t kLow = 1, kHigh = 0x7fffffff;
  static int64_t count(Given cols) { return static_cast<int64_t>(cols); }
};
template <int64_t kLow_, int64_t kHigh_>
struct RangeOf<cols<kLow_, kHigh_>> {
  static constexpr int64_t kLow = kLow_, kHigh = kHigh_;
  static int64_t count(cols<kLow_, kHigh_> cols) { return cols.count; }
};

/// Threads of a row and the values that each holds, of four bytes. kResident: threads per
/// multiprocessor in persistent blocks, where rows share a gradient; kRoom: occupancy target in
/// threads per multiprocessor, 0 leaves it to the compiler; kBlock: threads of a block of several
/// rows.
template <int kThreads_, int kValues_, int kResident_ = 1024, int kRoom_ = 0, int kBlock_ = 64>
struct Rung {
  static constexpr int kThreads = kThreads_, kValues = kValues_;
  static constexpr int kRows = kThreads <= 32 ? kBlock_ / kThreads : 1;
  static constexpr int kBlock = kThreads * kRows;
  static constexpr int kBlocks = kRoom_ / kBlock;
  static constexpr int kVisitors = kResident_ > kBlock ? kResident_ / kBlock : 1;  // blocks

  template <class Compute>
  static constexpr int64_t kCapacity = int64_t(kThreads) * kValues * 4 / int64_t(sizeof(Compute));
  template <class Storage, class Compute, int kWidth, bool kExact>
  using Of = Schedule<Storage, kThreads, kValues * 4 / int(sizeof(Compute)) / kWidth, kWidth, kRows,
                      kExact>;
};

template <class... Rungs>
struct Ladder {};

using ForwardLadder =
    Ladder<Rung<4, 16>, Rung<16, 16>, Rung<32, 16>, Rung<32, 32, 0, 768>, Rung<64, 32, 0, 768>,
           Rung<128, 32, 0, 768>, Rung<128, 64>, Rung<256, 64>>;
using ForwardChunk = Rung<512, 16>;

/// Gradients of norms as a rule share parameters among all rows, those of softmaxes do not.
using NormGradientLadder = Ladder<Rung<8, 8, 1024, 0, 128>, Rung<32, 8, 1024, 0, 128>, Rung<64, 8>,
                                  Rung<32, 32, 448, 0, 128>, Rung<128, 16, 768>, Rung<256, 16, 768>,
                                  Rung<256, 32, 512>, Rung<1024, 16>>;
using SoftmaxGradientLadder =
    Ladder<Rung<8, 8>, Rung<32, 8>, Rung<64, 8>, Rung<64, 16, 512>, Rung<128, 16, 768>,
           Rung<256, 16, 768>, Rung<256, 32, 512, 768>, Rung<1024, 16>>;
using GradientChunk = Rung<512, 16, 512>;

/// Calls f(rung, exact) for the lowest rung that holds the columns, f(chunk) if none does. Only
/// what the range can reach is instantiated.
template <class Compute, class Range, class Chunk, int64_t kBelow, class F>
auto climb(Ladder<>, int64_t cols, const F& f) {
  (void)cols;
  if constexpr (Range::kHigh > kBelow) {
    return f.template chunked<Chunk>();
  } else {
    return f.outside();
  }
}
template <class Compute, class Range, class Chunk, int64_t kBelow, class F, class First,
          class... Rest>
auto climb(Ladder<First, Rest...>, int64_t cols, const F& f) {
  constexpr int64_t kCapacity = First::template kCapacity<Compute>;
  if constexpr (Range::kLow <= kCapacity && Range::kHigh > kBelow) {
    if (cols <= kCapacity) {
      if constexpr (Range::kHigh >= kCapacity) {
        if (cols == kCapacity) return f.template resident<First, true>();
      }
      if constexpr (Range::kLow < kCapacity) return f.template resident<First, false>();
    }
  }
  return climb<Compute, Range, Chunk, kCapacity>(Ladder<Rest...>{}, cols, f);
}

}  // namespace detail

}  // namespace fusedops
