// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The Python type of a dispatcher: creation, attributes, garbage collection, destruction.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <new>
#include <stdexcept>
#include <utility>

#include "dispatch.h"

namespace fusedops::runtime {
namespace {

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  // A subclass defined in Python inherits this flag only from Python 3.12 on; without it every call
  // packs its keywords into a dict. Classes with a __call__ of their own are not changed.
  if (type->tp_call == PyVectorcall_Call) type->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyObject* object = type->tp_alloc(type, 0);
  if (!object) return nullptr;
  Dispatcher* self = cast(object);
  self->vectorcall = vectorcall;
  self->state = new (std::nothrow) State;
  if (self->state) return object;
  Py_DECREF(object);
  return PyErr_NoMemory();
}

// Whether an object is the type tuple, or one made by collections.namedtuple.
bool is_tuple_type(const py::handle object) {
  if (!PyType_Check(object.ptr())) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(object.ptr());
  return type == &PyTuple_Type ||
         (PyType_IsSubtype(type, &PyTuple_Type) && py::hasattr(object, "_fields"));
}

py::object null_if_none(const py::handle object) {
  return object.is_none() ? py::object() : py::reinterpret_borrow<py::object>(object);
}

void fill(State* state, const char* name, const py::handle slots, const py::handle slow,
          const py::handle draw, const py::handle result, const py::handle grad,
          const py::handle label, int inputs, bool delegates, bool in_place) {
  std::vector<Slot> read;
  for (const py::handle item : slots) {
    const auto [slot, flags] = item.cast<std::pair<py::str, int>>();
    PyObject* interned = Py_NewRef(slot.ptr());
    PyUnicode_InternInPlace(&interned);
    read.push_back({py::reinterpret_steal<py::object>(interned), flags});
  }
  if (read.size() >= Arguments::kMaxSlots) {
    throw py::value_error(std::string(name) + ": at most " +
                          std::to_string(Arguments::kMaxSlots - 1) + " operands, got " +
                          std::to_string(read.size()));
  }
  if (!result.is_none() && !is_tuple_type(result)) {
    throw py::type_error("Dispatcher: result must be a namedtuple type, tuple or None");
  }
  if (!label.is_none() && !PyUnicode_Check(label.ptr())) {
    throw py::type_error("Dispatcher: label must be a str or None");
  }
  if (!grad.is_none() && !PyCallable_Check(grad.ptr())) {
    throw py::type_error("Dispatcher: grad must be callable or None");
  }
  if (inputs < 1 || static_cast<size_t>(inputs) > read.size() + 1) {
    throw py::value_error(std::string(name) + ": inputs must be 1 to " +
                          std::to_string(read.size() + 1) + ", got " + std::to_string(inputs));
  }
  Torch::get();
  state->name = name;
  state->slots = std::move(read);
  state->draw = py::reinterpret_borrow<py::object>(draw);
  state->result = null_if_none(result);
  state->grad = null_if_none(grad);
  state->label = null_if_none(label);
  state->slow = py::reinterpret_borrow<py::object>(slow);
  state->inputs = static_cast<size_t>(inputs);
  state->delegates = delegates;
  state->in_place = in_place;
  state->plans.clear();
}

int init(PyObject* object, PyObject* args, PyObject* keywords) {
  static const char* names[] = {"name",  "slots",  "slow",      "draw",     "result", "grad",
                                "label", "inputs", "delegates", "in_place", nullptr};
  const char* name = nullptr;
  PyObject *slots = nullptr, *slow = nullptr, *draw = nullptr;
  PyObject *result = Py_None, *grad = Py_None, *label = Py_None;
  int inputs = 1, delegates = 0, in_place = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "sOOO|OOO$ipp:Dispatcher",
                                   const_cast<char**>(names), &name, &slots, &slow, &draw, &result,
                                   &grad, &label, &inputs, &delegates, &in_place)) {
    return -1;
  }
  try {
    fill(cast(object)->state, name, slots, slow, draw, result, grad, label, inputs, delegates,
         in_place);
    return 0;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return -1;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(object));
  const State* state = cast(object)->state;
  if (!state) return 0;
  Py_VISIT(state->slow.ptr());
  Py_VISIT(state->draw.ptr());
  Py_VISIT(state->result.ptr());
  Py_VISIT(state->grad.ptr());
  return state->plans.visit(visit, arg);
}

int clear(PyObject* object) {
  State* state = cast(object)->state;
  if (!state) return 0;
  // Moved out first: destroying them can run Python code that calls this again.
  const py::object slow = std::move(state->slow);
  const py::object draw = std::move(state->draw);
  const py::object result = std::move(state->result);
  const py::object grad = std::move(state->grad);
  state->plans.clear();
  return 0;
}

void destroy(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear(object);
  delete cast(object)->state;
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* clear_plans(PyObject* object, PyObject*) {
  cast(object)->state->plans.clear();
  Py_RETURN_NONE;
}

PyObject* num_plans(PyObject* object, void*) {
  return PyLong_FromSize_t(cast(object)->state->plans.size());
}

PyObject* get_name(PyObject* object, void*) {
  return PyUnicode_FromString(cast(object)->state->name.c_str());
}

PyObject* get_grad(PyObject* object, void*) {
  return Py_NewRef(cast(object)->state->grad ? cast(object)->state->grad.ptr() : Py_None);
}

int set_grad(PyObject* object, PyObject* grad, void*) {
  if (!grad || !PyCallable_Check(grad)) {
    PyErr_SetString(PyExc_TypeError, "Dispatcher: grad must be callable");
    return -1;
  }
  // Assigned before the former is released, whose destruction may call this again.
  const py::object former =
      std::exchange(cast(object)->state->grad, py::reinterpret_borrow<py::object>(grad));
  return 0;
}

PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY, nullptr},
    {"launches", T_LONGLONG, offsetof(Dispatcher, launches), READONLY,
     "Calls that launched so far, however many kernels each."},
    {"hits", T_LONGLONG, offsetof(Dispatcher, hits), READONLY, "Calls that found their plan."},
    {"misses", T_LONGLONG, offsetof(Dispatcher, misses), READONLY, "Calls that asked for a plan."},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"plans", num_plans, nullptr, "Plans kept.", nullptr},
    {"name", get_name, nullptr, "What errors call the op.", nullptr},
    {"grad", get_grad, set_grad, "What runs a call that needs gradients.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"clear", clear_plans, METH_NOARGS, "Forgets all plans."},
    {"of_lists", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(of_lists)),
     METH_FASTCALL,
     "A call by names, x, and lists of values; NotImplemented where torch takes part."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot type_slots[] = {
    {Py_tp_doc,
     const_cast<char*>("Calls the plan that fits the arguments; see fusedops._runtime.")},
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, nullptr},
};

PyType_Spec spec = {
    "fusedops._runtime.Dispatcher",
    sizeof(Dispatcher),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_IMMUTABLETYPE,
    type_slots,
};

}  // namespace

void call_at_once(const py::handle& type) {
  if (!PyType_Check(type.ptr())) throw py::type_error("call_at_once: not a type");
  auto* object = reinterpret_cast<PyTypeObject*>(type.ptr());
  object->tp_call = PyVectorcall_Call;
  object->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(object);
}

py::object make_dispatcher_type(const py::module_& module) {
  PyObject* type = PyType_FromModuleAndSpec(module.ptr(), &spec, nullptr);
  if (!type) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(type);
}

}  // namespace fusedops::runtime
