// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The autograd node of a fused op in C++: what `_Differentiated` (run/autograd.py) is in Python. It
// is compiled on the user's machine against the headers of the installed torch. A `Program`
// (run/cpp_node.py) says what calls of one kind save and how their backward kernel is called. Python
// makes the programs, and runs the calls that have none.
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
// std::shared_ptr<Node>; in later releases of torch c10::intrusive_ptr<Node>.
using NodePointer = decltype(Edge::function);

// The members of a `Program`, which is a tuple.
enum Member : Py_ssize_t {
  kRun,
  kNames,
  kGiven,
  kDraw,
  kSources,
  kDifferentiable,
  kResultType,
  kResume,
  kKnown,
};

// Where an argument of the backward call comes from: `Source` in Python. Tensors of the last three are
// saved.
enum Source : long { kConstant, kArgument, kDescription, kDrawn, kSavedArgument, kSavedOutput };

constexpr Py_ssize_t kMostPrograms = 1024;

class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Carries the Python exception that is set to the caller, who may be another thread.
[[noreturn]] void raise() {
  python_error error;
  error.persist();
  throw error;
}

py::object stolen(PyObject* object) {
  if (!object) raise();
  return py::reinterpret_steal<py::object>(object);
}

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

py::object wrapped(const at::Tensor& tensor) { return stolen(THPVariable_Wrap(tensor)); }

PyObject* get(const py::object& tuple, Py_ssize_t at) { return PyTuple_GET_ITEM(tuple.ptr(), at); }

// The value of a key, borrowed; null if it is absent.
PyObject* look_up(PyObject* dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) raise();
  return found;
}

py::object tuple_of(const std::vector<py::object>& objects) {
  py::object made = stolen(PyTuple_New(static_cast<Py_ssize_t>(objects.size())));
  for (size_t i = 0; i < objects.size(); ++i) {
    PyTuple_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), Py_NewRef(objects[i].ptr()));
  }
  return made;
}

// The dtype and the shape of a tensor, in the place of one that the backward kernel does not read.
py::object description(PyObject* tensor) {
  static PyObject* const names[] = {PyUnicode_InternFromString("dtype"),
                                    PyUnicode_InternFromString("shape")};
  const py::object dtype = stolen(PyObject_GetAttr(tensor, names[0]));
  const py::object shape = stolen(PyObject_GetAttr(tensor, names[1]));
  return stolen(PyTuple_Pack(2, dtype.ptr(), shape.ptr()));
}

class Differentiated : public Node {
 public:
  explicit Differentiated(py::object program) : program_(std::move(program)) {}

  ~Differentiated() override {
    const bool ended = !Py_IsInitialized();  // then nothing of Python may be touched
    if (ended) program_.release();
    if (ended)
      std::for_each(arguments_.begin(), arguments_.end(), [](auto& one) { one.release(); });
    if (ended) return;
    const WithGil held;
    arguments_.clear();
    program_ = {};
  }

  std::string name() const override { return "_DifferentiatedBackward"; }

  /// Keeps an argument of the backward call.
  void keep(py::object argument) { arguments_.push_back(std::move(argument)); }

  /// Saves a tensor that is an argument of the backward call.
  void save(const at::Tensor& tensor) {
    saved_.emplace_back(tensor, /*is_output=*/tensor.grad_fn().get() == this);
    arguments_.emplace_back();
  }

  void compiled_args(torch::autograd::CompiledNodeArgs&) const override {
    throw std::runtime_error(
        "fusedops: compiled autograd does not take an autograd node in C++; enable it before the "
        "forward pass, or set FUSEDOPS_AUTOGRAD=python");
  }

  void release_variables() override {
    const WithGil held;  // or another thread might be in `apply`
    saved_.clear();
    released_ = true;
  }

