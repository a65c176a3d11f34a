// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Scales of factors of 8 bits that change along K: one for each 128 numbers of a row of x, and one for each
// 128 x 128 of w. A stage has 128 numbers of K and a tile 128 rows of w, so the sum of a stage is multiplied
// by one number for each row where it is added to the others.
#pragma once

#include <fusedops/gemm/products.cuh>
#include <fusedops/gemm/tile_order.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// Factors without scales: the sum of a stage is added as it is.
struct NoScales {
  static constexpr bool kAny = false;
  struct Stage {};
  struct OfThread {
    __device__ __forceinline__ Stage next() const { return {}; }
  };

  /// sum += part, where the products of part are complete.
  template <int kRegisters>
  __device__ __forceinline__ static void add(float (&sum)[kRegisters], float (&part)[kRegisters],
                                             const Stage&) {
    wgmma_keep(part);
    FUSEDOPS_UNROLL
    for (int i = 0; i < kRegisters; ++i) sum[i] += part[i];
  }
};

/// The scales of both factors, and how far apart those of neighbouring rows, or of 128 rows of w, and of
/// neighbouring blocks of K are.
struct BlockScales {
  static constexpr bool kAny = true;
  const float* x;
  int64_t x_row, x_block;
  const float* w;
  int64_t w_rows, w_block;

  /// What multiplies the sums of a stage, for a thread that has elements of two rows.
  struct Stage {
    float first, second, w;
  };
  /// Those of the thread's rows, the second of which is 8 below the first, and of its tile's columns.
  struct OfThread {
    const float *first, *second, *w;
    int64_t x_block, w_block;

    /// Issues the reads of the next stage's, which the products of the stage before hide.
    __device__ __forceinline__ Stage next() {
      const Stage found = {read(first), read(second), read(w)};
      first += x_block;
      second += x_block;
      w += w_block;
      return found;
    }
  };
  /// row: the first one of the warpgroup; col: that of the tile.
  __device__ __forceinline__ OfThread of_thread(int row, int col) const {
    row += threadIdx.x / 32 % 4 * 16 + lane_of_warp() / 4;
    const float* first = x + row * x_row;
    return {first, first + 8 * x_row, w + col / 128 * w_rows, x_block, w_block};
  }

  /// sum += part times the scales of its stage, where the products of part are complete.
  template <int kRegisters>
  __device__ __forceinline__ static void add(float (&sum)[kRegisters], float (&part)[kRegisters],
                                             const Stage& of) {
    const float scales[2] = {of.first * of.w, of.second * of.w};
    wgmma_keep(part);
    FUSEDOPS_UNROLL
    for (int i = 0; i < kRegisters; ++i) sum[i] = fmaf(part[i], scales[i / 2 % 2], sum[i]);
  }

 private:
  __device__ __forceinline__ static float read(const float* from) {
    float value;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(value) : "l"(from));
    return value;
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
