// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Sequences of Python, read in place, and tuples that are made of numbers.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace py = pybind11;

namespace fusedops::runtime {

// A sequence, whose items are read in place if it is a list or a tuple.
class Items {
 public:
  explicit Items(const py::handle& object) : items_(py::reinterpret_borrow<py::object>(object)) {
    if (PyTuple_Check(object.ptr()) || PyList_Check(object.ptr())) return;
    PyObject* made = PySequence_List(object.ptr());
    if (!made) throw py::error_already_set();
    items_ = py::reinterpret_steal<py::object>(made);
  }

  int size() const { return static_cast<int>(PySequence_Fast_GET_SIZE(items_.ptr())); }

  py::handle operator[](int i) const {
    if (i >= size()) throw py::index_error("a sequence is too short");
    return PySequence_Fast_GET_ITEM(items_.ptr(), i);
  }

  int64_t number(int i) const {
    const long long value = PyLong_AsLongLong((*this)[i].ptr());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return value;
  }

 private:
  py::object items_;
};

// A new reference to a tuple, or to one of a class of tuples.
inline PyObject* new_tuple(PyTypeObject* type, Py_ssize_t size) {
  PyObject* made = type->tp_alloc(type, size);
  if (!made) throw py::error_already_set();
  return made;
}

template <class Get>
py::tuple numbers(size_t size, const Get& get) {
  PyObject* made = new_tuple(&PyTuple_Type, static_cast<Py_ssize_t>(size));
  for (size_t i = 0; i < size; ++i) PyTuple_SET_ITEM(made, i, PyLong_FromLongLong(get(i)));
  return py::reinterpret_steal<py::tuple>(made);
}

// The strides of a dense tensor of this shape, in elements.
inline py::tuple dense_strides(const Items& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (int dim = shape.size() - 1; dim > 0; --dim) {
    strides[dim - 1] = strides[dim] * std::max<int64_t>(shape.number(dim), 1);
  }
  return numbers(strides.size(), [&](size_t dim) { return strides[dim]; });
}

}  // namespace fusedops::runtime
