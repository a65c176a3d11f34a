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
inline namespace FUSEDOPS_ABI {
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

/// In place of a number of bytes: all that the device allows the kernel.
inline constexpr int kAllShared = -1;

/// The launch attributes that kernels have been given, so that they are not set at each launch: one
/// entry for each kernel, device and attributes, in a table whose entries replace one another. An
/// entry is one word, so threads may share the table.
class Attributes {
 public:
  /// `shared`: bytes to opt in to, or kAllShared; `cluster`: whether clusters of more than 8 blocks.
  Attributes(const void* kernel, int shared, bool cluster)
      : kernel_(kernel), shared_(shared), cluster_(cluster) {}

  /// Sets them, unless that was done before; `again`: in any case.
  cudaError_t set(bool again) const {
    int device = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status != cudaSuccess) return status;
    const uint64_t size = shared_ == kAllShared ? 0x1ff : static_cast<uint64_t>(kibibytes());
    const uint64_t entry = (reinterpret_cast<uint64_t>(kernel_) << 17) ^
                           (static_cast<uint64_t>(device) << 10) ^ (size << 1) ^
                           static_cast<uint64_t>(cluster_);
    uint64_t& place = table()[entry * 0x9e3779b97f4a7c15ull >> 56];
    if (!again && __atomic_load_n(&place, __ATOMIC_RELAXED) == entry) return cudaSuccess;
    int bytes = 1024 * kibibytes();
    if (shared_ == kAllShared) status = all_of(device, &bytes);
    if (status == cudaSuccess && shared_ != 0) {
      status = cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    if (status == cudaSuccess && cluster_) {
      status = cudaFuncSetAttribute(kernel_, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (status == cudaSuccess) __atomic_store_n(&place, entry, __ATOMIC_RELAXED);
    return status;
  }

 private:
  static uint64_t* table() {
    static uint64_t entries[256] = {};
    return entries;
  }
  int kibibytes() const { return (shared_ + 1023) / 1024; }
  cudaError_t all_of(int device, int* bytes) const {
    cudaError_t status =
        cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess) return status;
    cudaFuncAttributes found;
    status = cudaFuncGetAttributes(&found, kernel_);
    if (status == cudaSuccess) *bytes -= static_cast<int>(found.sharedSizeBytes);
    return status;
  }

  const void* kernel_;
  int shared_;
  bool cluster_;
};

/// While it lives, this thread may load a kernel though a graph is being captured.
class Uncaptured {
 public:
  Uncaptured() { status_ = cudaThreadExchangeStreamCaptureMode(&mode_); }
  Uncaptured(const Uncaptured&) = delete;
  Uncaptured& operator=(const Uncaptured&) = delete;
  ~Uncaptured() {
    if (status_ == cudaSuccess) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  cudaError_t status() const { return status_; }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  cudaError_t status_;
};

/// Launches a kernel that has one argument; never waits. `grid`: blocks, `block`: threads per
/// block, `shared`: bytes of dynamic shared memory, `cluster`: blocks per cluster. `most`: the
/// bytes of dynamic shared memory to opt in to, if more than `shared`, or kAllShared.
inline cudaError_t launch(const void* kernel, int64_t grid, unsigned block, unsigned shared,
                          cudaStream_t stream, void* argument, int cluster = 1, int most = 0) {
  if (grid == 0) return cudaSuccess;  // no rows
  if (grid > 0x7fffffff) return cudaErrorInvalidConfiguration;
  const Uncaptured uncaptured;  // a kernel is loaded at its first launch
  cudaError_t status = uncaptured.status();
  if (status != cudaSuccess) return status;
  const int size = shared > kPlainShared ? static_cast<int>(shared) : 0;
  const bool wide = cluster > 8;  // more than every device has
  const bool asks = size > 0 || wide;
  const Attributes attributes(kernel, size > 0 && (most == kAllShared || most > size) ? most : size,
                              wide);
  void* arguments[] = {argument};
  for (int turn = 0; turn < (asks ? 2 : 1); ++turn) {
    status = asks ? attributes.set(turn > 0) : cudaSuccess;
    if (status == cudaSuccess) {
      status = cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(grid)), dim3(block), arguments,
                                shared, stream);
    }
    // After cudaDeviceReset() a kernel has lost what it was given: once more.
    if (status != cudaErrorInvalidValue) break;
  }
  return status;
}

#endif  // __CUDACC__

}  // namespace exported
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

#endif  // __CUDACC_RTC__