 protected:
  variable_list apply(variable_list&& incoming) override {
    const WithGil held;
    if (released_) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    std::vector<py::object> arguments = arguments_;
    auto next = saved_.begin();
    for (py::object& one : arguments) {
      if (!one) one = wrapped((next++)->unpack(getptr()));
    }
    std::vector<py::object> gradients;
    std::transform(incoming.begin(), incoming.end(), std::back_inserter(gradients), wrapped);
    variable_list results;
    const at::Tensor& statistics = THPVariable_Unpack(arguments[0].ptr());
    // Otherwise Python has copies or zeros to make, or the graph of a second derivative.
    const bool plain = incoming[0].defined() && !at::GradMode::is_enabled() &&
                       statistics.is_contiguous() &&
                       reinterpret_cast<uintptr_t>(statistics.data_ptr()) % 16 == 0;
    if (!plain || !run_known(arguments, gradients, &results)) {
      resume(arguments, gradients, &results);
    }
    return results;
  }

 private:
  // Calls the backward kernel; false where Python has not said how.
  bool run_known(const std::vector<py::object>& arguments, const std::vector<py::object>& gradients,
                 variable_list* results) {
    long joining = 0;
    std::vector<PyObject*> values{gradients[0].ptr()};
    for (const py::object& one : arguments) values.push_back(one.ptr());
    for (size_t i = 1; i < gradients.size(); ++i) {
      if (gradients[i].is_none()) continue;
      joining |= 1L << i;
      values.push_back(gradients[i].ptr());
    }
    const py::object key = stolen(PyLong_FromLong(joining));
    const py::object call = borrowed(look_up(get(program_, kKnown), key.ptr()));
    if (!call) return false;
    PyObject* gradient = get(call, 0);
    const py::object made = stolen(PyObject_Vectorcall(gradient, values.data(), 1, get(call, 1)));
    // The plan of this call may be the first whose results have to be summed.
    static PyObject* const loose = PyUnicode_InternFromString("loose");
    if (stolen(PyObject_GetAttr(gradient, loose)).ptr() == Py_True) {
      PyDict_Clear(get(program_, kKnown));
      return false;
    }
    PyObject* places = get(call, 2);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); ++i) {
      PyObject* place = PyTuple_GET_ITEM(places, i);
      results->emplace_back();
      if (place == Py_None) continue;
      const long number = PyLong_AsLong(place);
      results->back() = THPVariable_Unpack(number < 0 ? gradients[0].ptr() : get(made, number));
    }
    return true;
  }

  void resume(const std::vector<py::object>& arguments, const std::vector<py::object>& gradients,
              variable_list* results) {
    std::vector<py::object> shape;
    for (const c10::SymInt& size : input_metadata(0).shape_as_dim_vector()) {
      shape.push_back(stolen(PyLong_FromLongLong(size.guard_int(__FILE__, __LINE__))));
    }
    const py::object given[] = {tuple_of(shape), tuple_of(arguments), tuple_of(gradients)};
    PyObject* values[] = {given[0].ptr(), given[1].ptr(), given[2].ptr()};
    const py::object made =
        stolen(PyObject_Vectorcall(get(program_, kResume), values, std::size(values), nullptr));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.ptr()); ++i) {
      results->emplace_back();
      if (get(made, i) != Py_None) results->back() = THPVariable_Unpack(get(made, i));
    }
  }

  py::object program_;
  std::vector<py::object> arguments_;  // null where a tensor was saved
  std::vector<SavedVariable> saved_;
  bool released_ = false;
};

// torch's own deleter, without which a long chain of nodes would be deleted recursively.
template <class Pointer>
Pointer owned(Node* node) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return Pointer(node, [](auto* gone) { deleteNode(gone); });
  } else {
    return Pointer::unsafe_steal_from_new(node);
  }
}

template <class Pointer>
auto tell_hooks(const Pointer& node, int) -> decltype(fire_node_creation_hooks(node)) {
  fire_node_creation_hooks(node);
}

template <class Pointer>
void tell_hooks(const Pointer&, long) {}  // a torch without such hooks

