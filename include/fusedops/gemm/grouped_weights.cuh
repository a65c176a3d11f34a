// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of the matrices of a grouped product (gemm/groups.cuh): dw = dz.T @ x of each group's rows, and
// zeros for a group without rows. dz and x are the factors, both MN-major, since K is now what goes down
// their rows, and groups differ in it.
//
// The last stage of a group may have rows of the next one, or rows below the last one of all, which copies
// fill with zeros. Tiling::add_first leaves these out.
#pragma once

#include <fusedops/gemm/groups.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The tiles of all groups' products, which are of one size, one group after another: the L2 cache then has
/// the rows of a group.
template <int kTileM, int kTileN>
struct RaggedDepthOrder : TileOrder<kTileM, kTileN> {
  static constexpr bool kRaggedDepth = true;
  using Each = TileOrder<kTileM, kTileN>;
  const GroupTable& table;
  int groups;

  __device__ __forceinline__ RaggedDepthOrder(const Each& each, const GroupTable& rows_of,
                                              int count)
      : Each(each), table(rows_of), groups(count) {}

  __device__ __forceinline__ int count() const { return groups * Each::count(); }

  struct Tile : Each::Tile {
    int of, first, depth;  // the group, its first row in the factors, and how many it has there
  };
  __device__ __forceinline__ Tile at(int number) const {
    const int of_each = Each::count(), of = number / of_each, first = table.rows[of];
    return {Each::at(number - of * of_each), of, first, max(table.rows[of + 1] - first, 0)};
  }
  __device__ __forceinline__ int first_row(const Tile& tile) const {
    return tile.of * Each::rows + tile.row;
  }
};

/// height: the rows of each result, which follow each other.
template <class Tiling, class StoreT, class Rows>
__device__ __forceinline__ void grouped_weights_kernel(const TensorMap& dz, const TensorMap& x,
                                                       const Forward<StoreT>& epilogue,
                                                       const Rows& rows, int64_t n, int64_t height,
                                                       int64_t group, const Groups& groups) {
  using Order = RaggedDepthOrder<Tiling::kTileM, Tiling::kTileN>;
  __shared__ GroupTable table;
  auto make_order = [&] {
    if (threadIdx.x < 32) table.fill(groups, [](int) { return 0; });  // all have as many tiles
    __syncthreads();
    const typename Order::Each each{static_cast<int>(height), static_cast<int>(n),
                                    static_cast<int>(group)};
    return Order(each, table, static_cast<int>(groups.count));
  };
  share_roles<Tiling>(dz, x, epilogue, rows, 0, make_order, NeverMasked{});
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
