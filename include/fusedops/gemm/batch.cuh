// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Many products of the same size, one for each element of up to three batch dimensions. Along each of
// these a factor has its matrices some distance apart, or one for all. Their results are rows of one
// tensor: those of the first product, then those of the second one.
#pragma once

#include <fusedops/gemm/tile_order.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The words of a kernel's argument that say it. Inner dimensions come first; the outer one has what is
/// left. shares: bit i is set where x, and bit 3 + i where w, has one matrix for all of dimension i.
struct Batch {
  int64_t rows, count;  // of one product; and the number of products
  int64_t sizes[2], shares;
};

/// The place of a factor that is one of many matrices: the coordinates in its tensor map after those of
/// column and row.
struct OneOfMany {
  int at[3];
};

template <int kTileM_, int kTileN_>
struct BatchedOrder {
  using Each = TileOrder<kTileM_, kTileN_>;
  static constexpr bool kRagged = Each::kRagged, kRaggedDepth = Each::kRaggedDepth;
  static constexpr Halves kHalves = Each::kHalves;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_;
  Each each;
  const Batch& batch;

  __device__ __forceinline__ BatchedOrder(const Batch& of, int64_t n, int64_t group)
      : each{static_cast<int>(of.rows), static_cast<int>(n), static_cast<int>(group)}, batch(of) {}

  __device__ __forceinline__ int count() const {
    return each.count() * static_cast<int>(batch.count);
  }

  struct Tile : Each::Tile {
    int product;
  };
  __device__ __forceinline__ Tile at(int number) const {
    const int of_each = each.count();
    const int product = number / of_each;
    return {each.at(number - product * of_each), product};
  }
  __device__ __forceinline__ int first_row(const Tile& tile) const {
    return tile.product * static_cast<int>(batch.rows) + tile.row;
  }
  /// Rows of one product have the coordinates of its first one, but the last. That is so since their number
  /// divides the size of the innermost dimension of all rows.
  template <class Rows>
  using Start = typename Rows::Index;
  template <class Rows>
  __device__ __forceinline__ static Start<Rows> start(const Rows& rows, const Tile&, int row) {
    return rows.index(row);
  }
  template <class Rows>
  __device__ __forceinline__ static NearRow<Start<Rows>> index(const Rows&,
                                                               const Start<Rows>& start, int row,
                                                               int below) {
    constexpr int kRank = sizeof(start.at) / sizeof(start.at[0]);
    const int further = row - static_cast<int>(start.row);
    Start<Rows> found = start;
    found.row += further;
    found.at[kRank - 1] += further;
    return {found, static_cast<uint32_t>(below)};
  }
  __device__ __forceinline__ OneOfMany x_of(const Tile& tile) const { return of(tile, 0); }
  __device__ __forceinline__ OneOfMany w_of(const Tile& tile) const { return of(tile, 3); }
  __device__ __forceinline__ static int row_of_w(const Tile& tile) { return tile.col; }
  __device__ __forceinline__ static int apart() { return Each::apart(); }

 private:
  __device__ __forceinline__ OneOfMany of(const Tile& tile, int bit) const {
    int product = tile.product;
    // Computed where it is used: six numbers that are kept for a tile would be spilled.
    asm volatile("" : "+r"(product));
    const int inner = static_cast<int>(batch.sizes[0]), next = static_cast<int>(batch.sizes[1]);
    const int shares = static_cast<int>(batch.shares) >> bit;
    const int rest = product / inner, outer = rest / next;
    return {{shares & 1 ? 0 : product - rest * inner, shares & 2 ? 0 : rest - outer * next,
             shares & 4 ? 0 : outer}};
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
