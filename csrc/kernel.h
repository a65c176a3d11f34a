// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A loaded kernel, for the host or for CUDA devices.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"
#include "threads.h"

namespace fusedops::runtime {

/// One function of one binary. A CUDA kernel stays loaded for the process (a captured graph may
/// still replay it); a host library is closed with its last plan.
class Kernel {
 public:
  /// From the bytes of a cubin. `waits`: compiled for sm_90 or newer, it waits by itself for what
  /// was launched before it. Throws std::runtime_error.
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

  /// Loads the kernel on a device and allows it this much shared memory; cheap when already done.
  /// The device's context must be current.
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
  bool may_wait_ = false;            // by itself for what was launched before it
  std::atomic<bool> waits_ = false;  // as this device's machine code does
  std::mutex mutex_;
  std::vector<int64_t> shared_;  // per device: bytes allowed so far; -1: not loaded there
};

}  // namespace fusedops::runtime
