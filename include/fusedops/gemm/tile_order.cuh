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

#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The place of this block in its cluster. Read anew where it is needed: uniform registers are few.
__device__ __forceinline__ int rank_in_cluster() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// The lane in its warp, read anew, too: what is kept from one tile to the next would be spilled.
__device__ __forceinline__ int lane_of_warp() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Whether one half of the product's columns is the STORE's x, and the other one an operand of it: no, with
/// the second half's rows of w below the first one's, or between these.
enum class Halves { kNone, kBelow, kBetween };

/// The place of a factor that is a matrix.
struct OneProduct {};

template <int kTileM, int kTileN>
struct TileOrder {
  static constexpr bool kRagged = false;       // whether a tile may have fewer rows
  static constexpr bool kRaggedDepth = false;  // whether tiles differ in K
  static constexpr Halves kHalves = Halves::kNone;
  int rows, cols, group;

  /// The number of pairs of tiles.
  __device__ __forceinline__ int count() const {
    int m = rows, n = cols;
    asm volatile("" : "+r"(m), "+r"(n));
    return across(n) * pairs(m);
  }

  struct Tile {
    int row, col;  // the first ones
    int new_row;   // the first one that no tile before it has
  };
  /// The tile's first row among those of all products, of which there is one.
  __device__ __forceinline__ int first_row(const Tile& tile) const { return tile.row; }
  /// What is kept of a tile's rows, and the rows from a first one on: each is found by itself, since a tile
  /// may have rows of several rows of operands.
  template <class Rows>
  struct Start {};
  template <class Rows>
  __device__ __forceinline__ static Start<Rows> start(const Rows&, const Tile&, int) {
    return {};
  }
  /// The row that is `below` another one.
  template <class Rows>
  __device__ __forceinline__ static auto index(const Rows& rows, const Start<Rows>&, int row,
                                               int below) {
    return rows.index(row + below);
  }
  __device__ __forceinline__ static auto index(const RowSpace<1>& rows, const Start<RowSpace<1>>&,
                                               int row, int below) {
    return NearRow<RowIndex<1>>(rows.index(row), below);
  }
  /// Where the factors of its product lie.
  __device__ __forceinline__ static OneProduct x_of(const Tile&) { return {}; }
  __device__ __forceinline__ static OneProduct w_of(const Tile&) { return {}; }
  /// The first row of w that the first block copies, and from there to the first one of the second block.
  __device__ __forceinline__ static int row_of_w(const Tile& tile) { return tile.col; }
  __device__ __forceinline__ static int apart() { return kTileN / 2; }
  __device__ __forceinline__ Tile at(int number) const {
    int m = rows, n = cols;
    // Computed here, in registers of each thread, which are many; a warp's shared ones are few.
    asm volatile("" : "+r"(number), "+r"(m), "+r"(n));
    const int of_group = group * across(n);
    const int nth = number / of_group, rest = number - nth * of_group;
    const int height = min(group, pairs(m) - nth * group);
    const int column = rest / height;
    const int pair = nth * group + rest - column * height;
    const int new_row = (pair * 2 + rank_in_cluster()) * kTileM;
    return {min(new_row, m - kTileM), min(column * kTileN, n - kTileN), new_row};
  }

 private:
  __device__ __forceinline__ static int across(int n) { return (n + kTileN - 1) / kTileN; }
  __device__ __forceinline__ static int pairs(int m) { return (m + 2 * kTileM - 1) / (2 * kTileM); }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
