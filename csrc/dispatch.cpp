// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "arguments.h"
#include "gate.h"
#include "key.h"
#include "profiler_range.h"
#include "without_dynamo.h"

namespace fusedops::runtime {
namespace {

int64_t salt = 0;
PyObject* last = nullptr;

// One call: its arguments, and the values that the gate read from them.
struct Call {
  const Torch& torch = Torch::get();
  Arguments arguments;
  Value values[Arguments::kMaxSlots];
  Value out[Arguments::kMaxOut];
  Key key;
  bool grad_mode = true;
  bool grad_in_key = false;  // whether a tensor that requires grad is no reason to stop
};

// The word of the key for a slot that is not a tensor. Of a probability only its class is part of
// the key, since p = 0 and training=False remove the functor.
enum KeyKind : int64_t {
  kKeyAbsent = 0,
  kKeyReal = 2,
  kKeyInteger = 3,
  kKeyDropped = 4,
  kKeyDropping = 5,
  kKeyDescribed = 6,
};

// Checks a tensor, and adds to the key whether it requires grad where that is a part of it.
Reason read_view(Call* call, PyObject* object, Value* value) {
  const bool stops = call->grad_mode && !call->grad_in_key;
  if (const Reason reason = check_tensor(call->torch, object, stops, &value->view)) return reason;
  value->kind = Value::kTensor;
  if (call->grad_in_key) {
    call->key.add(call->grad_mode && requires_grad(call->torch, object));
  }
  return kNone;
}

Reason read_tensor(Call* call, PyObject* object, Value* value) {
  if (const Reason reason = read_view(call, object, value)) return reason;
  if (!(value->view.device == call->values[0].view.device)) return kDevice;
  call->key.add_tensor(value->view);
  return kNone;
}

Reason read_operand(Call* call, const Slot& slot, PyObject* object, Value* value) {
  if (!object) {
    value->kind = Value::kAbsent;
    call->key.add(kKeyAbsent);
    return kNone;
  }
  if ((slot.flags & Slot::kNumber) && read_number(object, slot, value)) {
    if (slot.flags & Slot::kProbability) {
      const bool dropping = call->arguments.training && value->real > 0;
      call->key.add(dropping ? kKeyDropping : kKeyDropped);
    } else {
      call->key.add(value->kind == Value::kReal ? kKeyReal : kKeyInteger);
    }
    return kNone;
  }
  if ((slot.flags & Slot::kDescribed) && PyTuple_Check(object)) {
    value->kind = Value::kAbsent;
    call->key.add(kKeyDescribed);
    return read_description(call->torch, object, &call->key) ? kNone : kArguments;
  }
  if (!(slot.flags & Slot::kTensor)) return kArguments;
  return read_tensor(call, object, value);
}

// in_place: whether an output may be x.
Reason read_out(Call* call, size_t num_slots, bool in_place) {
  const Arguments& arguments = call->arguments;
  for (int i = 0; i < arguments.num_out; ++i) {
    Value& value = call->out[i];
    value.kind = Value::kAbsent;
    if (!arguments.out[i]) {
      call->key.add(kKeyAbsent);
      continue;
    }
    if (const Reason reason = read_tensor(call, arguments.out[i], &value)) return reason;
    if (const Reason reason = check_self_overlap(value.view)) return reason;
    for (size_t s = 0; s <= num_slots; ++s) {
      if (call->values[s].kind != Value::kTensor) continue;
      if (s == 0 && in_place && is_same(value.view, call->values[0].view)) continue;
      if (check_overlap(value.view, call->values[s].view)) return kOverlap;
    }
    for (int j = 0; j < i; ++j) {
      if (call->out[j].kind != Value::kTensor) continue;
      if (check_overlap(value.view, call->out[j].view)) return kOverlap;
    }
  }
  return kNone;
}

// The gate and the key in one pass; returns the reason why Python must take over, or kNone.
Reason read(const State& state, PyObject* const* values, PyObject* keywords, Call* call) {
  if (const Reason reason = check_state(call->torch, &call->grad_mode)) return reason;
  Arguments& arguments = call->arguments;
  if (!match(state.slots, state.inputs, values, keywords, &arguments)) return kArguments;
  call->grad_in_key = state.delegates;
  call->key.add(salt);
  if (!read_options(call->torch, &arguments, &call->key)) return kArguments;
  Value& first = call->values[0];
  if (const Reason reason = read_view(call, values[0], &first)) return reason;
  if (arguments.draw.memory && !(arguments.draw_in.device == first.view.device)) return kDevice;
  call->key.add(static_cast<int64_t>(first.view.device.type) << 32 | first.view.device.index);
  if (state.delegates) {
    PyObject* dtype = autocast_dtype(call->torch, first.view.device.type);
    call->key.add(static_cast<int64_t>(reinterpret_cast<intptr_t>(dtype)));
  }
  call->key.add_tensor(first.view);
  for (size_t i = 0; i < state.slots.size(); ++i) {
    const Reason reason =
        read_operand(call, state.slots[i], arguments.slots[i + 1], &call->values[i + 1]);
    if (reason) return reason;
  }
  return read_out(call, state.slots.size(), state.in_place);
}

// The tensors that a call gives by position: x, or a tuple where there are several.
py::object inputs_of(const State& state, PyObject* const* values) {
  if (state.inputs == 1) return py::reinterpret_borrow<py::object>(values[0]);
  py::tuple inputs(state.inputs);
  for (size_t i = 0; i < state.inputs; ++i) inputs[i] = py::handle(values[i]);
  return inputs;
}

py::object call_slow(const State& state, Reason reason, PyObject* const* values,
                     PyObject* keywords) {
  py::dict operands, options;
  collect(values + state.inputs, keywords, &operands, &options);
  const WithoutDynamo eager(Torch::get());
  return state.slow(member_of(reason), inputs_of(state, values), operands, options);
}

PyObject* call_delegate(const State& state, PyObject* function, PyObject* const* values,
                        PyObject* keywords) {
  const WithoutDynamo eager(Torch::get());
  return PyObject_Vectorcall(function, values, state.inputs, keywords);
}

// Passes on the result of match(), without dicts that the callee would have to unpack again.
PyObject* call_grad(const State& state, const Arguments& arguments) {
  PyObject* options = given_options(arguments);
  if (!options && PyErr_Occurred()) return nullptr;
  // The first element is for the callee, which may put a `self` there
  // (PY_VECTORCALL_ARGUMENTS_OFFSET).
  PyObject* values[Arguments::kMaxSlots + 2];
  values[1] = options ? options : Py_None;
  const size_t slots = state.slots.size() + 1;
  for (size_t i = 0; i < slots; ++i) {
    values[i + 2] = arguments.slots[i] ? arguments.slots[i] : Py_None;
  }
  const WithoutDynamo eager(Torch::get());
  const py::object grad = state.grad;  // the call may put another in its place
  PyObject* result = PyObject_Vectorcall(grad.ptr(), values + 1,
                                         (slots + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  Py_XDECREF(options);
  return result;
}

// Draws from the generator; false where it returns None: a graph is being captured, so the numbers
// must be drawn on the device at each replay.
bool call_draw(const State& state, const Call& call, int count, Draw* draw) {
  const dlpack::Device& device = call.values[0].view.device;
  static PyObject* const cpu = PyUnicode_InternFromString("cpu");
  static PyObject* const cuda = PyUnicode_InternFromString("cuda");
  PyObject* generator = call.arguments.options[Arguments::kGenerator];
  const py::int_ index(device.index), number(count);
  const WithoutDynamo eager(call.torch);
  PyObject* arguments[] = {device.type == dlpack::kCPU ? cpu : cuda, index.ptr(),
                           generator ? generator : Py_None, number.ptr()};
  const auto pair = py::reinterpret_steal<py::object>(
      PyObject_Vectorcall(state.draw.ptr(), arguments, std::size(arguments), nullptr));
  if (!pair) throw py::error_already_set();
  if (pair.is_none()) return false;
  if (!PyTuple_Check(pair.ptr()) || PyTuple_GET_SIZE(pair.ptr()) != 2) {
    throw py::type_error("Dispatcher: draw must return (seed, offset) or None");
  }
  // Masked, since a seed may be any 64 bits, signed or unsigned.
  draw->seed = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(pair.ptr(), 0));
  draw->offset = PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(pair.ptr(), 1));
  if (PyErr_Occurred()) throw py::error_already_set();
  return true;
}

// Takes over the references. A namedtuple is filled as a tuple: its own __new__ is Python code.
PyObject* pack(const State& state, PyObject** tensors, size_t count) {
  if (!state.result) return tensors[0];
  PyObject* fields = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; i < count; ++i) {
    if (fields) {
      PyTuple_SET_ITEM(fields, static_cast<Py_ssize_t>(i), tensors[i]);
    } else {
      Py_DECREF(tensors[i]);
    }
  }
  if (!fields) return nullptr;
  if (state.result.ptr() == reinterpret_cast<PyObject*>(&PyTuple_Type)) return fields;
  PyObject* arguments = PyTuple_Pack(1, fields);
  Py_DECREF(fields);
  if (!arguments) return nullptr;
  auto* type = reinterpret_cast<PyTypeObject*>(state.result.ptr());
  PyObject* result = PyTuple_Type.tp_new(type, arguments, nullptr);
  Py_DECREF(arguments);
  return result;
}

void check_plan(const State& state, const Call& call, const Plan& plan) {
  plan.check(call.values, static_cast<int>(state.slots.size()) + 1);
  if (!state.result && plan.returned() != 1) {
    throw py::value_error("Dispatcher: a plan with several outputs needs a result type");
  }
  const int num_out = call.arguments.num_out;
  if (num_out && static_cast<size_t>(num_out) != plan.returned()) {
    throw py::value_error(state.name + ": out must hold " + std::to_string(plan.returned()) +
                          (plan.returned() == 1 ? " tensor" : " tensors") +
                          ", one for each output, got " + std::to_string(num_out));
  }
}

// Autograd counts the writes to a tensor, by which it detects changes of saved tensors.
void count_writes(const Call& call) {
  const Arguments& arguments = call.arguments;
  py::list written;
  for (int i = 0; i < arguments.num_out; ++i) {
    if (arguments.out[i]) written.append(py::handle(arguments.out[i]));
  }
  py::handle(call.torch.increment_version)(written);
}

PyObject* run(Dispatcher* self, const Call& call, py::object plan_object, Plan* plan,
              PyObject* const* values, PyObject* keywords) {
  const State& state = *self->state;
  const Arguments& arguments = call.arguments;
  Draw draw = arguments.draw;
  if (plan->draws() && arguments.drawn &&
      draw.offset > Draw::kOffsets - static_cast<uint64_t>(plan->draws())) {
    return call_slow(state, kArguments, values, keywords).release().ptr();
  }
  if (plan->draws() && !arguments.drawn && !call_draw(state, call, plan->draws(), &draw)) {
    return call_slow(state, kCapture, values, keywords).release().ptr();
  }
  PyObject* tensors[Plan::kMaxOutputs];
  if (arguments.num_out) count_writes(call);
  plan->run(call.torch, call.values, arguments.num_out ? arguments.out : nullptr, call.out, draw,
            tensors);
  if (plan->launches()) {
    ++self->launches;
    if (last != plan_object.ptr()) Py_XSETREF(last, plan_object.release().ptr());
  }
  return pack(state, tensors, plan->returned());
}

PyObject* dispatch(Dispatcher* self, PyObject* const* values, PyObject* keywords) {
  const State& state = *self->state;
  Call call;
  if (const Reason reason = read(state, values, keywords, &call)) {
    // The gate checks names and options before tensors, so both are valid here.
    if (state.grad && reason == kGrad) return call_grad(state, call.arguments);
    return call_slow(state, reason, values, keywords).release().ptr();
  }
  const uint64_t hash = call.key.hash();
  Plan* plan = nullptr;
  PyObject* known = self->state->plans.find(call.key, hash, &plan);
  if (known && !plan) {
    ++self->hits;
    const py::object function = py::reinterpret_borrow<py::object>(known);
    return call_delegate(state, function.ptr(), values, keywords);
  }
  if (known && !plan->outdated()) {
    ++self->hits;
    const ProfilerRange named(call.torch, state.label);
    return run(self, call, py::reinterpret_borrow<py::object>(known), plan, values, keywords);
  }
  ++self->misses;
  py::object answer = call_slow(state, kMiss, values, keywords);
  if (py::isinstance<Delegate>(answer)) {
    const py::object function = answer.cast<const Delegate&>().function;
    self->state->plans.insert(call.key, hash, function, nullptr);
    return call_delegate(state, function.ptr(), values, keywords);
  }
  if (!py::isinstance<Plan>(answer)) return answer.release().ptr();
  plan = answer.cast<Plan*>();
  check_plan(state, call, *plan);
  self->state->plans.insert(call.key, hash, answer, plan);
  const ProfilerRange named(call.torch, state.label);
  return run(self, call, std::move(answer), plan, values, keywords);
}

// A call with another number of positional arguments, of an op that takes several: the class's own
// __call__ says in Python what is wrong with it.
PyObject* call_in_python(PyObject* object, PyObject* const* args, Py_ssize_t count,
                         PyObject* keywords) {
  const auto type =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  const py::object function = type.attr("__call__");
  std::vector<PyObject*> all{object};
  const Py_ssize_t size = count + (keywords ? PyTuple_GET_SIZE(keywords) : 0);
  all.insert(all.end(), args, args + size);
  return PyObject_Vectorcall(function.ptr(), all.data(), static_cast<size_t>(count) + 1, keywords);
}

}  // namespace

