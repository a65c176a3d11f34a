// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A loaded kernel, for the CPU or for CUDA devices.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"
#include "threads.h"

namespace fusedops::runtime {

/// One function of one binary. A CUDA kernel stays loaded until the process ends, since a captured
/// graph may still replay it; a library for the CPU is closed with its last plan.
class Kernel {
 public:
  /// From the bytes of a cubin. `waits`: compiled for sm_90 or later, the kernel itself waits for
  /// the previous one (programmatic dependent launch). Throws std::runtime_error.
  static std::shared_ptr<Kernel> load_cuda(std::string image, const std::string& symbol,
                                           bool waits);

  /// From a shared library. Throws std::runtime_error.
  static std::shared_ptr<Kernel> load_host(const std::string& path, const std::string& symbol);

  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  bool on_host() const { return host_ != nullptr; }
  HostKernel host() const { return host_; }
  const std::string& symbol() const { return symbol_; }

  /// Loads the kernel on a device and allows it `shared` bytes of dynamic shared memory; cheap if
  /// that was done before. The device's context must be current.
  void prepare(int index, unsigned shared);

  /// Launches on `stream`; the device's context must be current. `words` is the only argument.
  void launch(cuda::Stream stream, unsigned grid, unsigned block, unsigned shared,
              void* words) const;

 private:
  Kernel() = default;

  std::string symbol_;
  HostKernel host_ = nullptr;
  void* library_ = nullptr;
  cuda::Kernel cuda_ = nullptr;
  bool may_wait_ = false;            // `waits` of load_cuda
  std::atomic<bool> waits_ = false;  // whether the loaded machine code waits
  std::mutex mutex_;
  std::vector<int64_t> shared_;  // per device: bytes allowed so far; -1: not loaded
};

}  // namespace fusedops::runtime
