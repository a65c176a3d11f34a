// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The hot path, from the keyword arguments to the launch: match, gate, key, look up, run. It is a
// plain CPython type with a vectorcall, since a binding layer would cost as much as the path
// itself.
#pragma once

#include <string>
#include <vector>

#include "arguments.h"
#include "key.h"
#include "plan.h"

namespace fusedops::runtime {

/// The arguments that a dispatcher was made from, and its plans. Created by tp_new, filled by
/// tp_init.
struct State {
  std::string name;
  std::vector<Slot> slots;
  py::object slow;
  py::object draw;
  py::object result;  // tuple, a namedtuple type, or null
  py::object grad;    // or null
  py::object label;   // the str that names a call in a profiler's trace, or null
  size_t inputs = 1;  // the tensors that a call gives by position
  bool delegates = false;
  bool in_place = false;
  PlanTable plans;
};

/// The answer to a miss where no kernel runs a call: a Python function that is called with the
/// arguments of each call that has the key, as they are given.
struct Delegate {
  py::object function;
};

struct Dispatcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  State* state;
  long long launches;
  long long hits;
  long long misses;
};

inline Dispatcher* cast(PyObject* self) { return reinterpret_cast<Dispatcher*>(self); }

/// A call of a dispatcher, by CPython's vectorcall protocol.
PyObject* vectorcall(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* keywords);

/// Calls a dispatcher with the names of its keywords, x, and lists and tuples of their values:
/// `dispatcher.of_lists(names, x, *values)`. Returns NotImplemented, and does nothing, where a mode
/// or transform is active, grad mode is on, or a tensor is of another class.
PyObject* of_lists(PyObject* object, PyObject* const* args, Py_ssize_t count);

/// The Python type `Dispatcher` (dispatcher_type.cpp). Throws py::error_already_set.
py::object make_dispatcher_type(const py::module_& module);

/// Makes calls of a Python class's instances use `vectorcall` although the class defines __call__:
/// that method is for tracers, which read Python code.
void call_at_once(const py::handle& type);

/// A number that is part of every key. Test hooks change it so that their plans are separate.
void set_salt(int64_t salt);

/// The last plan in this process that launched a kernel, or None.
py::object last_plan();

}  // namespace fusedops::runtime
