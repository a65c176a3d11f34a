// SPDX-FileCopyrightText: 2017 by Contributors to DLPack
// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The part of DLPack 1.x that the runtime uses: a view of a tensor, and the exchange API that torch
// publishes as `torch.Tensor.__dlpack_c_exchange_api__`. The layouts are those of
// https://github.com/dmlc/dlpack (include/dlpack/dlpack.h, version 1.3); only a new major version
// may change them.
#pragma once

#include <cstdint>

namespace fusedops::dlpack {

constexpr uint32_t kMajorVersion = 1;

enum DeviceType : int32_t { kCPU = 1, kCUDA = 2 };

struct Device {
  DeviceType type;
  int32_t index;
  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
};

enum TypeCode : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3FN = 10,
  kFloat8E5M2 = 12,
  kFloat8E8M0 = 14,
  kFloat4E2M1 = 17,
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

/// A view; the data, the shape and the strides belong to the tensor.
struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  const int64_t* shape;
  const int64_t* strides;  // in elements
  uint64_t byte_offset;
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct ExchangeHeader {
  Version version;
  const ExchangeHeader* previous;  // an older table, or null
};

/// Each function returns 0, or -1 with a Python exception set. The three `managed` entries are not
/// used (Torch::empty says why).
struct ExchangeApi {
  ExchangeHeader header;
  void (*managed_allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  int (*view_object)(void* object, Tensor* view);
  int (*current_stream)(DeviceType type, int32_t index, void** stream);
};

}  // namespace fusedops::dlpack
