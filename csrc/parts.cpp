// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "parts.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "items.h"
#include "tensor.h"

namespace fusedops::runtime {
namespace {

constexpr int64_t kAlignment = 16;  // of what the call allocates, and the most that counts

// An object's attribute; the name is interned.
py::object attribute(const py::handle& object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name);
  if (!found) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

py::object call_method(const py::handle& object, PyObject* name) {
  PyObject* found = PyObject_CallMethodNoArgs(object.ptr(), name);
  if (!found) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}

// The shape of a tensor, or None of a value that is none.
py::object shape_of(const Torch& torch, const py::handle& value) {
  static PyObject* const name = PyUnicode_InternFromString("shape");
  if (!PyObject_TypeCheck(value.ptr(), torch.tensor)) return py::none();
  return attribute(value, name);
}

}  // namespace

bool broadcast(const py::handle& shape, const py::handle& values) {
  const Torch& torch = Torch::get();
  const Items whole(shape), all(values);
  for (int i = 0; i < all.size(); ++i) {
    const py::object found = shape_of(torch, all[i]);
    if (found.is_none()) continue;
    const Items own(found);
    const int lead = whole.size() - own.size();
    if (lead < 0) return false;
    for (int dim = 0; dim < own.size(); ++dim) {
      const int64_t size = own.number(dim);
      if (size != 1 && size != whole.number(lead + dim)) return false;
    }
  }
  return true;
}

py::bytes ones(const py::handle& values) {
  const Torch& torch = Torch::get();
  const Items all(values);
  std::string found;
  for (int i = 0; i < all.size(); ++i) {
    const py::object shape = shape_of(torch, all[i]);
    found.push_back('|');
    if (shape.is_none()) continue;
    const Items sizes(shape);
    found.push_back(':');
    for (int dim = 0; dim < sizes.size(); ++dim) {
      found.push_back(static_cast<char>('0' + std::min<int64_t>(sizes.number(dim), 2)));
    }
  }
  return py::bytes(found);
}

py::dict parts(const py::type& part, const py::handle& blanks, const py::dict& values,
               const py::handle& shape, const py::handle& reduced) {
  static PyObject* const shape_name = PyUnicode_InternFromString("shape");
  static PyObject* const dtype_name = PyUnicode_InternFromString("dtype");
  static PyObject* const stride_name = PyUnicode_InternFromString("stride");
  static PyObject* const data_name = PyUnicode_InternFromString("data_ptr");
  const Torch& torch = Torch::get();
  const Items all(blanks), sizes_of_x(shape), reduced_dims(reduced);
  const int rank = sizes_of_x.size();
  std::vector<bool> in_row(rank, false);
  for (int i = 0; i < reduced_dims.size(); ++i) in_row.at(reduced_dims.number(i)) = true;
  auto* type = reinterpret_cast<PyTypeObject*>(part.ptr());
  py::dict made;
  for (int i = 0; i < all.size(); ++i) {
    const Items blank(all[i]);  // key, name, given, numbers, dtype, patch, shared
    PyObject* found = PyDict_GetItemWithError(values.ptr(), blank[1].ptr());
    if (!found && PyErr_Occurred()) throw py::error_already_set();
    const bool given = blank[2].ptr() == Py_True;
    const bool described = found && PyTuple_CheckExact(found);
    if (given && described) continue;
    if (!described && !(found && PyObject_TypeCheck(found, torch.tensor))) continue;
    const auto own_dtype = [&] {
      return described ? py::reinterpret_borrow<py::object>(Items(found)[0])
                       : attribute(found, dtype_name);
    };
    py::object own, strides;
    py::object dtype =
        blank[4].is_none() ? own_dtype() : py::reinterpret_borrow<py::object>(blank[4]);
    int64_t alignment = kAlignment;
    if (const int64_t count = blank.number(3)) {
      std::vector<int64_t> steps(rank, 0);
      int64_t step = count;
      for (int dim = rank - 1; dim >= 0; --dim) {
        if (in_row[dim]) continue;
        steps[dim] = step;
        step *= std::max<int64_t>(sizes_of_x.number(dim), 1);
      }
      own = numbers(rank, [&](size_t dim) { return in_row[dim] ? 1 : sizes_of_x.number(dim); });
      strides = numbers(rank, [&](size_t dim) { return steps[dim]; });
    } else {
      own = described ? py::reinterpret_borrow<py::object>(Items(found)[1])
                      : attribute(found, shape_name);
      if (given) {
        strides = call_method(found, stride_name);
        const py::object address = call_method(found, data_name);
        const uint64_t pointer = PyLong_AsUnsignedLongLongMask(address.ptr());
        alignment = static_cast<int64_t>(std::gcd(uint64_t{kAlignment}, pointer));
      } else {
        strides = dense_strides(Items(own));
      }
    }
    PyObject* one = new_tuple(type, 6);
    PyTuple_SET_ITEM(one, 0, own.release().ptr());
    PyTuple_SET_ITEM(one, 1, strides.release().ptr());
    PyTuple_SET_ITEM(one, 2, dtype.release().ptr());
    PyTuple_SET_ITEM(one, 3, Py_NewRef(blank[5].ptr()));
    PyTuple_SET_ITEM(one, 4, PyLong_FromLongLong(alignment));
    PyTuple_SET_ITEM(one, 5, Py_NewRef(blank[6].ptr()));
    made[blank[0]] = py::reinterpret_steal<py::object>(one);
  }
  return made;
}

}  // namespace fusedops::runtime
