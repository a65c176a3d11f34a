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
    int first = 0, depth = k;
    if constexpr (Order::kRaggedDepth) {
      first = tile.first;
      depth = tile.depth;
    }
    const int steps = masked(tile) ? 0 : stages_of<typename Tiling::Factor>(depth);
    for (int step = 0; step < steps; ++step) {
      if (threadIdx.x == 0)
        ring.fill(at, x, w, first + step * kStageK<typename Tiling::Factor>, order, tile, added);
      __syncwarp();
      at.next();
    }
  }
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
