// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward pass on a CPU: a thread processes one row after another, with the same operators,
// LOADs and STOREs as on a GPU. A "group of lanes" is one thread, a pack is a few vector registers
// wide, and a row that fits a buffer stays there between its reduction and its result. One short
// row's chain of dependent instructions is longer than its work: several are taken through each step
// together, or, without functors and conversions, a row is code without a branch, of which a
// processor has several rows in flight. The caller owns the threads.
#pragma once

#include <fusedops/host/first_columns.cuh>
#include <fusedops/op/contract.cuh>
#include <fusedops/op/without_result.cuh>
#include <fusedops/row/repeated.cuh>
#include <fusedops/row/storage.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Storage: InRegisters keeps the row, Streamed reads it twice. kColumns_: the most columns of a row
/// that is kept; any number is streamed. Up to kShort columns a row is one tile of that size. kApart: as in
/// HostTile, where a program has several schedules.
template <class Storage_, int kColumns_ = 65536, bool kApart_ = false>
struct HostSchedule {
  using Storage = Storage_;
  static constexpr int kColumns = kColumns_;
  static constexpr bool kApart = kApart_;
  static constexpr int kShort = 128;
  static constexpr bool kIsShort = !Storage::kRevisits && kColumns <= kShort;
  // Two AVX-512 registers of float; four Philox calls serve as many columns of a dropout.
  static constexpr int kWidth = kColumns < 32 ? kColumns : 32;
  // Merging chunks of 1024 columns costs little.
  static constexpr int kChunk = kColumns < 1024 ? kColumns : 1024;
  static constexpr int kChunks = Storage::kRevisits ? 1 : (kColumns + kChunk - 1) / kChunk;
  // Rows that are worked on together.
  static constexpr int kRows = !kIsShort ? 1 : kColumns <= 32 ? 8 : 256 / kColumns;
  static constexpr int kBuffered = 65536;

  template <class Compute>
  using Tile = HostTile<Compute, kChunk, kWidth, kIsShort, kApart>;
  /// What sums over rows are told of the tile: they are in memory, so that functions can share them.
  template <class Compute>
  using SinkTile =
      HostTile<Compute, kApart ? 1024 : kChunk, kApart ? 32 : kWidth, !kApart && kIsShort, kApart>;
};

/// Processes the rows begin <= row < end of one tile each, without functors around the operator.
/// kWhole: the packs that every row fills; each pack after these may be cut by the end of the row.
template <class Schedule, int kWhole, class Op, class LoadT, class StoreT, class Statistics,
          class Rows>
inline void host_short_rows(const Op& op, const LoadT& load, const StoreT& store,
                            const Statistics& statistics, const Rows& rows, int64_t cols,
                            int64_t begin, int64_t end) {
  using Row = typename Rows::Index;
  using Compute = typename Op::Compute;
  constexpr int N = Schedule::kWidth, kPacks = Schedule::kColumns / N;
  const int left = static_cast<int>(cols);
  for (int64_t number = begin; number < end; ++number) {
    const Row row = rows.index(number);
    typename Schedule::template Tile<Compute> tile;
    tile.left = left;
    detail::each_number<0, kPacks>([&](auto pack) {
      constexpr int k = decltype(pack)::value;
      Compute v[N];
      if constexpr (k >= kWhole) {
        detail::load_first(load, v, row, k * N, left - k * N, Op::padding_value());
      } else {
        load.template load<N>(v, row, k * N);
      }
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) tile.at[k * N + i] = v[i];
    });
    const typename Op::Partial part = op.reduce(Lanes<1>{}, tile);
    const typename Op::Finish finish = op.finish(part, row, cols);
    statistics.write(finish, row);
    const auto of_part = finish.of(part);
    detail::each_number<0, kPacks>([&](auto pack) {
      constexpr int k = decltype(pack)::value;
      Compute result[N];
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) result[i] = of_part(tile.at[k * N + i]);
      if constexpr (k >= kWhole) {
        detail::write_first(store.target, result, row, k * N, left - k * N);
      } else {
        store.target.write(result, row, k * N);
      }
    });
  }
}

namespace detail {

/// Reduces a tile whose first column is `col`, with what the operator reads beside it.
template <class Op, class Tile, class Row>
inline typename Op::Partial reduce_host_tile(const Op& op, Tile& tile, const Row& row, int64_t col,
                                             int64_t cols) {
  if constexpr (reads_beside<Op>()) {
    Tile weights;
    weights.begin(cols - col);
    load_host_tile<false>(weights, beside_load<Row>(op.beside()), row, col, Columns{0, cols},
                          typename Op::Compute(0));
    return op.reduce(Lanes<1>{}, tile, weights);
  } else {
    return op.reduce(Lanes<1>{}, tile);
  }
}

}  // namespace detail

