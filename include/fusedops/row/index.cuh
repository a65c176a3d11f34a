// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Rows and their coordinates. Kernels number rows in processing order. Operands broadcast over
// several dimensions, so each row also has coordinates, computed once per row for all operands. A
// RowIndex converts to the number of its row.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// One row: its number in processing order and its coordinates, outermost first.
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

/// A row by its distance to `first`, which rows around it have in common: `below` of the innermost
/// dimension. So one product of 64 bits serves the addresses of all of them, beside which a warp multiplies
/// in 32 bits. A stride of that dimension times the largest distance is less than 2^32.
template <class Index>
struct NearRow : Index {
  Index first;
  uint32_t below;

  NearRow() = default;
  FUSEDOPS_HD NearRow(const Index& of, uint32_t distance) : Index(of), first(of), below(distance) {
    constexpr int kInner = sizeof(of.at) / sizeof(of.at[0]) - 1;
    this->row += distance;
    this->at[kInner] += distance;
  }
};

/// A row that may be none of those that are written. Operands may be read for it.
template <class Index>
struct GuardedRow : Index {
  bool inside;
};

/// Operands that are read ahead of a pack's values (row/ahead.cuh): none; those with row dimensions;
/// those without, which all rows share; each.
enum class Ahead { kOfNone, kOfRows, kOfShared, kOfEach };

/// What is known at compile time of the alignment of a kernel's operands: nothing, that every pack
/// is one aligned access, or that some are not. Accesses then need no test.
enum class Access { kUnknown, kWide, kNarrow };

/// A row of a kernel whose operands' alignment is known at compile time.
template <Access kAccess_>
struct RowOf : RowIndex<1> {
  static constexpr Access kAccess = kAccess_;
  FUSEDOPS_HD explicit RowOf(int64_t number) : RowIndex<1>{number, {number}} {}
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

template <class Index>
FUSEDOPS_HD constexpr bool is_near(const NearRow<Index>*) {
  return true;
}
FUSEDOPS_HD constexpr bool is_near(const void*) { return false; }
/// Whether it is a `NearRow`.
template <class Row>
FUSEDOPS_HD constexpr bool is_near() {
  return is_near(static_cast<const Row*>(nullptr));
}

template <class Index>
FUSEDOPS_HD constexpr bool is_guarded(const GuardedRow<Index>*) {
  return true;
}
FUSEDOPS_HD constexpr bool is_guarded(const void*) { return false; }
/// Whether it is a `GuardedRow`.
template <class Row>
FUSEDOPS_HD constexpr bool is_guarded() {
  return is_guarded(static_cast<const Row*>(nullptr));
}

/// Of which operands reads for this row are taken from registers, or only issued: row/ahead.cuh.
template <class Row>
struct ReadsAhead {
  static constexpr bool kOnlyIssues = false;
  static constexpr Ahead kOf = Ahead::kOfNone;
};
/// Whether they are of an operand with so many row dimensions.
template <class Row>
FUSEDOPS_HD constexpr bool reads_ahead(int rank) {
  constexpr Ahead kOf = ReadsAhead<Row>::kOf;
  return kOf == Ahead::kOfEach || kOf == (rank == 0 ? Ahead::kOfShared : Ahead::kOfRows);
}

}  // namespace detail

/// The same row without that promise, for operands that it does not cover.
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

/// The dimensions of the rows, in processing order, for fewer than 2^31 rows. The size of the
/// outermost is not needed.
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

/// Rows of one dimension, of any number.
template <>
struct RowSpace<1> {
  int64_t count;
  using Index = RowIndex<1>;
  FUSEDOPS_HD Index index(int64_t row) const { return {row, {row}}; }
};

/// Rows of one dimension in a kernel whose operands' alignment is known at compile time.
template <Access kAccess>
struct RowsOf {
  int64_t count;
  using Index = RowOf<kAccess>;
  FUSEDOPS_HD Index index(int64_t row) const { return Index(row); }
};

/// RowSpace for any number of rows; a separate type, since 64-bit division is slow.
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

/// A linear function of a row's coordinates: an offset, a query position, the row number of a
/// dropout mask. It has rank 0 where it is the same for all rows, so that a compiler need not
/// compute it for each.
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
  template <class Coordinate>
  FUSEDOPS_HD int64_t operator()(const NearRow<RowIndex<kRank, Coordinate>>& row) const {
    return (*this)(row.first) + static_cast<uint32_t>(stride[kRank - 1]) * row.below;
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

/// A coordinate of the row: such a function whose strides are known to be 0 but for one of 1.
template <int kDim>
struct CoordinateMap {
  uint64_t unused;

  template <class Row>
  FUSEDOPS_HD int64_t operator()(const Row& row) const {
    return row.at[kDim];
  }
};

/// The number of a row of a part of a tensor, whose first row has another number than 0.
template <int kRank>
struct PartRowMap {
  RowMap<kRank> within;
  int64_t first;

  template <class Row>
  FUSEDOPS_HD int64_t operator()(const Row& row) const {
    return first + within(row);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
