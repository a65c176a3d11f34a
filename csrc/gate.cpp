// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "gate.h"

#include <algorithm>
#include <iterator>

namespace fusedops::runtime {
namespace {

// The truth value of a new reference; an exception from torch propagates to the caller.
bool truth(PyObject* result) {
  if (!result) throw py::error_already_set();
  const bool value = result != Py_False && result != Py_None &&
                     (result == Py_True || PyObject_IsTrue(result) == 1);
  Py_DECREF(result);
  return value;
}

bool call(PyObject* function) { return truth(PyObject_CallNoArgs(function)); }

bool call(PyObject* method, PyObject* self) { return truth(PyObject_CallOneArg(method, self)); }

bool get(PyObject* descriptor, PyObject* self) {
  return truth(Py_TYPE(descriptor)
                   ->tp_descr_get(descriptor, self, reinterpret_cast<PyObject*>(Py_TYPE(self))));
}

// Whether all modes only set the device of new tensors (torch.set_default_device, `with device:`).
// They do not affect a call, whose outputs are on the device of x.
bool only_default_device(const Torch& torch) {
  if (!torch.device_context || !torch.function_modes || !torch.function_mode_at) return false;
  const auto count = py::reinterpret_steal<py::object>(PyObject_CallNoArgs(torch.function_modes));
  if (!count) throw py::error_already_set();
  const long modes = PyLong_AsLong(count.ptr());
  for (long i = 0; i < modes; ++i) {
    const auto mode = py::handle(torch.function_mode_at)(i);
    if (py::type::handle_of(mode).ptr() != torch.device_context) return false;
  }
  return modes > 0;
}

// The reason for a tensor that the exchange API refuses, whose own message is about DLPack.
Reason why_no_view(PyObject* tensor) {
  PyErr_Clear();
  PyObject* device = PyObject_GetAttrString(tensor, "device");
  PyObject* type = device ? PyObject_GetAttrString(device, "type") : nullptr;
  const bool known = type && (PyUnicode_CompareWithASCIIString(type, "cpu") == 0 ||
                              PyUnicode_CompareWithASCIIString(type, "cuda") == 0);
  Py_XDECREF(type);
  Py_XDECREF(device);
  PyErr_Clear();
  return known ? kLayout : kDevice;
}

// In the order of the reasons.
constexpr const char* kNames[] = {"mode",     "functorch", "dual",    "tracing", "arguments",
                                  "subclass", "layout",    "device",  "neg",     "conj",
                                  "grad",     "storage",   "overlap", "miss",    "capture"};
static_assert(std::size(kNames) == kCapture);

PyObject* members[std::size(kNames) + 1] = {};

}  // namespace

py::object make_reason_type(const py::module_& module) {
  py::list named;
  for (const char* name : kNames) {
    named.append(py::make_tuple(py::str(name).attr("upper")(), name));
  }
  const auto make = py::module_::import("enum").attr("Enum");
  py::object type = make("Reason", named, py::arg("module") = module.attr("__name__"),
                         py::arg("type") = py::type::of(py::str()));
  for (size_t i = 0; i < std::size(kNames); ++i) {
    members[i + 1] = type(kNames[i]).release().ptr();  // kept until the process ends
  }
  return type;
}

py::handle member_of(Reason reason) { return members[reason]; }

Reason check_state(const Torch& torch, bool* grad_mode) {
  if (call(torch.dispatch_modes)) return kMode;
  if (call(torch.function_mode) && !only_default_device(torch)) return kMode;
  if (call(torch.functorch_level)) return kFunctorch;
  PyObject* level = PyDict_GetItemWithError(torch.forward_ad, torch.dual_level);
  if (!level || PyLong_AsLong(level) >= 0) {
    PyErr_Clear();
    return kDual;
  }
  // A later torch may lack this flag, which then cannot be set; the other checks remain.
  if (PyDict_GetItemWithError(torch.compiler, torch.compiling) == Py_True ||
      call(torch.tracing_state)) {
    return kTracing;
  }
  *grad_mode = call(torch.grad_enabled);
  return kNone;
}

Reason check_tensor(const Torch& torch, PyObject* tensor, bool grad_mode, View* view) {
  if (Py_TYPE(tensor) != torch.tensor && Py_TYPE(tensor) != torch.parameter) {
    return PyObject_TypeCheck(tensor, torch.tensor) ? kSubclass : kArguments;
  }
  if (!view_tensor(torch, tensor, view)) return why_no_view(tensor);
  if (view->device.type != dlpack::kCPU && view->device.type != dlpack::kCUDA) return kDevice;
  if (call(torch.is_neg, tensor)) return kNeg;
  if (view->dtype.code == dlpack::kComplex && call(torch.is_conj, tensor)) return kConj;
  if (grad_mode && requires_grad(torch, tensor)) return kGrad;
  if (!view->data && elements(*view) != 0) return kStorage;
  return kNone;
}

bool requires_grad(const Torch& torch, PyObject* tensor) {
  return get(torch.requires_grad, tensor);
}

PyObject* autocast_dtype(const Torch& torch, int32_t device_type) {
  static PyObject* const cpu = PyUnicode_InternFromString("cpu");
  static PyObject* const cuda = PyUnicode_InternFromString("cuda");
  PyObject* name = device_type == dlpack::kCPU ? cpu : cuda;
  if (!call(torch.autocast_enabled, name)) return nullptr;
  PyObject* dtype = PyObject_CallOneArg(torch.autocast_dtype, name);
  if (!dtype) throw py::error_already_set();
  Py_DECREF(dtype);  // dtypes are never freed
  return dtype;
}

Reason check_overlap(const View& out, const View& other) {
  const Range a = range_of(out);
  const Range b = range_of(other);
  const bool apart =
      a.last <= b.first || b.last <= a.first || a.first == a.last || b.first == b.last;
  return apart ? kNone : kOverlap;
}

Reason check_self_overlap(const View& out) {
  if (elements(out) == 0) return kNone;
  for (int d = 0; d < out.ndim; ++d) {
    if (out.shape[d] == 1) continue;
    // A stride must exceed the extent of all dimensions with smaller strides.
    int64_t reach = 0;
    for (int e = 0; e < out.ndim; ++e) {
      const bool inner =
          out.strides[e] < out.strides[d] || (out.strides[e] == out.strides[d] && e < d);
      if (inner) reach += (out.shape[e] - 1) * out.strides[e];
    }
    if (out.strides[d] <= reach) return kOverlap;
  }
  return kNone;
}

bool is_same(const View& one, const View& other) {
  const auto equal = [&](const auto& numbers) {
    return std::equal(numbers(one), numbers(one) + one.ndim, numbers(other));
  };
  return one.data == other.data && one.ndim == other.ndim && one.dtype.code == other.dtype.code &&
         one.dtype.bits == other.dtype.bits && equal([](const View& of) { return of.shape; }) &&
         equal([](const View& of) { return of.strides; });
}

}  // namespace fusedops::runtime
