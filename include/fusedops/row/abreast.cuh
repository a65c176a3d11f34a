// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward kernel for short rows of which neighbours share all operands but x, such as the heads of
// a position, which one rotation turns. The threads of a row have several neighbours at a time: the
// place of the rows, addresses and operands are found once for all of them. Each row goes through the
// functions that it goes through by itself (row/kernel.cuh, row/map.cuh), so no bit depends on how many
// there are.
#pragma once

#include <fusedops/row/ahead.cuh>
#include <fusedops/row/kernel.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// What has been read of x for the packs of a thread, and of the operands of a LOAD or a STORE. Of those
/// a backward pass reads some several times; a compiler keeps each word once.
template <class Tile>
using SourceWords = OperandsAhead[Tile::kPacks];
template <class Tile>
using OperandWords = WordsAhead<64>[Tile::kPacks];

template <bool kIssues, class Row, int kPacks>
__device__ __forceinline__ auto with_operands(const Row& row, WordsAhead<64> (&words)[kPacks]) {
  return RowWithOperands<Row, kPacks, kIssues, Ahead::kOfEach, WordsAhead<64>>{row, words};
}

/// Reads a thread's packs of a row, and gives them to a tile later.
template <class Tile, class View, class Row>
__device__ __forceinline__ void read_packs(const View& view, SourceWords<Tile>& words,
                                           const Row& row, int col) {
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    typename Tile::Compute unused[Tile::kWidth];
    view.read(unused, AheadRow<Row, true, Ahead::kOfEach>(row, words[k]), col + k * Tile::kStride);
  }
}
template <class Tile, class View, class Row>
__device__ __forceinline__ void take_packs(Tile& tile, const View& view, SourceWords<Tile>& words,
                                           const Row& row, int col) {
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    view.read(tile.at[k], AheadRow<Row, false, Ahead::kOfEach>(row, words[k]),
              col + k * Tile::kStride);
  }
}

/// A pack that has been read, as the source of a LOAD.
template <class Compute, int N>
struct PackRead {
  Compute at[N];

  template <class Row>
  __device__ __forceinline__ void read(Compute (&value)[N], const Row&, int64_t) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) value[i] = at[i];
  }
};

/// Turns the elements of a row into what the LOAD makes of them; `rows` is one of with_operands().
template <class Tile, class LoadT, class Rows>
__device__ __forceinline__ void load_read(Tile& tile, const LoadT& load, const Rows& row, int col) {
  constexpr int N = Tile::kWidth;
  PackRead<typename Tile::Compute, N> packs[Tile::kPacks];
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) packs[k].at[i] = tile.at[k][i];
  }
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int64_t at = col + k * Tile::kStride;
    if constexpr (pairs_in_thread<Tile, LoadT>()) {
      const int other = partner_pack<Tile>(k);
      load.chain.paired(tile.at[k], packs[other].at, row.at(k), at, col + other * Tile::kStride);
    } else {
      load.from(packs[k]).template load<N>(tile.at[k], row.at(k), at);
    }
  }
}

/// Stores a row's results; `rows` is one of with_operands().
template <class Tile, class StoreT, class Rows>
__device__ __forceinline__ void store_results(const Tile& tile, const StoreT& store,
                                              const Rows& row, int col) {
  constexpr int N = Tile::kWidth;
  FUSEDOPS_UNROLL
  for (int k = 0; k < Tile::kPacks; ++k) {
    const int64_t at = col + k * Tile::kStride;
    if constexpr (pairs<StoreT>()) {
      const int other = pairs_in_thread<Tile, StoreT>() ? partner_pack<Tile>(k) : k;
      store.template store_paired<N>(tile.at[k], tile.at[other], row.at(k), at);
    } else {
      store.template store<N>(tile.at[k], row.at(k), hidden(at));
    }
  }
}

}  // namespace detail

/// The arguments are those of row_kernel. Every operand but x and the outputs is the same for all of
/// Schedule::kAbreast neighbouring rows, of which there are only whole groups; rows fill their tiles.
template <class Schedule, class Op, class LoadT, class StoreT, class Statistics, class Rows>
__device__ __forceinline__ void abreast_kernel(const Op& op, const LoadT& load, const StoreT& store,
                                               const Statistics& statistics, const Rows& rows,
                                               int64_t cols, int64_t = 0) {
  using Row = NearRow<typename Rows::Index>;
  using RowTile = Tile<typename Op::Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  constexpr int kCount = Schedule::kAbreast;
  static_assert(Schedule::kExact && Schedule::kGroups == 1 && Schedule::kBlocks == 1,
                "rows abreast fill tiles of one warp at most");
  static_assert(detail::has_result<Op>() && detail::block_of<StoreT>() == kNoBlock &&
                    !detail::bounds<LoadT, Row>() && !detail::skips<LoadT, Row>(),
                "rows abreast are stored element by element, and none is skipped");

  const int thread = threadIdx.x % Schedule::kThreads;
  const int col = thread * Schedule::kWidth;
  // The grid has all rows: no memory holds more than it can have.
  const int64_t group = Schedule::first_row(blockIdx.x) + threadIdx.x / Schedule::kThreads;
  const int64_t number = group * kCount;
  if (number >= rows.count) return;  // shuffles wait for no lane that has ended
  const auto index = rows.index(number);
  const Row first(index, 0);

  detail::SourceWords<RowTile> x[kCount];
  detail::OperandWords<RowTile> of_load, of_store;
  FUSEDOPS_UNROLL
  for (int j = 0; j < kCount; ++j) {
    detail::read_packs<RowTile>(load.source, x[j], Row(index, j), col);
  }
  RowTile tile{};
  detail::load_read(tile, load, detail::with_operands<true>(first, of_load), col);
  detail::store_results(tile, store, detail::with_operands<true>(first, of_store), col);

  FUSEDOPS_UNROLL
  for (int j = 0; j < kCount; ++j) {
    const Row row(index, j);
    tile.begin(Schedule::kTile - col, Schedule::kTile);
    detail::take_packs(tile, load.source, x[j], row, col);
    detail::load_read(tile, load, detail::with_operands<false>(row, of_load), col);
    typename Op::Partial part = Op::identity();
    if constexpr (detail::reduces<Op>()) part = op.reduce(Lanes<Schedule::kLanes>{}, tile);
    const typename Op::Finish finish = op.finish(part, row, cols);
    if (thread == 0) statistics.write(finish, row);
    const auto element = finish.of(part);
    tile.apply([&](typename Op::Compute value) { return element(value); });
    detail::store_results(tile, store, detail::with_operands<false>(row, of_store), col);
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
