// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel y = STORE(x @ w.T) for sm_90a. x has M rows and w N rows, of K numbers of 8 or 16 bits each.
// A tile fits into M and N; N is a multiple of 8, and the distances of rows are multiples of 16 bytes.
// Where w is MN-major, which has 16 bits, it is x @ w. In a backward pass the gradient of a LOAD takes the place of the STORE (gemm/gradient.cuh).
//
// The warps of a block have three roles (warp specialization). One fills the ring of stages. Two
// warpgroups multiply. Four epilogue warps run the STORE of the tile before meanwhile; of its last tile,
// when it has no more to multiply, a warpgroup runs half of the STORE itself.
// Beside wgmma an instruction of theirs is issued every five clocks or so without holding up the product,
// but where it is a wide multiplication of integers, as dropout needs them:
// docs/explanation/products.md.
#pragma once

#include <fusedops/gemm/bias.cuh>
#include <fusedops/gemm/block_scales.cuh>
#include <fusedops/gemm/handover.cuh>
#include <fusedops/gemm/masked_tiles.cuh>
#include <fusedops/gemm/producer.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The role of a warp that multiplies. added: the bias, or none; scales: of the factors, or none; mine: its
/// warpgroup, 0 or 1; to: what takes the sums, as a Handover. A tile that is `masked` has zeros.
/// Returns how often it has handed sums over.
template <class Tiling, class Order, class Bias, class Masked, class Scales, class To>
__device__ __forceinline__ int multiply(const typename Tiling::Ring& ring, const Order& order,
                                        int k, const Bias& added, const Masked& masked,
                                        const Scales& scales, int mine, const To& to) {
  constexpr bool kInTurns = Tiling::kInTurns;
  const int tiles = order.count(), clusters = gridDim.x / 2,
            all_steps = stages_of<typename Tiling::Factor>(k);
  auto steps_of = [&](int tile) {
    if constexpr (Masked::kNever) return all_steps;
    return tile < tiles && masked(order.at(tile)) ? 0 : all_steps;
  };
  const int below = kInTurns ? 0 : mine * 64;
  const Turn turn{mine};
  StageIndex<Tiling::kStages> at;
  int handed = 0;
  int t = blockIdx.x / 2;
  if (kInTurns && mine == 1) {
    if (t < tiles) turn.pass_on();
    at.skip(steps_of(t));
    t += clusters;
  }
  for (; t < tiles; t += (kInTurns ? 2 : 1) * clusters) {
    if constexpr (Order::kRagged) {
      static_assert(!kInTurns, "warpgroups whose rows differ");
      if (mine >= order.parts(order.at(t))) {
        for (int step = 0; step < all_steps; ++step) {
          ring.full[at.stage].wait(at.parity);
          ring.release(at.stage);
          at.next();
        }
        to.pass(handed++ & 1);
        continue;
      }
    }
    int depth = k;
    if constexpr (Order::kRaggedDepth) {
      static_assert(!kInTurns && !Tiling::kPromotes && !Bias::kAny && Masked::kNever,
                    "sums of both warpgroups that begin with the first product");
      depth = order.at(t).depth;
      if (depth == 0) {
        to.write_zeros(handed++ & 1);
        continue;
      }
    }
    typename Tiling::Sums sums;
    if constexpr (kInTurns) {
      if constexpr (Bias::kAny) Bias::template begin<Tiling>(sums, added.at(order.at(t).col));
      turn.wait();
    } else if constexpr (Bias::kAny) {
      ring.full[at.stage].wait(at.parity);
      Bias::template begin<Tiling>(sums, detail::shared_address(ring.bias(at.stage)));
    }
    int before = 0;
    const int steps = Order::kRaggedDepth ? depth / kStageK<typename Tiling::Factor> : steps_of(t);
    if constexpr (Tiling::kPromotes || !Masked::kNever) {
      if (Tiling::kPromotes || steps == 0) {
        FUSEDOPS_UNROLL
        for (auto& sum : sums) set_zero(sum);
      }
    }
    typename Scales::OfThread of_thread;
    if constexpr (Scales::kAny) {
      static_assert(Tiling::kPromotes && Tiling::kTileN == 128, "one number for all columns");
      const auto tile = order.at(t);
      of_thread = scales.of_thread(tile.row + below, tile.col);
    }
    auto scaled = of_thread.next();
    for (int step = 0; step < steps; ++step) {
      ring.full[at.stage].wait(at.parity);
      if constexpr (Tiling::kPromotes) {
        static_assert(!kInTurns && !Bias::kAny, "sums that begin with zeros, of both warpgroups");
        typename Tiling::Sums part;
        Tiling::multiply(part, ring, at.stage, below, false);
        auto next = scaled;
        if (step + 1 < steps) next = of_thread.next();
        wgmma_wait<0>();
        ring.release(at.stage);
        FUSEDOPS_UNROLL
        for (int n = 0; n < Tiling::kHalves * Tiling::kAcross; ++n) {
          Scales::add(sums[n], part[n], scaled);
        }
        scaled = next;
      } else {
        Tiling::multiply(sums, ring, at.stage, below, Bias::kAny || step > 0);
      }
      if constexpr (kInTurns) {
        wgmma_wait<1>();
        if (step > 0) ring.release(before);
        before = at.stage;
      } else if constexpr (!Tiling::kPromotes) {
        // The other warpgroup keeps the tensor cores busy. A stage that were held until the next one
        // has come would be one less to fill, of three.
        wgmma_wait<0>();
        ring.release(at.stage);
      }
      at.next();
    }
    if constexpr (kInTurns) {
      if (t + clusters < tiles) turn.pass_on();
      at.skip(steps_of(t + clusters));
    }
    if constexpr (Order::kRaggedDepth) {
      const int left = depth % kStageK<typename Tiling::Factor>;
      if (left > 0) {
        ring.full[at.stage].wait(at.parity);
        Tiling::multiply_first(sums, ring, at.stage, below, left, steps > 0);
        ring.release(at.stage);
        at.next();
      }
    }
    wgmma_wait<0>();
    FUSEDOPS_UNROLL
    for (auto& sum : sums) wgmma_keep(sum);
    if constexpr (kInTurns) {
      if (Masked::kNever || steps > 0) ring.release(before);
    }
    to.write(sums, handed & 1);
    ++handed;
  }
  return handed;
}

