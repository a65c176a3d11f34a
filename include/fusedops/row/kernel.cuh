// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward kernel for a GPU: one text for every operator, LOAD, STORE and schedule.
//
// A schedule is a tile (threads per row x packs per thread x pack width), a storage, and the number
// of blocks per row. Neighbouring threads own neighbouring packs; a row is processed in chunks of
// one tile per thread. Each group of lanes (a warp, or the part of a warp that holds a row) reduces
// its part of a chunk, and row/combine.cuh combines the parts. The order of reduction depends on
// the tile alone, and the tile on declaration, columns, types and kind of device alone.
#pragma once

#include <fusedops/functor/contract.cuh>
#include <fusedops/op/contract.cuh>
#include <fusedops/op/without_result.cuh>
#include <fusedops/row/blocks.cuh>
#include <fusedops/row/combine.cuh>
#include <fusedops/row/fetch.cuh>
#include <fusedops/row/repeated.cuh>
#include <fusedops/row/staging.cuh>
#include <fusedops/row/storage.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The chunks of a row that a block processes.
struct Share {
  int begin, end;
};

/// kThreads: threads per row in a block, a power of two up to 32 or a multiple of 32. kPacks: packs
/// per thread. kWidth: columns per pack (vector width). kRows: rows per block at a time. kExact,
/// kFull, kPieces: as in Tile. kBlocks: blocks per row, a cluster if more than one; each processes
/// its share of the chunks. kChunk: the columns per chunk, fewer than a tile has where that makes the
/// chunks of a row even; 0 if a chunk is a tile, -1 if they are an argument of the kernel. kAbreast:
/// rows that the threads of a row have at a time (row/abreast.cuh). kFitted: a block has as many warps
/// as a chunk needs, kThreads / 32 at most; the columns of a warp are then neighbours, whatever the
/// number of warps.
template <class Storage_, int kThreads_, int kPacks_, int kWidth_, int kRows_, bool kExact_,
          int kFull_ = kExact_ ? kPacks_ : 0, bool kPieces_ = !kExact_, int kBlocks_ = 1,
          int kChunk_ = 0, int kAbreast_ = 1, bool kFitted_ = false>
struct Schedule {
  using Storage = Storage_;
  static constexpr int kThreads = kThreads_;
  static constexpr int kPacks = kPacks_;
  static constexpr int kWidth = kWidth_;
  static constexpr int kRows = kRows_;
  static constexpr bool kExact = kExact_;
  static constexpr int kFull = kFull_;
  static constexpr bool kPieces = kPieces_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr bool kFitted = kFitted_;
  static constexpr int kLanes = kThreads < 32 ? kThreads : 32;
  static constexpr int kGroups = kThreads / kLanes;  // groups of lanes in a row
  static constexpr int kChunk = kChunk_;
  static constexpr int kAbreast = kAbreast_;
  static constexpr bool kEven = kChunk != 0;
  static constexpr int kTile = kThreads * kPacks * kWidth;
  static constexpr int kSpan = kLanes * kWidth;  // columns of a group's neighbouring packs
  static constexpr int kStride = kFitted ? kSpan : kThreads * kWidth;  // between packs of a thread
  static constexpr bool kApart = detail::flag<false, detail::ApartFlag, Storage>();
  static_assert(kGroups == 1 || kRows == 1, "a row of several warps has the block to itself");
  static_assert(kGroups <= 32, "at most 1024 threads a row");
  static_assert(kBlocks == 1 || (kRows == 1 && kLanes == 32), "a cluster has one row");
  static_assert(kBlocks <= 16, "at most 16 blocks a cluster");
  static_assert(!(kEven && kExact && !kFitted), "even chunks do not fill their tiles");
  static_assert(!kFitted || (kRows == 1 && kLanes == 32), "a block that fits a row has one row");

