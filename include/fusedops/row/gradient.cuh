// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient kernel of the GPU: one text for every operator, LOAD, STORE and schedule. A row's
// threads load it again and the gradient of its result beside it, go back through the STORE, reduce
// what the operator sums over the row, and go back through the LOAD. They take the rows of a slice
// one after another, so that gradients that rows share add up in registers.
#pragma once

#include <fusedops/row/kernel.cuh>
#include <fusedops/row/through.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// The threads of one row, for whoever adds up what rows share.
template <class Schedule, class Tile>
struct RowLane {
  using Compute = typename Tile::Compute;
  Tile& tile;
  int64_t cols;
  int first_col;
  Share share;
  int thread;

  /// Of one number a thread, over the row's threads.
  __device__ __forceinline__ Compute sum(Compute x) const {
    x = Lanes<Schedule::kLanes>{}.sum(x);
    if constexpr (Schedule::kGroups > 1) {
      __shared__ Compute parts[Schedule::kGroups];
      __syncthreads();
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
      __syncthreads();
      x = 0;
      for (int i = 0; i < Schedule::kGroups; ++i) x += parts[i];
    }
    if constexpr (Schedule::kBlocks > 1) {
      __shared__ Compute of_blocks[Schedule::kBlocks];
      cluster_arrive();  // all have read the last sum
      cluster_wait();
      if (threadIdx.x < Schedule::kBlocks) {
        write_in_block(&of_blocks[Schedule::rank(blockIdx.x)], x, static_cast<int>(threadIdx.x));
      }
      cluster_arrive_released();
      cluster_wait();
      x = 0;
      for (int i = 0; i < Schedule::kBlocks; ++i) x += of_blocks[i];
    }
    return x;
  }
  __device__ __forceinline__ bool writes() const {
    return thread == 0 && Schedule::rank(blockIdx.x) == 0;
  }

  /// The block's rows leave one part of a sum: those of the first.
  __device__ __forceinline__ bool writes_part() const { return threadIdx.x < Schedule::kThreads; }
  __device__ __forceinline__ int64_t part(int64_t slice) const { return slice / Schedule::kRows; }

  /// Adds the sums of the block's other rows to those of the first.
  __device__ __forceinline__ void combine(Compute (&sums)[Tile::kPacks][Tile::kWidth]) const {
    if constexpr (Schedule::kRows > 1) {
      constexpr int kBlock = Schedule::kThreads * Schedule::kRows;
      __shared__ Compute all[Tile::kPacks * Tile::kWidth][kBlock];
      __syncthreads();
      FUSEDOPS_UNROLL
      for (int i = 0; i < Tile::kPacks * Tile::kWidth; ++i) {
        all[i][threadIdx.x] = sums[i / Tile::kWidth][i % Tile::kWidth];
      }
      __syncthreads();
      if (!writes_part()) return;
      FUSEDOPS_UNROLL
      for (int i = 0; i < Tile::kPacks * Tile::kWidth; ++i) {
        for (int other = 1; other < Schedule::kRows; ++other) {
          sums[i / Tile::kWidth][i % Tile::kWidth] += all[i][other * Schedule::kThreads + thread];
        }
      }
    }
  }

