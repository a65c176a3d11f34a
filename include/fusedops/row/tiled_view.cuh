// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// One number for each block of each row, in tiles of 128 rows by 4 blocks: the layout of scales that
// block-scaled products read (PTX ISA, tcgen05.mma, "block scaling"; cuBLAS, "1D block scaling
// factors layout").
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// `rows` gives the number of a row, and `tiles` how many of them 128 rows have.
template <class T, int kRank>
struct TiledView {
  using Element = T;
  T* data;
  RowMap<kRank> rows;
  int64_t tiles;

  /// Writes the number of one block.
  template <class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[1], const Row& row, int64_t block) const {
    const int64_t number = rows(row);
    const int64_t tile = number / 128 * tiles + block / 4;
    data[tile * 512 + number % 32 * 16 + number % 128 / 32 * 4 + block % 4] = convert<T>(value[0]);
  }
};

/// Scales of `blocks` blocks a row, in such tiles: as many numbers as ceil(rows / 128) *
/// ceil(blocks / 4) * 512. What no row or block has is not written.
template <class T>
FUSEDOPS_HD TiledView<T, 1> tiled(T* data, int64_t blocks) {
  return {data, {{1}}, (blocks + 3) / 4};
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
