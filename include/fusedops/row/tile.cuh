// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of a row that one thread holds while it is reduced: kPacks packs of kWidth neighbouring
// columns, kStride columns from pack to pack. Operators see rows only as tiles. Columns beyond the
// end of the row hold the operator's padding value, so a plain reduction need not know about them.
#pragma once

#include <fusedops/core/lanes.cuh>

namespace fusedops {

/// kExact: every pack is complete, so nothing has to be counted. kFull: how many packs of each
/// thread are complete in every row. kPieces: whether one of the others may be partly in the row.
/// kSpan: columns that a group covers in a pack.
template <class Compute_, int kPacks_, int kWidth_, int kStride_, int kSpan_, bool kExact_,
          int kFull_ = kExact_ ? kPacks_ : 0, bool kPieces_ = !kExact_>
struct Tile {
  using Compute = Compute_;
  static constexpr int kPacks = kPacks_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kStride = kStride_;
  static constexpr int kSpan = kSpan_;
  static constexpr bool kExact = kExact_;
  static constexpr int kFull = kFull_;
  static constexpr bool kWhole = !kPieces_ || kWidth == 1;

  Compute at[kPacks][kWidth];
  int left;        // columns from this thread's first pack to the end of the row, if any
  int group_left;  // the same from the first pack of the group of lanes

  /// The columns of the row that are left where the thread's, and the group's, first pack begins.
  FUSEDOPS_HD void begin(int64_t of_thread, int64_t of_group) {
    left = counted(of_thread);
    group_left = counted(of_group);
  }

  /// Packs that hold anything; on a GPU all are walked, so that the registers have constant
  /// indices.
  FUSEDOPS_HD int packs() const {
#if defined(FUSEDOPS_CUDA)
    return kPacks;
#else
    return smaller((left + kStride - 1) / kStride, kPacks);
#endif
  }

  /// Whether this thread's pack k lies within the row. Not `count(k) == kWidth`: of that ptxas 13.0
  /// makes a VIMNMX.RELU for sm_90 whose predicate calls packs in pieces complete.
  FUSEDOPS_HD bool complete(int k) const {
    return k < kFull || left - k * kStride >= (kWhole ? 1 : kWidth);
  }

  /// Columns of the row in this thread's pack k.
  FUSEDOPS_HD int count(int k) const {
    if (k < kFull) return kWidth;
    const int rest = left - k * kStride;
    if constexpr (kWhole) return rest > 0 ? kWidth : 0;
    return rest < 0 ? 0 : smaller(rest, kWidth);
  }

  /// The pack that ends within the row, or -1.
  FUSEDOPS_HD int cut() const {
    int found = -1;
    FUSEDOPS_UNROLL
    for (int k = kFull; k < kPacks; ++k) {
      const int rest = left - k * kStride;
      found = rest > 0 && rest < kWidth ? k : found;
    }
    return found;
  }

  /// A pack whose number is not a constant: registers have no index, so on a GPU all are asked.
  FUSEDOPS_HD void put(int pack, const Compute (&values)[kWidth]) {
#if defined(FUSEDOPS_ON_DEVICE)
    FUSEDOPS_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWidth; ++i) at[k][i] = k == pack ? values[i] : at[k][i];
    }
#else
    for (int i = 0; i < kWidth; ++i) at[pack][i] = values[i];
#endif
  }
  FUSEDOPS_HD void get(int pack, Compute (&values)[kWidth]) const {
#if defined(FUSEDOPS_ON_DEVICE)
    FUSEDOPS_UNROLL
    for (int i = 0; i < kWidth; ++i) values[i] = at[0][i];
    FUSEDOPS_UNROLL
    for (int k = 1; k < kPacks; ++k) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWidth; ++i) values[i] = k == pack ? at[k][i] : values[i];
    }
#else
    for (int i = 0; i < kWidth; ++i) values[i] = at[pack][i];
