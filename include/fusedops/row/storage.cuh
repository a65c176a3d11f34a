// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a row is kept between its reduction and its result. All storages hold the same tiles and
// reduce them in the same order, so the choice never changes a bit of the result.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/memory.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// In registers: a block's share of the row is one tile.
struct InRegisters {
  static constexpr bool kOneTile = true;
  static constexpr bool kRevisits = false;
};

/// In registers, where chunks of a row do not know of one another: each has a block of its own, and
/// there may be any number of them.
struct InChunks {
  static constexpr bool kOneTile = true;
  static constexpr bool kRevisits = false;
  static constexpr bool kApart = true;
};

/// In shared memory, in the compute type. A thread reads only what it wrote, so no barrier is
/// needed; neighbouring threads access neighbouring 16-byte words, without bank conflicts.
struct InShared {
  static constexpr bool kOneTile = false;
  static constexpr bool kRevisits = false;

  /// Bytes of shared memory per chunk of a block's rows.
  template <class Schedule, class Compute>
  FUSEDOPS_HD static constexpr int64_t chunk_bytes() {
    return int64_t(Schedule::kRows) * Schedule::kTile * int64_t(sizeof(Compute));
  }

  template <int kThreads, class Tile>
  FUSEDOPS_HD static void put(char* memory, const Tile& tile, int64_t chunk, int thread) {
    each<kThreads, Tile>(memory, chunk, thread, [&](auto* words, int k, int j) {
      using Words = Pack<typename Tile::Compute, kWords<Tile>>;
      Words pack;
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWords<Tile>; ++i) pack.at[i] = tile.at[k][j * kWords<Tile> + i];
      *words = pack;
    });
  }

  template <int kThreads, class Tile>
  FUSEDOPS_HD static void get(char* memory, Tile& tile, int64_t chunk, int thread) {
    each<kThreads, Tile>(memory, chunk, thread, [&](auto* words, int k, int j) {
      const auto pack = *words;
      FUSEDOPS_UNROLL
      for (int i = 0; i < kWords<Tile>; ++i) tile.at[k][j * kWords<Tile> + i] = pack.at[i];
    });
  }

 private:
  template <class Tile>
  static constexpr int kWords =
      static_cast<int>(smaller<int>(16 / sizeof(typename Tile::Compute), Tile::kWidth));

  template <int kThreads, class Tile, class F>
  FUSEDOPS_HD static void each(char* memory, int64_t chunk, int thread, F f) {
    using Words = Pack<typename Tile::Compute, kWords<Tile>>;
    constexpr int kPerPack = Tile::kWidth / kWords<Tile>;
    Words* words =
        reinterpret_cast<Words*>(memory) + chunk * (Tile::kPacks * kPerPack * kThreads) + thread;
    FUSEDOPS_UNROLL
    for (int k = 0; k < Tile::kPacks; ++k) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kPerPack; ++j) f(words + (k * kPerPack + j) * kThreads, k, j);
    }
  }
};

/// Nowhere: the row is read twice, for its reduction and for its result.
struct Streamed {
  static constexpr bool kOneTile = false;
  static constexpr bool kRevisits = true;
};

namespace detail {

template <class Storage>
using ApartFlag = Flag<Storage::kApart>;

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
