// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Moves a tile between memory and registers through LOAD and STORE, pack by pack. A complete pack
// is one access of the schedule's width; the end of an odd row is moved in narrower packs.
#pragma once

#include <fusedops/functor/compose.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <int N, bool kRevisit, class LoadT, class Compute, class Row>
FUSEDOPS_HD void load_pack(const LoadT& load, Compute* dst, const Row& row, int64_t col) {
  if constexpr (kRevisit && has_revisit<LoadT, Compute, Row>()) {
    load.template revisit<N>(dst, row, col);
  } else {
    load.template load<N>(dst, row, col);
  }
}

/// Calls f(width, i) for the packs that cover `count` of N elements, from element i on. Packs get
/// narrower towards the end of the row.
template <int N, class F>
FUSEDOPS_HD void walk_tail(int64_t count, int first, const F& f) {
  constexpr int kNext = N > 8 ? 8 : 1;
  int done = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i + kNext <= N; i += kNext) {
    if (i + kNext <= count) {
      f(Width<kNext>{}, first + i);
      done = i + kNext;
    }
  }
  if constexpr (kNext > 1) {
    if (done < count) walk_tail<kNext>(count - done, first + done, f);
  }
}

template <int N, bool kRevisit, class LoadT, class Compute, class Row>
FUSEDOPS_HD void load_tail(const LoadT& load, Compute* dst, const Row& row, int64_t col,
                           int64_t count) {
  walk_tail<N>(count, 0, [&](auto width, int i) {
    load_pack<decltype(width)::value, kRevisit>(load, dst + i, row, col + i);
  });
}

template <int N, class StoreT, class Compute, class Row>
FUSEDOPS_HD void store_tail(StoreT& store, const Compute* src, const Row& row, int64_t col,
                            int64_t count) {
  walk_tail<N>(count, 0, [&](auto width, int i) {
    store.template store<decltype(width)::value>(src + i, row, col + i);
  });
}

}  // namespace detail

/// Calls f(width, column, pack, first element within the pack) for each pack of a tile that lies in
/// the row, narrower ones at its end.
template <class Tile, class F>
FUSEDOPS_HD void walk_tile(const Tile& tile, int64_t col, F f) {
  constexpr int N = Tile::kWidth;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    const int64_t first = col + int64_t(k) * Tile::kStride;
    const int64_t count = tile.count(k);
    if (Tile::kExact || tile.complete(k)) {
      f(Width<N>{}, first, k, 0);
    } else if (!Tile::kWhole && count > 0) {
      detail::walk_tail<N>(count, 0, [&](auto width, int i) { f(width, first + i, k, i); });
    }
  }
}

/// The range of a row's columns that can be unmasked; all of them where the LOAD has no `columns`.
template <class LoadT, class Row>
FUSEDOPS_HD Columns bounds_of(const LoadT& load, const Row& row, int64_t cols) {
  Columns bounds{0, cols};
  if constexpr (detail::bounds<LoadT, Row>()) {
    bounds = load.columns(row);
    if (bounds.end > cols) bounds.end = cols;
    if (bounds.begin > cols) bounds.begin = cols;  // load_tile reads the pack next to it
  }
  return bounds;
}

/// The chunks of a row that overlap its bounds; others are neither loaded nor reduced.
template <class LoadT, class Row>
FUSEDOPS_HD Columns chunks_within(Columns bounds, int64_t chunk, int64_t chunks) {
  Columns within{0, chunks};
  if constexpr (detail::bounds<LoadT, Row>()) {
    within.begin = bounds.begin > 0 ? bounds.begin / chunk : 0;
    within.end = bounds.end > 0 ? (bounds.end + chunk - 1) / chunk : 0;  // within the row
  }
  return within;
}

/// Loads a tile whose first pack begins at `col`. Only packs that can be unmasked are read; all
/// others, within the row or beyond it, are set to `padding`. kBranchless: packs beyond the end of
/// the row are predicated without a branch, so that all loads are in flight together. A LOAD that saves
/// a stream keeps the branch: it is called once for each pack. kByWarp: of a warp that the end of the row
/// cuts, any pack may be beyond it.
template <bool kRevisit, bool kBranchless = false, bool kByWarp = false, class Tile, class LoadT,
          class Row>
