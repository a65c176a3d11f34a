// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward pass of one tile: back through the STORE, and back through the LOAD. The reductions
// of the operator's gradient come between the two.
#pragma once

#include <fusedops/functor/sink.cuh>
#include <fusedops/op/row_operand.cuh>
#include <fusedops/row/ahead.cuh>
#include <fusedops/row/fetch.cuh>
#include <fusedops/row/sinks.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The numbers that the forward pass has kept of a row, if any.
template <class Op, int kKept = Op::kKept>
struct KeptOfRow {
  typename Op::Compute numbers[kKept];

  template <class Kept, class Row>
  FUSEDOPS_HD void read(const Kept& kept, const Row& row) {
    kept.read(numbers, row, 0);
  }
  FUSEDOPS_HD void clear() {
    FUSEDOPS_UNROLL
    for (int i = 0; i < kKept; ++i) numbers[i] = 0;
  }
  FUSEDOPS_HD typename Op::Row known() const { return Op::row(numbers); }
};
template <class Op>
struct KeptOfRow<Op, 0> {
  template <class Kept, class Row>
  FUSEDOPS_HD void read(const Kept&, const Row&) {}
  FUSEDOPS_HD void clear() {}
  FUSEDOPS_HD typename Op::Row known() const { return {}; }
};

template <int N, class Compute>
FUSEDOPS_HD Compute (&values_at(Compute* first))
    [N] { return *reinterpret_cast<Compute(*)[N]>(first); }

}  // namespace detail

/// The gradient of what was stored, as a LOAD that skips the same packs as the LOAD of x. Where
/// operands of the STORE have a gradient at masked elements as well (kEverywhere), nothing is
/// skipped.
template <class LoadT, class View, class AnyRow, bool kEverywhere>
struct Alongside {
  const LoadT& of;
  const View& view;
  static constexpr bool kBounds = !kEverywhere && detail::bounds<LoadT, AnyRow>();
  static constexpr bool kSkips = !kEverywhere && detail::skips<LoadT, AnyRow>();
  static constexpr bool kMasksBounds = detail::masks_bounds<LoadT>();
  static constexpr bool kComputes = false;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void load(Compute* dst, const Row& row, int64_t col) const {
    view.read(detail::values_at<N>(dst), row, col);
  }
  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    return of.columns(row);
  }
  template <int N, class Row>
  FUSEDOPS_HD bool any(const Row& row, int64_t col) const {
    return of.template any<N>(row, col);
  }
};

template <class AnyRow, bool kEverywhere, class LoadT, class View>
FUSEDOPS_HD Alongside<LoadT, View, AnyRow, kEverywhere> alongside(const LoadT& of,
                                                                  const View& view) {
  return {of, view};
}

/// All of a backward pass by which values and gradients of elements elsewhere in the row are made again,
/// for functors that read a partner column.
template <class Op, class LoadT, class Upstream, class StoreT>
struct Elsewhere {
  const LoadT& load;
  const Upstream& upstream;
  const StoreT& store;
  typename Op::Row known;
  static constexpr bool kPairs = detail::pairs<StoreT>();

  /// The row's results from column `at` on, and the gradient of what was stored.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&g)[N], Compute (&y)[N], const Row& row, int64_t at) const {
    detail::load_pack<N, true>(load, static_cast<Compute*>(y), row, at);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) y[i] = known.result(y[i]);
    upstream.read(g, row, at);
  }
  /// The gradient of the LOAD's result from column `at` on.
  template <int N, class Compute, class Row, class Finish>
  FUSEDOPS_HD void gradient(Compute (&g)[N], const Row& row, int64_t at,
                            const Finish& finish) const {
    Compute y[N];
    read(g, y, row, at);
    detail::NoSink none;
    store.backward(g, y, row, at, none, NoneMasked{});
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) g[i] = finish(y[i], g[i]);
  }
};
template <class Op, class LoadT, class Upstream, class StoreT>
FUSEDOPS_HD Elsewhere<Op, LoadT, Upstream, StoreT> elsewhere(const LoadT& load,
                                                             const Upstream& upstream,
                                                             const StoreT& store,
                                                             const typename Op::Row& known) {
  return {load, upstream, store, known};
}

namespace detail {

/// One pack on its way back through the STORE, in three steps: its results, with a note of what is
/// masked; the STORE itself; and what masked elements get.
template <class Op, int N, class Compute, class Known>
FUSEDOPS_HD void make_results(Compute (&v)[N], const Known& known, MaskedElements<N>& masked) {
  if constexpr (Op::kHasMasked) {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) masked.at[i] = Op::is_masked(v[i]);
  }
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) v[i] = known.result(v[i]);
}