  /// N sums of this thread in shared memory. A thread reads only what it wrote, and neighbouring
  /// threads touch neighbouring words: no barriers, no conflicts.
  template <int N>
  __device__ __forceinline__ void get(int64_t offset, int pack, int first, Compute (&values)[N],
                                      int by = threadIdx.x) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kWord<N>) {
      const auto word = *shared_word<kWord<N>>(offset, pack, first + i, by);
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWord<N>; ++j) values[i + j] = word.at[j];
    }
  }
  template <int N>
  __device__ __forceinline__ void put(int64_t offset, int pack, int first,
                                      const Compute (&values)[N]) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; i += kWord<N>) {
      Pack<Compute, kWord<N>> word;
      FUSEDOPS_UNROLL
      for (int j = 0; j < kWord<N>; ++j) word.at[j] = values[i + j];
      *shared_word<kWord<N>>(offset, pack, first + i, threadIdx.x) = word;
    }
  }
  /// Until all rows of the block have put theirs; and then the sums over them.
  __device__ __forceinline__ void wait() const {
    if constexpr (Schedule::kRows > 1) __syncthreads();
  }
  template <int N>
  __device__ __forceinline__ void get_all(int64_t offset, int pack, int first,
                                          Compute (&values)[N]) const {
    get(offset, pack, first, values);
    for (int other = 1; other < Schedule::kRows; ++other) {
      Compute more[N];
      get(offset, pack, first, more, other * Schedule::kThreads + thread);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) values[i] += more[i];
    }
  }

  template <class F>
  __device__ __forceinline__ void walk(F f) const {
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      const int begin = chunk * Schedule::kChunk;
      tile.begin(Schedule::left(cols, begin) - first_col, 0);
      walk_tile(tile, begin + first_col, f);
    }
  }

 private:
  static constexpr int kMost = smaller<int>(16 / sizeof(Compute), Tile::kWidth);
  template <int N>
  static constexpr int kWord = smaller<int>(N, kMost);

  template <int kCount>
  __device__ __forceinline__ static Pack<Compute, kCount>* shared_word(int64_t offset, int pack,
                                                                       int element, int by) {
    extern __shared__ __align__(16) char shared_row[];
    constexpr int kBlock = Schedule::kThreads * Schedule::kRows;
    const int word = (pack * Tile::kWidth + element) / kMost * kBlock + by;
    return reinterpret_cast<Pack<Compute, kCount>*>(reinterpret_cast<Compute*>(shared_row) +
                                                    offset + word * kMost + element % kMost);
  }
};

/// What a row's threads have fetched of it.
template <class Op, class Tile>
struct Fetched {
  Tile value, gradient;
  typename Op::Compute kept[Op::kKept];
};

}  // namespace detail

/// How a row is asked for before its turn, so that it is found in the L2 cache.
/// By each thread or by one for all; of the rows of a slice, or of all, where slices are rows.
enum class Ask { kNever, kEachThread, kAtOnce, kAcross };

/// `ahead`: how many rows before its turn a row is asked for.
template <class Schedule, Ask kAsk, class Op, class LoadT, class Upstream, class StoreT, class Kept,
          class To, class LoadTargets, class StoreTargets, class Rows>
