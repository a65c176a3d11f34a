// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding: turns pairs of columns by an angle each, given by its cosine and its sine.
//
//   v[first]  = v[first] * cos[first] - v[second] * sin[first]
//   v[second] = v[second] * cos[second] + v[first] * sin[second]
//
// The columns of a pair are i and i + kHalf, or 2i and 2i + 1 (kInterleaved), for i < kHalf. Columns
// from 2 * kHalf on stay as they are. Each product and each sum is rounded once, none are fused, so
// every device has the same bits.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// kShared: cosines and sines have one column a pair, kHalf; else one for each of the 2 * kHalf. kAll:
/// a row has no more columns.
template <class Cos, class Sin, int kHalf, bool kInterleaved, bool kShared, bool kAll>
struct Rotate {
  Cos cos;
  Sin sin;
  static constexpr bool kPairs = true;
  static constexpr bool kNeighbours = kInterleaved;
  // The largest power of two that divides the number of columns that lie together.
  static constexpr int kTogether = kInterleaved ? 2 * kHalf : kHalf;
  static constexpr int kPairWidth = (kTogether & -kTogether) < 32 ? kTogether & -kTogether : 32;
  static constexpr int kDistance = kAll && !kInterleaved ? kHalf : 0;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(cos);
    visit(sin);
  }

  FUSEDOPS_HD int64_t partner(int64_t col) const {
    if (col >= 2 * kHalf) return col;
    if constexpr (kInterleaved) return col ^ 1;
    return col < kHalf ? col + kHalf : col - kHalf;
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void paired(Compute (&v)[N], const Compute (&partner)[N], const Row& row,
                          int64_t col) const {
    if (col >= 2 * kHalf) return;
    const auto c = at<N, Compute>(cos, row, col);
    const auto s = at<N, Compute>(sin, row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute turned = product(partner[i], s[i]);
      const Compute kept = product(v[i], c[i]);
      v[i] = is_first(col, i) ? kept - turned : kept + turned;
    }
  }

  /// The transpose: the gradient of a value is that of its own output, and that of its partner's.
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void paired_backward(Compute (&g)[N], const Compute (&of_partner)[N],
                                   const Compute (&)[N], const Compute (&)[N], const Row& row,
                                   int64_t col, Sink&) const {
    if (col >= 2 * kHalf) return;
    const auto c = at<N, Compute>(cos, row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) g[i] = product(g[i], c[i]);
    if constexpr (kShared) {  // a pair has one sine
      turn_back(g, of_partner, at<N, Compute>(sin, row, col), col);
    } else if constexpr (kInterleaved && N > 1) {
      const auto own = sin.template fetch<N, Compute>(row, col);
      Compute s[N];
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) s[i] = own[i ^ 1];
      turn_back(g, of_partner, s, col);
    } else {
      turn_back(g, of_partner, sin.template fetch<N, Compute>(row, partner(col)), col);
    }
  }

 private:
  /// Whether element i of the pack is the first of its pair.
  FUSEDOPS_HD static bool is_first(int64_t col, int i) {
    if constexpr (kInterleaved) return (col + i) % 2 == 0;
    return col < kHalf;
  }

  template <int N, class Compute, class Sines>
  FUSEDOPS_HD static void turn_back(Compute (&g)[N], const Compute (&of_partner)[N], const Sines& s,
                                    int64_t col) {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute turned = product(of_partner[i], s[i]);
      g[i] = is_first(col, i) ? g[i] + turned : g[i] - turned;
    }
  }

  /// The numbers of N columns of x.
  template <int N, class Compute, class Table, class Row>
  FUSEDOPS_HD static auto at(const Table& table, const Row& row, int64_t col) {
    if constexpr (!kShared) {
      return table.template fetch<N, Compute>(row, col);
    } else if constexpr (!kInterleaved) {
      return table.template fetch<N, Compute>(row, col < kHalf ? col : col - kHalf);
    } else if constexpr (N == 1) {
      return table.template fetch<1, Compute>(row, col / 2);
    } else {
      const auto few = table.template fetch<N / 2, Compute>(row, col / 2);
      Values<Compute, N> each;
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) each.at[i] = few[i / 2];
      return each;
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
