// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Products of groups of rows, each with a matrix of its own, as of experts. The rows of all groups follow
// each other in x; where each ends is known on the device alone. So each block finds out which tiles there
// are, and looks a tile's group up by bisection.
//
// A tile belongs to one group. It may read rows behind those of its group, and writes none of them.
#pragma once

#include <fusedops/gemm/kernel.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The words of a kernel's argument that say where groups are.
struct Groups {
  enum Form : int64_t { kCounts = 1, kLong = 2, kEnds = 4 };
  /// Where each group begins and the last one ends, or (kEnds) where each ends, or (kCounts) its rows.
  const void* data;
  int64_t rows, count, form;  // kLong: integers of 64 bits, else of 32

  __device__ __forceinline__ int64_t read(int at) const {
    if (form & kLong) return static_cast<const int64_t*>(data)[at];
    return static_cast<const int32_t*>(data)[at];
  }
};

/// Where groups, and the pairs of tiles of each, begin: in shared memory.
struct GroupTable {
  static constexpr int kMost = 256;
  int rows[kMost + 1], tiles[kMost + 1];

  /// By one warp; tiles_of(rows) counts pairs of tiles. Rows before the first offset are the first group's,
  /// and those after the last one the last group's. No offset makes a tile that leaves x.
  template <class Tiles>
  __device__ __forceinline__ void fill(const Groups& groups, const Tiles& tiles_of) {
    constexpr int kEach = kMost / 32;
    const int lane = lane_of_warp(), first = lane * kEach, count = static_cast<int>(groups.count);
    const bool counts = groups.form & Groups::kCounts;
    const int next = groups.form & (Groups::kCounts | Groups::kEnds) ? 0 : 1;
    int64_t ends[kEach], sum = 0;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      ends[i] = first + i < count ? groups.read(first + i + next) : 0;
      if (counts) ends[i] = sum += ends[i];
    }
    if (counts) {
      const int64_t before = sum_before(sum);
      FUSEDOPS_UNROLL
      for (int i = 0; i < kEach; ++i) ends[i] += before;
    }
    if (lane == 0) rows[0] = 0;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      if (first + i + 1 >= count || ends[i] > groups.rows) ends[i] = groups.rows;
      rows[first + i + 1] = ends[i] < 0 ? 0 : static_cast<int>(ends[i]);
    }
    __syncwarp();
    int pairs[kEach], total = 0;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kEach; ++i) {
      pairs[i] = total;
      total += tiles_of(max(rows[first + i + 1] - rows[first + i], 0));
    }
    const int before = sum_before(total);
    FUSEDOPS_UNROLL
    for (int i = 0; i < kEach; ++i) tiles[first + i] = before + pairs[i];
    if (lane == 31) tiles[kMost] = before + total;
  }

 private:
  /// The sum of what lower lanes have.
  template <class Number>
  __device__ __forceinline__ static Number sum_before(Number mine) {
    Number sum = mine;
    FUSEDOPS_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const Number below = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane_of_warp() >= step) sum += below;
    }
    return sum - mine;
  }
};

/// A row of x: its coordinates are its group and its number, so that an operand by group and one by row are
/// read in the same way. other: a pack of the product's other half.
struct RowOfGroup : GuardedRow<NearRow<RowIndex<2>>> {
  uint32_t other[kPack / 2];
};

/// An operand that is the other half of the product's columns, in the factors' type.
template <class T>
struct OtherHalf {
  uint64_t unused;

  template <int N, class Compute, class Row>
  __device__ __forceinline__ Values<Compute, N> fetch(const Row& row, int64_t) const {
    static_assert(N == kPack, "a pack of an epilogue");
    Values<Compute, N> values;
    FUSEDOPS_UNROLL
    for (int i = 0; i < N / 2; ++i) {
      from_pair<T>(row.other[i], values.at[2 * i], values.at[2 * i + 1]);
    }
    return values;
  }
};

/// Where the rows of a result go: where those of x are; or each to a row of its own.
struct AsRead {};
struct Moved {
  const int64_t* to;
};

/// The tiles of all groups, one group after another. With halves, a tile has as many columns of either.
template <int kTileM, int kTileN, Halves kHalves_, class Places = AsRead>
struct GroupedOrder {
  static constexpr bool kRagged = true, kRaggedDepth = false;
  static constexpr Halves kHalves = kHalves_;
  using Each = TileOrder<kTileM, kHalves == Halves::kNone ? kTileN : kTileN / 2>;
  const GroupTable& table;
  int groups, rows, cols, group;  // cols: of the result
  Places places;

  __device__ __forceinline__ int count() const { return table.tiles[groups]; }

