// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Moves the first columns of a pack, those that the row has. Where vectors have masks, that is one
// access of the whole pack; elsewhere it is several, narrower and narrower.
#pragma once

#include <fusedops/host/fetch.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

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

template <class LoadT>
using SourceOf = decltype(any_of<const LoadT>().source);

/// Loads the columns of a pack that are less than `count` through a LOAD without functors.
template <int N, class LoadT, class Compute, class Row>
FUSEDOPS_HD void load_first(const LoadT& load, Compute (&value)[N], const Row& row, int64_t col,
                            int count, Compute padding) {
  if constexpr (detected<SourceOf, LoadT>()) {
    read_first(load.source, value, row, col, count, padding);
  } else {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = padding;
    pieces<N>(0, smaller(larger(count, 0), N), [&](auto width, int place) {
      load.template load<decltype(width)::value>(value + place, row, col + place);
    });
  }
}

/// Calls f for the packs kFirst <= k < kCount, with k as a type.
FUSEDOPS_ANY_SIDE
template <int kFirst, int kCount, class F>
FUSEDOPS_HD void each_number(F f) {
  if constexpr (kFirst < kCount) {
    f(Width<kFirst>{});
    each_number<kFirst + 1, kCount>(f);
  }
}

template <class T>
using LeavesAsIs = Flag<!T::kComputes>;
template <class Compute, class LoadT>
using LoadsSame = Flag<sizeof(*any_of<const LoadT>().source.data) == sizeof(Compute)>;
template <class Compute, class StoreT>
using StoresSame = Flag<sizeof(*any_of<const StoreT>().target.data) == sizeof(Compute)>;

/// Whether LOAD and STORE move values as they are, without a conversion.
template <class Compute, class LoadT, class StoreT>
FUSEDOPS_HD constexpr bool operator_alone() {
  return flag<false, LeavesAsIs, LoadT>() && flag<false, LeavesAsIs, StoreT>() &&
         flag<false, LoadsSame, Compute, LoadT>() && flag<false, StoresSame, Compute, StoreT>();
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
