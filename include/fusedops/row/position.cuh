// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The coordinates of a row's elements along a dimension of x, as operands that are computed: fetch()
// gives those of N columns, as it gives those of a View.
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Along a dimension of the rows: one number for all columns.
template <int kRank>
struct RowPosition {
  static constexpr bool kIsColumn = false;
  RowMap<kRank> map;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD Repeated<Compute> fetch(const Row& row, int64_t) const {
    return {static_cast<Compute>(map(row))};
  }
};

/// N numbers that follow one another.
template <class Compute>
struct Counted {
  int64_t first;
  FUSEDOPS_HD Compute operator[](int i) const { return static_cast<Compute>(first + i); }
};

/// Along the only dimension of the columns: the column.
struct ColumnPosition {
  static constexpr bool kIsColumn = true;
  uint64_t unused;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD Counted<Compute> fetch(const Row&, int64_t col) const {
    return {col};
  }
};

/// Along one of several dimensions of the columns: `inner` columns have the same coordinate, of
/// which there are `size`.
struct PartOfColumnPosition {
  static constexpr bool kIsColumn = false;
  int64_t inner, size;

  struct Divided {
    int64_t first, inner, size;
    FUSEDOPS_HD int64_t operator[](int i) const { return (first + i) / inner % size; }
  };
  template <int N, class Compute, class Row>
  FUSEDOPS_HD Divided fetch(const Row&, int64_t col) const {
    return {col, inner, size};
  }
};

namespace detail {

/// Whether an operand is the same for all columns of a row, so that bounds may follow from it.
template <class Operand>
struct IsOfRow {
  static constexpr bool value = false;
};
template <class T, int kRank, int W>
struct IsOfRow<View<T, kRank, Column::kBroadcast, W>> {
  static constexpr bool value = true;
};
template <class Number>
struct IsOfRow<Value<Number>> {
  static constexpr bool value = true;
};
template <int kRank>
struct IsOfRow<RowPosition<kRank>> {
  static constexpr bool value = true;
};

}  // namespace detail

/// The number of an operand that is the same for all columns of a row; 0 of another.
template <class Operand, class Row>
FUSEDOPS_HD int64_t number_of_row(const Operand& operand, const Row& row) {
  if constexpr (detail::IsOfRow<Operand>::value) {
    return operand.template fetch<1, int64_t>(row, 0)[0];
  } else {
    return 0;
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
