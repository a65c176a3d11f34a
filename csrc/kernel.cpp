// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "kernel.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>

namespace fusedops::runtime {
namespace {

// Bytes of dynamic shared memory that need no opt-in: of the 48 KiB for static and dynamic shared
// memory together, 18 KiB are left for the static part, the partial results of a row of doubles.
constexpr unsigned kDefaultShared = 30 * 1024;

// The largest cluster size that every device with clusters supports.
constexpr int kPortableCluster = 8;

// Kernels that wait for the previous one themselves (core/dependency.cuh), as those for sm_90 and
// later do, may start before it has ended. Drivers before this one do not capture such launches.
constexpr int kWaitingPtx = 90;
constexpr int kCapturingDriver = 12030;

// Results of loading an image that does not fit the driver or the device (CUresult).
constexpr int kInvalidImage = 200, kNoBinaryForGpu = 209, kInvalidPtx = 218, kUnsupportedPtx = 222,
              kJitCompilerNotFound = 221;

// The remedy where the driver refuses an image.
std::string load_cure(cuda::Result result) {
  const int version = cuda::driver_version();
  const std::string driver = "; the driver supports CUDA " + std::to_string(version / 1000) + "." +
                             std::to_string(version % 1000 / 10);
  switch (result) {
    case kUnsupportedPtx:
      return driver +
             ", and an NVRTC of a later release made this PTX: update the driver, or "
             "install an NVRTC of that release";
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
      return driver +
             ", and the kernel was built for another GPU, or by a later release of NVRTC: "
             "update the driver, or install an NVRTC of that release";
    case kJitCompilerNotFound:
      return driver +
             " and has no compiler for PTX (libnvidia-ptxjitcompiler): install all of the "
             "driver, or build for this GPU";
    default:
      return "";
  }
}

void check_loaded(const cuda::Driver& driver, cuda::Result result, const std::string& what) {
  try {
    driver.check(result, what);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(error.what() + load_cure(result));
  }
}

// Loading code is an error while this thread captures a graph in the default capture mode.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const cuda::Driver& driver) : driver_(driver) {
    driver.check(driver.ThreadExchangeStreamCaptureMode(&mode_),
                 "cuThreadExchangeStreamCaptureMode");
  }
  ~RelaxedCapture() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }

 private:
  const cuda::Driver& driver_;
  int mode_ = cuda::kCaptureRelaxed;
};

}  // namespace

std::shared_ptr<Kernel> Kernel::load_cuda(std::string image, const std::string& symbol,
                                          bool waits) {
  const cuda::Driver& driver = cuda::Driver::get();
  cuda::Library library = nullptr;
  std::shared_ptr<Kernel> kernel(new Kernel);
  kernel->symbol_ = symbol;
  kernel->may_wait_ = waits;
  check_loaded(
      driver,
      driver.LibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
      "loading the CUDA kernel " + symbol + " (" + std::to_string(image.size()) + " bytes)");
  check_loaded(driver, driver.LibraryGetKernel(&kernel->cuda_, library, symbol.c_str()),
               "finding the CUDA kernel " + symbol + ": cuLibraryGetKernel");
  return kernel;
}

std::shared_ptr<Kernel> Kernel::load_host(const std::string& path, const std::string& symbol) {
  std::shared_ptr<Kernel> kernel(new Kernel);
  kernel->symbol_ = symbol;
  kernel->library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!kernel->library_) {
    throw std::runtime_error("loading the host kernel " + symbol + " failed: " + dlerror());
  }
  kernel->host_ = reinterpret_cast<HostKernel>(dlsym(kernel->library_, symbol.c_str()));
  if (!kernel->host_) {
    throw std::runtime_error(path + " holds no kernel " + symbol + ": " + dlerror());
  }
  return kernel;
}

Kernel::~Kernel() {
  if (library_) dlclose(library_);
}

void Kernel::prepare(int index, unsigned shared) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (index >= static_cast<int>(shared_.size())) shared_.resize(index + 1, -1);
  int64_t& allowed = shared_[index];
  if (allowed >= static_cast<int64_t>(shared)) return;
  const cuda::Driver& driver = cuda::Driver::get();
  const RelaxedCapture relaxed(driver);
  cuda::Function function = nullptr;
  check_loaded(driver, driver.KernelGetFunction(&function, cuda_),
               "loading the CUDA kernel " + symbol_ + " on device " + std::to_string(index));
  cuda::Device device = 0;
  driver.check(driver.DeviceGet(&device, index), "cuDeviceGet");
  int cluster = 0;
  driver.check(driver.KernelGetAttribute(&cluster, cuda::kRequiredClusterWidth, cuda_, device),
               "cuKernelGetAttribute");
  if (cluster > kPortableCluster) {
    driver.check(driver.KernelSetAttribute(cuda::kNonPortableClusters, 1, cuda_, device),
                 "allowing " + symbol_ + " clusters of " + std::to_string(cluster) +
                     " blocks on device " + std::to_string(index));
  }
  int ptx = 0;
  driver.check(driver.KernelGetAttribute(&ptx, cuda::kPtxVersion, cuda_, device),
               "cuKernelGetAttribute");
  waits_ = may_wait_ && ptx >= kWaitingPtx && cuda::driver_version() >= kCapturingDriver;
  if (shared > kDefaultShared) {
    driver.check(
        driver.KernelSetAttribute(cuda::kMaxDynamicShared, static_cast<int>(shared), cuda_, device),
        "allowing " + symbol_ + " " + std::to_string(shared) +
            " bytes of shared memory on device " + std::to_string(index));
  }
  allowed = std::max<int64_t>(shared, kDefaultShared);
}

void Kernel::launch(cuda::Stream stream, unsigned grid, unsigned block, unsigned shared,
                    void* words) const {
  const cuda::Driver& driver = cuda::Driver::get();
  void* arguments[] = {words};
  const cuda::LaunchAttribute early{cuda::kProgrammaticSerialization, 0, 1, {}};
  const cuda::LaunchConfig config{grid, 1,      1,      block,  1,
                                  1,    shared, stream, &early, waits_ ? 1u : 0u};
  // A CUkernel may be passed as a CUfunction: it then runs in the current context.
  const cuda::Result result =
      driver.LaunchKernelEx(&config, reinterpret_cast<cuda::Function>(cuda_), arguments, nullptr);
  if (result == cuda::kSuccess) return;
  driver.check(result, "launching " + symbol_ + " (grid " + std::to_string(grid) + ", block " +
                           std::to_string(block) + ", shared memory " + std::to_string(shared) +
                           " bytes)");
}

}  // namespace fusedops::runtime
