// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward kernel for a GPU: one text for every operator, LOAD, STORE and schedule. The threads
// of a row load it again, and the gradient of its result; they go back through the STORE, reduce
// what the operator's gradient sums over the row, and go back through the LOAD. They process the
// rows of a slice one after another, so that gradients that rows share are summed on chip.
#pragma once

#include <fusedops/row/ring.cuh>
#include <fusedops/row/row_lane.cuh>
#include <fusedops/row/straight.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

/// How a later row is prefetched into the L2 cache. kPerThread: each thread prefetches its own
/// packs; kBulk: one thread issues a bulk prefetch; kPerLine: each thread prefetches cache lines
/// in turn; kAcrossRows: kBulk for a row of another slice, where slices are single rows.
enum class Prefetch { kNever, kPerThread, kBulk, kPerLine, kAcrossRows };

/// `ahead`: the prefetch distance in rows. `even`: as in row_kernel. kEagerOperands: the loads of
/// the STORE's operands are issued together with those of the row, not after them (more bytes in
/// flight, more registers). kInterleaves: slices take rows in turns, so that all blocks read
/// neighbouring rows at a time; a block then has one slice, of a single span. kStages: the rows that
/// bulk copies bring to shared memory ahead (row/ring.cuh), 0 for none; with them, operands of the STORE
/// that all rows share stay in registers. kByWords: the gradient of x goes through shared memory, from
/// where it is written in words of 16 bytes.
template <class Schedule, Prefetch kPrefetch, bool kEagerOperands = true, bool kInterleaves = false,
          int kStages = 0, bool kByWords = false, class Op, class LoadT, class Upstream,
          class StoreT, class Kept, class To, class LoadTargets, class StoreTargets, class Rows>