/// Whether warps that have no more to multiply run the STORE of a half of their last sums: unless epilogue
/// warps add up gradients, or the sets of packs of a half are no even number.
template <class Tiling, class Order, class Epilogue>
__device__ constexpr bool shares_last() {
  using Sums = Handover<Tiling, Order::kHalves>;
  return !Epilogue::kSums && Sums::kReads / Tiling::kPacks % 4 == 0;
}

/// The role of an epilogue warp, the nth of four. Its packs are those of one of the four warps of a
/// warpgroup, and where both warpgroups work on a tile, then of one of the other's.
///
/// Of the sums that a warp hands over last, it runs the STORE of the second half itself. handed: how often it
/// has handed sums over, 0 for an epilogue warp; mine: its warpgroup.
template <class Tiling, class Order, class Epilogue, class Rows, class Masked>
__device__ __forceinline__ void run_epilogue(const typename Tiling::Ring& ring, const Order& order,
                                             Epilogue epilogue, const Rows& rows,
                                             const Masked& masked, int nth, int handed, int mine) {
  using Sums = Handover<Tiling, Order::kHalves>;
  constexpr bool kInTurns = Tiling::kInTurns;
  constexpr int kPacks = Tiling::kPacks, kSteps = Sums::kReads / kPacks;
  constexpr int kOfLast = shares_last<Tiling, Order, Epilogue>() ? kSteps / 2 : kSteps;
  // There are two sets of packs. Where those of a warp are no even number, the two warps of a tile alternate.
  constexpr bool kAlternates = kSteps % 2 == 1;
  static_assert(!kAlternates || !kInTurns, "a tile of both warpgroups");
  static_assert(16 % (kPacks * Sums::kRowsAtOnce) == 0, "of 16 neighbouring rows");
  static_assert(Sums::kTurns == 1 || !Epilogue::kSums, "a lane adds up the rows of one column");
  const int tiles = order.count(), clusters = gridDim.x / 2;
  int row = 0, col = 0;
  bool is_masked = false, next_is_masked = false;
  typename Order::template Start<Rows> start;
  // The operands of the next packs are read, while those of these go through the functors.
  Packs<decltype(order.index(rows, start, 0, 0)), kPacks> packs[2];
  auto find = [&](int t) {
    const auto tile = order.at(t);
    if constexpr (!Masked::kNever) next_is_masked = masked(tile);
    const int lane = lane_of_warp();
    row = order.first_row(tile) + nth * 16 + Sums::first_row(lane);
    col = tile.col + Sums::first_pack(lane) * kPack;
    start = order.start(rows, tile, row);
  };
  auto issue = [&](auto& next, int first) {
    const int lane = Sums::kTurns == 1 ? 0 : lane_of_warp();
    const int r = Sums::below(first, lane);  // beyond 16, those of the other 64 rows
    FUSEDOPS_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      next.rows[i] = order.index(rows, start, row + r + r / 16 * 48, i * Sums::kRowsAtOnce);
    }
    next.col = col + Sums::beside(first, lane) * kPack;
    if (!next_is_masked) epilogue.issue(next);
  };
  int count = 0, step = 0;
  int t = blockIdx.x / 2;
  if (handed > 0) {
    count = 2 * (handed - 1) + mine;
    step = kOfLast;
    t += (kInTurns ? count : handed - 1) * clusters;
  }
  if (t < tiles) {
    find(t);
    if (!kInTurns && mine == 1) row += 64;
    issue(packs[0], step * kPacks);
  }
  for (; t < tiles; count += kAlternates ? 2 : 1) {
    // Of a tile, one after another: both warpgroups, or the one whose turn it was.
    const int group = count % 2;
    const Sums first(ring.scratch(), group * 4 + nth), second(ring.scratch(), 4 + nth);
    first.full->wait(count / 2 & 1);
    if constexpr (kAlternates) second.full->wait(count / 2 & 1);
    const bool ends = kInTurns || kAlternates || group == 1 || handed > 0;
    const bool is_last = t + (kInTurns ? 2 : 1) * clusters >= tiles;
    const int steps = is_last && handed == 0 ? kOfLast : kSteps;
    is_masked = next_is_masked;
    if constexpr (Epilogue::kSums) {
      if (kInTurns || group == 0) epilogue.begin(order.at(t), nth);
    }
    if (ends) t += handed > 0 ? tiles : clusters;
#pragma unroll 1
    for (; step < steps; step += kAlternates ? 1 : 2) {
      unrolled<2>([&](auto parity) {
        constexpr int kHalf = decltype(parity)::value;
        const Sums& from = kAlternates && kHalf == 1 ? second : first;
        const int now = (kAlternates ? step : step + kHalf) * kPacks;
        const bool last = kAlternates ? step + 1 == steps : kHalf == 1 && step + 2 == steps;
        if (kHalf == 1 && last) {
          row += 64;
          if (ends) find(min(t, tiles - 1));  // after the last tile in vain
        }
        const int next = now + (kAlternates && kHalf == 0 ? Sums::kReads : kPacks);
        issue(packs[1 - kHalf], kHalf == 1 && last ? 0 : next);
        auto& these = packs[kHalf];
        if constexpr (!Masked::kNever) {
          if (is_masked) {
            if (last) from.release();
            epilogue.mask(these);
            return;
          }
        }
        FUSEDOPS_UNROLL
        for (int i = 0; i < kPacks; ++i) {
          if constexpr (Order::kHalves == Halves::kNone) {
            from.read(these.values[i], now + i);
          } else {
            from.read(these.values[i], these.rows[i].other, now + i);
          }
        }
        if (last) from.release();
        epilogue.run(these);
      });
    }
    step = 0;
    if constexpr (Epilogue::kSums) {
      if (ends) epilogue.template end<Sums::kLanes>();
    }
  }
}

