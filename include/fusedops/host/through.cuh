// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A gradient's way through a CPU thread's tile: row/through.cuh. The operator's own arithmetic runs
// over whole packs, padding included; only what the functors do stops at the end of the row.
#pragma once

#include <fusedops/host/fetch.cuh>
#include <fusedops/op/check.cuh>
#include <fusedops/row/through.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <int N, int M>
FUSEDOPS_HD MaskedElements<N> piece_of(const MaskedElements<M>& all, int offset) {
  if constexpr (N == M) {
    return all;
  } else {
    MaskedElements<N> piece;
    for (int i = 0; i < N; ++i) piece.at[i] = all.at[offset + i];
    return piece;
  }
}

/// Calls f(width, offset) for what the row holds of a pack: all of it, or pieces of its first columns.
template <int N>
struct WholePack {
  template <class F>
  FUSEDOPS_HD void each(F f) const {
    f(Width<N>{}, 0);
  }
};
template <int N>
struct CutPack {
  int count;
  template <class F>
  FUSEDOPS_HD void each(F f) const {
    pieces<N / 2>(0, count, f);
  }
};

/// One pack of values and of gradients back through the STORE.
template <class Op, bool kMasks, int N, class Compute, class Pack, class StoreT, class Row,
          class Sinks, class Lane, class Others>
FUSEDOPS_HD void host_pack_through_store(Compute (&v)[N], Compute (&g)[N], const Pack& pack,
                                         int place, const typename Op::Row& known,
                                         const StoreT& store, const Row& row, int64_t col,
                                         Sinks& sinks, const Lane& lane, const Visit& visit,
                                         const Others& others) {
  MaskedElements<N> masked;
  make_results<Op>(v, known, masked);
  pack.each([&](auto width, int offset) {
    constexpr int M = decltype(width)::value;
    PackSink<Sinks, Lane> sink{sinks, lane, visit, 0, place + offset};
    back_through_store<Op>(values_at<M>(g + offset), values_at<M>(v + offset), store, row,
                           col + place + offset, sink, piece_of<M>(masked, offset), others);
  });
  select_masked<Op, kMasks>(v, g, masked);
}

/// The same of a pack that the end of a row cuts, in a function of its own; what lies beyond becomes
/// zero.
template <class Op, bool kMasks, int N, class Compute, class StoreT, class Row, class Sinks,
          class Lane, class Others>
FUSEDOPS_APART void host_cut_through_store(Compute (&v)[N], Compute (&g)[N], int count, int place,
                                           const typename Op::Row& known, const StoreT& store,
                                           const Row& row, int64_t col, Sinks& sinks,
                                           const Lane& lane, const Visit& visit,
                                           const Others& others) {
  host_pack_through_store<Op, kMasks>(v, g, CutPack<N>{count}, place, known, store, row, col, sinks,
                                      lane, visit, others);
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) {
    const Compute result = v[i];
    v[i] = i < count ? result : Compute(0);
  }
}

/// One pack of gradients back through the LOAD.
template <class Op, bool kMasks, int N, class Compute, class Pack, class Finish, class LoadT,
          class To, class Row, class Sinks, class Lane, class Others>
FUSEDOPS_HD void host_pack_through_load(const Compute* y, const Compute* of_y, const Pack& pack,
                                        int place, const Finish& finish, const LoadT& load,
                                        const To& to, const Row& row, int64_t col, Sinks& sinks,
                                        const Lane& lane, const Visit& visit,
                                        const Others& others) {
  Compute g[N];
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) g[i] = finish(y[i], of_y[i]);
  pack.each([&](auto width, int offset) {
    constexpr int M = decltype(width)::value;
    PackSink<Sinks, Lane> sink{sinks, lane, visit, 0, place + offset};
    back_through_load<Op, kMasks>(values_at<M>(g + offset), y + offset, finish, load, to, row,
                                  col + place + offset, sink, others);
  });
}

/// The same of a pack that the end of a row cuts, in a function of its own.
template <class Op, bool kMasks, int N, class Compute, class Finish, class LoadT, class To,
          class Row, class Sinks, class Lane, class Others>
FUSEDOPS_APART void host_cut_through_load(const Compute* y, const Compute* of_y, int count,
                                          int place, const Finish& finish, const LoadT& load,
                                          const To& to, const Row& row, int64_t col, Sinks& sinks,
                                          const Lane& lane, const Visit& visit,
                                          const Others& others) {
  host_pack_through_load<Op, kMasks, N>(y, of_y, CutPack<N>{count}, place, finish, load, to, row,
                                        col, sinks, lane, visit, others);
}

/// Loads the `count` columns that a row has of a pack of values and of one of gradients, in pieces.
template <int N, class LoadT, class Along, class Compute, class Row>
FUSEDOPS_APART void load_cut_of_both(const LoadT& load, const Along& along, Compute* value,
                                     Compute* gradient, const Row& row, int64_t col, int count,
                                     Columns bounds, Compute padding) {
  pieces<N / 2>(0, count, [&](auto width, int place) {
    constexpr int M = decltype(width)::value;
    load_wanted<M, true>(load, value + place, row, col + place, bounds, padding);
    load_wanted<M, false>(along, gradient + place, row, col + place, bounds, Compute(0));
  });
}

}  // namespace detail