  struct Tile {
    int row, col, end, of;  // end: of the tile's rows in its group; of: the group
  };
  __device__ __forceinline__ Tile at(int number) const {
    int low = 0, high = groups;
    asm volatile("" : "+r"(number), "+r"(high));
    while (high - low > 1) {  // an empty group begins where the next one does
      const int middle = (low + high) / 2;
      (table.tiles[middle] <= number ? low : high) = middle;
    }
    const int begin = table.rows[low], end = table.rows[low + 1];
    const auto tile = Each{end - begin, cols, group}.at(number - table.tiles[low]);
    // Few rows are shared by both blocks: then one warpgroup of each has some.
    const int rank = rank_in_cluster(), first = begin + tile.new_row - rank * kTileM;
    const int each = end - first > kTileM ? kTileM : kTileM / 2, row = first + rank * each;
    return {row, tile.col, min(end, row + each), low};
  }
  /// The warpgroups that have rows of the tile, 64 each.
  __device__ __forceinline__ static int parts(const Tile& tile) {
    return (max(tile.end - tile.row, 0) + 63) / 64;
  }
  __device__ __forceinline__ int first_row(const Tile& tile) const { return tile.row; }
  template <class Rows>
  struct Start {
    int of, end, last;
    Places places;
  };
  template <class Rows>
  __device__ __forceinline__ Start<Rows> start(const Rows&, const Tile& tile, int) const {
    return {tile.of, tile.end, rows - 1, places};
  }
  /// Where it is none of the tile's rows, it is one that can be read.
  template <class Rows>
  __device__ __forceinline__ static RowOfGroup index(const Rows&, const Start<Rows>& start, int row,
                                                     int below) {
    int from = min(row, start.last), down = min(below, start.last - from);
    if constexpr (detail::IsSame<Places, Moved>::value) {
      from = static_cast<int>(start.places.to[from + down]);
      down = 0;
    }
    const RowIndex<2> first{from, {uint32_t(start.of), uint32_t(from)}};
    RowOfGroup found;
    static_cast<NearRow<RowIndex<2>>&>(found) = {first, uint32_t(down)};
    found.inside = row + below < start.end;
    return found;
  }
  __device__ __forceinline__ static OneProduct x_of(const Tile&) { return {}; }
  __device__ __forceinline__ static OneOfMany w_of(const Tile& tile) { return {{tile.of, 0, 0}}; }
  __device__ __forceinline__ static int row_of_w(const Tile& tile) {
    return kHalves == Halves::kBetween ? 2 * tile.col : tile.col;
  }
  __device__ __forceinline__ int apart() const {
    return kHalves == Halves::kBelow ? cols : kTileN / 2;
  }
};

/// The product is not written.
struct NotKept {};

/// Runs a STORE and writes the product as well, which its gradient reads. z: where to; cols: the columns of y.
template <Halves kHalves, class StoreT, class View>
struct Keeping : Forward<StoreT> {
  const View& z;
  int64_t cols;

  __device__ __forceinline__ Keeping(const Forward<StoreT>& forward, const View& product, int64_t n)
      : Forward<StoreT>(forward), z(product), cols(n) {}

  template <class PacksT>
  __device__ __forceinline__ void run(PacksT& packs) const {
    FUSEDOPS_UNROLL
    for (int p = 0; p < PacksT::kCount; ++p) {
      const auto& values = packs.values[p];
      if constexpr (kHalves == Halves::kNone) {
        z.write(values, packs.rows[p], packs.col);
      } else {
        const OtherHalf<typename View::Element> half{};
        const auto other = half.template fetch<kPack, float>(packs.rows[p], packs.col);
        if constexpr (kHalves == Halves::kBelow) {
          z.write(values, packs.rows[p], packs.col);
          z.write(other.at, packs.rows[p], cols + packs.col);
        } else {
          float both[2][kPack];
          FUSEDOPS_UNROLL
          for (int i = 0; i < kPack; ++i) {
            both[i / 4][i % 4 * 2] = values[i];
            both[i / 4][i % 4 * 2 + 1] = other.at[i];
          }
          z.write(both[0], packs.rows[p], 2 * packs.col);
          z.write(both[1], packs.rows[p], 2 * packs.col + kPack);
        }
      }
    }
    Forward<StoreT>::run(packs);
  }
};

template <class Tiling, Halves kHalves, class StoreT, class Rows, class View = NotKept,
          class Places = AsRead>
__device__ __forceinline__ void grouped_product_kernel(const TensorMap& x, const TensorMap& w,
                                                       const Forward<StoreT>& epilogue,
                                                       const Rows& rows, int64_t n, int64_t k,
                                                       int64_t group, const Groups& groups,
                                                       const View& z = {},
                                                       const Places& places = {}) {
  using Order = GroupedOrder<Tiling::kTileM, Tiling::kTileN, kHalves, Places>;
  __shared__ GroupTable table;
  auto make_order = [&] {
    const int cols = static_cast<int>(n), height = static_cast<int>(group);
    if (threadIdx.x < 32) {
      table.fill(groups, [&](int of) { return typename Order::Each{of, cols, height}.count(); });
    }
    __syncthreads();
    return Order{table, static_cast<int>(groups.count), static_cast<int>(groups.rows), cols, height,
                 places};
  };
  if constexpr (detail::IsSame<View, NotKept>::value) {
    share_roles<Tiling>(x, w, epilogue, rows, k, make_order, NeverMasked{});
  } else {
    const Keeping<kHalves, StoreT, View> keeping(epilogue, z, n);
    share_roles<Tiling>(x, w, keeping, rows, k, make_order, NeverMasked{});
  }
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