template <class Op, int N, class Compute, class StoreT, class Row, class Sink, class Others>
FUSEDOPS_HD void back_through_store(Compute (&g)[N], const Compute (&v)[N], const StoreT& store,
                                    const Row& row, int64_t col, Sink& sink,
                                    const MaskedElements<N>& masked, const Others& others) {
  if constexpr (pairs<StoreT>()) {
    static_assert(!Op::kHasMasked, "fusedops: a partner column beside masks");
    store.paired_backward(g, v, row, col, sink, [&](auto& of_partner, auto& y, int64_t at) {
      others.read(of_partner, y, row, at);
    });
  } else if constexpr (Op::kHasMasked && Op::kMaskedIsConstant) {
    store.backward(g, v, row, col, sink, masked);
  } else {
    store.backward(g, v, row, col, sink, NoneMasked{});
  }
}

template <class Op, bool kMasks, int N, class Compute>
FUSEDOPS_HD void select_masked(Compute (&v)[N], Compute (&g)[N], const MaskedElements<N>& masked) {
  if constexpr (Op::kHasMasked) {
    masked.select(g);
    if constexpr (kMasks) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        const Compute result = v[i];
        v[i] = masked.at[i] ? Op::masked_result() : result;
      }
    }
  }
}

/// One pack on its way back through the LOAD, from the gradient of its results on.
template <class Op, bool kMasks, int N, class Compute, class Finish, class LoadT, class To,
          class Row, class Sink, class Others>
FUSEDOPS_HD void back_through_load(Compute (&g)[N], const Compute* y, const Finish& finish,
                                   const LoadT& load, const To& to, const Row& row, int64_t col,
                                   Sink& sink, const Others& others) {
  if constexpr (pairs<LoadT>()) {
    static_assert(!kMasks, "fusedops: a partner column beside masks");
    load.paired_backward(g, row, col, sink, [&](auto& of_partner, int64_t at) {
      others.gradient(of_partner, row, at, finish);
    });
  } else if constexpr (kMasks) {
    MaskedElements<N> masked;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) masked.at[i] = Op::is_masked_result(y[i]);
    load.backward(g, row, col, sink, masked);
  } else {
    load.backward(g, row, col, sink, NoneMasked{});
  }
  if constexpr (!IsSame<To, Absent>::value) {
    to.write(g, row, pairs<LoadT>() || pairs<Others>() ? hidden(col) : col);
  }
}

/// The row as functors see it at one pack of a tile.
template <class Row>
FUSEDOPS_HD const Row& row_at(const Row& row, int) {
  return row;
}
#if defined(FUSEDOPS_CUDA)
template <class Index, int kPacks, bool kIssues, Ahead kAhead, class Operands>
__device__ __forceinline__ auto row_at(
    const RowWithOperands<Index, kPacks, kIssues, kAhead, Operands>& row, int pack) {
  return row.at(pack);
}
#endif

}  // namespace detail

/// through_store where each thread holds the partners of its elements, read once.
template <class Op, class Tile, class StoreT, class Row, class Sinks, class Lane>
FUSEDOPS_HD void through_store_of_pairs(Tile& value, Tile& gradient, const typename Op::Row& known,
                                        const StoreT& store, const Row& row, int64_t col,
                                        Sinks& sinks, const Lane& lane, const Visit& visit) {
  constexpr int N = Tile::kWidth;
  typename Op::Compute of_stored[Tile::kPacks][N];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) {
      value.at[k][i] = known.result(value.at[k][i]);
      of_stored[k][i] = gradient.at[k][i];
    }
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int other = detail::partner_pack<Tile>(k);
    const PackSink<Sinks, Lane> sink{sinks, lane, visit, k, 0};
    store.paired_backward(gradient.at[k], value.at[k], detail::row_at(row, k),
                          col + int64_t(k) * Tile::kStride, sink,
                          [&](auto& of_partner, auto& y, int64_t) {
                            static_assert(sizeof(y) == sizeof(value.at[0]), "a pack in one piece");
                            FUSEDOPS_UNROLL
                            for (int i = 0; i < N; ++i) {
                              of_partner[i] = of_stored[other][i];
                              y[i] = value.at[other][i];
                            }
                          });
  }
}

/// through_load likewise, of an operator that reduces nothing.
template <class Op, class Tile, class LoadT, class To, class Row, class Finish, class Sinks,
          class Lane>
