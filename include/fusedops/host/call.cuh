// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What exported functions do before a kernel runs: check what they were given, and fill in the
// words of the kernel's argument as the Python package's runtime does (csrc/stage.cpp,
// schedule/row_partition.py).
// Host code; nothing here allocates or waits.
#pragma once

#include <fusedops/core/threshold.cuh>
#include <fusedops/row/slices.cuh>

#if !defined(__CUDACC_RTC__)

namespace fusedops {
namespace exported {

/// Writes a word, or its lower half where the value has four bytes.
template <class T>
inline void put(uint64_t* word, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word, or half of one");
  __builtin_memcpy(word, &value, sizeof(value));
}

/// False for NaN, too.
inline bool is_probability(double p) { return p > 0 && p <= 1; }

template <class... T>
inline bool any_null(const T*... pointers) {
  return (... || (pointers == nullptr));
}

/// Whether each pointer is a multiple of so many bytes; 0 stands for its own type's alignment.
template <class... T>
inline bool aligned(uint64_t bytes, const T*... pointers) {
  return (... && (reinterpret_cast<uint64_t>(pointers) % (bytes ? bytes : alignof(T)) == 0));
}

/// Bytes of a piece of the workspace: the next piece is aligned as well.
inline int64_t piece(int64_t bytes) { return (bytes + 15) / 16 * 16; }

/// Blocks for so many rows; where a grid cannot hold them, blocks take several in turn.
inline int64_t blocks(int64_t rows, int64_t of_block, int64_t cluster = 1) {
  const int64_t wanted = (rows + of_block - 1) / of_block;
  const int64_t most = 0x7fffffff / cluster;
  return (wanted < most ? wanted : most) * cluster;
}

/// As row_partition.py cuts rows of one dimension: into `most` slices at most, in multiples of
/// `lanes`. They are one span, so `per_span` is how many there are.
inline Slices cut(int64_t rows, int64_t most, int64_t lanes) {
  const int64_t fewer = most < rows ? most : rows;
  const int64_t wanted = fewer > 1 ? fewer : 1;
  const int64_t size = rows > wanted ? (rows + wanted - 1) / wanted : 1;
  const int64_t slices = (rows + size - 1) / size;
  return {size, rows > 1 ? rows : 1, (slices + lanes - 1) / lanes * lanes};
}

/// The most slices on a CPU: 64, of at least so many rows each.
inline int64_t host_slices(int64_t rows, int64_t fewest) {
  return rows / fewest < 64 ? rows / fewest : 64;
}

#if defined(__CUDACC__)

/// Launches a kernel whose one argument this is; never waits. `cluster`: blocks of each of its
/// clusters.
inline cudaError_t launch(const void* kernel, int64_t grid, unsigned block, unsigned shared,
                          cudaStream_t stream, void* argument, int cluster = 1) {
  if (grid == 0) return cudaSuccess;  // no rows
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  // A kernel is loaded at its first launch, which must not fail because a graph is being captured.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaError_t status = cudaThreadExchangeStreamCaptureMode(&mode);
  if (status != cudaSuccess) return status;
  // Static and dynamic shared memory have 48 KiB together without asking.
  if (shared > 30 * 1024) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared));
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
