// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward pass on a CPU: a thread processes one row after another, with the same operators,
// LOADs and STOREs as on a GPU. A "group of lanes" is one thread, a pack is several vector
// registers wide, and a row that fits a small buffer stays there between its reduction and its
// result. The caller owns the threads.
#pragma once

#include <fusedops/row/fetch.cuh>
#include <fusedops/row/kernel.cuh>
#include <fusedops/row/storage.cuh>

namespace fusedops {

/// Storage: InRegisters keeps the row (up to kBuffered columns), Streamed reads it twice.
template <class Storage_>
struct HostSchedule {
  using Storage = Storage_;
  static constexpr int kWidth = 64;  // eight AVX2 registers of float
  static constexpr int kPacks = 16;  // a chunk of 1024 columns, so that merging chunks costs little
  static constexpr int kChunks = 16;  // a row of 16384 floats takes 64 KiB, which fits the L2 cache
  static constexpr int kChunk = kWidth * kPacks;
  static constexpr int kBuffered = kChunk * kChunks;
};

/// Processes the rows begin <= row < end on the calling thread.
template <class Schedule, class Op, class LoadT, class StoreT, class Statistics, class Rows>
inline void host_rows(const Op& op, const LoadT& load, StoreT store, const Statistics& statistics,
                      const Rows& rows, int64_t cols, int64_t begin, int64_t end) {
  static_assert(detail::check_operator<Op>());
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using RowTile =
      Tile<Compute, Schedule::kPacks, Schedule::kWidth, Schedule::kWidth, Schedule::kWidth, false>;
  using Row = typename Rows::Index;
  static_assert(detail::check_sides<LoadT, StoreT, Compute, Row>());
  constexpr bool kKeeps = !Storage::kRevisits;
  const int64_t chunks = (cols + Schedule::kChunk - 1) / Schedule::kChunk;
  alignas(64) RowTile tiles[kKeeps ? Schedule::kChunks : 1];

  for (int64_t number = begin; number < end; ++number) {
    const Row row = rows.index(number);
    const Columns bounds = bounds_of(load, row, cols);
    const Columns within = chunks_within<LoadT, Row>(bounds, Schedule::kChunk, chunks);

    typename Op::Partial parts[kKeeps ? Schedule::kChunks : 1];
    typename Op::Partial of_row = Op::identity();
    for (int64_t chunk = within.begin; chunk < within.end; ++chunk) {
      RowTile& tile = tiles[kKeeps ? chunk : 0];
      tile.begin(cols - chunk * Schedule::kChunk, cols - chunk * Schedule::kChunk);
      load_tile<false>(tile, load, row, chunk * Schedule::kChunk, bounds, Op::padding_value());
      const typename Op::Partial part = op.reduce(Lanes<1>{}, tile);
      if constexpr (kKeeps) parts[chunk] = part;
      of_row = chunk == within.begin ? part : op.merge(of_row, part);
    }
    const typename Op::Finish finish = op.finish(of_row, row, cols);
    statistics.write(finish, row);

    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      RowTile& tile = tiles[kKeeps ? chunk : 0];
      typename Op::Partial& part = parts[kKeeps ? chunk : 0];
      if (!kKeeps || chunk < within.begin || chunk >= within.end) {
        tile.begin(cols - chunk * Schedule::kChunk, cols - chunk * Schedule::kChunk);
        load_tile<true>(tile, load, row, chunk * Schedule::kChunk, bounds, Op::padding_value());
        part = op.rebuild(Lanes<1>{}, tile);
      }
      store_tile(tile, store, row, chunk * Schedule::kChunk, finish.of(part));
    }
  }
}

}  // namespace fusedops
