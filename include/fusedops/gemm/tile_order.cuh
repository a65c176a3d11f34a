// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which a persistent kernel works on the tiles of a product. A cluster of two blocks has
// two tiles of a column of tiles. Clusters that run at the same time share rows of x and of w in the
// L2 cache: they go down `group` pairs of tiles, then to the next column.
//
// A tile that would exceed the matrix begins earlier, so that it ends with it: all tiles are whole, and
// elements that two tiles share are computed twice, to the same bits.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

template <int kTileM, int kTileN>
struct TileOrder {
  int rows, cols, across, pairs, group, rank;

  /// rows, cols: of the product, at least a tile's. rank: of this block in its cluster.
  __device__ __forceinline__ TileOrder(int m, int n, int of_group, int of_cluster)
      : rows(m),
        cols(n),
        across((n + kTileN - 1) / kTileN),
        pairs((m + 2 * kTileM - 1) / (2 * kTileM)),
        group(of_group),
        rank(of_cluster) {}

  /// The number of pairs of tiles.
  __device__ __forceinline__ int count() const { return across * pairs; }

  struct Tile {
    int row, col;  // the first ones
  };
  __device__ __forceinline__ Tile at(int number) const {
    const int of_group = group * across;
    const int nth = number / of_group, rest = number - nth * of_group;
    const int height = min(group, pairs - nth * group);
    const int column = rest / height;
    const int pair = nth * group + rest - column * height;
    return {min((pair * 2 + rank) * kTileM, rows - kTileM), min(column * kTileN, cols - kTileN)};
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