// Whether a tensor is what it seems. The gate of the runtime has looked only at those before the
// first that requires grad; those after it, the forward call checks.
bool is_plain(PyObject* object) {
  using c10::DispatchKey;
  constexpr c10::DispatchKeySet wrappers(
      {DispatchKey::Python, DispatchKey::Functionalize, DispatchKey::FuncTorchBatched,
       DispatchKey::FuncTorchGradWrapper, DispatchKey::NestedTensor});
  if (!THPVariable_CheckExact(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.layout() == at::kStrided && !tensor.key_set().has_any(wrappers);
}

// The kind of an argument as a character of the key; 0 for one that Python has to read. A tensor that
// needs a gradient and is like x may share it.
char kind_of(PyObject* object, PyObject* x) {
  if (object == Py_None) return 'n';
  if (PyFloat_CheckExact(object)) return 'f';
  if (PyLong_CheckExact(object)) {
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow ? 0 : 'i';
  }
  if (!is_plain(object)) return 0;
  const at::Tensor &tensor = THPVariable_Unpack(object), &first = THPVariable_Unpack(x);
  if (!tensor.requires_grad()) return 't';
  return tensor.dtype() == first.dtype() && tensor.sizes() == first.sizes() ? 's' : 'g';
}

// Whether torch compiles backward passes (torch._dynamo.compiled_autograd), which takes nodes in
// Python as they are.
bool compiles_backward() {
  static PyObject* const module = PyUnicode_InternFromString("torch._dynamo.compiled_autograd");
  static PyObject* const flag = PyUnicode_InternFromString("compiled_autograd_enabled");
  PyObject* found = look_up(PyImport_GetModuleDict(), module);
  return found && PyModule_Check(found) && look_up(PyModule_GetDict(found), flag) == Py_True;
}

// The key of a call's program; null if there is none for such calls.
py::object key_of(PyObject* const* args, Py_ssize_t count) {
  static PyObject* const allowed[] = {
      PyUnicode_InternFromString("dim"), PyUnicode_InternFromString("normalized_shape"),
      PyUnicode_InternFromString("dtype"), PyUnicode_InternFromString("training")};
  std::string kinds;
  for (Py_ssize_t i = 1; i < count; ++i) {
    const char kind = kind_of(args[i], args[1]);
    if (!kind) return {};
    kinds.push_back(kind);
  }
  const at::Tensor& x = THPVariable_Unpack(args[1]);
  if (x.numel() == 0) return {};
  kinds.push_back(static_cast<char>(x.scalar_type()));
  kinds.push_back(static_cast<char>(x.dim()));
  py::bytes start(kinds);
  if (args[0] == Py_None) return std::move(start);
  py::list parts;
  parts.append(start);
  PyObject *name, *value;
  for (Py_ssize_t at = 0; PyDict_Next(args[0], &at, &name, &value);) {
    if (std::find(std::begin(allowed), std::end(allowed), name) == std::end(allowed)) return {};
    if (PyList_Check(value)) return {};
    parts.append(borrowed(name));
    parts.append(borrowed(value));
  }
  return py::tuple(parts);
}

// Runs the forward call of a program, and records it. `args` are those of `differentiate`.
py::object record(const py::object& program, PyObject* const* args, Py_ssize_t count) {
  const at::AutoGradMode no_gradients(false);
  PyObject* names = get(program, kNames);
  PyObject* given = get(program, kGiven);
  py::object drawn;
  if (get(program, kDraw) != Py_None) {
    drawn = stolen(PyObject_Vectorcall(get(program, kDraw), args, count, nullptr));
  }
  std::vector<PyObject*> values{args[1]};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
    values.push_back(args[PyLong_AsLong(PyTuple_GET_ITEM(given, i))]);
  }
  for (Py_ssize_t i = PyTuple_GET_SIZE(given); i < PyTuple_GET_SIZE(names); ++i) {
    const bool last = i + 1 == PyTuple_GET_SIZE(names);
    values.push_back(last && drawn ? drawn.ptr() : look_up(args[0], PyTuple_GET_ITEM(names, i)));
  }
  const py::object made = stolen(PyObject_Vectorcall(get(program, kRun), values.data(), 1, names));

  auto* node = new Differentiated(program);
  const NodePointer owner = owned<NodePointer>(node);
  for (Py_ssize_t i = 1; i < count; ++i) {
    const bool tensor = THPVariable_CheckExact(args[i]);
    node->add_next_edge(tensor ? torch::autograd::impl::gradient_edge(THPVariable_Unpack(args[i]))
                               : Edge());
  }
  PyObject* differentiable = get(program, kDifferentiable);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(differentiable); ++i) {
    const at::Tensor& output = THPVariable_Unpack(get(made, i));
    const uint32_t number = node->add_input_metadata(output);
    if (PyTuple_GET_ITEM(differentiable, i) != Py_True) continue;
    torch::autograd::impl::set_gradient_edge(output, Edge(owner, number));
  }
  PyObject* sources = get(program, kSources);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); i += 2) {
    const long source = PyLong_AsLong(PyTuple_GET_ITEM(sources, i));
    PyObject* object = PyTuple_GET_ITEM(sources, i + 1);  // a constant, or a place
    if (source == kDrawn) {
      object = drawn.ptr();
    } else if (source != kConstant) {
      const long place = PyLong_AsLong(object);
      object = source == kSavedOutput ? get(made, place) : args[place];
    }
    if (source >= kDrawn && THPVariable_Check(object)) {
      node->save(THPVariable_Unpack(object));
    } else {
      node->keep(source == kDescription ? description(object) : borrowed(object));
    }
  }
  tell_hooks(owner, 0);
  PyObject* type = get(program, kResultType);
  if (type == Py_None) return borrowed(get(made, 0));
  const py::object fields =
      stolen(PyTuple_GetSlice(made.ptr(), 0, PyTuple_GET_SIZE(differentiable)));
  const py::object packed = stolen(PyTuple_Pack(1, fields.ptr()));
  return stolen(PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(type), packed.ptr(), nullptr));
}

