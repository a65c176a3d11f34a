// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Numbers of 4 bits, two in a byte: float4_e2m1x2, torch's float4_e2m1fn_x2. The numbers are 0, 0.5, 1,
// 1.5, 2, 3, 4, 6 and their negatives. A conversion rounds once, to nearest even, also from double, and
// saturates. There is no NaN: it becomes 6. OCP Microscaling Formats (MX) Specification 1.0.
#pragma once

#include <fusedops/core/float8.cuh>
#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// Two neighbouring columns; the first has the lower bits.
struct float4_e2m1x2 {
  uint8_t bits;
};

inline namespace FUSEDOPS_ABI {

namespace detail {

/// Of a magnitude m the code, without its sign, is the least of 2 m, m + 2 and m / 2 + 4, rounded to an
/// integer: each of them is right where numbers are a half, one, or two apart, up to 2, 4, and 6, and too
/// large elsewhere. An ulp of 2^23 is 1, so that adding it rounds.
FUSEDOPS_HD uint32_t to_four_bits(float x) {
  const float most = x < 6 ? x : 6;  // of NaN, too
  const uint32_t bits = bit_cast<uint32_t>(most > -6 ? most : -6);
  const float m = bit_cast<float>(bits & 0x7fffffffu);
  const uint32_t by_half = bit_cast<uint32_t>(m * 2 + 0x1p23f);
  const uint32_t by_one = bit_cast<uint32_t>(m + (0x1p23f + 2));
  const uint32_t by_two = bit_cast<uint32_t>(m * 0.5f + (0x1p23f + 4));
  return (smaller(smaller(by_half, by_one), by_two) & 7u) | (bits >> 28 & 8u);
}
FUSEDOPS_HD uint32_t to_four_bits(double x) { return to_four_bits(to_odd(x)); }

}  // namespace detail

/// The target of a result of 4 bits: an even number of columns begins in a byte, and each pack has an
/// even number of them. Rows are whole bytes apart, or whole words (kContiguous).
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
    Element* to = data + rows(row) + col / 2;
    if constexpr (N % 8 == 0 && kColumn == Column::kContiguous) {
      write_words<uint32_t>(to, value);
    } else if constexpr (N > 1) {
      write_words<uint8_t>(to, value);
    }
  }

 private:
  template <class Word, int N, class Compute>
  FUSEDOPS_HD static void write_words(Element* to, const Compute (&value)[N]) {
    constexpr int kEach = 2 * sizeof(Word);
    FUSEDOPS_UNROLL
    for (int j = 0; j < N / kEach; ++j) {
      uint32_t word = 0;
      FUSEDOPS_UNROLL
      for (int i = 0; i < kEach; ++i) word |= detail::to_four_bits(value[j * kEach + i]) << 4 * i;
      const Pack<Word, 1> pack = {static_cast<Word>(word)};
      fusedops::write<1>(reinterpret_cast<Word*>(to) + j, pack);
    }
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
