// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Layout: the addresses of a tensor that broadcasts over x, from shapes and strides. A C++ dispatch
// numbers rows in one dimension, so a layout computes the coordinates of a row itself.
//
//   layout({8, 16, 1024, 1024}, {0, 1048576, 1024, 1})     a bias that 8 samples share
//   broadcast_layout({8, 16, 1024, 1024}, {8, 1, 1, 1024}) the same from a dense tensor's shape
//
// Both take the shape of x first, with the columns last. Strides are in elements, 0 where the
// tensor is broadcast. Rows are processed in the order of the dimensions: list them so that rows
// that share an operand are neighbours, for x and for all operands.
#pragma once

#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Division of a 63-bit number by a size that is known before the launch: q = (high(n * multiplier)
/// + n) >> shift, as Divider for 31 bits.
struct WideDivider {
  uint64_t multiplier;
  int64_t size;
  int shift;

  FUSEDOPS_HD static WideDivider by(int64_t size) {
    int shift = 0;
    while (shift < 62 && (int64_t(1) << shift) < size) ++shift;
    // floor(2^64 (2^shift - size) / size) + 1, bit by bit.
    uint64_t quotient = 0;
    uint64_t rest = (uint64_t(1) << shift) - static_cast<uint64_t>(size);
    for (int bit = 0; bit < 64; ++bit) {
      rest *= 2;
      quotient *= 2;
      if (rest >= static_cast<uint64_t>(size)) {
        rest -= static_cast<uint64_t>(size);
        ++quotient;
      }
    }
    return {quotient + 1, size, shift};
  }
  FUSEDOPS_HD int64_t divide(int64_t n) const {
    const uint64_t number = static_cast<uint64_t>(n);
#if defined(FUSEDOPS_ON_DEVICE)
    const uint64_t high = __umul64hi(number, multiplier);
#else
    __extension__ using Product = unsigned __int128;
    const uint64_t high = static_cast<uint64_t>(Product(number) * multiplier >> 64);
#endif
    return static_cast<int64_t>((high + number) >> shift);
  }
};

}  // namespace detail

template <int kRank>
struct Layout {
  static_assert(kRank >= 1, "a layout has rows and columns");
  detail::WideDivider divider[kRank];
  int64_t stride[kRank];
  int64_t column_stride;

  /// The offset of a row's first element.
  FUSEDOPS_HD int64_t operator()(int64_t row) const {
    int64_t sum = 0;
    FUSEDOPS_UNROLL
    for (int d = kRank - 1; d > 0; --d) {
      const int64_t quotient = divider[d].divide(row);
      sum += (row - quotient * divider[d].size) * stride[d];
      row = quotient;
    }
    return sum + row * stride[0];
  }

  /// The number of rows.
  FUSEDOPS_HD int64_t count() const {
    int64_t rows = 1;
    for (int d = 0; d < kRank; ++d) rows *= divider[d].size;
    return rows;
  }

  /// The number of neighbouring rows that share their elements; 0 where rows that are not
  /// neighbours share them.
  FUSEDOPS_HD int64_t repeats() const {
    int64_t count = 1;
    int d = kRank - 1;
    for (; d >= 0 && (stride[d] == 0 || divider[d].size == 1); --d) count *= divider[d].size;
    for (; d >= 0; --d) {
      if (stride[d] == 0 && divider[d].size > 1) return 0;
    }
    return count;
  }

  /// Whether the strides allow accesses of `width` columns at multiples of `width`.
  FUSEDOPS_HD bool allows(int width) const {
    bool fits = column_stride == 1;
    for (int d = 0; d < kRank; ++d) fits = fits && stride[d] % width == 0;
    return fits;
  }
};

/// A layout from the shape of x and the tensor's strides over it, outermost first, columns last.
template <int kDims>
FUSEDOPS_HD Layout<kDims - 1> layout(const int64_t (&shape)[kDims],
                                     const int64_t (&strides)[kDims]) {
  Layout<kDims - 1> made{};
  for (int d = 0; d + 1 < kDims; ++d) {
    made.stride[d] = shape[d] == 1 ? 0 : strides[d];
    made.divider[d] = detail::WideDivider::by(shape[d]);
  }
  made.column_stride = shape[kDims - 1] == 1 ? 1 : strides[kDims - 1];
  return made;
}

/// A layout from the shape of x and that of a dense tensor, which has size 1 where it is broadcast.
template <int kDims>
FUSEDOPS_HD Layout<kDims - 1> broadcast_layout(const int64_t (&shape)[kDims],
                                               const int64_t (&of_tensor)[kDims]) {
  int64_t strides[kDims];
  int64_t step = 1;
  for (int d = kDims - 1; d >= 0; --d) {
    strides[d] = of_tensor[d] == 1 ? 0 : step;
    step *= of_tensor[d];
  }
  return layout(shape, strides);
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
