// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <algorithm>
#include <cstring>

namespace fusedops::runtime {
namespace {

// A dtype as a word of the key: dtypes are never freed.
int64_t address(PyObject* dtype) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(dtype)); }

// dim= and normalized_shape=: an int or a sequence of ints. An int and a sequence of one int mean
// the same, so they have the same key.
bool add_ints(PyObject* object, Key* key) {
  if (!object) {
    key->add(-1);
    return true;
  }
  const auto add = [key](PyObject* item) {
    if (!PyLong_Check(item) || PyBool_Check(item)) return false;
    int overflow = 0;
    key->add(PyLong_AsLongLongAndOverflow(item, &overflow));
    return overflow == 0;
  };
  if (!PyTuple_Check(object) && !PyList_Check(object)) {
    key->add(1);
    return add(object);
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  key->add(size);
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (!add(PySequence_Fast_GET_ITEM(object, i))) return false;
  }
  return true;
}

// part_of=: two sequences of ints. A call without one adds nothing: its flag tells them apart.
bool add_part_of(PyObject* object, Key* key) {
  if (!object) return true;
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) return false;
  for (Py_ssize_t i = 0; i < 2; ++i) {
    PyObject* ints = PyTuple_GET_ITEM(object, i);
    if (!PyTuple_Check(ints) && !PyList_Check(ints)) return false;
    if (!add_ints(ints, key)) return false;
  }
  return true;
}

// Reads an int that fits 64 bits, signed or unsigned.
bool read_bits(PyObject* object, uint64_t* bits) {
  if (!PyLong_Check(object) || PyBool_Check(object)) return false;
  int overflow = 0;
  *bits = static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(object, &overflow));
  if (overflow <= 0) return overflow == 0;
  *bits = PyLong_AsUnsignedLongLong(object);
  const bool fits = !PyErr_Occurred();
  PyErr_Clear();
  return fits;
}

// out=: a tensor, or a sequence of one per output; an output that is None is allocated.
bool read_out(PyObject* object, Arguments* arguments) {
  arguments->num_out = 0;
  if (!object) return true;
  if (!PyTuple_Check(object) && !PyList_Check(object)) {
    arguments->out[arguments->num_out++] = object;
    return true;
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(object);
  if (size < 1 || size > Arguments::kMaxOut) return false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(object, i);
    arguments->out[arguments->num_out++] = item == Py_None ? nullptr : item;
  }
  return true;
}

// generator= as a pair (seed, offset).
bool read_draw(PyObject* object, Draw* draw) {
  if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != 2) return false;
  // A negative offset is a large number here, which is refused.
  return read_bits(PyTuple_GET_ITEM(object, 0), &draw->seed) &&
         read_bits(PyTuple_GET_ITEM(object, 1), &draw->offset) && draw->offset < Draw::kOffsets;
}

// generator= as a tensor of two contiguous int64, seed and offset.
bool read_draw_in_memory(const Torch& torch, PyObject* object, Arguments* arguments) {
  View& view = arguments->draw_in;
  if (Py_TYPE(object) != torch.tensor) return false;
  if (!view_tensor(torch, object, &view)) {
    PyErr_Clear();
    return false;
  }
  const bool fits = view.dtype.code == dlpack::kInt && view.dtype.bits == 64 && view.ndim == 1 &&
                    view.shape[0] == 2 && view.strides[0] == 1;
  if (!fits || !data_of(view)) return false;
  Draw& draw = arguments->draw;
  draw.memory = data_of(view);
  if (view.device.type == dlpack::kCPU) {
    std::memcpy(&draw.seed, draw.memory, sizeof(draw.seed));
    std::memcpy(&draw.offset, draw.memory + sizeof(draw.seed), sizeof(draw.offset));
  }
  return draw.offset < Draw::kOffsets;
}

// The member of `arguments` for a keyword, an option or one of the first `named` slots; null if the
// name is unknown. Names are interned, so they are compared by address.
PyObject** find(const std::vector<Slot>& slots, size_t named, PyObject* name,
                Arguments* arguments) {
  for (size_t i = 0; i < named; ++i) {
    if (slots[i].name.ptr() == name) return &arguments->slots[i + 1];
  }
  PyObject* const* names = option_names();
  for (int i = 0; i < Arguments::kOptions; ++i) {
    if (names[i] == name) return &arguments->options[i];
  }
  return nullptr;
}

}  // namespace

PyObject* const* option_names() {
  static PyObject* const names[Arguments::kOptions] = {
      PyUnicode_InternFromString("dim"),      PyUnicode_InternFromString("normalized_shape"),
      PyUnicode_InternFromString("dtype"),    PyUnicode_InternFromString("out"),
      PyUnicode_InternFromString("training"), PyUnicode_InternFromString("generator"),
      PyUnicode_InternFromString("part_of"),
  };
  return names;
}