__device__ __forceinline__ void gradient_kernel(const Op& op, const LoadT& load,
                                                const Upstream& upstream, const StoreT& store,
                                                const Kept& kept, const To& to,
                                                const LoadTargets& load_targets,
                                                const StoreTargets& store_targets,
                                                const Slices& slices, const Rows& rows,
                                                int64_t cols, int64_t ahead = 1) {
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  constexpr bool kMasks = Op::kLeaves;
  constexpr Lanes<Schedule::kLanes> kGroup{};
  constexpr bool kEverywhere = !Op::kLeavesConstant && Sinks<RowTile, StoreTargets>::kAny;
  const Alongside<LoadT, Upstream, Row, kEverywhere> along{load, upstream};

  // One H200: with a branch around its last packs the second tile of a long row waits for the first
  // (softmax of 128256 columns of 16 bits 68 percent of the ceiling, 92 so). Packs of fewer columns
  // are many, and each costs what it spares (LayerNorm of 12289 columns of 32 bits 75, 81 with
  // branches).
  constexpr bool kAtOnce = Schedule::kBlocks > 1 && Schedule::kWidth >= 4;

  const int thread = threadIdx.x % Schedule::kThreads;
  const int first_col = thread * Schedule::kWidth;
  const int chunks = Schedule::chunks(cols);
  const Share share = Schedule::share(blockIdx.x, chunks);
  const int64_t slice = Schedule::first_row(blockIdx.x) + threadIdx.x / Schedule::kThreads;
  const int64_t begin = slices.begin(slice);
  const int64_t end = slices.end(slice, rows.count);
  const uint32_t turns = kAsk == Ask::kAcross ? 1 : static_cast<uint32_t>(slices.rows);

  Sinks<RowTile, LoadTargets> load_sinks(load_targets);
  Sinks<RowTile, StoreTargets> store_sinks(store_targets);
  using Fetched = detail::Fetched<Op, RowTile>;
  Fetched now;
  const detail::RowLane<Schedule, RowTile> lane{now.value, cols, first_col, share, thread};
  load_sinks.begin(lane);
  store_sinks.begin(lane);

  const auto fetch = [&](Fetched& into, const Row& row, int chunk) {
    const Columns bounds = bounds_of(load, row, cols);
    const int64_t left = Schedule::left(cols, chunk * Schedule::kChunk) - first_col;
    const int col = chunk * Schedule::kChunk + first_col;
    into.value.begin(left, 0);
    into.gradient.begin(left, 0);
    load_tile<true>(into.value, load, row, col, bounds, Op::neutral());
    load_tile<false, kAtOnce>(into.gradient, along, row, col, bounds, Compute(0));
  };
  // The first chunk of the slice's row, and what was kept of it; nothing beyond the end.
  const auto begin_row = [&](Fetched& into, uint32_t turn) {
    if (begin + turn < end) {
      const Row row = rows.index(begin + turn);
      kept.read(into.kept, unaware(row), 0);  // numbers of its own, aligned as they are
      fetch(into, row, share.begin);
    } else {
      FUSEDOPS_UNROLL
      for (int i = 0; i < Op::kKept; ++i) into.kept[i] = 0;
      into.value.fill(Compute(0));
      into.gradient.fill(Compute(0));
    }
  };

  const auto ask = [&](uint32_t turn) {
    const int64_t later = begin + turn + ahead;
    if (later >= (kAsk == Ask::kAcross ? rows.count : end)) return;
    const Row row = rows.index(later);
    const int here = share.begin * Schedule::kChunk;
    if constexpr (kAsk == Ask::kAtOnce || kAsk == Ask::kAcross) {
      if (thread != 0) return;
      const int64_t last = smaller<int64_t>(share.end * Schedule::kChunk, cols);
      load.prefetch_all(row, smaller<int64_t>(here, cols), last);
      upstream.prefetch_all(row, smaller<int64_t>(here, cols), last);
    } else if constexpr (kAsk == Ask::kEachThread) {
      announce(now.value, load, row, here + first_col, cols);
      announce(now.value, upstream, row, here + first_col, cols);
    }
  };

  // One H200: before the loads, asking takes none of their registers (softmax of 65536 columns of 16
  // bits 96, after them 87). Where a pack is one column they are many, and would wait for it.
  constexpr bool kBefore = kAsk == Ask::kAcross && Schedule::kWidth > 1;

  // With sums asking early is worth 2 points, without them asking late is.
  constexpr bool kSums = decltype(load_sinks)::kAny || decltype(store_sinks)::kAny;
  constexpr bool kLate = kAsk == Ask::kEachThread && !kSums;
  constexpr bool kEarly = kAsk != Ask::kNever && !kBefore && !kLate;

  // The bound is the same for all threads of a block, so every lane reaches every shuffle and
  // barrier.
  using Parts = detail::Parts<Schedule, Op>;
  detail::prepare<Schedule, Parts>();
  bool all_begun = false;
  Parts parts;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool mine = begin + turn < end;
    const Row row = rows.index(mine ? begin + turn : 0);
    const Visit visit{slice, turn, turns, begin < end, mine};
    if constexpr (kBefore) ask(turn);
    begin_row(now, turn);
    if constexpr (kEarly) ask(turn);
    const typename Op::Row known = Op::row(now.kept);

    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (mine) {
        if (chunk > share.begin) fetch(now, row, chunk);
        through_store<Op, kMasks>(now.value, now.gradient, known, store, row,
                                  chunk * Schedule::kChunk + first_col, store_sinks, lane, visit);
      }
      const typename Op::Partial part = op.reduce(kGroup, now.value, now.gradient);
      detail::await_cluster<Schedule>(all_begun);
      parts.add(op, part, chunk);
    }
    const typename Op::Partial of_row = parts.all(op, chunks);
    if constexpr (kLate) ask(turn);
    const typename Op::Finish finish = op.finish(known, of_row, cols);
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (!mine) continue;
      const int col = chunk * Schedule::kChunk + first_col;
      if constexpr (!Storage::kOneTile) {
        Sinks<RowTile, Targets<>> seen{Targets<>{}};  // operands of the STORE have had theirs
        fetch(now, row, chunk);
        through_store<Op, kMasks>(now.value, now.gradient, known, store, row, col, seen, lane,
                                  visit);
      }
      through_load<Op, kMasks>(now.value, now.gradient, finish, load, to, row, col, load_sinks,
                               lane, visit);
    }
    load_sinks.flush(lane, row, visit);
    store_sinks.flush(lane, row, visit);
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
