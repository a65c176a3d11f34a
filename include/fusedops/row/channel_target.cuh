// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The target of the gradient of an operand of which several neighbouring columns share each element
// (row/repeated.cuh), such as gamma of a group norm. For each row, the kernel writes sums over
// pieces of the columns; all columns of a piece share one element. A second kernel adds up the
// pieces of an element over the rows that share it (op/column_sums.cuh). A piece consists of the
// columns that a few neighbouring lanes hold in one pack each, so that no lane waits for another
// row or warp, and the order of summation does not depend on the number of rows.
#pragma once

#include <fusedops/row/repeated.cuh>
#include <fusedops/row/target.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Writes `pieces` sums for each row, over kColumns columns each; kColumns is a power of two to
/// which all packs are aligned. On a CPU kColumns is kAnyWidth, and a piece consists of all
/// `repeats` columns that share an element.
template <int kFunctor_, int kOperand_, int kColumns, class Compute>
struct ByChannel {
  static constexpr int kFunctor = kFunctor_;
  static constexpr int kOperand = kOperand_;
  Word<Compute*> memory;
  int64_t pieces, repeats;

  template <class Tile>
  struct Sum {};

  template <class Tile, class Lane>
  FUSEDOPS_HD void begin(Sum<Tile>&, const Lane&) const {}
  template <class Tile, class Lane, class Row>
  FUSEDOPS_HD void flush(Sum<Tile>&, const Lane&, const Row&, const Visit&) const {}

  template <class Tile, int N, class Lane, class Row>
  FUSEDOPS_HD void add(Sum<Tile>&, const Compute (&gradient)[N], const Lane&, const Row& row,
                       int64_t col, const Visit&, int, int) const {
    Compute* at = memory.value + static_cast<int64_t>(row) * pieces;
    if constexpr (kColumns == kAnyWidth) {
      add_elements(gradient, at, col);
    } else if constexpr (N == Tile::kWidth && kColumns >= N) {
      const Compute sum = sum_of_lanes<kColumns / N>(detail::pairwise_sum(gradient));
      if (is_first_lane<kColumns / N>()) at[static_cast<uint32_t>(col) / kColumns] = sum;
    } else if constexpr (kColumns <= N) {  // packs with other widths do not occur
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; i += kColumns) {
        Compute part[kColumns];
        FUSEDOPS_UNROLL
        for (int j = 0; j < kColumns; ++j) part[j] = gradient[i + j];
        at[static_cast<uint32_t>(col + i) / kColumns] = detail::pairwise_sum(part);
      }
    }
  }

 private:
  /// Adds a pack on a CPU, where the packs of a row come in the order of the columns.
  template <int N>
  FUSEDOPS_HD void add_elements(const Compute (&gradient)[N], Compute* at, int64_t col) const {
    int64_t element = col / repeats;
    int64_t seen = col - element * repeats;  // columns of this element before the pack
    for (int done = 0; done < N; ++element) {
      const int end = static_cast<int>(smaller<int64_t>(done + repeats - seen, N));
      Compute sum = 0;
      if (done == 0 && end == N) {
        sum = detail::pairwise_sum(gradient);
      } else {
        for (int i = done; i < end; ++i) sum += gradient[i];
      }
      at[element] = seen == 0 ? sum : at[element] + sum;
      done = end;
      seen = 0;
    }
  }

  /// The sum over kLanes neighbouring lanes, all of which have a pack or none of which has.
  template <int kLanes>
  FUSEDOPS_HD static Compute sum_of_lanes(Compute sum) {
#if defined(FUSEDOPS_ON_DEVICE)
    const unsigned first = threadIdx.x % 32 / kLanes * kLanes;
    const unsigned lanes = (0xffffffffu >> (32 - kLanes)) << first;
    FUSEDOPS_UNROLL
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(lanes, sum, step);
#endif
    return sum;
  }
  template <int kLanes>
  FUSEDOPS_HD static bool is_first_lane() {
#if defined(FUSEDOPS_ON_DEVICE)
    return threadIdx.x % kLanes == 0;
#else
    return true;
#endif
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
