// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Moves a CPU thread's tile between memory and its buffer through LOAD and STORE, pack by pack. The
// end of a row that no pack divides moves in narrower ones.
#pragma once

#include <fusedops/host/tile.cuh>
#include <fusedops/row/fetch.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Calls f(width, place) for pieces, narrower and narrower, of the `count` < 2 * N columns from
/// `place` on.
template <int N, class F>
FUSEDOPS_HD void pieces(int place, int count, F f) {
  if (count & N) {
    f(Width<N>{}, place);
    place += N;
  }
  if constexpr (N > 1) pieces<N / 2>(place, count, f);
}

template <class LoadT>
using ComputesAgainFlag = Flag<LoadT::kComputesAgain>;
template <bool kAgain, class LoadT>
FUSEDOPS_HD constexpr bool computes() {
  if constexpr (kAgain) return flag<flag<true, ComputesFlag, LoadT>(), ComputesAgainFlag, LoadT>();
  return flag<true, ComputesFlag, LoadT>();
}

/// Loads a pack, unless it cannot be unmasked: then it becomes `padding`.
template <int N, bool kAgain, class LoadT, class Compute, class Row>
FUSEDOPS_HD void load_wanted(const LoadT& load, Compute* dst, const Row& row, int64_t col,
                             Columns bounds, Compute padding) {
  bool wanted = true;
  if constexpr (detail::bounds<LoadT, Row>()) wanted = col < bounds.end && col + N > bounds.begin;
  if constexpr (detail::skips<LoadT, Row>()) wanted = wanted && load.template any<N>(row, col);
  if (wanted) {
    load_pack<N, kAgain>(load, dst, row, col);
#if defined(__GNUC__) && !defined(FUSEDOPS_CUDA)
    // A product of the LOAD is rounded before the operator gets it, in both passes: GCC forgets
    // __builtin_assoc_barrier where it vectorizes.
    if constexpr (computes<kAgain, LoadT>()) {
      asm volatile("" : "+m"(*reinterpret_cast<Compute(*)[N]>(dst)));
    }
#endif
  } else {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) dst[i] = padding;
  }
}

/// Calls f(width, place) for all columns of the row that a tile holds, but cut(place) for those of a
/// cut pack where that is a function of its own.
template <class Tile, class F, class Cut>
FUSEDOPS_HD void each_pack(const Tile& tile, F f, Cut cut) {
  constexpr int N = Tile::kPack;
  int place = 0;
  for (; place + N <= tile.left; place += N) f(Width<N>{}, place);
  if constexpr (N > 1) {
    if (place < tile.left) {
      if constexpr (Tile::kApart) {
        cut(place);
      } else {
        pieces<N / 2>(place, tile.left - place, f);
      }
    }
  }
}

/// Loads the `count` columns that a row has of a pack, in pieces.
template <int N, bool kAgain, class LoadT, class Compute, class Row>
FUSEDOPS_APART void load_cut(const LoadT& load, Compute* dst, const Row& row, int64_t col,
                             int count, Columns bounds, Compute padding) {
  pieces<N / 2>(0, count, [&](auto width, int place) {
    load_wanted<decltype(width)::value, kAgain>(load, dst + place, row, col + place, bounds,
                                                padding);
  });
}

/// Turns the `count` columns that a row has of a pack into results and stores them, in pieces.
template <int N, class Compute, class StoreT, class Row, class Finish>
FUSEDOPS_APART void store_cut(const Compute* values, StoreT store, const Row& row, int64_t col,
                              int count, const Finish& finish) {
  pieces<N / 2>(0, count, [&](auto width, int place) {
    constexpr int M = decltype(width)::value;
    Compute result[M];
    FUSEDOPS_VECTOR
    for (int i = 0; i < M; ++i) result[i] = finish(values[place + i]);
    store.template store<M>(result, row, col + place);
  });
}

/// The width of the cut packs of tiles that share functions.
inline constexpr int kSharedPack = 32;

}  // namespace detail

/// Fills a tile whose first column is `col` of the row. Packs that cannot be unmasked are not read:
/// they become `padding`, as does what lies beyond the row.
template <bool kAgain, class Tile, class LoadT, class Row>
FUSEDOPS_HD void load_host_tile(Tile& tile, const LoadT& load, const Row& row, int64_t col,
                                Columns bounds, typename Tile::Compute padding) {
  tile.pad(padding);
  detail::each_pack(
      tile,
      [&](auto width, int place) {
        constexpr int N = decltype(width)::value;
        detail::load_wanted<N, kAgain>(load, tile.at + place, row, col + place, bounds, padding);
      },
      [&](int place) {
        detail::load_cut<detail::kSharedPack, kAgain>(load, tile.at + place, row, col + place,
                                                      tile.left - place, bounds, padding);
      });
}

