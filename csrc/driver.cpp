// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <stdexcept>

namespace fusedops::runtime::cuda {
namespace {

constexpr int kMaxDevices = 64;

template <class Entry>
void find(void* library, const char* name, Entry& entry) {
  entry = reinterpret_cast<Entry>(dlsym(library, name));
  if (!entry) {
    throw std::runtime_error(std::string("the NVIDIA driver has no ") + name +
                             ": fusedops needs a driver for CUDA 12.0 or later; update the driver");
  }
}

Driver open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    throw std::runtime_error(std::string("no NVIDIA driver: ") + dlerror() +
                             "; install the driver, or use tensors on the CPU");
  }
  Driver driver{};
  // Those that error messages need come first. The suffixes are those of these names in cuda.h.
  find(library, "cuGetErrorName", driver.GetErrorName);
  find(library, "cuGetErrorString", driver.GetErrorString);
  find(library, "cuInit", driver.Init);
  find(library, "cuDriverGetVersion", driver.DriverGetVersion);
  find(library, "cuDeviceGetCount", driver.DeviceGetCount);
  find(library, "cuDeviceGet", driver.DeviceGet);
  find(library, "cuDeviceGetName", driver.DeviceGetName);
  find(library, "cuDeviceGetAttribute", driver.DeviceGetAttribute);
  find(library, "cuDevicePrimaryCtxRetain", driver.DevicePrimaryCtxRetain);
  find(library, "cuCtxGetCurrent", driver.CtxGetCurrent);
  find(library, "cuCtxPushCurrent_v2", driver.CtxPushCurrent);
  find(library, "cuCtxPopCurrent_v2", driver.CtxPopCurrent);
  find(library, "cuLibraryLoadData", driver.LibraryLoadData);
  find(library, "cuLibraryGetKernel", driver.LibraryGetKernel);
  find(library, "cuKernelGetFunction", driver.KernelGetFunction);
  find(library, "cuKernelGetAttribute", driver.KernelGetAttribute);
  find(library, "cuKernelSetAttribute", driver.KernelSetAttribute);
  find(library, "cuThreadExchangeStreamCaptureMode", driver.ThreadExchangeStreamCaptureMode);
  find(library, "cuLaunchKernelEx", driver.LaunchKernelEx);
  find(library, "cuTensorMapEncodeTiled", driver.TensorMapEncodeTiled);
  driver.check(driver.Init(0), "cuInit");
  return driver;
}

}  // namespace

const Driver& Driver::get() {
  // Where open() throws, the static stays uninitialized and the next call tries again.
  static const Driver driver = open();
  return driver;
}

void Driver::check(Result result, const std::string& what) const {
  if (result == kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  GetErrorName(result, &name);
  GetErrorString(result, &text);
  throw std::runtime_error(what +
                           " failed: " + (name ? name : "CUDA error " + std::to_string(result)) +
                           " (" + (text ? text : "unknown to this driver") + ")");
}

int device_count() {
  try {
    int count = 0;
    const Driver& driver = Driver::get();
    driver.check(driver.DeviceGetCount(&count), "cuDeviceGetCount");
    return count;
  } catch (const std::runtime_error&) {
    return 0;
  }
}

int driver_version() {
  try {
    int version = 0;
    const Driver& driver = Driver::get();
    driver.check(driver.DriverGetVersion(&version), "cuDriverGetVersion");
    return version;
  } catch (const std::runtime_error&) {
    return 0;
  }
}

TensorMap encode(const Matrices& matrices) {
  constexpr int kPlain = 0, kSwizzle128 = 3, kPromotion256 = 3, kZeros = 0;  // as in cuda.h
  constexpr int kBytes = 0;  // CU_TENSOR_MAP_DATA_TYPE_UINT8
  const unsigned box_columns = matrices.type == kBytes ? 128 : 64;
  constexpr int kMost = 2 + Matrices::kMostBatchDims;
  uint64_t sizes[kMost] = {matrices.columns, matrices.rows}, apart[kMost - 1] = {matrices.pitch};
  unsigned box[kMost] = {box_columns, static_cast<unsigned>(matrices.box_rows)},
           steps[kMost] = {1, 1};
  for (int i = 0; i < matrices.batch_dims; ++i) {
    sizes[2 + i] = matrices.batch[i].size;
    apart[1 + i] = matrices.batch[i].apart;
    box[2 + i] = steps[2 + i] = 1;
  }
  TensorMap map{};
  const Driver& driver = Driver::get();
  driver.check(driver.TensorMapEncodeTiled(&map, matrices.type, 2 + matrices.batch_dims,
                                           matrices.data, sizes, apart, box, steps, kPlain,
                                           kSwizzle128, kPromotion256, kZeros),
               "cuTensorMapEncodeTiled");
  return map;
}

Properties properties(int index) {
  const Driver& driver = Driver::get();
  Device device = 0;
  driver.check(driver.DeviceGet(&device, index), "cuDeviceGet(" + std::to_string(index) + ")");
  const auto attribute = [&](DeviceAttribute which) {
    int value = 0;
    driver.check(driver.DeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
  };
  char name[256] = {};
  driver.check(driver.DeviceGetName(name, sizeof(name), device), "cuDeviceGetName");
  return {name,
          attribute(kCapabilityMajor),
          attribute(kCapabilityMinor),
          attribute(kMultiprocessors),
          attribute(kSharedPerBlockOptin),
          attribute(kThreadsPerMultiprocessor),
          attribute(kL2Bytes),
          attribute(kMaxRegistersPerBlock)};
}

Context primary_context(int index) {
  static std::array<std::atomic<Context>, kMaxDevices> contexts{};
  if (index < 0 || index >= kMaxDevices) {
    throw std::runtime_error("CUDA device " + std::to_string(index) + " is out of range");
  }
  Context context = contexts[index].load(std::memory_order_acquire);
  if (context) return context;
  const Driver& driver = Driver::get();
  Device device = 0;
  driver.check(driver.DeviceGet(&device, index), "cuDeviceGet");
  driver.check(driver.DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  contexts[index].store(context, std::memory_order_release);
  return context;
}

bool Scope::holds(int index) {
  const Driver& driver = Driver::get();
  Context current = nullptr;
  driver.check(driver.CtxGetCurrent(&current), "cuCtxGetCurrent");
  return current == primary_context(index);
}

Scope::Scope(int index) {
  if (holds(index)) return;
  const Driver& driver = Driver::get();
  driver.check(driver.CtxPushCurrent(primary_context(index)), "cuCtxPushCurrent");
  pushed_ = true;
}

Scope::~Scope() {
  Context popped = nullptr;
  if (pushed_) Driver::get().CtxPopCurrent(&popped);
}

}  // namespace fusedops::runtime::cuda
