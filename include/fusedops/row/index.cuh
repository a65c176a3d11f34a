// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows and their coordinates. A schedule counts rows in visiting order; operands broadcast over
// several dimensions, so each row also has coordinates, computed once a row and shared by all
// operands. To a LOAD or STORE that wants a plain number, a RowIndex is that number.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

/// One row: its number in visiting order and its coordinates, outermost first.
template <int kRank, class Coordinate = uint32_t>
struct RowIndex {
  int64_t row;
  Coordinate at[kRank];
  FUSEDOPS_HD operator int64_t() const { return row; }
};
template <class Coordinate>
struct RowIndex<1, Coordinate> {
  int64_t row;
  int64_t at[1];
  FUSEDOPS_HD operator int64_t() const { return row; }
};

/// What a kernel knows of all its operands: nothing, that every pack is one aligned access, or that
/// some are not. A property of the kernel, so that no access has to ask.
enum class Access { kUnknown, kWide, kNarrow };

/// A row of a kernel that knows.
template <Access kAccess_>
struct RowOf : RowIndex<1> {
  static constexpr Access kAccess = kAccess_;
  FUSEDOPS_HD explicit RowOf(int64_t row) : RowIndex<1>{row, {row}} {}
};

namespace detail {

template <class Row>
struct AccessOf {
  static constexpr Access value = Access::kUnknown;
};
template <Access kAccess>
struct AccessOf<RowOf<kAccess>> {
  static constexpr Access value = kAccess;
};

}  // namespace detail

/// The same row for who must not rely on it.
template <class Row>
FUSEDOPS_HD const Row& unaware(const Row& row) {
  return row;
}
template <Access kAccess>
FUSEDOPS_HD const RowIndex<1>& unaware(const RowOf<kAccess>& row) {
  return row;
}

/// Division by a size that is known before the launch: q = (high(n * multiplier) + n) >> shift for
/// n < 2^31 (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI
/// 1994).
struct Divider {
  uint32_t size, multiplier;
  uint32_t shift, unused;

  FUSEDOPS_HD uint32_t divide(uint32_t n) const {
    const uint32_t high = static_cast<uint32_t>((uint64_t(n) * multiplier) >> 32);
    return (high + n) >> shift;
  }
};

/// The dimensions that rows run over, in visiting order, for fewer than 2^31 rows: the outermost
/// needs no size.
template <int kRank>
struct RowSpace {
  int64_t count;
  Divider inner[kRank - 1];
  using Index = RowIndex<kRank>;

  FUSEDOPS_HD Index index(int64_t row) const {
    Index result;
    result.row = row;
    uint32_t rest = static_cast<uint32_t>(row);
    FUSEDOPS_UNROLL
    for (int d = kRank - 1; d > 0; --d) {
      const uint32_t quotient = inner[d - 1].divide(rest);
      result.at[d] = rest - quotient * inner[d - 1].size;
      rest = quotient;
    }
    result.at[0] = rest;
    return result;
  }
};

/// One dimension: any number of rows.
template <>
struct RowSpace<1> {
  int64_t count;
  using Index = RowIndex<1>;
  FUSEDOPS_HD Index index(int64_t row) const { return {row, {row}}; }
};

/// One dimension, for kernels that know how their operands lie.
template <Access kAccess>
struct RowsOf {
  int64_t count;
  using Index = RowOf<kAccess>;
  FUSEDOPS_HD Index index(int64_t row) const { return Index(row); }
};

/// The same for any number of rows; a variant of its own, since 64-bit division is slow.
template <int kRank>
struct WideRowSpace {
  int64_t count;
  int64_t inner[kRank - 1];
  using Index = RowIndex<kRank, int64_t>;

  FUSEDOPS_HD Index index(int64_t row) const {
    Index result;
    result.row = row;
    int64_t rest = row;
    FUSEDOPS_UNROLL
    for (int d = kRank - 1; d > 0; --d) {
      const int64_t quotient = rest / inner[d - 1];
      result.at[d] = rest - quotient * inner[d - 1];
      rest = quotient;
    }
    result.at[0] = rest;
    return result;
  }
};

/// A linear function of a row's coordinates: an address, a query position, the row number of a
/// dropout mask. Of rank 0 where it is the same for all rows, which a compiler then need not
/// compute in each.
template <int kRank>
struct RowMap {
  int64_t stride[kRank];

  template <class Coordinate>
  FUSEDOPS_HD int64_t operator()(const RowIndex<kRank, Coordinate>& row) const {
    int64_t sum = row.at[0] * stride[0];
    FUSEDOPS_UNROLL
    for (int d = 1; d < kRank; ++d) sum += row.at[d] * stride[d];
    return sum;
  }
};

template <>
struct RowMap<0> {
  uint64_t unused;
  template <class Row>
  FUSEDOPS_HD int64_t operator()(const Row&) const {
    return 0;
  }
};

}  // namespace fusedops
