// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <stdexcept>
#include <string>
#include <unordered_map>

namespace fusedops::runtime {
namespace {

constexpr const char* kCapsule = "dlpack_exchange_api";

PyObject* keep(const py::object& object) { return py::object(object).release().ptr(); }

PyTypeObject* keep_type(const py::object& object) {
  return reinterpret_cast<PyTypeObject*>(keep(object));
}

PyObject* keep_or_null(const py::object& owner, const char* name) {
  return py::hasattr(owner, name) ? keep(owner.attr(name)) : nullptr;
}

const dlpack::ExchangeApi* find_exchange(const py::module_& torch) {
  const auto version = py::str(torch.attr("__version__")).cast<std::string>();
  const py::object capsule =
      py::getattr(torch.attr("Tensor"), "__dlpack_c_exchange_api__", py::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kCapsule)) {
    throw std::runtime_error(
        "fusedops needs torch 2.10 or later, which publishes "
        "torch.Tensor.__dlpack_c_exchange_api__;"
        " found torch " +
        version + "; upgrade with: pip install -U torch");
  }
  auto* header =
      static_cast<const dlpack::ExchangeHeader*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (header && header->version.major != dlpack::kMajorVersion) header = header->previous;
  const auto* api = reinterpret_cast<const dlpack::ExchangeApi*>(header);
  if (!api || !api->view_object || !api->current_stream) {
    throw std::runtime_error("fusedops speaks version 1 of the DLPack exchange API, which torch " +
                             version + " does not offer; upgrade fusedops");
  }
  return api;
}

Torch look_up() {
  const auto torch = py::module_::import("torch");
  const py::object tensor = torch.attr("Tensor");
  const py::object c = torch.attr("_C");
  const auto forward_ad = py::module_::import("torch.autograd.forward_ad");
  const auto compiler = py::module_::import("torch.compiler");

  Torch found{};
  found.exchange = find_exchange(torch);
  found.tensor = keep_type(tensor);
  found.parameter = keep_type(torch.attr("nn").attr("Parameter"));
  found.dtype = keep_type(torch.attr("dtype"));
  found.generator = keep_type(torch.attr("Generator"));
  found.is_neg = keep(tensor.attr("is_neg"));
  found.is_conj = keep(tensor.attr("is_conj"));
  found.requires_grad = keep(tensor.attr("requires_grad"));
  found.autocast_enabled = keep(torch.attr("is_autocast_enabled"));
  found.autocast_dtype = keep(torch.attr("get_autocast_dtype"));
  found.grad_enabled = keep(torch.attr("is_grad_enabled"));
  found.dispatch_modes = keep(c.attr("_len_torch_dispatch_stack"));
  found.function_mode = keep(c.attr("_is_torch_function_mode_enabled"));
  found.function_modes = keep_or_null(c, "_len_torch_function_stack");
  found.function_mode_at = keep_or_null(c, "_get_function_stack_at");
  found.device_context = keep_or_null(py::module_::import("torch.utils._device"), "DeviceContext");
  found.increment_version =
      keep(py::module_::import("torch.autograd.graph").attr("increment_version"));
  found.functorch_level = keep(c.attr("_functorch").attr("peek_interpreter_stack"));
  found.tracing_state = keep(c.attr("_get_tracing_state"));
  found.num_threads = keep(torch.attr("get_num_threads"));
  found.compiler = keep(compiler.attr("__dict__"));
  found.compiling = keep(py::str("_is_compiling_flag"));
  found.forward_ad = keep(forward_ad.attr("__dict__"));
  found.dual_level = keep(py::str("_current_level"));
  const auto profiler = py::module_::import("torch.autograd.profiler");
  found.profiler = keep(profiler.attr("__dict__"));
  found.profiling = keep(py::str("_is_profiler_enabled"));
  const py::object ranges = py::getattr(c, "_profiler", py::none());
  found.record_function = keep_or_null(ranges, "_RecordFunctionFast");
  if (!found.record_function) found.record_function = keep(profiler.attr("record_function"));
  found.empty = keep(torch.attr("empty"));
  const py::object frames = py::getattr(c.attr("_dynamo"), "eval_frame", py::none());
  found.set_eval_frame = keep_or_null(frames, "set_eval_frame");
  const py::object guards = py::getattr(c.attr("_dynamo"), "guards", py::none());
  found.empty_cpu = keep_or_null(guards, "_empty_strided_cpu");
  found.empty_cuda = keep_or_null(guards, "_empty_strided_cuda");
  if (!Py_TYPE(found.requires_grad)->tp_descr_get) {
    throw std::runtime_error("fusedops: torch.Tensor.requires_grad is no descriptor");
  }
  return found;
}

const char* dtype_name(dlpack::DataType type) {
  if (type.lanes != 1) return nullptr;
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 16:
      return "float16";
    case dlpack::kFloat << 8 | 32:
      return "float32";
    case dlpack::kFloat << 8 | 64:
      return "float64";
    case dlpack::kBfloat << 8 | 16:
      return "bfloat16";
    case dlpack::kBool << 8 | 8:
      return "bool";
    case dlpack::kUInt << 8 | 8:
      return "uint8";
    case dlpack::kInt << 8 | 8:
      return "int8";
    case dlpack::kInt << 8 | 16:
      return "int16";
    case dlpack::kInt << 8 | 32:
      return "int32";
    case dlpack::kInt << 8 | 64:
      return "int64";
    case dlpack::kFloat8E4M3FN << 8 | 8:
      return "float8_e4m3fn";
    case dlpack::kFloat8E5M2 << 8 | 8:
      return "float8_e5m2";
    case dlpack::kFloat8E8M0 << 8 | 8:
      return "float8_e8m0fnu";
    case dlpack::kFloat4E2M1 << 8 | 4:
      return "float4_e2m1fn_x2";
    default:
      return nullptr;
  }
}

}  // namespace

const Torch& Torch::get() {
  // The GIL guards this. The guard of a static would deadlock: the lookup may release the GIL, and
  // another thread would then wait for the guard while it holds the GIL.
  static const Torch* torch = nullptr;
  if (!torch) torch = new Torch(look_up());
  return *torch;
}

py::object Torch::dtype_of(dlpack::DataType type) {
  const char* name = dtype_name(type);
  if (!name) {
    throw py::type_error("fusedops: no torch dtype has DLPack code " + std::to_string(type.code) +
                         " with " + std::to_string(type.bits) + " bits");
  }
  // To import torch and look a name up takes as long as the rest of an output's plan.
  static auto* known = new std::unordered_map<const char*, PyObject*>;
  PyObject*& found = (*known)[name];
  if (!found) found = keep(py::module_::import("torch").attr(name));
  return py::reinterpret_borrow<py::object>(found);
}

int64_t elements(const View& view) {
  int64_t count = 1;
  for (int d = 0; d < view.ndim; ++d) count *= view.shape[d];
  return count;
}

Range range_of(const View& view) {
  const char* first = data_of(view);
  const int64_t size = (view.dtype.bits * view.dtype.lanes + 7) / 8;
  int64_t last = 0;
  for (int d = 0; d < view.ndim; ++d) {
    if (view.shape[d] == 0) return {first, first};
    last += (view.shape[d] - 1) * view.strides[d];
  }
  return {first, first + (last + 1) * size};
}

}  // namespace fusedops::runtime
