// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What exported functions do before a kernel runs: they check their arguments, and write the 8-byte
// words of the kernel's argument as the runtime of the Python package does (csrc/stage.cpp). The
// launch serves the C++ dispatches as well. Host code; nothing here allocates or waits.
#pragma once

#include <fusedops/core/threshold.cuh>
#include <fusedops/row/slices.cuh>

#if !defined(__CUDACC_RTC__)

namespace fusedops {
namespace exported {

/// Writes an 8-byte word, or its lower half where the value has four bytes.
template <class T>
inline void put(uint64_t* word, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a value has 4 or 8 bytes");
  __builtin_memcpy(word, &value, sizeof(value));
}

/// Whether 0 < p <= 1; false for NaN.
inline bool is_probability(double p) { return p > 0 && p <= 1; }

template <class... T>
inline bool any_null(const T*... pointers) {
  return (... || (pointers == nullptr));
}

/// Whether each pointer is aligned to `bytes`; 0 stands for the alignment of its type.
template <class... T>
inline bool aligned(uint64_t bytes, const T*... pointers) {
  return (... && (reinterpret_cast<uint64_t>(pointers) % (bytes ? bytes : alignof(T)) == 0));
}

/// The size of a piece of the workspace, rounded up so that the next piece is aligned to 16 bytes.
inline int64_t piece(int64_t bytes) { return (bytes + 15) / 16 * 16; }

/// The blocks of a grid for `rows` rows, `of_block` per block; where a grid cannot have so many,
/// each block processes several sets of rows in turn.
inline int64_t blocks(int64_t rows, int64_t of_block, int64_t cluster = 1) {
  const int64_t wanted = (rows + of_block - 1) / of_block;
  const int64_t most = 0x7fffffff / cluster;
  return (wanted < most ? wanted : most) * cluster;
}

/// The largest number of slices on a CPU: 64, each of at least `fewest` rows.
inline int64_t host_slices(int64_t rows, int64_t fewest) {
  return rows / fewest < 64 ? rows / fewest : 64;
}

#if defined(__CUDACC__)

/// Bytes of dynamic shared memory that need no opt-in: with static shared memory a block has 48
/// KiB.
inline constexpr int kPlainShared = 30 * 1024;

/// Launches a kernel that has one argument; never waits. `grid`: blocks, `block`: threads per
/// block, `shared`: bytes of dynamic shared memory, `cluster`: blocks per cluster. `most`: the
/// bytes of dynamic shared memory to opt in to, if more than `shared`.
inline cudaError_t launch(const void* kernel, int64_t grid, unsigned block, unsigned shared,
                          cudaStream_t stream, void* argument, int cluster = 1, int most = 0) {
  if (grid == 0) return cudaSuccess;  // no rows
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  // A kernel is loaded at its first launch, which must not fail because a graph is being captured.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode);
  if (status != cudaSuccess) return status;
  if (shared > kPlainShared) {
    const int size = static_cast<int>(shared);
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most > size ? most : size);
  }
  if (status == cudaSuccess && cluster > 8) {  // more than every device has
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (status == cudaSuccess) {
    void* arguments[] = {argument};
    status = cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(grid)), dim3(block), arguments,
                              shared, stream);
  }
  const cudaError_t restored = cudaThreadExchangeStreamCaptureMode(&mode);
  return status == cudaSuccess ? restored : status;
}

#endif  // __CUDACC__

}  // namespace exported
}  // namespace fusedops

#endif  // __CUDACC_RTC__