/// Gives each warp its role. order: of the tiles; masked: which of them need no product.
template <class Tiling, class Epilogue, class Rows, class MakeOrder, class Masked,
          class Scales = NoScales>
__device__ __forceinline__ void share_roles(const TensorMap& x, const TensorMap& w,
                                            const Epilogue& epilogue, const Rows& rows, int64_t k,
                                            const MakeOrder& make_order, const Masked& masked,
                                            const Scales& scales = {}) {
  extern __shared__ __align__(16) char memory[];
  typename Tiling::Ring ring(memory);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  const int depth = static_cast<int>(k);
  if (threadIdx.x == 0) Handover<Tiling>::make(ring.scratch());
  ring.begin();
  const auto order = make_order();
  const auto added = bias_of(epilogue);
  static_assert(!decltype(added)::kAny || Masked::kNever, "masked tiles have no stages");
  // To ask which tiles are masked, or whose rows they are, takes a few more where the copies are issued.
  constexpr int kToProduce = Masked::kNever && !decltype(order)::kRagged ? 24 : 32;
  if (warp < 4) {
    set_registers<Tiling, kToProduce>();
    if (warp == 0) produce<Tiling>(ring, order, x, w, depth, added, masked);
  } else {
    constexpr bool kShares = shares_last<Tiling, decltype(order), Epilogue>();
    const int mine = warp / 4 - 1;
    auto store = [&](int handed) {
      run_epilogue<Tiling>(ring, order, epilogue, rows, masked, warp % 4, handed, mine);
    };
    int handed = 0;
    if (warp < 12) {
      set_registers<Tiling, Tiling::kRegisters>();
      const Handover<Tiling> to(ring.scratch(), mine * 4 + threadIdx.x / 32 % 4);
      handed = multiply<Tiling>(ring, order, depth, added, masked, scales, mine, to);
    } else {
      set_registers<Tiling, 512 - 2 * Tiling::kRegisters - kToProduce>();
      if constexpr (!kShares) store(0);
    }
    // One text for both, which may use no more registers than either has.
    if constexpr (kShares) {
      if (warp >= 12 || handed > 0) store(handed);
    }
  }
  ring.end();
}

