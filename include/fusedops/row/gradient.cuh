// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient kernel of the GPU: one text for every operator, LOAD, STORE and schedule. A row's
// threads load it again and the gradient of its result beside it, go back through the STORE, reduce
// what the operator sums over the row, and go back through the LOAD. They take the rows of a slice
// one after another, so that gradients that rows share add up in registers.
#pragma once

#include <fusedops/row/row_lane.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

/// How a row is asked for before its turn, so that it is found in the L2 cache: by each thread for
/// itself, by one for all, or by each a line of the cache; of the rows of a slice, or of all, where
/// slices are rows.
enum class Ask { kNever, kEachThread, kAtOnce, kByLine, kAcross };

/// `ahead`: the prefetch distance in rows. kEagerOperands: the loads of the STORE's operands are issued
/// together with those of the row, not after them.
template <class Schedule, Ask kAsk, bool kEagerOperands = true, class Op, class LoadT,
          class Upstream, class StoreT, class Kept, class To, class LoadTargets, class StoreTargets,
          class Rows>
__device__ __forceinline__ void gradient_kernel(const Op& op, const LoadT& load,
                                                const Upstream& upstream, const StoreT& store,
                                                const Kept& kept, const To& to,
                                                const LoadTargets& load_targets,
                                                const StoreTargets& store_targets,
                                                const Slices& slices, const Rows& rows,
                                                int64_t cols, int64_t ahead = 1) {
  static_assert(detail::check_gradient<Op>());
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  constexpr bool kMasks = Op::kHasMasked;
  constexpr Lanes<Schedule::kLanes> kGroup{};
  constexpr bool kEverywhere = !Op::kMaskedIsConstant && Sinks<RowTile, StoreTargets>::kAny;

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

  // In one object ptxas 13.0 holds log-softmax of 50257 columns of 16 bits in 124 registers, 85
  // percent of the ceiling; in two, in 167, 79 percent.
  struct {
    RowTile value, gradient;
  } now;
  RowTile &value = now.value, &gradient = now.gradient;
  Sinks<RowTile, LoadTargets> load_sinks(load_targets);
  Sinks<RowTile, StoreTargets> store_sinks(store_targets);
  const detail::RowLane<Schedule, RowTile> lane{value, cols, first_col, share, thread};
  load_sinks.begin(lane);
  store_sinks.begin(lane);

  const Alongside<LoadT, Upstream, Row, kEverywhere> along{load, upstream};
  const auto fetch = [&](const Row& row, int chunk) {
    const Columns bounds = bounds_of(load, row, cols);
    const int64_t left = Schedule::left(cols, chunk * Schedule::kChunk) - first_col;
    const int col = chunk * Schedule::kChunk + first_col;
    value.begin(left, 0);
    gradient.begin(left, 0);
    load_tile<true>(value, load, row, col, bounds, Op::padding_value());
    load_tile<false, kAtOnce>(gradient, along, row, col, bounds, Compute(0));
  };

  const auto ask = [&](uint32_t turn) {
    const int64_t later = begin + turn + ahead;
    if (later >= (kAsk == Ask::kAcross ? rows.count : end)) return;
    const Row row = rows.index(later);
    const int here = share.begin * Schedule::kChunk;
    const int64_t last = smaller<int64_t>(share.end * Schedule::kChunk, cols);
    if constexpr (kAsk == Ask::kAtOnce || kAsk == Ask::kAcross) {
      if (thread != 0) return;
      load.prefetch_all(row, smaller<int64_t>(here, cols), last);
      upstream.prefetch_all(row, smaller<int64_t>(here, cols), last);
    } else if constexpr (kAsk == Ask::kByLine) {
      const ByLine<Schedule::kThreads> by{thread};
      load.prefetch_all(row, smaller<int64_t>(here, cols), last, by);
      upstream.prefetch_all(row, smaller<int64_t>(here, cols), last, by);
    } else if constexpr (kAsk == Ask::kEachThread) {
      prefetch_tile(value, load, row, here + first_col, cols);
      prefetch_tile(value, upstream, row, here + first_col, cols);
    }
  };

  // One H200: a prefetch before the loads takes none of their registers (softmax of 65536 columns
  // of 16 bits 96, after them 87). Where a pack is one column, the loads are many and would wait
  // for it.
  constexpr bool kBefore = kAsk == Ask::kAcross && Schedule::kWidth > 1;

  // With sums asking early is worth 2 points, without them asking late is.
  constexpr bool kSums = decltype(load_sinks)::kAny || decltype(store_sinks)::kAny;
  constexpr bool kLate = kAsk == Ask::kEachThread && !kSums;
  constexpr bool kEarly = kAsk != Ask::kNever && !kBefore && !kLate;

  // The bound is the same for all threads of a block, so every lane reaches every shuffle and
  // barrier.
  using Parts = detail::Parts<Schedule, Op>;
  // All wait for the beginning, since RowLane::sum has them wait again; blocks visit many rows.
  ClusterHandshake<Schedule::kBlocks> handshake;
  detail::prepare<decltype(handshake), Parts>();
  Parts parts;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool mine = begin + turn < end;
    const Row row = rows.index(mine ? begin + turn : 0);
    const Visit visit{slice, turn, turns, begin < end, mine};
    if constexpr (kBefore) ask(turn);
    typename Op::Compute of_row[Op::kKept];
    if constexpr (kEagerOperands) {
      kept.read(of_row, unaware(row), 0);  // numbers of its own, aligned as they are
    } else {
      // What is read in this branch has come where it ends: what the STORE reads is not under way
      // yet, and takes no registers.
      if (mine) {
        kept.read(of_row, unaware(row), 0);
        fetch(row, share.begin);
      } else {
        FUSEDOPS_UNROLL
        for (int i = 0; i < Op::kKept; ++i) of_row[i] = 0;
        value.fill(Compute(0));
        gradient.fill(Compute(0));
      }
      if constexpr (kEarly) ask(turn);
    }
    const typename Op::Row known = Op::row(of_row);

    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (mine) {
        if (kEagerOperands || chunk > share.begin) fetch(row, chunk);
        through_store<Op, kMasks>(value, gradient, known, store, row,
                                  chunk * Schedule::kChunk + first_col, store_sinks, lane, visit);
      }
      if (kEagerOperands && kEarly && chunk == share.begin) ask(turn);
      const typename Op::Partial part = op.reduce(kGroup, value, gradient);
      handshake.wait();
      parts.add(op, part, chunk);
    }
    const typename Op::Partial of_all = parts.all(op, chunks);
    if constexpr (kLate) ask(turn);
    const typename Op::Finish finish = op.finish(known, of_all, row, cols);
    detail::add_row_gradients<Op>(finish, load_sinks, lane, row, visit);
    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (!mine) continue;
      const int col = chunk * Schedule::kChunk + first_col;
      if constexpr (!Storage::kOneTile) {
        Sinks<RowTile, Targets<>> seen{Targets<>{}};  // operands of the STORE have had theirs
        fetch(row, chunk);
        through_store<Op, kMasks>(value, gradient, known, store, row, col, seen, lane, visit);
      }
      through_load<Op, kMasks>(value, gradient, finish, load, to, row, col, load_sinks, lane,
                               visit);
    }
    load_sinks.flush(lane, row, visit);
    store_sinks.flush(lane, row, visit);
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