__device__ __forceinline__ void gradient_kernel(const Op& op, const LoadT& load,
                                                const Upstream& upstream, const StoreT& store,
                                                const Kept& kept, const To& to,
                                                const LoadTargets& load_targets,
                                                const StoreTargets& store_targets,
                                                const Slices& slices, const Rows& rows,
                                                int64_t cols, int64_t ahead = 1, int64_t even = 0) {
  static_assert(detail::check_gradient<Op>());
  if constexpr (detail::goes_straight<Schedule, Op, LoadT, Upstream, StoreT, To, LoadTargets,
                                      StoreTargets>()) {
    straight_kernel<Schedule>(op, load, upstream, kept, to, slices, rows, cols, even);
    return;
  }
  using Compute = typename Op::Compute;
  using Storage = typename Schedule::Storage;
  using Row = typename Rows::Index;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth, Schedule::kStride,
                       Schedule::kSpan, Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  constexpr bool kMasks = Op::kHasMasked;
  constexpr bool kReduces = detail::reduces<Op>();
  constexpr Lanes<Schedule::kLanes> kGroup{};
  constexpr bool kEverywhere = !Op::kMaskedIsConstant && Sinks<RowTile, StoreTargets>::kAny;

  // Whether packs beyond the row's end are loaded without a branch. One H200: with branches the
  // second tile of a long row waits for the first (softmax of 128256 columns of 16 bits 68 percent
  // of the ceiling, without 92). Of narrow packs there are many, and each predicated one costs more
  // than it saves (LayerNorm of 12289 columns of 32 bits 75, with branches 81).
  constexpr bool kBranchless = Schedule::kBlocks > 1 && Schedule::kWidth >= 4;

  // As in row_kernel.
  constexpr bool kByWarp =
      detail::fills_by_warp<Schedule>() && !detail::pairs<LoadT>() && !detail::pairs<StoreT>();

  const int thread = threadIdx.x % Schedule::kThreads;
  const int first_col = Schedule::first_col(thread);
  const int of_chunk = Schedule::chunk_cols(even);
  const int chunks = Schedule::chunks(cols, of_chunk);
  const Share share = Schedule::share(blockIdx.x, chunks);
  const unsigned block = Schedule::kApart ? blockIdx.x / chunks : blockIdx.x;
  const int64_t slice = Schedule::first_row(block) + threadIdx.x / Schedule::kThreads;
  static_assert(!kInterleaves || Schedule::kRows == 1, "a block has one slice");
  const RowRange of_slice =
      kInterleaves ? RowRange{slice, rows.count} : slices.of(slice, rows.count);
  const int64_t begin = of_slice.begin, end = of_slice.end;
  const int64_t step = kInterleaves ? slices.per_span : 1;
  const uint32_t turns =
      kPrefetch == Prefetch::kAcrossRows ? 1 : static_cast<uint32_t>(slices.rows);

  // With both tiles in one object ptxas 13.0 needs 124 registers for log-softmax of 50257 columns
  // of 16 bits (85 percent of the ceiling), with two objects 167 (79 percent).
  struct {
    RowTile value, gradient;
  } now;
  RowTile &value = now.value, &gradient = now.gradient;
  Sinks<RowTile, LoadTargets> load_sinks(load_targets);
  Sinks<RowTile, StoreTargets> store_sinks(store_targets);
  const detail::RowLane<Schedule, RowTile> lane{value, cols, first_col, of_chunk, share, thread};
  load_sinks.begin(lane);
  store_sinks.begin(lane);

  const bool full = kByWarp && Schedule::is_full(cols, share.begin * of_chunk, of_chunk,
                                                 Schedule::group_col(thread));
  const auto begin_chunk = [&](int chunk) {
    const int64_t left = Schedule::left(cols, chunk * of_chunk, of_chunk) - first_col;
    value.begin(left, 0);
    gradient.begin(left, 0);
  };
  const auto fetch = [&](auto&& value, auto&& gradient, const auto& load, const auto& upstream,
                         const Row& row, int chunk) {
    const auto along = alongside<Row, kEverywhere>(load, upstream);
    const Columns bounds = bounds_of(load, row, cols);
    const int col = chunk * of_chunk + first_col;
    if constexpr (detail::uses_values<Op, StoreT>()) {
      load_tile<true, kByWarp, kByWarp>(value, load, row, col, bounds, Op::padding_value());
    } else {
      value.fill(Compute(0));
    }
    load_tile<false, kBranchless || kByWarp, kByWarp>(gradient, along, row, col, bounds,
                                                      Compute(0));
  };

  const auto prefetch_later = [&](uint32_t turn) {
    const int64_t later = begin + (turn + ahead) * step;
    if (later >= (kPrefetch == Prefetch::kAcrossRows ? rows.count : end)) return;
    const Row row = rows.index(later);
    const int here = share.begin * of_chunk;
    const int64_t last = smaller<int64_t>(share.end * of_chunk, cols);
    if constexpr (kPrefetch == Prefetch::kBulk || kPrefetch == Prefetch::kAcrossRows) {
      if (thread != 0) return;
      load.prefetch_all(row, smaller<int64_t>(here, cols), last);
      upstream.prefetch_all(row, smaller<int64_t>(here, cols), last);
    } else if constexpr (kPrefetch == Prefetch::kPerLine) {
      const ByLine<Schedule::kThreads> by{thread};
      load.prefetch_all(row, smaller<int64_t>(here, cols), last, by);
      upstream.prefetch_all(row, smaller<int64_t>(here, cols), last, by);
    } else if constexpr (kPrefetch == Prefetch::kPerThread) {
      prefetch_tile(value, load, row, here + first_col, cols);
      prefetch_tile(value, upstream, row, here + first_col, cols);
    }
  };

  // When to prefetch. One H200: before the loads a prefetch takes none of their registers (softmax
  // of 65536 columns of 16 bits 96 percent of the ceiling, after them 87). Where a pack is one
  // column, there are many loads, which would wait for it.
  constexpr bool kBefore = kPrefetch == Prefetch::kAcrossRows && Schedule::kWidth > 1;

  // With sums over rows an early prefetch is worth 2 percent, without them a late one is.
  constexpr bool kSums = decltype(load_sinks)::kAny || decltype(store_sinks)::kAny;
  constexpr bool kLate = kPrefetch == Prefetch::kPerThread && !kSums;
  constexpr bool kEarly = kPrefetch != Prefetch::kNever && !kBefore && !kLate;

  // All threads of a block have the same loop bound, so every lane reaches every shuffle and
  // barrier.
  using Parts = detail::Parts<Schedule, Op>;
  // Every block waits for the handshake itself: RowLane::sum uses the cluster's barrier anyway.
  ClusterHandshake<Schedule::kBlocks> handshake;
  detail::prepare<decltype(handshake), Parts>();
  Parts parts;

  static_assert(kStages == 0 || kReduces,
                "the reduction's barrier frees a row's place in the ring");
  const int end_col = static_cast<int>(smaller<int64_t>((share.begin + 1) * of_chunk, cols));
  constexpr int kInShared = decltype(load_sinks)::kInShared + decltype(store_sinks)::kInShared;
  constexpr int kSumBytes = kInShared * Schedule::kTile * static_cast<int>(sizeof(Compute));
  auto ring = detail::ring_of<kStages, kSumBytes, Schedule, Op>(load, upstream, kept,
                                                                share.begin * of_chunk, end_col);
  const auto leaving =
      detail::leaving_of<kByWords, Schedule>(ring, to, share.begin * of_chunk, end_col);
  static_assert(!kByWords || kStages > 0, "the memory is behind the ring");
  const auto fetch_ahead = [&](uint32_t turn) {
    const int64_t number = begin + turn * step;
    const bool mine = turn < turns && number < end;
    if constexpr (kStages > 0) ring.fetch(rows.index(mine ? number : 0), turn, mine);
  };
  const auto fetch_joining_ahead = [&](uint32_t turn) {
    const int64_t number = begin + turn * step;
    const bool mine = turn < turns && number < end;
    if constexpr (kStages > 0) ring.fetch_joining(rows.index(mine ? number : 0), turn, mine);
  };
  FUSEDOPS_UNROLL
  for (int i = 0; i < kStages; ++i) {
    fetch_ahead(i);
    if (i + 1 < kStages) fetch_joining_ahead(i);
  }

  // A single column of 16 bits takes a register as well: LayerNorm of 12289 columns spills so.
  constexpr bool kKeeps = kStages > 0 && RowTile::kWhole && RowTile::kWidth > 1 &&
                          Storage::kOneTile && !detail::pairs<StoreT>();
  OperandsAhead shared[kKeeps ? RowTile::kPacks : 1];
  if constexpr (kKeeps) {
    const int first = share.begin * of_chunk;
    value.begin(Schedule::left(cols, first, of_chunk) - first_col, 0);
    read_shared(shared, value, store, rows.index(0), first + first_col, lane);
  }

  for (uint32_t turn = 0; turn < turns; ++turn) {
    const bool mine = begin + turn * step < end;
    const Row row = rows.index(mine ? begin + turn * step : 0);
    const Visit visit{slice, turn, turns, begin < end, mine};
    if constexpr (kBefore) prefetch_later(turn);
    if (kStages > 0 && mine) ring.wait();
    const auto& from = ring.load(load, row);
    const auto& above = ring.upstream(upstream, row);
    const auto& known_of = ring.kept(kept, row);
    const auto& of_store = detail::with_shared<kKeeps>(row, shared);
    detail::KeptOfRow<Op> of_row;
    if constexpr (kEagerOperands) {
      if (kStages == 0 || mine) {
        of_row.read(known_of, unaware(row));  // not an operand: no promise of alignment
      } else {
        of_row.clear();
      }
    } else {
      // The branch makes these loads complete before those of the STORE's operands are issued,
      // which then take no registers meanwhile.
      if (mine) {
        of_row.read(known_of, unaware(row));
        begin_chunk(share.begin);
        fetch(value, gradient, from, above, row, share.begin);
      } else {
        of_row.clear();
        value.fill(Compute(0));
        gradient.fill(Compute(0));
      }
      if constexpr (kEarly) prefetch_later(turn);
    }
    const typename Op::Row known = of_row.known();
    const auto others = elsewhere<Op>(load, upstream, store, known);

    for (int chunk = share.begin; chunk < share.end; ++chunk) {
      if (mine) {
        const auto read = [&](auto&& value, auto&& gradient) {
          if (kEagerOperands || chunk > share.begin)
            fetch(value, gradient, from, above, row, chunk);
          through_store<Op, kMasks>(value, gradient, known, store, of_store,
                                    chunk * of_chunk + first_col, store_sinks, lane, visit, others);
        };
        if (kEagerOperands || chunk > share.begin) begin_chunk(chunk);
        with_full<kByWarp>(full, read, value, gradient);
      }
      if (kEagerOperands && kEarly && chunk == share.begin) prefetch_later(turn);
      if constexpr (kReduces) {
        const typename Op::Partial part = op.reduce(kGroup, value, gradient);
        handshake.wait();
        parts.add(op, part, chunk);
      } else if (mine) {
        through_load<Op, kMasks>(value, gradient, op.finish(known, Op::identity(), row, cols), load,
                                 to, row, chunk * of_chunk + first_col, load_sinks, lane, visit,
                                 others);
      }
    }
    if constexpr (kReduces) {
      const typename Op::Partial of_all = parts.all(op, chunks);
      if constexpr (kLate) prefetch_later(turn);
      fetch_ahead(turn + kStages);
      fetch_joining_ahead(turn + kStages - 1);
      if (kStages > 0 && mine) ring.wait_for_joining();
      ring.next();
      const typename Op::Finish finish = op.finish(known, of_all, row, cols);
      detail::add_row_gradients<Op>(finish, load_sinks, lane, row, visit);
      for (int chunk = share.begin; chunk < share.end; ++chunk) {
        if (!mine) continue;
        const int col = chunk * of_chunk + first_col;
        if constexpr (!Storage::kOneTile) {
          Sinks<RowTile, Targets<>> seen{Targets<>{}};  // the STORE's operands have their gradients
          begin_chunk(chunk);
          fetch(value, gradient, load, upstream, row, chunk);
          through_store<Op, kMasks>(value, gradient, known, store, row, col, seen, lane, visit,
                                    others);
        }
        const auto write = [&](auto&& value, auto&& gradient) {
          through_load<Op, kMasks>(value, gradient, finish, from, leaving.to(to, row), row, col,
                                   load_sinks, lane, visit, others);
        };
        with_full<kByWarp>(full, write, value, gradient);
      }
    }
    leaving.flush(to, row, mine);
    load_sinks.flush(lane, row, visit);
    store_sinks.flush(lane, row, visit);
  }
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
