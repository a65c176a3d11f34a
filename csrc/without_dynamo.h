// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A guard under which Dynamo compiles no Python code.
#pragma once

#include "tensor.h"

namespace fusedops::runtime {

/// Keeps Dynamo from compiling the Python code that is called while this object lasts. Under
/// torch.compile an op is a graph break, after which Dynamo's hook would compile that code: code
/// about shapes, specialized to the shapes of one call.
class WithoutDynamo {
 public:
  explicit WithoutDynamo(const Torch& torch) : set_(torch.set_eval_frame) {
    if (set_) before_ = PyObject_CallOneArg(set_, Py_None);
    if (set_ && !before_) throw py::error_already_set();
  }
  ~WithoutDynamo() {
    if (!before_) return;
    if (before_ != Py_None) restore();
    Py_DECREF(before_);
  }
  WithoutDynamo(const WithoutDynamo&) = delete;
  WithoutDynamo& operator=(const WithoutDynamo&) = delete;

 private:
  void restore() {
    const py::error_scope raised;  // keeps an exception that is set
    Py_XDECREF(PyObject_CallOneArg(set_, before_));
    if (PyErr_Occurred()) PyErr_WriteUnraisable(set_);
  }

  PyObject* set_;
  PyObject* before_ = nullptr;
};

}  // namespace fusedops::runtime