// A differentiable call: options or None, x, and the operands in the order of the slots. `self` is
// a tuple: what runs a call in Python, what makes a program, and the programs by key.
PyObject* differentiate(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  PyObject* programs = PyTuple_GET_ITEM(self, 2);
  const py::object key = compiles_backward() ? py::object() : key_of(args, count);
  if (!key) return PyObject_Vectorcall(PyTuple_GET_ITEM(self, 0), args, count, nullptr);
  py::object program = borrowed(look_up(programs, key.ptr()));
  if (!program) {
    program = stolen(PyObject_Vectorcall(PyTuple_GET_ITEM(self, 1), args, count, nullptr));
    if (PyDict_Size(programs) >= kMostPrograms) PyDict_Clear(programs);
    if (PyDict_SetItem(programs, key.ptr(), program.ptr()) != 0) return nullptr;
  }
  if (program.is_none()) {
    return PyObject_Vectorcall(PyTuple_GET_ITEM(self, 0), args, count, nullptr);
  }
  return record(program, args, count).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyMethodDef method = {"differentiate",
                      reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(differentiate)),
                      METH_FASTCALL, nullptr};

}  // namespace

/// A function that runs the differentiable calls of one op, made from what runs such a call in
/// Python and from what makes the program for it. Loaded by ctypes, with the GIL held.
extern "C" __attribute__((visibility("default"))) PyObject* fusedops_differentiator(
    PyObject* in_python, PyObject* make_program) {
  const auto programs = py::reinterpret_steal<py::object>(PyDict_New());
  if (!programs) return nullptr;
  const auto self =
      py::reinterpret_steal<py::object>(PyTuple_Pack(3, in_python, make_program, programs.ptr()));
  return self ? PyCFunction_New(&method, self.ptr()) : nullptr;
}