  /// The first row of a block, the distance to its next row, and the block's rank in its cluster.
  FUSEDOPS_HD static int64_t first_row(int64_t block) { return block / kBlocks * kRows; }
  FUSEDOPS_HD static int64_t rows_apart(int64_t blocks) { return blocks / kBlocks * kRows; }
  FUSEDOPS_HD static int rank(int64_t block) { return static_cast<int>(block % kBlocks); }
  /// The first column in a chunk of a thread's group, and of the thread.
  FUSEDOPS_HD static int group_col(int thread) {
    return thread / kLanes * (kFitted ? kPacks * kSpan : kSpan);
  }
  FUSEDOPS_HD static int first_col(int thread) {
    return kFitted ? group_col(thread) + thread % kLanes * kWidth : thread * kWidth;
  }
  /// Whether all packs of a group of lanes lie in a row's chunk.
  FUSEDOPS_HD static bool is_full(int64_t cols, int64_t begin, int of_chunk, int group_col) {
    return left(cols, begin, of_chunk) - group_col >= kPacks * kSpan;
  }
#if defined(FUSEDOPS_CUDA)
  /// Threads of a block that one row has, and groups of lanes among them.
  __device__ __forceinline__ static int threads() {
    return kFitted ? static_cast<int>(blockDim.x) : kThreads;
  }
  __device__ __forceinline__ static int groups() { return threads() / kLanes; }
#endif
  /// Columns per chunk; `even` is the kernel's argument, whole packs and at most a tile.
  FUSEDOPS_HD static int chunk_cols(int64_t even) {
    return kChunk < 0 ? static_cast<int>(even) : kChunk > 0 ? kChunk : kTile;
  }
  /// Chunks in a row; `of_chunk` is the columns per chunk, as below.
  FUSEDOPS_HD static int chunks(int64_t cols, int of_chunk) {
    if constexpr (Storage::kOneTile && !kApart) return kBlocks;
#if defined(FUSEDOPS_ON_DEVICE)
    // A GPU's rows have fewer than 2^31 columns, and it divides 64 bits by many instructions.
    return static_cast<int>((static_cast<uint32_t>(cols) + of_chunk - 1) / of_chunk);
#else
    return static_cast<int>((cols + of_chunk - 1) / of_chunk);
#endif
  }
  /// Columns from the first of a chunk to the end of the row, or to the end of the chunk.
  FUSEDOPS_HD static int64_t left(int64_t cols, int64_t begin, int of_chunk) {
    return kEven ? smaller<int64_t>(cols - begin, of_chunk) : cols - begin;
  }
  FUSEDOPS_HD static Share share(int64_t block, int chunks) {
    if constexpr (kApart) {
      const int chunk =
          static_cast<int>(static_cast<uint32_t>(block) % static_cast<uint32_t>(chunks));
      return {chunk, chunk + 1};
    }
    if constexpr (Storage::kOneTile) return {rank(block), rank(block) + 1};
    // Every block has a chunk: the next rows of the others could overtake one that sends no part.
    return {rank(block) * chunks / kBlocks, (rank(block) + 1) * chunks / kBlocks};
  }
};

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Whether each warp of a kernel tells whether its packs are complete.
template <class Schedule>
FUSEDOPS_HD constexpr bool fills_by_warp() {
  return Schedule::kFitted && !Schedule::kExact && !Schedule::kPieces &&
         Schedule::Storage::kOneTile;
}

/// Waits until all threads that hold a row in this block have read what it is made of. A functor that
/// reads a partner column reads what another thread of the row may overwrite, where y is x.
template <class Schedule>
__device__ __forceinline__ void row_is_read() {
  if constexpr (Schedule::kThreads > 32) {
    __syncthreads();
  } else if constexpr (Schedule::kThreads > 1) {
    constexpr uint32_t kLanes = static_cast<uint32_t>((uint64_t(1) << Schedule::kThreads) - 1);
    __syncwarp(kLanes << (threadIdx.x % 32 / Schedule::kThreads * Schedule::kThreads));
  }
}

/// Prepares the barriers that blocks of a cluster need before they write to each other.
template <class Handshake, class Parts>
__device__ __forceinline__ void prepare() {
  if constexpr (Handshake::kNeeded) {
    Handshake::prepare();
    Parts::prepare();
    __syncthreads();
    cluster_arrive();
  }
}

}  // namespace detail

/// kPrefetches: a row is prefetched into the L2 cache `ahead` rows early, for whichever block
/// processes it. kStages: rows are staged in shared memory (row/staging.cuh), unless the LOAD
/// excludes columns: it may then read packs next to those of its block. kRelays: as in
/// ClusterHandshake. kBranchless: as in load_tile. `even`: the columns per chunk of a schedule with
/// even chunks.
template <class Schedule, bool kPrefetches = false, bool kStages = false, bool kRelays = false,
          bool kBranchless = false, class Op, class LoadT, class StoreT, class Statistics,
          class Rows>