/// epilogue: a Forward, or a Backward. group: pairs of tiles of a column that clusters work on before the
/// next column. scales: of the factors, or none.
template <class Tiling, class Epilogue, class Rows, class Scales = NoScales>
__device__ __forceinline__ void product_kernel(const TensorMap& x, const TensorMap& w,
                                               const Epilogue& epilogue, const Rows& rows,
                                               int64_t n, int64_t k, int64_t group,
                                               const Scales& scales = {}) {
  using Order = TileOrder<Tiling::kTileM, Tiling::kTileN>;
  auto make_order = [&] {
    return Order{static_cast<int>(rows.count), static_cast<int>(n), static_cast<int>(group)};
  };
  share_roles<Tiling>(x, w, epilogue, rows, k, make_order, NeverMasked{}, scales);
}

/// Many products, whose rows follow each other.
template <class Tiling, class StoreT, class Rows>
__device__ __forceinline__ void batched_product_kernel(const TensorMap& x, const TensorMap& w,
                                                       const Forward<StoreT>& epilogue,
                                                       const Rows& rows, int64_t n, int64_t k,
                                                       int64_t group, const Batch& batch) {
  using Order = BatchedOrder<Tiling::kTileM, Tiling::kTileN>;
  auto make_order = [&] { return Order(batch, n, group); };
  share_roles<Tiling>(x, w, epilogue, rows, k, make_order,
                      MaskedTiles<Order, StoreT, Rows>(batch, epilogue.store, rows));
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
