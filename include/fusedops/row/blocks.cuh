// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Stores a tile where the STORE ends in a functor of blocks (functor/contract.cuh): each value waits
// for the largest of its block. The tile holds what the functors before that one have made, so they
// run once. The lanes that hold a block exchange by shuffles; a row that is one block has a reduction
// of its own.
#pragma once

#include <fusedops/core/cluster.cuh>
#include <fusedops/row/fetch.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Calls f(width, values, column, pack) for what the row holds of each pack of a tile. f may rewrite
/// the values.
template <class Tile, class F>
FUSEDOPS_HD void rewrite_tile(Tile& tile, int64_t col, const F& f) {
  constexpr int N = Tile::kWidth;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    const int64_t first = col + int64_t(k) * Tile::kStride;
    if (Tile::kExact || tile.complete(k)) {
      f(Width<N>{}, tile.at[k], first, k);
    } else if (!Tile::kWhole && Tile::kPacks == 1 && tile.count(k) > 0) {
      walk_tail<N>(tile.count(k), 0,
                   [&](auto width, int i) { f(width, tile.at[k] + i, first + i, k); });
    }
  }
  if constexpr (!Tile::kWhole && Tile::kPacks > 1) {
    const int last = tile.cut();
    if (last < 0) return;
    typename Tile::Compute pack[N];
    tile.get(last, pack);
    const int64_t first = col + int64_t(last) * Tile::kStride;
    walk_tail<N>(tile.count(last), 0,
                 [&](auto width, int i) { f(width, pack + i, first + i, last); });
    tile.put(last, pack);
  }
}

/// Replaces the values of a tile by what the STORE makes of their results, before its last functor;
/// 0 beyond the end of the row.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void make_tile(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                           const Finish& finish) {
  using Compute = typename Tile::Compute;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < Tile::kWidth; ++i) tile.at[k][i] = finish(tile.at[k][i]);
  }
  rewrite_tile(tile, col, [&](auto width, Compute* values, int64_t at, int) {
    constexpr int N = decltype(width)::value;
    store.make(*reinterpret_cast<Compute(*)[N]>(values), row, at);
  });
  tile.fill_absent(Compute(0));
}

/// Of numbers of each pack, that of pack k, which need not be a constant.
template <int kPacks>
FUSEDOPS_HD uint32_t of_pack(const uint32_t (&numbers)[kPacks], int pack) {
  uint32_t found = numbers[0];
  FUSEDOPS_UNROLL
  for (int k = 1; k < kPacks; ++k) found = k == pack ? numbers[k] : found;
  return found;
}

/// Stores what make_tile has made, the largest of each pack's block being known.
template <class Tile, class StoreT, class Row>
FUSEDOPS_HD void store_made(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                            const uint32_t (&largest)[Tile::kPacks]) {
  using Compute = typename Tile::Compute;
  rewrite_tile(tile, col, [&](auto width, Compute* values, int64_t at, int pack) {
    constexpr int N = decltype(width)::value;
    store.store_in_block(*reinterpret_cast<Compute(*)[N]>(values), row, at, of_pack(largest, pack));
  });
}

/// The largest number of a tile.
template <class Tile, class StoreT>
FUSEDOPS_HD uint32_t measure_tile(const Tile& tile, const StoreT& store) {
  uint32_t largest = 0;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    const uint32_t own = store.chain.measure(tile.at[k]);
    largest = own > largest ? own : largest;
  }
  return largest;
}

#if defined(FUSEDOPS_CUDA)

/// The largest number of kLanes neighbouring lanes, in each. All lanes of the warp call it.
template <int kLanes>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t number) {
  FUSEDOPS_UNROLL
  for (int step = kLanes / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, number, step);
    number = other > number ? other : number;
  }
  return number;
}

/// The largest number of all threads of a row, in each. Every thread of the row's blocks calls it, for
/// each of its rows.
template <class Schedule>
class LargestOfRow {
 public:
  __device__ __forceinline__ uint32_t of(uint32_t number) {
    number = largest_of_lanes<Schedule::kLanes>(number);
    if constexpr (Schedule::kGroups > 1) {
      __shared__ uint32_t parts[2][Schedule::kGroups];
      if (threadIdx.x % 32 == 0) parts[turn_][threadIdx.x / 32] = number;
      __syncthreads();
      number = largest_of(parts[turn_], Schedule::groups());
      turn_ ^= 1;  // whoever is late still reads the other half
    }
    if constexpr (Schedule::kBlocks > 1) {
      __shared__ uint32_t of_blocks[Schedule::kBlocks];
      cluster_arrive();  // all blocks have read those of the row before
      cluster_wait();
      if (threadIdx.x < Schedule::kBlocks) {
        write_in_block(&of_blocks[Schedule::rank(blockIdx.x)], number,
                       static_cast<int>(threadIdx.x));
      }
      cluster_arrive_released();
      cluster_wait();
      number = largest_of(of_blocks, Schedule::kBlocks);
    }
    return number;
  }

 private:
  __device__ __forceinline__ static uint32_t largest_of(const uint32_t* numbers, int count) {
    uint32_t largest = numbers[0];
    for (int i = 1; i < count; ++i) largest = numbers[i] > largest ? numbers[i] : largest;
    return largest;
  }
  int turn_ = 0;
};

#endif  // FUSEDOPS_CUDA

}  // namespace detail

#if defined(FUSEDOPS_CUDA)

/// Stores a tile, as store_tile does, where the STORE ends in a functor of kBlock columns. All lanes
/// of a warp call it together, also those that have no row (`mine`); kLanes of them have one row.
template <int kLanes, class Tile, class StoreT, class Row, class Finish>
__device__ __forceinline__ void store_blocks(Tile& tile, const StoreT& store, const Row& row,
                                             int64_t col, const Finish& finish, bool mine) {
  constexpr int kBlock = detail::block_of<StoreT>();
  constexpr int kSpan = kLanes * Tile::kWidth;  // of a pack of each lane
  static_assert(
      kBlock % Tile::kWidth == 0 &&
          (kSpan % kBlock == 0 || (kBlock % kSpan == 0 && kSpan == Tile::kStride)),
      "fusedops: the lanes that share a block of columns are neighbours: this tile's packs "
      "are too narrow for it, or too wide");
  constexpr int kTogether = kSpan < kBlock ? kLanes : kBlock / Tile::kWidth;
  constexpr int kEach = kSpan < kBlock ? kBlock / kSpan : 1;  // packs of a lane in a block
  if (mine) detail::make_tile(tile, store, row, col, finish);
  uint32_t largest[Tile::kPacks];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; k += kEach) {
    uint32_t number = 0;
    FUSEDOPS_UNROLL
    for (int j = k; j < k + kEach && j < Tile::kPacks; ++j) {
      const uint32_t own = store.chain.measure(tile.at[j]);
      number = own > number ? own : number;
    }
    number = detail::largest_of_lanes<kTogether>(number);
    FUSEDOPS_UNROLL
    for (int j = k; j < k + kEach && j < Tile::kPacks; ++j) largest[j] = number;
    const int64_t first = col + int64_t(k) * Tile::kStride;
    if (mine && tile.count(k) > 0 && first % kBlock == 0)
      store.chain.keep(row, first / kBlock, number);
  }
  if (mine) detail::store_made(tile, store, row, col, largest);
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
