// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The runtime's interface to torch: the DLPack exchange API, which describes a tensor to C++
// without torch's headers, and the Python objects that the hot path calls. All are looked up once,
// when the first dispatcher is made.
#pragma once

#include <pybind11/pybind11.h>

#include "dlpack.h"

namespace fusedops::runtime {

namespace py = pybind11;
using View = dlpack::Tensor;

/// Objects of torch; every member lives as long as the process.
struct Torch {
  const dlpack::ExchangeApi* exchange;

  PyTypeObject* tensor;
  PyTypeObject* parameter;
  PyTypeObject* dtype;
  PyTypeObject* generator;

  PyObject* is_neg;  // method descriptors of torch.Tensor
  PyObject* is_conj;
  PyObject* requires_grad;  // getset descriptor

  PyObject* autocast_enabled;  // functions of a device's type, such as "cuda"
  PyObject* autocast_dtype;

  PyObject* grad_enabled;  // functions without arguments
  PyObject* dispatch_modes;
  PyObject* function_mode;
  PyObject* functorch_level;
  PyObject* tracing_state;
  PyObject* num_threads;

  PyObject* function_modes;    // the number of active modes; null in a torch that lacks it, as are
  PyObject* function_mode_at;  // the mode at a position,
  PyObject* device_context;    // and the type of the mode of torch.set_default_device
  PyObject* increment_version;

  /// Dynamo's hook into Python frames; null in a torch that lacks it.
  PyObject* set_eval_frame;

  PyObject* compiler;  // module dictionaries, and the name that is read in each
  PyObject* compiling;
  PyObject* forward_ad;
  PyObject* dual_level;
  PyObject* profiler;
  PyObject* profiling;

  /// The type of a profiler's ranges, a context manager made from a name.
  PyObject* record_function;

  /// Allocation. The exchange API could allocate as well, but its tensors wrap foreign memory:
  /// `record_stream` is silently ignored and the storage cannot be resized. torch.empty costs 1.8
  /// us; the functions that Inductor's generated code calls cost 0.6 us and skip torch's
  /// dispatcher, which the gate has shown to be without effect. They take (shape, strides, dtype);
  /// the CUDA one allocates on the current device. Null in a torch that lacks them.
  PyObject* empty;
  PyObject* empty_cpu;
  PyObject* empty_cuda;

  /// Looks everything up at the first call; throws if torch is missing or older than 2.10.
  static const Torch& get();

  /// The torch.dtype of a DLPack type; throws for one that torch does not have.
  static py::object dtype_of(dlpack::DataType type);
};

/// Fills `view`; false, with a Python exception set, where torch cannot describe the tensor.
inline bool view_tensor(const Torch& torch, PyObject* tensor, View* view) {
  return torch.exchange->view_object(tensor, view) == 0;
}

inline char* data_of(const View& view) { return static_cast<char*>(view.data) + view.byte_offset; }

/// The number of elements; zero if any dimension is zero.
int64_t elements(const View& view);

/// The bytes [first, last) that a tensor with non-negative strides can access.
struct Range {
  const char* first;
  const char* last;
};
Range range_of(const View& view);

}  // namespace fusedops::runtime