FUSEDOPS_HD void load_tile(Tile& tile, const LoadT& load, const Row& row, int64_t col,
                           Columns bounds, typename Tile::Compute padding) {
  constexpr int N = Tile::kWidth;
  constexpr bool kBounds = detail::bounds<LoadT, Row>();
  constexpr bool kSkips = detail::skips<LoadT, Row>();
  constexpr bool kAll = !kBounds && !kSkips;
  constexpr bool kAgain = kBranchless && !detail::saves<LoadT>();
  // The packs next to the bounds, which the functors mask as all beyond.
  const int64_t before = larger<int64_t>(bounds.begin, 0) / N * N - N;
  const int64_t after = larger<int64_t>(bounds.end + N - 1, 0) / N * N;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    const int64_t first = col + int64_t(k) * Tile::kStride;
    const int64_t count = tile.count(k);
    bool wanted = count > 0;
    if constexpr (kBounds) wanted = wanted && first < bounds.end && first + N > bounds.begin;
    if constexpr (kSkips) wanted = wanted && load.template any<N>(row, first);
    if (Tile::kExact && kAll) {
      detail::load_pack<N, kRevisit>(load, tile.at[k], row, first);
    } else if (kBounds && !kSkips && detail::masks_bounds<LoadT>() && k < Tile::kFull) {
      // No branch, so that all loads are in flight together: packs outside of the bounds all read
      // the same masked pack next to the bounds.
      detail::load_pack<N, kRevisit>(load, tile.at[k], row, larger(smaller(first, after), before));
    } else if (kAgain && kAll && Tile::kWhole && (Tile::kFull > 0 || kByWarp)) {
      // Packs beyond the row read the first pack of the thread instead, or that of the row.
      const bool there = tile.complete(k);
      const int64_t other = kByWarp ? 0 : col;
      detail::load_pack<N, kRevisit>(load, tile.at[k], row, there ? first : other);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) tile.at[k][i] = there ? tile.at[k][i] : padding;
    } else if (wanted && tile.complete(k)) {
      detail::load_pack<N, kRevisit>(load, tile.at[k], row, first);
    } else {
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) tile.at[k][i] = padding;
      if (!Tile::kWhole && Tile::kPacks == 1 && wanted) {
        detail::load_tail<N, kRevisit>(load, tile.at[k], row, first, count);
      }
    }
  }
  if constexpr (!Tile::kWhole && Tile::kPacks > 1) {
    // At most one pack is cut by the end of the row: one copy of its code serves all packs.
    const int last = tile.cut();
    const int64_t first = col + int64_t(last) * Tile::kStride;
    bool wanted = last >= 0;
    if constexpr (kBounds) wanted = wanted && first < bounds.end && first + N > bounds.begin;
    if constexpr (kSkips) wanted = wanted && load.template any<N>(row, first);
    if (!wanted) return;
    typename Tile::Compute pack[N];
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) pack[i] = padding;
    detail::load_tail<N, kRevisit>(load, pack, row, first, tile.count(last));
    tile.put(last, pack);
  }
}

/// Prefetches into L2 the packs that a tile of a later row loads.
template <class Tile, class LoadT, class Row>
FUSEDOPS_HD void prefetch_tile(const Tile&, const LoadT& load, const Row& row, int64_t col,
                               int64_t cols) {
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int64_t first = col + int64_t(k) * Tile::kStride;
    if (!Tile::kExact && first >= cols) break;
    load.template prefetch<Tile::kWidth>(row, first);
  }
}

namespace detail {

/// Whether each thread holds the partners of all elements of its tile, where the row is one: those of
/// pack k in the pack half as many packs further, or before.
template <class Tile, class Side>
FUSEDOPS_HD constexpr bool pairs_in_thread() {
  return Tile::kExact && Tile::kPacks % 2 == 0 &&
         distance_of<Side>() == Tile::kStride * (Tile::kPacks / 2);
}
/// The pack of the partners of pack k.
template <class Tile>
FUSEDOPS_HD constexpr int partner_pack(int k) {
  return k < Tile::kPacks / 2 ? k + Tile::kPacks / 2 : k - Tile::kPacks / 2;
}

}  // namespace detail

