// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernel y = STORE(x @ w.T) for sm_90a, in one of its two forms: in_turns.cuh, interleaved.cuh.
// x has M rows and w N rows, of K numbers of 16 bits each. A tile fits into M and N; N and K, and the
// distances of rows, are multiples of 8.
#pragma once

#include <fusedops/gemm/in_turns.cuh>
#include <fusedops/gemm/interleaved.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The tilings that are compiled: small tiles in turns, large ones with the STORE interleaved.
template <class T>
using InTurns = Tiling<T, 128, 128, 6, true>;
template <class T>
using Interleaved = Tiling<T, 128, 256, 4, false>;

/// group: pairs of tiles of a column that clusters work on before the next column.
template <class Tiling, class StoreT, class Rows>
__device__ __forceinline__ void product_kernel(const TensorMap& x, const TensorMap& w,
                                               const StoreT& store, const Rows& rows, int64_t n,
                                               int64_t k, int64_t group) {
  extern __shared__ __align__(16) char memory[];
  const int cols = static_cast<int>(n), depth = static_cast<int>(k);
  if constexpr (Tiling::kInTurns) {
    in_turns<Tiling, 2, true>(x, w, store, rows, cols, depth, static_cast<int>(group), memory);
  } else {
    interleaved<Tiling, 4, true>(x, w, store, rows, cols, depth, static_cast<int>(group), memory);
  }
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
