// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Stores a tile where the STORE ends in a functor of blocks (functor/contract.cuh): each value waits
// for the largest of its block. The tile holds what the functors before that one have made, so they
// run once. The lanes that hold a block exchange by shuffles, and share out its blocks; a row that is
// one block has a reduction of its own.
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

template <class Finish, class Tile>
using OverCall = decltype(any_of<const Finish>().over(any_of<Tile>()));

/// What computes results from a tile whose values nobody reads afterwards.
template <class Finish, class Tile>
FUSEDOPS_HD auto results_over(const Finish& finish, Tile& tile) {
  if constexpr (detected<OverCall, Finish, Tile>()) {
    return finish.over(tile);
  } else {
    return finish;
  }
}

/// Replaces the values of a tile by what the STORE makes of their results, before its last functor;
/// 0 beyond the end of the row.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void make_tile(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                           const Finish& finish) {
  using Compute = typename Tile::Compute;
  const auto result = results_over(finish, tile);
  tile.apply([&](Compute x) { return result(x); });
  rewrite_tile(tile, col, [&](auto width, Compute* values, int64_t at, int) {
    constexpr int N = decltype(width)::value;
    store.make(*reinterpret_cast<Compute(*)[N]>(values), row, at);
  });
  tile.fill_absent(Compute(0));
}

/// Element `at` of an array in registers; `at` need not be a constant.
template <class T, int kCount>
FUSEDOPS_HD T selected(const T (&from)[kCount], int at) {
  T found = from[0];
  FUSEDOPS_UNROLL
  for (int i = 1; i < kCount; ++i) found = i == at ? from[i] : found;
  return found;
}

/// Stores what make_tile has made; found(pack) is what the functor has found of a pack's block.
template <class Tile, class StoreT, class Row, class Found>
FUSEDOPS_HD void store_made(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                            const Found& found) {
  using Compute = typename Tile::Compute;
  rewrite_tile(tile, col, [&](auto width, Compute* values, int64_t at, int pack) {
    constexpr int N = decltype(width)::value;
    store.store_in_block(*reinterpret_cast<Compute(*)[N]>(values), row, at, found(pack));
  });
}

/// The largest number of a tile.
template <class Tile, class StoreT>
FUSEDOPS_HD uint32_t measure_tile(const Tile& tile, const StoreT& store) {
  uint32_t largest = 0;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    largest = larger(largest, store.chain.measure(tile.at[k]));
  }
  return largest;
}

#if defined(FUSEDOPS_CUDA)

/// The largest number of kLanes neighbouring lanes, in each. All lanes of the warp call it.
template <int kLanes>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t number) {
  if constexpr (kLanes == 32) {
    return __reduce_max_sync(0xffffffffu, number);
  } else {
    FUSEDOPS_UNROLL
    for (int step = kLanes / 2; step > 0; step /= 2) {
      number = larger(number, __shfl_xor_sync(0xffffffffu, number, step));
    }
    return number;
  }
}

/// The largest numbers of kCount blocks, of each of which kLanes neighbouring lanes have a number. At
/// each step a lane hands the numbers of half of its blocks to another one, which hands it those of
/// the other half. So the blocks are shared out: a lane ends with kMine of them, and what follows from
/// their largest numbers is computed once. All lanes of the warp call these members.
template <int kLanes, int kCount>
struct SharedBlocks {
  static constexpr int kStep = kLanes / 2;
  static constexpr bool kHalves = kLanes > 1 && kCount > 1;
  static constexpr int kHalf = (kCount + 1) / 2;
  using Half = SharedBlocks<kHalves ? kStep : 1, kHalves ? kHalf : 1>;
  static constexpr int kMine = kHalves ? Half::kMine : kCount;

  __device__ __forceinline__ static void find(uint32_t (&own)[kMine],
                                              const uint32_t (&numbers)[kCount]) {
    if constexpr (kHalves) {
      const bool upper = threadIdx.x & kStep;
      uint32_t half[kHalf];
      FUSEDOPS_UNROLL
      for (int i = 0; i < kHalf; ++i) {
        const uint32_t low = numbers[i], high = kHalf + i < kCount ? numbers[kHalf + i] : 0;
        const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, kStep);
        half[i] = larger(upper ? high : low, got);
      }
      Half::find(own, half);
    } else {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kCount; ++i) own[i] = largest_of_lanes<kLanes>(numbers[i]);
    }
  }
  /// The block of the i-th of this lane's numbers; kCount or more if it has none.
  __device__ __forceinline__ static int block(int i) {
    if constexpr (kHalves) {
      const int of_half = Half::block(i);
      // The first half may be one longer, and what is beyond the end of it is not in the other.
      return of_half < kHalf ? (threadIdx.x & kStep ? kHalf : 0) + of_half : kCount;
    }
    return i;
  }
  /// Of the lanes that have the same blocks, the first.
  __device__ __forceinline__ static bool first() {
    if constexpr (kHalves) return Half::first();
    return threadIdx.x % kLanes == 0;
  }
  /// What the lane that has block k has found of it, in each lane; T consists of words of 32 bits.
  template <class T>
  __device__ __forceinline__ static T of(const T (&own)[kMine], int k) {
    constexpr int kWords = sizeof(T) / 4;  // three have the alignment of no access
    struct Words {
      uint32_t at[kWords];
    };
    const Words words = bit_cast<Words>(own[place(k)]);
    Words found;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kWords; ++i) {
      found.at[i] = kHalves ? __shfl_sync(0xffffffffu, words.at[i], lane(k), kLanes) : words.at[i];
    }
    return bit_cast<T>(found);
  }
  static constexpr FUSEDOPS_HD int lane(int k) {
    if constexpr (kHalves) return k < kHalf ? Half::lane(k) : kStep + Half::lane(k - kHalf);
    return 0;
  }
  static constexpr FUSEDOPS_HD int place(int k) {
    if constexpr (kHalves) return Half::place(k < kHalf ? k : k - kHalf);
    return k;
  }
};

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
    for (int i = 1; i < count; ++i) largest = larger(largest, numbers[i]);
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
  constexpr int kBlocks = (Tile::kPacks + kEach - 1) / kEach;
  using Shared = detail::SharedBlocks<kTogether, kBlocks>;
  if (mine) detail::make_tile(tile, store, row, col, finish);
  uint32_t numbers[kBlocks], largest[Shared::kMine];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const uint32_t own = store.chain.measure(tile.at[k]);
    numbers[k / kEach] = k % kEach == 0 ? own : larger(numbers[k / kEach], own);
  }
  Shared::find(largest, numbers);
  using Found = decltype(store.chain.of_block(row, largest[0]));
  Found own[Shared::kMine], found[kBlocks];
  FUSEDOPS_UNROLL
  for (int i = 0; i < Shared::kMine; ++i) {
    own[i] = store.chain.of_block(row, largest[i]);
    const int block = Shared::block(i);
    const uint32_t first = static_cast<uint32_t>(col) + block * (kEach * Tile::kStride);
    const bool there =
        Tile::kExact || first / kBlock * kBlock < static_cast<uint32_t>(col) + tile.left;
    if (mine && Shared::first() && block < kBlocks && there)
      store.chain.keep(row, first / kBlock, largest[i]);
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < kBlocks; ++k) found[k] = Shared::of(own, k);
  if (!mine) return;
  detail::store_made(tile, store, row, col,
                     [&](int pack) { return detail::selected(found, pack / kEach); });
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
