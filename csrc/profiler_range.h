// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The name of a call in traces: a range of torch's profiler, which torch.autograd.profiler.emit_nvtx
// passes on as an NVTX range.
#pragma once

#include "tensor.h"

namespace fusedops::runtime {

/// Whether one of torch's profilers runs. Read from the flag that torch keeps for this in Python.
inline bool is_profiled(const Torch& torch) {
  return PyDict_GetItemWithError(torch.profiler, torch.profiling) == Py_True;
}

/// A range that lasts as long as this object, if one of torch's profilers runs at its creation.
class ProfilerRange {
 public:
  /// `name` is a str, or null for no range.
  ProfilerRange(const Torch& torch, const py::object& name) {
    if (is_profiled(torch) && name) enter(torch, name);
  }
  ~ProfilerRange() {
    if (range_) leave();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  void enter(const Torch& torch, const py::object& name) {
    py::object range = py::handle(torch.record_function)(name);
    range.attr("__enter__")();
    range_ = std::move(range);
  }

  void leave() {
    const py::error_scope raised;  // keeps an exception that is set
    try {
      range_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("fusedops: the end of a profiler's range");
    }
  }

  py::object range_;
};

}  // namespace fusedops::runtime