/// load_tile where each thread holds the partners: every element is read once.
template <class Tile, class LoadT, class Row>
FUSEDOPS_HD void load_tile_of_pairs(Tile& tile, const LoadT& load, const Row& row, int64_t col) {
  constexpr int N = Tile::kWidth;
  typename Tile::Compute read[Tile::kPacks][N];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    load.source.read(read[k], row, col + int64_t(k) * Tile::kStride);
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int other = detail::partner_pack<Tile>(k);
    typename Tile::Compute w[N];
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) {
      tile.at[k][i] = read[k][i];
      w[i] = read[other][i];
    }
    load.chain.paired(tile.at[k], w, row, col + int64_t(k) * Tile::kStride,
                      col + int64_t(other) * Tile::kStride);
  }
}

/// store_tile likewise.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void store_tile_of_pairs(Tile& tile, const StoreT& store, const Row& row, int64_t col,
                                     const Finish& finish) {
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < Tile::kWidth; ++i) tile.at[k][i] = finish(tile.at[k][i]);
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const typename Tile::Compute* other = tile.at[detail::partner_pack<Tile>(k)];
    store.template store_paired<Tile::kWidth>(tile.at[k], other, row,
                                              col + int64_t(k) * Tile::kStride);
  }
}

/// What the STORE gets for the partners of a tile's elements (kPairs), by loading them again. They are
/// all there before the first result is stored, so that y may be x.
template <class Tile, class Others, class LoadT, class StoreT, class Row, class Finish>
FUSEDOPS_HD void load_partners(const Tile& tile, Others& partners, const LoadT& load,
                               const StoreT& store, const Row& row, int64_t col,
                               const Finish& finish) {
  walk_tile(tile, col, [&](auto width, int64_t at, int pack, int first) {
    constexpr int N = decltype(width)::value;
    store.template fetch_partners<N>(partners.at[pack] + first, at, [&](auto& y, int64_t there) {
      constexpr int M = sizeof(y) / sizeof(y[0]);
      detail::load_pack<M, true>(load, static_cast<typename Tile::Compute*>(y), row, there);
      FUSEDOPS_UNROLL
      for (int i = 0; i < M; ++i) y[i] = finish(y[i]);
    });
  });
}

/// Replaces the values of a tile by the row's result and stores them, with those of the partners.
template <class Tile, class Others, class StoreT, class Row, class Finish>
FUSEDOPS_HD void store_tile_paired(Tile& tile, const Others& partners, const StoreT& store,
                                   const Row& row, int64_t col, const Finish& finish) {
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < Tile::kWidth; ++i) tile.at[k][i] = finish(tile.at[k][i]);
  }
  walk_tile(tile, col, [&](auto width, int64_t at, int pack, int first) {
    store.template store_paired<decltype(width)::value>(tile.at[pack] + first,
                                                        partners.at[pack] + first, row, at);
  });
}

/// Replaces the values of a tile by the row's result and stores them.
template <class Tile, class StoreT, class Row, class Finish>
FUSEDOPS_HD void store_tile(Tile& tile, StoreT& store, const Row& row, int64_t col,
                            const Finish& finish) {
  constexpr int N = Tile::kWidth;
  FUSEDOPS_UNROLL
  for (int k = 0; k < tile.packs(); ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) tile.at[k][i] = finish(tile.at[k][i]);
    const int64_t first = col + int64_t(k) * Tile::kStride;
    const int64_t count = tile.count(k);
    if (Tile::kExact || tile.complete(k)) {
      store.template store<N>(tile.at[k], row, first);
    } else if (!Tile::kWhole && Tile::kPacks == 1 && count > 0) {
      detail::store_tail<N>(store, tile.at[k], row, first, count);
    }
  }
  if constexpr (!Tile::kWhole && Tile::kPacks > 1) {
    const int last = tile.cut();
    if (last < 0) return;
    typename Tile::Compute pack[N];
    tile.get(last, pack);
    detail::store_tail<N>(store, pack, row, col + int64_t(last) * Tile::kStride, tile.count(last));
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
