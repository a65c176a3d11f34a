// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Two warpgroups in turns: one multiplies a tile of its own while the other runs the STORE of its last
// one, from sums that were not rounded.
#pragma once

#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/producer.cuh>
#include <fusedops/gemm/products.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// A warpgroup's turn to multiply. Waiting for it also orders the parities of the ring: while the
/// other has not seen its last stage, that of a trip long past would read as that of the next.
struct Turn {
  int mine;

  __device__ __forceinline__ void wait() const {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + mine) : "memory");
  }
  __device__ __forceinline__ void pass_on() const {
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - mine) : "memory");
  }
};

/// The packs of a thread: kPacks of the 16 at a time, from `first` on.
template <class Tiling, int kPacks, class Rows>
__device__ __forceinline__ void place(Packs<typename Rows::Index, kPacks>& packs, int first,
                                      const Rows& rows, int row, int col) {
  constexpr int kAcross = Tiling::kTileN / 32;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kPacks; ++i) {
    const int p = first + i, r = p % 2, j = p / 2 % kAcross, h = p / 2 / kAcross;
    packs.rows[i] = rows.index(row + h * 64 + 8 * r);
    packs.cols[i] = col + 32 * j;
  }
}

template <class Tiling, int kPacks, class Index>
__device__ __forceinline__ void take(Packs<Index, kPacks>& packs, int first,
                                     typename Tiling::Sums& sums) {
  constexpr int kAcross = Tiling::kTileN / 32;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kPacks; ++i) {
    const int p = first + i, r = p % 2, j = p / 2 % kAcross, h = p / 2 / kAcross;
    float v[4][2];
    FUSEDOPS_UNROLL
    for (int c = 0; c < 8; ++c) v[c / 2][c % 2] = sums[h][(4 * j + c / 2) * 4 + 2 * r + c % 2];
    detail::exchange(v);
    FUSEDOPS_UNROLL
    for (int c = 0; c < 8; ++c) packs.values[i][c] = v[c / 2][c % 2];
  }
}

/// kPacks: how many packs go through the functors together.
template <class Tiling, int kPacks, bool kPrefetches, class StoreT, class Rows>
__device__ __forceinline__ void in_turns(const TensorMap& x, const TensorMap& w,
                                         const StoreT& store, const Rows& rows, int n, int k,
                                         int group, char* memory) {
  using Ring = typename Tiling::Ring;
  constexpr int kTurns = Tiling::kInTurns ? 2 : 1;
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
    const int mine = warp / 4 - 1;
    const Turn turn{mine};
    int t = blockIdx.x / 2;
    if constexpr (Tiling::kInTurns) {
      if (mine == 1) {
        if (t < tiles) turn.pass_on();
        t += clusters;
        at.skip(steps);
      }
    }
    const int below = Tiling::kInTurns ? 0 : mine * 64 * Tiling::kHalves;
    for (; t < tiles; t += kTurns * clusters) {
      const auto tile = order.at(t);
      typename Tiling::Sums sums;
      if constexpr (Tiling::kInTurns) turn.wait();
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        ring.full[at.stage].wait(at.parity);
        Tiling::multiply(sums, ring, at.stage, below, step > 0);
        wgmma_wait<1>();
        if (step > 0) ring.release(before);
        before = at.stage;
        at.next();
      }
      if constexpr (Tiling::kInTurns) {
        if (t + clusters < tiles) turn.pass_on();
        at.skip(steps);
      }
      const int lane = lane_of_warp();
      int row = tile.row + below + warp % 4 * 16 + lane / 4;
      int col = tile.col + lane % 4 * kPack;
      Packs<typename Rows::Index, kPacks> packs[2];
      place<Tiling>(packs[0], 0, rows, row, col);
      packs[0].issue(store.chain);
      wgmma_wait<0>();
      FUSEDOPS_UNROLL
      for (int h = 0; h < Tiling::kHalves; ++h) wgmma_keep(sums[h]);
      ring.release(before);
      FUSEDOPS_UNROLL
      for (int p = 0; p < 16; p += kPacks) {
        auto& now = packs[p / kPacks % 2];
        auto& next = packs[(p / kPacks + 1) % 2];
        if (p + kPacks < 16) {
          // Or what all packs of a row have in common is computed first, and spilled.
          asm volatile("" : "+r"(row), "+r"(col));
          place<Tiling>(next, p + kPacks, rows, row, col);
          next.issue(store.chain);
        }
        take<Tiling>(now, p, sums);
        now.store(store);
      }
    }
  }
  ring.end();
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
