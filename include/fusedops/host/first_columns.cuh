// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Moves the first columns of a pack, those that the row has. Where vectors have masks, that is one
// access of the whole pack; elsewhere it is several, narrower and narrower.
#pragma once

#include <fusedops/host/fetch.cuh>

namespace fusedops {

namespace detail {

template <class ViewT>
using CutsFlag = Flag<ViewT::kCuts>;

/// Reads the columns of a pack of an operand that are less than `count`, which may be negative or
/// more than the pack has; the others become `padding`.
template <int N, class ViewT, class Compute, class Row>
FUSEDOPS_HD void read_first(const ViewT& view, Compute (&value)[N], const Row& row, int64_t col,
                            int count, Compute padding) {
  if constexpr (flag<false, CutsFlag, ViewT>()) {
    view.read_first(value, row, col, count, padding);
  } else {
    if (count >= N) return view.read(value, row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = padding;
    if constexpr (N > 1) {
      pieces<N / 2>(0, larger(count, 0), [&](auto width, int place) {
        constexpr int M = decltype(width)::value;
        view.read(*reinterpret_cast<Compute(*)[M]>(value + place), row, col + place);
      });
    }
  }
}

/// Writes the values of a pack that are less than `count`.
template <int N, class ViewT, class Compute, class Row>
FUSEDOPS_HD void write_first(const ViewT& view, const Compute (&value)[N], const Row& row,
                             int64_t col, int count) {
  if constexpr (flag<false, CutsFlag, ViewT>()) {
    view.write_first(value, row, col, count);
  } else {
    if (count >= N) return view.write(value, row, col);
    if constexpr (N > 1) {
      pieces<N / 2>(0, larger(count, 0), [&](auto width, int place) {
        constexpr int M = decltype(width)::value;
        view.write(*reinterpret_cast<const Compute(*)[M]>(value + place), row, col + place);
      });
    }
  }
}

}  // namespace detail

}  // namespace fusedops