/// Processes the rows begin <= row < end on the calling thread.
template <class Schedule, class Op, class LoadT, class StoreT, class Statistics, class Rows>
inline void host_rows(const Op& op, const LoadT& load, StoreT store, const Statistics& statistics,
                      const Rows& rows, int64_t cols, int64_t begin, int64_t end) {
  static_assert(detail::check_operator<Op>());
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using RowTile = typename Schedule::template Tile<Compute>;
  using Row = typename Rows::Index;
  static_assert(detail::check_sides<LoadT, StoreT, Compute, Row>());
  using Partial = typename Op::Partial;
  constexpr bool kHasResult = detail::has_result<Op>();

  constexpr int kBlock = detail::block_of<StoreT>();
  if constexpr (!detail::reduces<Op>() && kBlock != kWholeRow) {
    RowTile tile;
    for (int64_t number = begin; number < end; ++number) {
      const Row row = rows.index(number);
      const Columns bounds = bounds_of(load, row, cols);
      const typename Op::Finish finish = op.finish(Op::identity(), row, cols);
      for (int64_t col = 0; col < cols; col += Schedule::kChunk) {
        tile.begin(cols - col);
        load_host_tile<false>(tile, load, row, col, bounds, Op::padding_value());
        store_any_host_tile(tile, store, row, col, finish, load);
      }
    }
  } else if constexpr (Schedule::kIsShort && kHasResult &&
                       detail::operator_alone<Compute, LoadT, StoreT>()) {
    constexpr int kPacks = Schedule::kColumns / Schedule::kWidth;
    const auto process = [&](auto whole) {
      host_short_rows<Schedule, decltype(whole)::value>(op, load, store, statistics, rows, cols,
                                                        begin, end);
    };
    if (cols == Schedule::kColumns) {
      process(Width<kPacks>{});
    } else if (2 * cols >= Schedule::kColumns) {
      process(Width<kPacks / 2>{});
    } else {
      process(Width<0>{});
    }
  } else if constexpr (Schedule::kIsShort) {
    RowTile tiles[Schedule::kRows];
    Partial parts[Schedule::kRows];
    for (int64_t first = begin; first < end; first += Schedule::kRows) {
      const int count = static_cast<int>(smaller<int64_t>(end - first, Schedule::kRows));
      for (int i = 0; i < count; ++i) {
        const Row row = rows.index(first + i);
        tiles[i].begin(cols);
        load_host_tile<false>(tiles[i], load, row, 0, bounds_of(load, row, cols),
                              Op::padding_value());
      }
      for (int i = 0; i < count; ++i) {
        parts[i] = detail::reduce_host_tile(op, tiles[i], rows.index(first + i), 0, cols);
      }
      for (int i = 0; i < count; ++i) {
        const Row row = rows.index(first + i);
        const auto begun = detail::begin_row(op, load, row, cols, bounds_of(load, row, cols));
        const typename Op::Finish finish = detail::finish_row(op, parts[i], begun, row, cols);
        statistics.write(finish, row);
        if constexpr (kHasResult) {
          store_any_host_tile(tiles[i], store, row, 0, finish.of(parts[i]), load);
        }
      }
    }
  } else {
    constexpr bool kKeeps = kHasResult && !Storage::kRevisits;
    const int64_t chunks = (cols + Schedule::kChunk - 1) / Schedule::kChunk;
    const int64_t held = kKeeps ? chunks : 1;
    RowTile* const tiles = FUSEDOPS_ON_STACK(RowTile, held);
    Partial* const parts = FUSEDOPS_ON_STACK(Partial, held);
    for (int64_t number = begin; number < end; ++number) {
      const Row row = rows.index(number);
      const Columns bounds = bounds_of(load, row, cols);
      const Columns within = chunks_within<LoadT, Row>(bounds, Schedule::kChunk, chunks);

      Partial of_row = Op::identity();
      for (int64_t chunk = within.begin; chunk < within.end; ++chunk) {
        RowTile& tile = tiles[kKeeps ? chunk : 0];
        tile.begin(cols - chunk * Schedule::kChunk);
        load_host_tile<false>(tile, load, row, chunk * Schedule::kChunk, bounds,
                              Op::padding_value());
        const Partial part =
            detail::reduce_host_tile(op, tile, row, chunk * Schedule::kChunk, cols);
        if constexpr (kKeeps) parts[chunk] = part;
        of_row = chunk == within.begin ? part : op.merge(of_row, part);
      }
      const auto begun = detail::begin_row(op, load, row, cols, bounds);
      const typename Op::Finish finish = detail::finish_row(op, of_row, begun, row, cols);
      statistics.write(finish, row);
      // The tile of a chunk as reduce left it.
      [[maybe_unused]] const auto again = [&](int64_t chunk) {
        RowTile& tile = tiles[kKeeps ? chunk : 0];
        if (!kKeeps || chunk < within.begin || chunk >= within.end) {
          tile.begin(cols - chunk * Schedule::kChunk);
          load_host_tile<true>(tile, load, row, chunk * Schedule::kChunk, bounds,
                               Op::padding_value());
          parts[kKeeps ? chunk : 0] = op.rebuild(Lanes<1>{}, tile);
        }
      };
      if constexpr (kHasResult && kBlock == kWholeRow) {
        constexpr int kMost = RowTile::kPack;
        const auto make = [&](int64_t chunk) {
          again(chunk);
          detail::make_host_tile(tiles[kKeeps ? chunk : 0], store, row, chunk * Schedule::kChunk,
                                 finish.of(parts[kKeeps ? chunk : 0]));
        };
        uint32_t largest = 0;
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          make(chunk);
          const RowTile& tile = tiles[kKeeps ? chunk : 0];
          largest = larger(largest, detail::measure_host<kMost>(tile, store, 0, tile.left));
        }
        store.chain.keep(row, 0, largest);
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          if constexpr (!kKeeps) make(chunk);
          RowTile& tile = tiles[kKeeps ? chunk : 0];
          detail::store_host_made<kMost>(tile, store, row, chunk * Schedule::kChunk, 0, tile.left,
                                         largest);
        }
      } else if constexpr (kHasResult) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          again(chunk);
          store_any_host_tile(tiles[kKeeps ? chunk : 0], store, row, chunk * Schedule::kChunk,
                              finish.of(parts[kKeeps ? chunk : 0]), load);
        }
      }
    }
  }
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
