// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Tile: the part of a row that one thread holds in registers: kPacks packs of kWidth neighbouring
// columns, kStride columns apart. Operators see rows only as tiles. Elements beyond the end of the
// row hold the operator's padding value, so reductions need no predicates.
#pragma once

#include <fusedops/core/lanes.cuh>
#include <fusedops/core/memory.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// kSpan: columns that a group of lanes covers with one pack each. kExact: every pack is complete.
/// kFull: the number of packs that are complete in every thread and row. kPieces: whether the end
/// of the row may cut one of the others.
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

  /// Sets the columns from the first pack of the thread, and of the group, to the end of the row.
  FUSEDOPS_HD void begin(int64_t of_thread, int64_t of_group) {
    left = counted(of_thread);
    group_left = counted(of_group);
  }

  /// The number of packs to process: on a GPU all, so that registers have constant indices; on a
  /// CPU those that overlap the row.
  FUSEDOPS_HD int packs() const {
#if defined(FUSEDOPS_CUDA)
    return kPacks;
#else
    return smaller((left + kStride - 1) / kStride, kPacks);
#endif
  }

  /// Whether all of pack k lies within the row. Not written as `count(k) == kWidth`: ptxas 13.0
  /// compiles that for sm_90 to a VIMNMX.RELU with a wrong predicate for packs that the end cuts.
  FUSEDOPS_HD bool complete(int k) const {
    return k < kFull || left - k * kStride >= (kWhole ? 1 : kWidth);
  }

  /// The number of columns of pack k that lie in the row.
  FUSEDOPS_HD int count(int k) const {
    if (k < kFull) return kWidth;
    const int rest = left - k * kStride;
    if constexpr (kWhole) return rest > 0 ? kWidth : 0;
    return rest < 0 ? 0 : smaller(rest, kWidth);
  }

  /// The pack that the end of the row cuts, or -1.
  FUSEDOPS_HD int cut() const {
    int found = -1;
    FUSEDOPS_UNROLL
    for (int k = kFull; k < kPacks; ++k) {
      const int rest = left - k * kStride;
      found = rest > 0 && rest < kWidth ? k : found;
    }
    return found;
  }

  /// Accesses a pack whose number is not a constant. Registers cannot be indexed, so a GPU selects
  /// among all packs.
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

  /// The number of columns of the row that the group of lanes holds.
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

  /// A number of columns as int; on a CPU clamped, since only what a tile holds matters.
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

  /// Sets the elements beyond the end of the row.
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

  /// Replaces every value x by f(x).
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

  /// The sum of f(x) over the tile, in a fixed order: kAccumulators partial sums, then pairwise.
  template <class F>
  FUSEDOPS_HD Compute sum(F f) const {
    return sum_with(*this, [f](Compute x, Compute) { return f(x); });
  }

  /// The sum of f(x, y) over the values of two tiles, in the same order.
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

/// A tile of which every pack is complete, though its type does not say so.
template <class Tile>
struct FullTile {
  using Compute = typename Tile::Compute;
  static constexpr int kPacks = Tile::kPacks, kWidth = Tile::kWidth, kStride = Tile::kStride;
  static constexpr int kFull = kPacks;
  static constexpr bool kExact = true, kWhole = true;

  Compute (&at)[kPacks][kWidth];

  FUSEDOPS_HD static int packs() { return kPacks; }
  FUSEDOPS_HD static bool complete(int) { return true; }
  FUSEDOPS_HD static int count(int) { return kWidth; }
  FUSEDOPS_HD static void fill_absent(Compute) {}
  FUSEDOPS_HD void fill(Compute value) {
    FUSEDOPS_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWidth; ++i) at[k][i] = value;
    }
  }
};

/// Calls f(tiles...); where they may be full (kMayBe) and are, as tiles whose packs are not checked.
template <bool kMayBe, class F, class... Tiles>
FUSEDOPS_HD void with_full(bool full, const F& f, Tiles&... tiles) {
  if constexpr (kMayBe) {
    if (full) {
      f(FullTile<Tiles>{tiles.at}...);
      return;
    }
    // So checks are made here, and not kept in registers from one call to the next.
    ((tiles.left = static_cast<int>(hidden(tiles.left))), ...);
  }
  f(tiles...);
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
