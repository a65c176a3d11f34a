// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Dropout: keeps an element with probability 1 - p, and scales it so that the expectation is exact.
// Whether an element is kept depends on (seed, offset, logical row, column) alone:
// docs/explanation/dropout.md. One Philox counter serves eight columns, with sixteen bits each.
#pragma once

#include <fusedops/core/philox.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// LogicalRow: a map from a row to its number in the dropout contract. kOneARow: all columns of a
/// row have the draw of column 0.
template <class Compute, class LogicalRow, bool kOneARow = false>
struct Dropout {
  uint64_t seed;
  uint64_t offset;     // the slot of the functor included; less than 2^48
  uint64_t threshold;  // up to 65536: an element is dropped if its sixteen bits are below
  Word<Compute> scale;
  LogicalRow logical_row;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  /// The same with the draw of column 0 for all columns.
  FUSEDOPS_HD Dropout<Compute, LogicalRow, true> one_a_row() const {
    return {seed, offset, threshold, scale, logical_row};
  }

  template <int N, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    drop(v, static_cast<uint64_t>(logical_row(row)), col);
  }

#if defined(FUSEDOPS_CUDA)
  /// The same for packs of 8 columns below each other, of rows whose numbers in the dropout contract are
  /// less than 2^32.
  template <int kPacks, class Row>
  FUSEDOPS_HD void below_each_other(Compute (&v)[kPacks][8], const Row (&rows)[kPacks],
                                    int64_t col) const {
    if constexpr (kOneARow) {
      FUSEDOPS_UNROLL
      for (int p = 0; p < kPacks; ++p) (*this)(v[p], rows[p], col);
    } else {
      const PhiloxColumn column(stream(0, col));
      FUSEDOPS_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        keep(v[p], SixteenBits<8>(column, static_cast<uint32_t>(logical_row(rows[p]))));
      }
    }
  }
#endif

  /// The same for the row that has this number in the dropout contract.
  template <int N>
  FUSEDOPS_HD void drop(Compute (&v)[N], uint64_t logical, int64_t col) const {
    const PhiloxStream stream = this->stream(logical, col);
    // An element is kept if its bits are >= threshold, compared in the upper half of a word.
    const uint32_t below = (static_cast<uint32_t>(threshold) << 16) - 1;
    const Compute factor = scale;
    if constexpr (kOneARow) {
      const bool dropped = !(SixteenBits<8>(stream).upper(0) > below);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) v[i] = dropped ? Compute(0) : v[i] * factor;
    } else if constexpr (N % 8 == 0) {
      keep(v, SixteenBits<N>(stream));
    } else {  // part of the eight of one counter: N is 1, 2 or 4 and divides the column
      const SixteenBits<8> bits(stream);
      const int lane = static_cast<int>(col % 8);
      FUSEDOPS_UNROLL
      for (int i = 0; i < 8; ++i) {
        // A constant index for the bits and a selection for the values keep both in registers.
        const bool dropped = !(bits.upper(i) > below);
        FUSEDOPS_UNROLL
        for (int j = 0; j < N; ++j) {
          if (lane + j == i) v[j] = dropped ? Compute(0) : v[j] * factor;
        }
      }
    }
  }

  template <int N, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    (*this)(g, row, col);  // the same mask and scale
  }

 private:
  FUSEDOPS_HD PhiloxStream stream(uint64_t logical, int64_t col) const {
    return {static_cast<uint32_t>(kOneARow ? 0 : col / 8),
            static_cast<uint32_t>(logical),
            static_cast<uint32_t>(offset),
            static_cast<uint32_t>(logical >> 32 << 16) | static_cast<uint32_t>(offset >> 32),
            static_cast<uint32_t>(seed),
            static_cast<uint32_t>(seed >> 32)};
  }
  template <int N>
  FUSEDOPS_HD void keep(Compute (&v)[N], const SixteenBits<N>& bits) const {
    const uint32_t below = (static_cast<uint32_t>(threshold) << 16) - 1;
    const Compute factor = scale;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = bits.upper(i) > below ? v[i] * factor : Compute(0);
  }
};

/// A dropout whose seed and offset lie in memory, where a captured CUDA graph updates them at each
/// replay. A kernel reads them once, before its rows.
template <class Compute, class LogicalRow, bool kOneARow = false>
struct DropoutFrom {
  const uint64_t* draw;  // seed, offset
  uint64_t slot;         // added to the offset: the number of the dropout in its declaration
  uint64_t threshold;
  Word<Compute> scale;
  LogicalRow logical_row;

  FUSEDOPS_HD Dropout<Compute, LogicalRow, kOneARow> drawn() const {
    return {draw[0], draw[1] + slot, threshold, scale, logical_row};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
