// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The warp that fills the ring.
#pragma once

#include <fusedops/gemm/pipeline.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// Fetches stages of w to the L2 cache that are copied some steps later: to wait for memory takes longer than
/// the ring is. Few at a time, which are neighbours there. next: the tile after this one, or this one.
template <class Ring, class Order>
__device__ __forceinline__ void prefetch(const TensorMap& w, const Order& order, int step,
                                         int steps, const typename Order::Tile& tile,
                                         const typename Order::Tile& next) {
  constexpr int kTogether = 4;
  if (step % kTogether != 0 || threadIdx.x != 0) return;
#pragma unroll 1
  for (int i = 0; i < kTogether; ++i) {
    const int later = step + order.ahead + i;
    if (later < steps) {
      Ring::prefetch(w, later * kStageK, order, tile);
    } else if (later < 2 * steps && next.number != tile.number) {
      Ring::prefetch(w, (later - steps) * kStageK, order, next);
    }
  }
}

/// added: the bias, or none.
template <class Tiling, class Order, class Bias, class Masked>
__device__ __forceinline__ void produce(typename Tiling::Ring& ring, const Order& order,
                                        const TensorMap& x, const TensorMap& w, int k,
                                        const Bias& added, const Masked& masked) {
  asm volatile(""
               : "+r"(k));  // or what the others compute of it is kept for this warp, and spilled
  const int tiles = order.count(), clusters = gridDim.x / 2;
  StageIndex<Tiling::kStages> at;
  for (int t = blockIdx.x / 2; t < tiles; t += clusters) {
    const auto tile = order.at(t);
    const int steps = masked(tile) ? 0 : stages_of(k);
    auto next = tile;
    if constexpr (Order::kRagged) {
      if (t + clusters < tiles) next = order.at(t + clusters);
    }
    for (int step = 0; step < steps; ++step) {
      if constexpr (Order::kRagged) {
        if (order.ahead > 0) prefetch<typename Tiling::Ring>(w, order, step, steps, tile, next);
      }
      if (threadIdx.x == 0) ring.fill(at, x, w, step * kStageK, order, tile, added);
      __syncwarp();
      at.next();
    }
  }
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