#endif
  }

  /// Columns of the row that the whole group holds.
  FUSEDOPS_HD int group_count() const {
    if constexpr (kExact) return kSpan * kPacks;
    int sum = 0;
    FUSEDOPS_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      const int rest = group_left - k * kStride;
      sum += k < kFull ? kSpan : rest < 0 ? 0 : smaller(rest, kSpan);
    }
    return sum;
  }

  /// More than a tile holds counts as much as a tile.
  FUSEDOPS_HD static int counted(int64_t columns) {
#if defined(FUSEDOPS_ON_DEVICE)
    return static_cast<int>(columns);  // a GPU's rows have fewer than 2^31
#else
    return static_cast<int>(smaller(columns, int64_t(1) << 30));
#endif
  }

  FUSEDOPS_HD void fill(Compute value) {
    FUSEDOPS_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWidth; ++i) at[k][i] = value;
    }
  }

  /// Sets what lies beyond the end of the row.
  FUSEDOPS_HD void fill_absent(Compute value) {
    if constexpr (!kExact) {
      FUSEDOPS_UNROLL
      for (int k = 0; k < packs(); ++k) {
        if constexpr (kWhole) {
          FUSEDOPS_UNROLL
          for (int i = 0; i < kWidth; ++i) at[k][i] = complete(k) ? at[k][i] : value;
        } else if (!complete(k)) {
          const int present = count(k);
          FUSEDOPS_UNROLL
          for (int i = 0; i < kWidth; ++i) at[k][i] = i < present ? at[k][i] : value;
        }
      }
    }
  }

  /// Rewrites every value.
  template <class F>
  FUSEDOPS_HD void apply(F f) {
    FUSEDOPS_UNROLL
    for (int k = 0; k < packs(); ++k) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWidth; ++i) at[k][i] = f(at[k][i]);
    }
  }

  /// Rewrites every value, and sums the new ones.
  template <class F>
  FUSEDOPS_HD Compute apply_and_sum(F f) {
    apply(f);
    return sum([](Compute x) { return x; });
  }

  /// The sum of f over the tile, in a fixed order: kAccumulators partial sums, then pairwise.
  template <class F>
  FUSEDOPS_HD Compute sum(F f) const {
    return sum_with(*this, [f](Compute x, Compute) { return f(x); });
  }

  /// The same of f over two tiles, value by value.
  template <class F>
  FUSEDOPS_HD Compute sum_with(const Tile& other, F f) const {
    Compute partial[kAccumulators];
    FUSEDOPS_UNROLL
    for (int i = 0; i < kAccumulators; ++i) partial[i] = 0;
    FUSEDOPS_UNROLL
    for (int k = 0; k < packs(); ++k) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWidth; j += kAccumulators) {
        FUSEDOPS_UNROLL
        for (int i = 0; i < kAccumulators; ++i) partial[i] += f(at[k][j + i], other.at[k][j + i]);
      }
    }
    FUSEDOPS_UNROLL
    for (int step = kAccumulators / 2; step > 0; step /= 2) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < step; ++i) partial[i] += partial[i + step];
    }
    return partial[0];
  }

  FUSEDOPS_HD Compute maximum() const {
    Compute partial[kAccumulators];
    FUSEDOPS_UNROLL
    for (int i = 0; i < kAccumulators; ++i) partial[i] = -infinity<Compute>();
    FUSEDOPS_UNROLL
    for (int k = 0; k < packs(); ++k) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWidth; j += kAccumulators) {
        FUSEDOPS_UNROLL
        for (int i = 0; i < kAccumulators; ++i) partial[i] = larger(at[k][j + i], partial[i]);
      }
    }
    FUSEDOPS_UNROLL
    for (int step = kAccumulators / 2; step > 0; step /= 2) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < step; ++i) partial[i] = larger(partial[i], partial[i + step]);
    }
    return partial[0];
  }

 private:
#if defined(FUSEDOPS_CUDA)
  static constexpr int kAccumulators =
      kWidth < 4 ? kWidth : 4;  // enough to hide the latency of an addition
#else
  static constexpr int kAccumulators = kWidth < 32 ? kWidth : 32;  // four AVX2 registers
#endif
};

}  // namespace fusedops