PyObject* of_lists(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  constexpr Py_ssize_t kMost = Arguments::kMaxSlots + Arguments::kOptions;
  if (count < 2 || !PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) > kMost) {
    PyErr_SetString(PyExc_TypeError, "of_lists: takes a tuple of names, x, and lists of values");
    return nullptr;
  }
  PyObject* values[kMost + 1] = {args[1]};
  const Py_ssize_t names = PyTuple_GET_SIZE(args[0]);
  Py_ssize_t given = 0;
  for (Py_ssize_t i = 2; i < count; ++i) {
    const bool list = PyTuple_Check(args[i]) || PyList_Check(args[i]);
    const Py_ssize_t size = list ? PySequence_Fast_GET_SIZE(args[i]) : 0;
    if (!list || given + size > names) {
      PyErr_SetString(PyExc_TypeError, "of_lists: no list or tuple, or more values than names");
      return nullptr;
    }
    for (Py_ssize_t k = 0; k < size; ++k) {
      values[++given] = PySequence_Fast_GET_ITEM(args[i], k);
    }
  }
  if (given != names) {
    PyErr_SetString(PyExc_TypeError, "of_lists: fewer values than names");
    return nullptr;
  }
  try {
    const Torch& torch = Torch::get();
    bool grad_mode = true;
    if (check_state(torch, &grad_mode) || grad_mode) Py_RETURN_NOTIMPLEMENTED;
    for (Py_ssize_t i = 0; i <= given; ++i) {
      PyTypeObject* type = Py_TYPE(values[i]);
      if (type != torch.tensor && type != torch.parameter && PyType_IsSubtype(type, torch.tensor)) {
        Py_RETURN_NOTIMPLEMENTED;
      }
    }
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
  return vectorcall(object, values, 1, args[0]);
}

PyObject* vectorcall(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* keywords) {
  Dispatcher* self = cast(object);
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (!self->state->slow) {
    PyErr_SetString(PyExc_RuntimeError, "Dispatcher: __init__ was not called");
    return nullptr;
  }
  const bool fits = static_cast<size_t>(count) == self->state->inputs;
  if (!fits && self->state->inputs == 1) {
    PyErr_Format(PyExc_TypeError,
                 "%s takes one positional argument, the tensor x, got %zd; "
                 "operands and options are given by keyword",
                 self->state->name.c_str(), count);
    return nullptr;
  }
  try {
    if (!fits) return call_in_python(object, args, count, keywords);
    return dispatch(self, args, keywords);
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "%s: %s", self->state->name.c_str(), error.what());
  }
  return nullptr;
}

void set_salt(int64_t value) { salt = value; }

py::object last_plan() { return py::reinterpret_borrow<py::object>(last ? last : Py_None); }

}  // namespace fusedops::runtime