bool match(const std::vector<Slot>& slots, size_t inputs, PyObject* const* values,
           PyObject* keywords, Arguments* arguments) {
  const size_t named = slots.size() - (inputs - 1);
  std::fill_n(arguments->slots, slots.size() + 1, nullptr);
  std::fill_n(arguments->options, Arguments::kOptions, nullptr);
  arguments->slots[0] = values[0];
  std::copy_n(values + 1, inputs - 1, arguments->slots + named + 1);
  values += inputs;
  const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keywords, i);
    // Operands usually come in the order of the declaration.
    const auto guess = static_cast<size_t>(i);
    PyObject** place = guess < named && slots[guess].name.ptr() == name
                           ? &arguments->slots[guess + 1]
                           : find(slots, named, name, arguments);
    if (!place) {
      // Names in code are interned; those of a dictionary, as in op(x, **names), may not be.
      PyObject* interned = Py_NewRef(name);
      PyUnicode_InternInPlace(&interned);
      place = find(slots, named, interned, arguments);
      Py_DECREF(interned);
      if (!place) return false;
    }
    *place = values[i];
  }
  return true;
}

bool read_options(const Torch& torch, Arguments* arguments, Key* key) {
  PyObject** options = arguments->options;
  for (int i = 0; i < Arguments::kOptions; ++i) {
    if (options[i] == Py_None && i != Arguments::kTraining) options[i] = nullptr;
  }
  PyObject* training = options[Arguments::kTraining];
  PyObject* dtype = options[Arguments::kDtype];
  PyObject* generator = options[Arguments::kGenerator];
  if (training && !PyBool_Check(training)) return false;
  if (dtype && Py_TYPE(dtype) != torch.dtype) return false;
  arguments->draw = Draw{};
  arguments->drawn = generator && (read_draw(generator, &arguments->draw) ||
                                   read_draw_in_memory(torch, generator, arguments));
  if (generator && !arguments->drawn && !PyObject_TypeCheck(generator, torch.generator)) {
    return false;
  }
  if (!read_out(options[Arguments::kOut], arguments)) return false;
  arguments->training = training != Py_False;
  const bool in_memory = arguments->draw.memory;
  PyObject* part_of = options[Arguments::kPartOf];
  key->add(arguments->training | in_memory << 1 | (part_of != nullptr) << 2 |
           static_cast<int64_t>(arguments->num_out) << 3);
  key->add(address(dtype));
  return add_ints(options[Arguments::kDim], key) &&
         add_ints(options[Arguments::kNormalizedShape], key) && add_part_of(part_of, key);
}

bool read_number(PyObject* object, const Slot& slot, Value* value) {
  if (PyFloat_Check(object)) {
    value->kind = Value::kReal;
    value->real = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_Check(object) && !PyBool_Check(object)) {
    int overflow = 0;
    value->kind = Value::kInteger;
    value->integer = PyLong_AsLongLongAndOverflow(object, &overflow);
    value->real = static_cast<double>(value->integer);
    if (overflow) return false;
  } else {
    return false;
  }
  // Written so that NaN is refused as well.
  return !(slot.flags & Slot::kProbability) || (value->real >= 0 && value->real <= 1);
}

bool read_description(const Torch& torch, PyObject* object, Key* key) {
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) return false;
  PyObject* dtype = PyTuple_GET_ITEM(object, 0);
  PyObject* shape = PyTuple_GET_ITEM(object, 1);
  if (Py_TYPE(dtype) != torch.dtype || !PyTuple_Check(shape)) return false;
  key->add(address(dtype));
  return add_ints(shape, key);
}

PyObject* given_options(const Arguments& arguments) {
  PyObject* given = nullptr;
  for (int i = 0; i < Arguments::kOptions; ++i) {
    if (!arguments.options[i]) continue;
    if (!given && !(given = PyDict_New())) return nullptr;
    if (PyDict_SetItem(given, option_names()[i], arguments.options[i]) == 0) continue;
    Py_DECREF(given);
    return nullptr;
  }
  return given;
}

void collect(PyObject* const* values, PyObject* keywords, py::dict* operands, py::dict* options) {
  PyObject* const* names = option_names();
  const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const py::handle name = PyTuple_GET_ITEM(keywords, i);
    const bool option = std::any_of(names, names + Arguments::kOptions, [&](PyObject* known) {
      return PyUnicode_Compare(known, name.ptr()) == 0;
    });
    (option ? *options : *operands)[name] = py::handle(values[i]);
  }
}

}  // namespace fusedops::runtime