__device__ __forceinline__ void row_kernel(const Op& op, const LoadT& load, StoreT store,
                                           const Statistics& statistics, const Rows& rows,
                                           int64_t cols, int64_t ahead = 0, int64_t even = 0) {
  static_assert(detail::check_operator<Op>());
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth, Schedule::kStride,
                       Schedule::kSpan, Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  static_assert(detail::check_sides<LoadT, StoreT, Compute, Row>());
  extern __shared__ __align__(16) char shared_row[];

  const int thread = threadIdx.x % Schedule::kThreads;
  const int first_col = Schedule::first_col(thread);
  const int group_col = Schedule::group_col(thread);
  const int of_chunk = Schedule::chunk_cols(even);
  const int chunks = Schedule::chunks(cols, of_chunk);
  const Share share = Schedule::share(blockIdx.x, chunks);
  RowTile tile;
  const int64_t apart = Schedule::rows_apart(gridDim.x);
  using Parts = detail::Parts<Schedule, Op>;
  constexpr int kBlock = detail::block_of<StoreT>();
  // With relays, most threads do not wait at the cluster's barrier, which a LargestOfRow needs.
  ClusterHandshake<Schedule::kBlocks, kRelays && kBlock != kWholeRow> handshake;
  detail::prepare<decltype(handshake), Parts>();
  Parts parts;
  constexpr bool kHasResult = detail::has_result<Op>();
  [[maybe_unused]] detail::LargestOfRow<Schedule> largest_of_row;
  static_assert(kBlock == kNoBlock || !kStages, "rows whose columns share a scale are not staged");
  static_assert(kBlock == kNoBlock || !detail::pairs<StoreT>(),
                "fusedops: a functor that reads a partner column before one of blocks of columns");
  constexpr bool kPairs = detail::pairs<LoadT>() || detail::pairs<StoreT>();
  constexpr bool kStage = kStages && !detail::bounds<LoadT, Row>() && !kPairs;
  auto stage = detail::stage_of<kStage, Schedule>(load, store, thread, cols, of_chunk);

  // Of a block that fits a row all warps but the last are full: their packs are not checked.
  constexpr bool kByWarp = detail::fills_by_warp<Schedule>() && !kPairs;
  const bool full = kByWarp && Schedule::is_full(cols, share.begin * of_chunk, of_chunk, group_col);

  // All threads of a row's blocks have the same loop bound, so every lane reaches every shuffle and
  // barrier, and the compiler knows it.
  for (int64_t first = Schedule::first_row(blockIdx.x); first < rows.count; first += apart) {
    const int64_t number = first + threadIdx.x / Schedule::kThreads;
    const bool mine = Schedule::kRows == 1 || number < rows.count;
    const Row row = rows.index(mine ? number : first);
    const Columns bounds = bounds_of(load, row, cols);
    stage.fetch(load, row, mine);
    if constexpr (kPrefetches) {
      if (thread == 0 && number + ahead < rows.count) {
        const Row later = rows.index(number + ahead);
        const Columns wanted = bounds_of(load, later, cols);
        load.source.prefetch_all(later, larger<int64_t>(share.begin * of_chunk, wanted.begin),
                                 smaller<int64_t>(share.end * of_chunk, wanted.end));
      }
    }

    const auto begun = detail::begin_row(op, load, row, cols, bounds);

    // Rows that share a block process their chunks together, so none of them skips one.
    constexpr bool kSkipsChunks = !Storage::kOneTile && Schedule::kRows == 1;
    const Columns within =
        kSkipsChunks ? chunks_within<LoadT, Row>(bounds, of_chunk, chunks) : Columns{0, chunks};

    typename Op::Partial part = Op::identity();  // of this thread's group in a chunk
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (kSkipsChunks && (chunk < within.begin || chunk >= within.end)) {
        if (first < apart && chunk == share.begin) handshake.relay(Schedule::rank(blockIdx.x));
        handshake.wait();
        parts.add(op, Op::identity(), chunk);
        continue;
      }
      const int begin = chunk * of_chunk;
      const int64_t left = Schedule::left(cols, begin, of_chunk);
      tile.begin(left - first_col, left - group_col);
      const auto& source = stage.in(load, row);
      if (mine) {
        // Without a result there are registers for all loads of a tile at a time.
        const auto fetch = [&](auto&& tile) {
          load_tile<false, kBranchless || !kHasResult, kByWarp>(
              tile, source, row, begin + first_col, bounds, Op::padding_value());
        };
        with_full<kByWarp>(full, fetch, tile);
      } else {
        tile.fill(Op::padding_value());
      }
      if constexpr (kHasResult && !Storage::kOneTile && !Storage::kRevisits) {
        Storage::template put<Schedule::kThreads * Schedule::kRows>(
            shared_row, tile, chunk - share.begin, threadIdx.x);
      }
      if (first < apart && chunk == share.begin) handshake.relay(Schedule::rank(blockIdx.x));
      if constexpr (detail::reads_beside<Op>()) {
        RowTile weights;
        weights.begin(left - first_col, left - group_col);
        weights.fill(Compute(0));
        if (mine) {
          load_tile<false>(weights, detail::beside_load<Row>(op.beside()), row, begin + first_col,
                           Columns{0, cols}, Compute(0));
        }
        part = op.reduce(Lanes<Schedule::kLanes>{}, tile, weights);
      } else {
        part = op.reduce(Lanes<Schedule::kLanes>{}, tile);
      }
      handshake.wait();
      parts.add(op, part, chunk);
    }
    const typename Op::Finish finish =
        detail::finish_row(op, parts.all(op, chunks), begun, row, cols);
    if (mine && thread == 0 && share.begin == 0) statistics.write(finish, row);

    // Sets the tile to what reduce left of a chunk.
    [[maybe_unused]] const auto again = [&](int chunk) {
      const int begin = chunk * of_chunk;
      tile.begin(Schedule::left(cols, begin, of_chunk) - first_col, 0);
      if constexpr (Storage::kRevisits) {
        if (mine) load_tile<true>(tile, load, row, begin + first_col, bounds, Op::padding_value());
      } else if constexpr (!Storage::kOneTile) {
        if (chunk >= within.begin && chunk < within.end) {
          Storage::template get<Schedule::kThreads * Schedule::kRows>(
              shared_row, tile, chunk - share.begin, threadIdx.x);
        } else {
          tile.fill(Op::padding_value());
        }
      }
      if constexpr (!Storage::kOneTile) {
        if (parts.remembers(chunks)) {
          part = parts.of(chunk);
          op.rebuild(part, tile);
        } else {
          part = op.rebuild(Lanes<Schedule::kLanes>{}, tile);
        }
      }
    };
    if constexpr (kHasResult && kBlock == kWholeRow) {
      constexpr bool kMadeAgain = Storage::kRevisits;
      uint32_t number = 0;
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        again(chunk);
        if (!mine) continue;
        detail::make_tile(tile, store, row, int64_t(chunk) * of_chunk + first_col, finish.of(part));
        number = larger(number, detail::measure_tile(tile, store));
        if constexpr (!Storage::kOneTile && !kMadeAgain) {
          Storage::template put<Schedule::kThreads * Schedule::kRows>(
              shared_row, tile, chunk - share.begin, threadIdx.x);
        }
      }
      number = largest_of_row.of(number);
      if (mine && thread == 0 && share.begin == 0) store.chain.keep(row, 0, number);
      const auto found = store.chain.of_block(row, number);
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        const int64_t col = int64_t(chunk) * of_chunk + first_col;
        if constexpr (kMadeAgain) {
          again(chunk);
          if (mine) detail::make_tile(tile, store, row, col, finish.of(part));
        } else if constexpr (!Storage::kOneTile) {
          tile.begin(Schedule::left(cols, chunk * of_chunk, of_chunk) - first_col, 0);
          Storage::template get<Schedule::kThreads * Schedule::kRows>(
              shared_row, tile, chunk - share.begin, threadIdx.x);
        }
        if (mine) detail::store_made(tile, store, row, col, [&](int) { return found; });
      }
    } else if constexpr (kHasResult) {
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        again(chunk);
        auto&& target = stage.out(store, row);
        const int64_t col = int64_t(chunk) * of_chunk + first_col;
        if constexpr (kBlock == kNoBlock) {
          if constexpr (detail::pairs_in_thread<RowTile, StoreT>()) {
            if (mine) store_tile_of_pairs(tile, store, row, col, finish.of(part));
          } else if constexpr (detail::pairs<StoreT>()) {
            RowTile partners;
            if (mine) load_partners(tile, partners, load, store, row, col, finish.of(part));
            detail::row_is_read<Schedule>();
            if (mine) store_tile_paired(tile, partners, store, row, col, finish.of(part));
          } else {
            if constexpr (kPairs) detail::row_is_read<Schedule>();
            const auto put = [&](auto&& tile) {
              store_tile(tile, target, row, col, finish.of(part));
            };
            // A STORE that only writes waits for nothing: its checks cost less than two texts.
            constexpr bool kReads = detail::flag<true, detail::ComputesFlag, StoreT>();
            if (mine) with_full<kByWarp && kReads>(full, put, tile);
          }
        } else if constexpr (kBlock != kWholeRow) {
          store_blocks<Schedule::kLanes>(tile, target, row, col, finish.of(part), mine);
        }
      }
    }
    stage.flush(store, row, mine);
    if (kStage && first + apart < rows.count) stage.reuse();
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