FUSEDOPS_HD void through_load_of_pairs(const Tile& result, Tile& gradient, const Finish& finish,
                                       const LoadT& load, const To& to, const Row& row, int64_t col,
                                       Sinks& sinks, const Lane& lane, const Visit& visit) {
  constexpr int N = Tile::kWidth;
  typename Op::Compute of_result[Tile::kPacks][N];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) {
      gradient.at[k][i] = finish(result.at[k][i], gradient.at[k][i]);
      of_result[k][i] = gradient.at[k][i];
    }
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int other = detail::partner_pack<Tile>(k);
    const int64_t at = col + int64_t(k) * Tile::kStride;
    const PackSink<Sinks, Lane> sink{sinks, lane, visit, k, 0};
    load.paired_backward(gradient.at[k], row, at, sink, [&](auto& of_partner, int64_t) {
      static_assert(sizeof(of_partner) == sizeof(of_result[0]), "a pack in one piece");
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) of_partner[i] = of_result[other][i];
    });
    if constexpr (!detail::IsSame<To, Absent>::value) to.write(gradient.at[k], row, hidden(at));
  }
}

/// Replaces the values of the LOAD by the row's result, and the gradient of what was stored by that
/// of the result.
template <class Op, bool kMasks, class Tile, class StoreT, class Row, class Sinks, class Lane,
          class Others>
FUSEDOPS_HD void through_store(Tile& value, Tile& gradient, const typename Op::Row& known,
                               const StoreT& store, const Row& row, int64_t col, Sinks& sinks,
                               const Lane& lane, const Visit& visit, const Others& others) {
  using Compute = typename Op::Compute;
  if constexpr (detail::pairs_in_thread<Tile, StoreT>()) {
    through_store_of_pairs<Op>(value, gradient, known, store, row, col, sinks, lane, visit);
    return;
  }
  walk_tile(value, col, [&](auto width, int64_t at, int pack, int first) {
    constexpr int N = decltype(width)::value;
    Compute(&v)[N] = detail::values_at<N>(value.at[pack] + first);
    Compute(&g)[N] = detail::values_at<N>(gradient.at[pack] + first);
    PackSink<Sinks, Lane> sink{sinks, lane, visit, pack, first};
    MaskedElements<N> masked;
    detail::make_results<Op>(v, known, masked);
    detail::back_through_store<Op>(g, v, store, detail::row_at(row, pack), at, sink, masked,
                                   others);
    detail::select_masked<Op, kMasks>(v, g, masked);
  });
  value.fill_absent(Compute(0));
}

#if defined(FUSEDOPS_CUDA)
/// Reads the operands of the STORE that all rows share into registers, for the packs of a tile. A pack
/// is complete or absent.
template <class Tile, class StoreT, class Row, class Lane>
__device__ __forceinline__ void read_shared(OperandsAhead (&operands)[Tile::kPacks],
                                            const Tile& tile, const StoreT& store, const Row& row,
                                            int64_t col, const Lane& lane) {
  using Compute = typename Tile::Compute;
  static_assert(Tile::kWhole, "reads are counted from a pack's first column");
  Sinks<Tile, Targets<>> none{Targets<>{}};
  const Visit visit{};
  walk_tile(tile, col, [&](auto width, int64_t at, int pack, int first) {
    constexpr int N = decltype(width)::value;
    Compute g[N] = {}, v[N] = {};
    PackSink<Sinks<Tile, Targets<>>, Lane> sink{none, lane, visit, pack, first};
    const AheadRow<Row, true, Ahead::kOfShared> ahead(row, operands[pack]);
    store.backward(g, v, ahead, at, sink, NoneMasked{});
  });
}
#endif

/// Replaces the gradient of the result by that of x, and writes it to `to`.
template <class Op, bool kMasks, class Tile, class LoadT, class To, class Row, class Finish,
          class Sinks, class Lane, class Others>
FUSEDOPS_HD void through_load(const Tile& result, Tile& gradient, const Finish& finish,
                              const LoadT& load, const To& to, const Row& row, int64_t col,
                              Sinks& sinks, const Lane& lane, const Visit& visit,
                              const Others& others) {
  using Compute = typename Op::Compute;
  if constexpr (detail::pairs_in_thread<Tile, LoadT>()) {
    through_load_of_pairs<Op>(result, gradient, finish, load, to, row, col, sinks, lane, visit);
    return;
  }
  walk_tile(result, col, [&](auto width, int64_t at, int pack, int first) {
    constexpr int N = decltype(width)::value;
    Compute(&g)[N] = detail::values_at<N>(gradient.at[pack] + first);
    const Compute* y = result.at[pack] + first;
    PackSink<Sinks, Lane> sink{sinks, lane, visit, pack, first};
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) g[i] = finish(y[i], g[i]);
    detail::back_through_load<Op, kMasks>(g, y, finish, load, to, row, at, sink, others);
  });
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
