// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, loaded with dlopen at first use, so that the module links and loads without it.
#pragma once

#include <cstdint>
#include <string>

namespace fusedops::runtime::cuda {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Function = struct CUfunc_st*;
using Library = struct CUlib_st*;
using Kernel = struct CUkern_st*;

constexpr Result kSuccess = 0;

/// Values of CUdevice_attribute and of CUfunction_attribute (cuda.h; part of the driver's ABI).
enum DeviceAttribute : int {
  kMaxRegistersPerBlock = 12,
  kMultiprocessors = 16,
  kL2Bytes = 38,
  kThreadsPerMultiprocessor = 39,
  kCapabilityMajor = 75,
  kCapabilityMinor = 76,
  kSharedPerBlockOptin = 97,
};
enum FunctionAttribute : int {
  kPtxVersion = 5,
  kMaxDynamicShared = 8,
  kRequiredClusterWidth = 11,
  kNonPortableClusters = 14,
};
enum CaptureMode : int { kCaptureRelaxed = 2 };

/// CUlaunchAttribute with a number as its value, and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  int padding;
  int value;
  int rest[15];
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  Stream stream;
  const LaunchAttribute* attributes;
  unsigned count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "as in cuda.h");
constexpr int kProgrammaticSerialization = 6;  // CUlaunchAttributeID

/// The entry points that are used, named as in cuda.h without `cu`.
struct Driver {
  Result (*Init)(unsigned flags);
  Result (*DriverGetVersion)(int* version);
  Result (*GetErrorName)(Result error, const char** name);
  Result (*GetErrorString)(Result error, const char** text);
  Result (*DeviceGetCount)(int* count);
  Result (*DeviceGet)(Device* device, int index);
  Result (*DeviceGetName)(char* name, int size, Device device);
  Result (*DeviceGetAttribute)(int* value, int attribute, Device device);
  Result (*DevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*CtxGetCurrent)(Context* context);
  Result (*CtxPushCurrent)(Context context);
  Result (*CtxPopCurrent)(Context* context);
  Result (*LibraryLoadData)(Library* library, const void* image, int* options, void** values,
                            unsigned count, int* library_options, void** library_values,
                            unsigned library_count);
  Result (*LibraryGetKernel)(Kernel* kernel, Library library, const char* name);
  Result (*KernelGetFunction)(Function* function, Kernel kernel);
  Result (*KernelGetAttribute)(int* value, int attribute, Kernel kernel, Device device);
  Result (*KernelSetAttribute)(int attribute, int value, Kernel kernel, Device device);
  Result (*ThreadExchangeStreamCaptureMode)(int* mode);
  Result (*LaunchKernelEx)(const LaunchConfig* config, Function function, void** arguments,
                           void** extra);
  Result (*TensorMapEncodeTiled)(void* map, int type, unsigned rank, void* data,
                                 const uint64_t* sizes, const uint64_t* strides,
                                 const unsigned* box, const unsigned* steps, int interleave,
                                 int swizzle, int promotion, int fill);

  /// Throws std::runtime_error with the reason and the remedy where there is no usable driver.
  static const Driver& get();

  /// Throws std::runtime_error with the name of the CUDA error unless `result` is success.
  void check(Result result, const std::string& what) const;
};

/// A CUtensorMap of one or many matrices of 8-bit or 16-bit numbers, in whole words.
struct alignas(64) TensorMap {
  static constexpr int kWords = 16;
  uint64_t words[kWords];
};

/// What a tensor map describes: a matrix with rows of `columns` numbers, `pitch` bytes apart, copied in
/// boxes of `box_rows` rows and 128 bytes, in the swizzle of 128 bytes; or many of them, in batch
/// dimensions of a size and a distance in bytes, the innermost first.
struct Matrices {
  static constexpr int kMostBatchDims = 3;
  char* data;
  uint64_t rows, columns, pitch, box_rows;
  int type;  // CUtensorMapDataType: numbers of 16 bits, or bytes
  int batch_dims;
  struct {
    uint64_t size, apart;
  } batch[kMostBatchDims];
};

/// Throws std::runtime_error where the driver refuses.
TensorMap encode(const Matrices& matrices);

/// The number of CUDA devices; 0 without a driver.
int device_count();

/// The driver's CUDA version as 1000 * major + 10 * minor; 0 without a driver.
int driver_version();

/// Properties of a device.
struct Properties {
  std::string name;
  int capability_major;
  int capability_minor;
  int multiprocessors;
  int shared_per_block_optin;
  int threads_per_multiprocessor;
  int l2_bytes;
  int registers_per_block;
};
Properties properties(int index);

/// The device's primary context, which torch uses as well; retained once, for the whole process.
Context primary_context(int index);

/// Makes the device's primary context current for a scope, if it is not yet.
class Scope {
 public:
  /// Whether the device's primary context is current already.
  static bool holds(int index);

  explicit Scope(int index);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace fusedops::runtime::cuda
