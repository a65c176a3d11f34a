// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers of 4 bits, two in a byte: float4_e2m1x2, torch's float4_e2m1fn_x2. The numbers are 0, 0.5, 1,
// 1.5, 2, 3, 4, 6 and their negatives. A conversion rounds once, to nearest even, also from double, and
// saturates. There is no NaN: it becomes 6. OCP Microscaling Formats (MX) Specification 1.0.
#pragma once

#include <fusedops/core/float8.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// Two neighbouring columns; the first has the lower bits.
struct float4_e2m1x2 {
  uint8_t bits;
};

inline namespace FUSEDOPS_ABI {

namespace detail {

FUSEDOPS_HD uint32_t to_four_bits(float x) {
  constexpr int kDropped = 22;
  constexpr uint32_t kSmallest = 0x3f800000u;  // 1, the least normal number
  constexpr uint32_t kBias = kSmallest - (1u << 23);
  // As to_eight_bits does it.
  constexpr uint32_t kAdded = kSmallest + (static_cast<uint32_t>(kDropped) << 23);
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t half_up = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
  const uint32_t normal = (magnitude - kBias + half_up) >> kDropped;
  const uint32_t subnormal =
      bit_cast<uint32_t>(bit_cast<float>(magnitude) + bit_cast<float>(kAdded)) - kAdded;
  uint32_t value = magnitude < kSmallest ? subnormal : normal;
  value = magnitude >= 0x7f800000u || value > 7u ? 7u : value;
  return magnitude > 0x7f800000u ? 7u : value | (bits >> 28 & 8u);
}
FUSEDOPS_HD uint32_t to_four_bits(double x) { return to_four_bits(to_odd(x)); }

}  // namespace detail

/// The target of a result of 4 bits: an even number of columns begins in a byte, and each pack has an
/// even number of them. Rows are whole bytes apart.
template <int kRank, Column kColumn, int W>
struct View<float4_e2m1x2, kRank, kColumn, W> {
  using Element = float4_e2m1x2;
  Element* data;
  RowMap<kRank> rows;
  int64_t column_stride;

  template <class Row>
  FUSEDOPS_HD Element* begin(const Row& row) const {
    return data + rows(row);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    // The end of an odd row, which calls refuse, is all that comes one by one.
    if constexpr (N > 1) {
      Pack<Element, N / 2> pack;
      FUSEDOPS_UNROLL
      for (int i = 0; i < N / 2; ++i) {
        pack.at[i].bits = static_cast<uint8_t>(detail::to_four_bits(value[2 * i]) |
                                               detail::to_four_bits(value[2 * i + 1]) << 4);
      }
      Element* to = data + rows(row) + col / 2;
      if constexpr (N <= 8) {
        fusedops::write<N / 2>(to, pack);
      } else {
        for (int i = 0; i < N / 2; ++i) to[i] = pack.at[i];
      }
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
