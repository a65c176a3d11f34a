// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of the matrices of a grouped product (gemm/groups.cuh): dw = dz.T @ x of each group's rows, and
// zeros for a group without rows. dz and x are the factors, both MN-major, since K is now what goes down
// their rows, and groups differ in it.
//
// The last stage of a group may have rows of the next one, or rows below the last one of all, which copies
// fill with zeros. Tiling::multiply_first leaves these out.
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

/// What one warp that multiplies hands to one that copies: its 16 rows of a tile, rounded. A group may have so
/// few rows that to read and write a tile by packs, as for a STORE, would take longer than its product. Rows
/// lie 16 bytes further apart than they are long, so that eight of them are written to 32 banks at once, and
/// each is one copy.
template <class Tiling>
struct CopiedRows {
  using T = typename Tiling::T;
  static constexpr int kRows = 16, kWarps = 8, kBytes = Tiling::kTileN * 2, kPitch = kBytes + 16;
  /// Of shared memory: the rows of all warps, and their barriers.
  static constexpr int kShared = kWarps * kRows * kPitch + 2 * kWarps * 8;
  static_assert(Tiling::kHalves == 1 && kShared == Tiling::kScratch, "beside the stages");

  uint32_t rows;
  StageBarrier* full;
  StageBarrier* empty;

  /// Those of the nth warp that multiplies.
  __device__ __forceinline__ CopiedRows(char* memory, int nth)
      : rows(detail::shared_address(memory) + nth * kRows * kPitch),
        full(reinterpret_cast<StageBarrier*>(memory + kWarps * kRows * kPitch) + nth),
        empty(full + kWarps) {}

  /// By one thread, before barriers are made visible.
  __device__ __forceinline__ static void make(char* memory) {
    for (int i = 0; i < kWarps; ++i) {
      const CopiedRows one(memory, i);
      one.full->make(1);
      one.empty->make(1);
    }
  }

  /// By all lanes of the warp that multiplies: waits until the last sums have been copied.
  __device__ __forceinline__ void write(const typename Tiling::Sums& sums, uint32_t parity) const {
    constexpr int kAcross = Tiling::kAcross, kRegisters = Tiling::kTileN / kAcross / 2;
    const int lane = lane_of_warp();
    const uint32_t to = rows + lane % 16 * kPitch + lane / 16 * 16;
    empty->wait(parity ^ 1);
    FUSEDOPS_UNROLL
    for (int a = 0; a < kAcross; ++a) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kRegisters; j += 8) {  // of 16 columns
        const float* of = sums[a] + j;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + (a * kRegisters + j) * 4),
                     "r"(pair_of<T>(of[0], of[1])), "r"(pair_of<T>(of[2], of[3])),
                     "r"(pair_of<T>(of[4], of[5])), "r"(pair_of<T>(of[6], of[7]))
                     : "memory");
      }
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) full->arrive();
  }
  /// The same of a group without rows.
  __device__ __forceinline__ void write_zeros(uint32_t parity) const {
    typename Tiling::Sums zeros;
    FUSEDOPS_UNROLL
    for (auto& sum : zeros) set_zero(sum);
    write(zeros, parity);
  }
  /// By all lanes of the warp that copies: to rows that are `cols` numbers apart.
  __device__ __forceinline__ void copy(T* to, int64_t cols, uint32_t parity) const {
    const int lane = lane_of_warp();
    full->wait(parity);
    if (lane < kRows) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                       __cvta_generic_to_global(to + lane * cols)),
                   "r"(rows + lane * kPitch), "n"(kBytes)
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncwarp();
    if (lane == 0) empty->arrive();
  }
};

/// The role of a warp that copies, the nth of four, to y, whose rows have `cols` numbers.
template <class Tiling, class Order>
__device__ __forceinline__ void copy_rows(const typename Tiling::Ring& ring, const Order& order,
                                          typename Tiling::T* y, int64_t cols, int nth) {
  const int tiles = order.count(), clusters = gridDim.x / 2;
  uint32_t parity = 0;
  for (int t = blockIdx.x / 2; t < tiles; t += clusters, parity ^= 1) {
    const auto tile = order.at(t);
    const int row = order.first_row(tile) + nth * CopiedRows<Tiling>::kRows;
#pragma unroll 1
    for (int group = 0; group < 2; ++group) {
      const CopiedRows<Tiling> from(ring.scratch(), group * 4 + nth);
      from.copy(y + (row + group * 64) * cols + tile.col, cols, parity);
    }
  }
}

/// height: the rows of each result, which follow each other in y.
template <class Tiling, class Output, class Rows>
__device__ __forceinline__ void grouped_weights_kernel(const TensorMap& dz, const TensorMap& x,
                                                       const Output& y, const Rows&, int64_t n,
                                                       int64_t height, int64_t group,
                                                       const Groups& groups) {
  extern __shared__ __align__(16) char memory[];
  __shared__ GroupTable table;
  typename Tiling::Ring ring(memory);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) CopiedRows<Tiling>::make(ring.scratch());
  ring.begin();
  if (warp == 0) table.fill(groups, [](int) { return 0; });  // all have as many tiles
  __syncthreads();
  using Order = RaggedDepthOrder<Tiling::kTileM, Tiling::kTileN>;
  const Order order({static_cast<int>(height), static_cast<int>(n), static_cast<int>(group)}, table,
                    static_cast<int>(groups.count));
  if (warp < 4) {
    set_registers<Tiling, 32>();
    if (warp == 0) produce<Tiling>(ring, order, dz, x, 0, NoBias{}, NeverMasked{});
  } else if (warp < 12) {
    set_registers<Tiling, Tiling::kRegisters>();
    const CopiedRows<Tiling> to(ring.scratch(), warp - 4);
    multiply<Tiling>(ring, order, 0, NoBias{}, NeverMasked{}, NoScales{}, warp / 4 - 1, to);
  } else {
    copy_rows<Tiling>(ring, order, y.data, n, warp - 12);
  }
  ring.end();
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