/// Loads what the row's last pack holds of it, in pieces, where the row ends within a pack, and pads
/// both tiles: with the operator's padding and with zeros. It comes well before the pack is used,
/// since a processor that reads a vector has to wait until pieces of it have been written.
template <class Op, class Tile, class LoadT, class Along, class Row>
FUSEDOPS_HD void host_load_cut(Tile& value, Tile& gradient, const LoadT& load, const Along& along,
                               const Row& row, int64_t col, Columns bounds) {
  using Compute = typename Op::Compute;
  constexpr int N = Tile::kPack;
  const int cut = value.left / N * N;
  const bool cuts = cut < value.left;
  FUSEDOPS_UNROLL
  for (int begin = cut; begin < value.size(); begin += N) {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      value.at[begin + i] = cuts && begin == cut ? Op::padding_value() : Compute(0);
      gradient.at[begin + i] = 0;
    }
  }
  if constexpr (Tile::kApart) {
    if (!cuts) return;
    detail::load_cut_of_both<detail::kSharedPack>(load, along, value.at + cut, gradient.at + cut,
                                                  row, col + cut, value.left - cut, bounds,
                                                  Compute(Op::padding_value()));
  } else if constexpr (N > 1) {
    detail::pieces<N / 2>(cut, value.left - cut, [&](auto width, int place) {
      constexpr int M = decltype(width)::value;
      detail::load_wanted<M, true>(load, value.at + place, row, col + place, bounds,
                                   Op::padding_value());
      detail::load_wanted<M, false>(along, gradient.at + place, row, col + place, bounds,
                                    Compute(0));
    });
  }
}

/// The columns that come next: a row, and its column that has the place of the tile's first. A
/// processor fetches ahead by itself within a page of memory, and rows begin new ones.
template <class Row>
struct HostAhead {
  Row row;
  int64_t col;
};

/// Loads the values of a tile and, beside them, the gradient of what was stored, but for the pack
/// that host_load_cut has loaded, and takes both back through the STORE (row/through.cuh), a pack at
/// a time. Beyond the row both tiles become zero.
template <class Op, bool kMasks, class Tile, class LoadT, class Along, class StoreT, class Row,
          class Sinks, class Lane, class Others>
FUSEDOPS_HD void host_through_store(Tile& value, Tile& gradient, const LoadT& load,
                                    const Along& along, const typename Op::Row& known,
                                    const StoreT& store, const Row& row, int64_t col,
                                    Columns bounds, const HostAhead<Row>& ahead, Sinks& sinks,
                                    const Lane& lane, const Visit& visit, const Others& others) {
  using Compute = typename Op::Compute;
  constexpr int N = Tile::kPack;
  const int left = value.left;
  int place = 0;
  for (; place + N <= left; place += N) {
    if constexpr (!Tile::kAlways) {  // short rows share pages
      load.template prefetch<N>(ahead.row, ahead.col + place);
      along.view.template prefetch<N>(ahead.row, ahead.col + place);
    }
    Compute v[N], g[N];  // in registers
    if constexpr (detail::uses_values<Op, StoreT>()) {
      detail::load_wanted<N, true>(load, v, row, col + place, bounds, Op::padding_value());
    } else {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) v[i] = 0;
    }
    detail::load_wanted<N, false>(along, g, row, col + place, bounds, Compute(0));
    detail::host_pack_through_store<Op, kMasks>(v, g, detail::WholePack<N>{}, place, known, store,
                                                row, col, sinks, lane, visit, others);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      value.at[place + i] = v[i];
      gradient.at[place + i] = g[i];
    }
  }
  if (place == left) return;
  Compute(&v)[N] = detail::values_at<N>(value.at + place);
  if constexpr (Tile::kApart) {
    detail::host_cut_through_store<Op, kMasks>(v, detail::values_at<N>(gradient.at + place),
                                               left - place, place, known, store, row, col, sinks,
                                               lane, visit, others);
    return;
  }
  detail::host_pack_through_store<Op, kMasks>(v, detail::values_at<N>(gradient.at + place),
                                              detail::CutPack<N>{left - place}, place, known, store,
                                              row, col, sinks, lane, visit, others);
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) {
    const Compute result = v[i];
    v[i] = place + i < left ? result : Compute(0);
  }
}

/// Takes the gradient of the results back through the LOAD, as through_load.
template <class Op, bool kMasks, class Tile, class LoadT, class To, class Row, class Finish,
          class Sinks, class Lane, class Others>
FUSEDOPS_HD void host_through_load(const Tile& result, const Tile& gradient, const Finish& finish,
                                   const LoadT& load, const To& to, const Row& row, int64_t col,
                                   Sinks& sinks, const Lane& lane, const Visit& visit,
                                   const Others& others) {
  constexpr int N = Tile::kPack;
  const int left = result.left;
  int place = 0;
  for (; place + N <= left; place += N) {
    detail::host_pack_through_load<Op, kMasks, N>(result.at + place, gradient.at + place,
                                                  detail::WholePack<N>{}, place, finish, load, to,
                                                  row, col, sinks, lane, visit, others);
  }
  if (place == left) return;
  if constexpr (Tile::kApart) {
    detail::host_cut_through_load<Op, kMasks, N>(result.at + place, gradient.at + place,
                                                 left - place, place, finish, load, to, row, col,
                                                 sinks, lane, visit, others);
    return;
  }
  detail::host_pack_through_load<Op, kMasks, N>(result.at + place, gradient.at + place,
                                                detail::CutPack<N>{left - place}, place, finish,
                                                load, to, row, col, sinks, lane, visit, others);
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
