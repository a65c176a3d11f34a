// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Two warpgroups together on a tile of 128 x 256, which reads a third less from the L2 cache and from
// shared memory than tiles of 128 x 128 do. The sums, rounded to the factors' type as a product that
// is written to memory is, stay in 64 registers of a thread while the next tile's products begin; a
// part of their STORE follows each step of these, while the tensor cores work.
#pragma once

#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/producer.cuh>
#include <fusedops/gemm/products.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// Where pack p of the 16 that a thread has of its last tile lies.
template <class Rows, class Index>
__device__ __forceinline__ void place(Packs<Index, 1>& pack, int p, const Rows& rows, int row,
                                      int col) {
  pack.rows[0] = rows.index(row + 8 * (p % 2));
  pack.cols[0] = col + 32 * (p / 2);
}

/// The values of pack kNth of those in the first registers.
template <class T, int kNth, class Index>
__device__ __forceinline__ void take(Packs<Index, 1>& pack, const uint32_t (&kept)[64],
                                     const detail::PairExchange& exchange) {
  uint32_t pairs[4];
  FUSEDOPS_UNROLL
  for (int c = 0; c < 4; ++c) pairs[c] = kept[2 * (4 * (kNth / 2) + c) + kNth % 2];
  exchange.template operator()<kNth % 2>(pairs);
  FUSEDOPS_UNROLL
  for (int c = 0; c < 4; ++c) {
    from_pair<T>(pairs[c], pack.values[0][2 * c], pack.values[0][2 * c + 1]);
  }
}

/// kRound: packs that have code of their own.
template <class Tiling, int kRound, bool kPrefetches, class StoreT, class Rows>
__device__ __forceinline__ void interleaved(const TensorMap& x, const TensorMap& w,
                                            const StoreT& store, const Rows& rows, int n, int k,
                                            int group, char* memory) {
  using T = typename Tiling::T;
  using Ring = typename Tiling::Ring;
  static_assert(!Tiling::kInTurns && Tiling::kHalves == 1, "64 rows for each warpgroup");
  Ring ring(memory);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  ring.begin();

  const TileOrder<Tiling::kTileM, Tiling::kTileN> order{static_cast<int>(rows.count), n, group};
  if (warp < 4) {
    keep_few_registers();
    if (warp == 0) produce<Tiling, kPrefetches>(ring, order, x, w, store.chain, rows, k);
  } else {
    take_many_registers();
    const int tiles = order.count(), clusters = gridDim.x / 2;
    const int steps = stages_of(k);
    StageIndex<Tiling::kStages> at;
    const int below = (warp / 4 - 1) * 64;
    const detail::PairExchange exchange(
        ring.scratch((warp - 4) * 2 * detail::PairExchange::kBytes));
    typename Tiling::Sums sums;
    uint32_t kept[64];
    Packs<typename Rows::Index, 1> packs[2];
    int row = 0, col = 0;
    int before = 0;
    auto multiply = [&](bool adds) {
      ring.full[at.stage].wait(at.parity);
      Tiling::multiply(sums, ring, at.stage, below, adds);
      wgmma_wait<1>();
      if (adds) ring.release(before);
      before = at.stage;
      at.next();
    };
    // All packs, and up to 16 of `steps` steps of the next tile, one before each. Registers have no
    // index: the packs of a round are moved to the first ones, so that one copy of the code does.
    auto store_tile = [&](int steps) {
#pragma unroll 1
      for (int first = 0; first < 16; first += kRound) {
        unrolled<kRound>([&](auto p) {
          // Or what all packs of a row have in common is computed before the loop, and spilled.
          asm volatile("" : "+r"(row), "+r"(col));
          if (first + p.value < steps) multiply(first + p.value > 0);
          auto& next = packs[(p.value + 1) % 2];
          place(next, (first + p.value + 1) % 16, rows, row, col);  // of the last one, in vain
          next.issue(store.chain);
          take<T, p.value>(packs[p.value % 2], kept, exchange);
          packs[p.value % 2].store(store);
        });
        FUSEDOPS_UNROLL
        for (int i = 0; i < 64 - 4 * kRound; ++i) kept[i] = kept[i + 4 * kRound];
      }
    };
    bool pending = false;
    for (int t = blockIdx.x / 2; t < tiles; t += clusters) {
      int step = 0;
      if (pending) {
        store_tile(steps);
        step = min(16, steps);
      }
      for (; step < steps; ++step) multiply(step > 0);
      const auto tile = order.at(t);
      const int lane = lane_of_warp();
      row = tile.row + below + warp % 4 * 16 + lane / 4;
      col = tile.col + lane % 4 * kPack;
      place(packs[0], 0, rows, row, col);
      packs[0].issue(store.chain);
      wgmma_wait<0>();
      wgmma_keep(sums[0]);
      ring.release(before);
      FUSEDOPS_UNROLL
      for (int i = 0; i < 64; ++i) kept[i] = pair_of<T>(sums[0][2 * i], sums[0][2 * i + 1]);
      pending = true;
    }
    if (pending) store_tile(0);
  }
  ring.end();
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