/// Turns a tile into the row's result and stores it.
template <class Tile, class StoreT, class Row, class Finish, class LoadT>
FUSEDOPS_HD void store_host_tile(Tile& tile, StoreT& store, const Row& row, int64_t col,
                                 const Finish& finish, const LoadT& load) {
  using Compute = typename Tile::Compute;
  if constexpr (detail::pairs<StoreT>()) {
    alignas(64) Compute partners[Tile::kColumns];
    const auto each = [&](const auto& f) {
      detail::each_pack(tile, f, [&](int place) {
        detail::pieces<Tile::kPack / 2>(place, tile.left - place, f);
      });
    };
    each([&](auto width, int place) {
      constexpr int N = decltype(width)::value;
      store.template fetch_partners<N>(partners + place, col + place, [&](auto& y, int64_t there) {
        constexpr int M = sizeof(y) / sizeof(y[0]);
        detail::load_wanted<M, true>(load, static_cast<Compute*>(y), row, there, Columns{},
                                     Compute(0));
        FUSEDOPS_VECTOR
        for (int i = 0; i < M; ++i) y[i] = finish(y[i]);
      });
    });
    each([&](auto width, int place) {
      constexpr int N = decltype(width)::value;
      Compute result[N];
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) result[i] = finish(tile.at[place + i]);
      store.template store_paired<N>(static_cast<const Compute*>(result),
                                     static_cast<const Compute*>(partners + place), row,
                                     col + place);
    });
  } else {
    detail::each_pack(
        tile,
        [&](auto width, int place) {
          constexpr int N = decltype(width)::value;
          Compute result[N];
          FUSEDOPS_VECTOR
          for (int i = 0; i < N; ++i) result[i] = finish(tile.at[place + i]);
          store.template store<N>(result, row, col + place);
        },
        [&](int place) {
          detail::store_cut<detail::kSharedPack, Compute, StoreT>(
              tile.at + place, store, row, col + place, tile.left - place, finish);
        });
  }
}

namespace detail {

/// Calls f(width, place) for the `count` columns from `place` on, in packs of up to kMost.
template <int kMost, class F>
FUSEDOPS_HD void each_part(int place, int count, const F& f) {
  const int end = place + count;
  for (; place + kMost <= end; place += kMost) f(Width<kMost>{}, place);
  if constexpr (kMost > 1) pieces<kMost / 2>(place, end - place, f);
}

/// Replaces the values of a tile by what the STORE makes of their results, before its last functor.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void make_host_tile(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                                const Finish& finish) {
  each_part<Tile::kPack>(0, tile.left, [&](auto width, int place) {
    constexpr int N = decltype(width)::value;
    typename Tile::Compute result[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) result[i] = finish(tile.at[place + i]);
    store.make(result, row, col + place);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) tile.at[place + i] = result[i];
  });
}

template <int kMost, class Tile, class StoreT>
FUSEDOPS_HD uint32_t measure_host(const Tile& tile, const StoreT& store, int place, int count) {
  uint32_t largest = 0;
  each_part<kMost>(place, count, [&](auto width, int at) {
    constexpr int N = decltype(width)::value;
    using Compute = typename Tile::Compute;
    const uint32_t own = store.chain.measure(*reinterpret_cast<const Compute(*)[N]>(tile.at + at));
    largest = own > largest ? own : largest;
  });
  return largest;
}

template <int kMost, class Tile, class StoreT, class Row>
FUSEDOPS_HD void store_host_made(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                                 int place, int count, uint32_t largest) {
  const auto found = store.chain.of_block(row, largest);
  each_part<kMost>(place, count, [&](auto width, int at) {
    constexpr int N = decltype(width)::value;
    typename Tile::Compute result[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) result[i] = tile.at[at + i];
    store.store_in_block(result, row, col + at, found);
  });
}

}  // namespace detail

/// The same where the STORE ends in a functor of kBlock columns.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void store_host_blocks(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                                   const Finish& finish) {
  constexpr int kBlock = detail::block_of<StoreT>();
  constexpr int kMost = Tile::kPack < kBlock ? Tile::kPack : kBlock;
  static_assert(Tile::kColumns % kBlock == 0 || kBlock % Tile::kColumns == 0,
                "blocks of columns do not fit the tile of a CPU");
  detail::make_host_tile(tile, store, row, col, finish);
  for (int place = 0; place < tile.left; place += kBlock) {
    const int count = smaller(tile.left - place, kBlock);
    const uint32_t largest = detail::measure_host<kMost>(tile, store, place, count);
    store.chain.keep(row, (col + place) / kBlock, largest);
    detail::store_host_made<kMost>(tile, store, row, col, place, count, largest);
  }
}

/// Stores a tile by itself: by elements, by blocks of columns, or as a whole row.
template <class Tile, class StoreT, class Row, class Finish, class LoadT>
FUSEDOPS_HD void store_any_host_tile(Tile& tile, StoreT& store, const Row& row, int64_t col,
                                     const Finish& finish, const LoadT& load) {
  if constexpr (detail::block_of<StoreT>() == kNoBlock) {
    store_host_tile(tile, store, row, col, finish, load);
  } else if constexpr (detail::block_of<StoreT>() != kWholeRow) {
    store_host_blocks(tile, store, row, col, finish);
  } else {
    detail::make_host_tile(tile, store, row, col, finish);
    const uint32_t largest = detail::measure_host<Tile::kPack>(tile, store, 0, tile.left);
    store.chain.keep(row, 0, largest);
    detail::store_host_made<Tile::kPack>(tile, store, row, col, 0, tile.left, largest);
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
