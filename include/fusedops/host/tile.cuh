// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of a row that a CPU thread holds while it is reduced: neighbouring columns in a buffer
// that the L1 cache holds. Operators see it as they see the registers of a GPU thread (row/tile.cuh).
// What lies beyond the end of the row, up to a multiple of kLanes, is padding, so that no loop over
// the buffer has a remainder.
#pragma once

#include <fusedops/core/lanes.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The sum, say, of N values, pairwise.
template <int N, class Compute, class F>
FUSEDOPS_HD Compute folded(Compute (&partial)[N], F f) {
  if constexpr (N == 1) {
    return partial[0];
  } else {
    Compute joined[N / 2];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N / 2; ++i) joined[i] = f(partial[i], partial[i + N / 2]);
    return folded(joined, f);
  }
}

}  // namespace detail

/// kColumns: the most columns. kWidth: those of a pack, which moves through LOAD and STORE at once.
/// kAlways: the loops visit all kColumns, a constant, however few of them are in the row. kApart: what
/// moves the cut pack at the end of a row is a function of its own, which tiles of all sizes share: it
/// is most of what there is to compile.
template <class Compute_, int kColumns_, int kWidth_, bool kAlways_, bool kApart_ = false>
struct HostTile {
  using Compute = Compute_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPack = kWidth_;
  static constexpr bool kAlways = kAlways_;
  static constexpr bool kApart = kApart_;
  static constexpr bool kExact = false;
  // To operators and sums the whole is one pack of one lane.
  static constexpr int kPacks = 1;
  static constexpr int kWidth = kColumns;
  static constexpr int kSpan = kColumns;

  // Accumulators of a sum: two AVX-512 registers of float, four of AVX2.
  static constexpr int kLanes = kColumns < 32 ? kColumns : 32;
  static_assert(kColumns % kLanes == 0 && kLanes % kPack == 0, "loops have no remainder");

  alignas(64) Compute at[kColumns];
  int left;  // columns of the row

  /// `columns`: of the row from the first of the tile on; there may be more than it holds.
  FUSEDOPS_HD void begin(int64_t columns) {
    left = static_cast<int>(smaller<int64_t>(columns, kColumns));
  }
  FUSEDOPS_HD int group_count() const { return left; }

  /// Columns with their padding.
  FUSEDOPS_HD int size() const {
    if constexpr (kAlways) return kColumns;
    return (left + kLanes - 1) / kLanes * kLanes;
  }

  /// Sets what lies beyond the end of the row, and maybe columns before it, which nobody has
  /// written yet.
  FUSEDOPS_HD void pad(Compute value) {
    FUSEDOPS_UNROLL
    for (int begin = left / kPack * kPack; begin < size(); begin += kPack) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kPack; ++i) at[begin + i] = value;
    }
  }

  /// Sets what lies beyond the end of the row.
  FUSEDOPS_HD void fill_absent(Compute value) {
    FUSEDOPS_UNROLL
    for (int begin = left / kPack * kPack; begin < size(); begin += kPack) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kPack; ++i) {
        const Compute present = at[begin + i];
        at[begin + i] = begin + i < left ? present : value;
      }
    }
  }

  /// Rewrites every value.
  template <class F>
  FUSEDOPS_HD void apply(F f) {
    for (int begin = 0; begin < size(); begin += kLanes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) at[begin + i] = f(at[begin + i]);
    }
  }

  /// Rewrites every value, and sums the new ones.
  template <class F>
  FUSEDOPS_HD Compute apply_and_sum(F f) {
    Compute partial[kLanes] = {};
    for (int begin = 0; begin < size(); begin += kLanes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) {
        const Compute value = f(at[begin + i]);
        at[begin + i] = value;
        partial[i] += value;
      }
    }
    return detail::folded(partial, [](Compute a, Compute b) { return a + b; });
  }

  /// The sum of f over the tile, in a fixed order: kLanes partial sums, then pairwise.
  template <class F>
  FUSEDOPS_HD Compute sum(F f) const {
    Compute partial[kLanes] = {};
    for (int begin = 0; begin < size(); begin += kLanes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) partial[i] += f(at[begin + i]);
    }
    return detail::folded(partial, [](Compute a, Compute b) { return a + b; });
  }

  /// The same of f over two tiles, value by value.
  template <class F>
  FUSEDOPS_HD Compute sum_with(const HostTile& other, F f) const {
    Compute partial[kLanes] = {};
    for (int begin = 0; begin < size(); begin += kLanes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) partial[i] += f(at[begin + i], other.at[begin + i]);
    }
    return detail::folded(partial, [](Compute a, Compute b) { return a + b; });
  }

  FUSEDOPS_HD Compute maximum() const {
    Compute partial[kLanes];
    for (int i = 0; i < kLanes; ++i) partial[i] = -infinity<Compute>();
    for (int begin = 0; begin < size(); begin += kLanes) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < kLanes; ++i) partial[i] = larger(at[begin + i], partial[i]);
    }
    return detail::folded(partial, [](Compute a, Compute b) { return larger(a, b); });
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
