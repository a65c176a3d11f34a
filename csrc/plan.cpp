// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "items.h"

namespace fusedops::runtime {
namespace {

// Releases the GIL while a kernel runs, or while a launch waits for room in the queue.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

int num_threads(const Torch& torch) {
  PyObject* number = PyObject_CallNoArgs(torch.num_threads);
  if (!number) throw py::error_already_set();
  const long threads = PyLong_AsLong(number);
  Py_DECREF(number);
  return static_cast<int>(std::clamp(threads, 1L, 1024L));
}

// Fills a tensor with zeros on the current stream, where a captured graph records it too. A tensor
// that cannot be is released.
void clear(PyObject** tensor) {
  PyObject* same = PyObject_CallMethod(*tensor, "zero_", nullptr);
  if (!same) {
    Py_CLEAR(*tensor);
    throw py::error_already_set();
  }
  Py_DECREF(same);
}

}  // namespace

Plan::Plan(std::vector<Stage> stages, const py::list& outputs, size_t returned, int draws,
           py::object info_object, const std::vector<size_t>& cleared, int64_t calls)
    : info(std::move(info_object)), returned_(returned), draws_(draws), calls_left_(calls) {
  if (outputs.empty() || outputs.size() > kMaxOutputs) {
    throw py::value_error("Plan: outputs must be 1 to " + std::to_string(kMaxOutputs) + ", got " +
                          std::to_string(outputs.size()));
  }
  if (returned < 1 || returned > outputs.size()) {
    throw py::value_error("Plan: returned must be 1 to " + std::to_string(outputs.size()) +
                          ", the number of outputs, got " + std::to_string(returned));
  }
  for (const py::handle item : outputs) {
    const Items output(item);  // DLPack code, bits, shape
    const py::object dtype = Torch::dtype_of(
        {static_cast<uint8_t>(output.number(0)), static_cast<uint8_t>(output.number(1)), 1});
    const py::handle shape = output[2];
    outputs_.push_back({py::make_tuple(shape, dense_strides(Items(shape)), dtype), {}, {}, false});
  }
  for (const size_t number : cleared) {
    if (number >= outputs_.size()) {
      throw py::value_error("Plan: cleared must name outputs, of which there are " +
                            std::to_string(outputs_.size()) + ", got " + std::to_string(number));
    }
    outputs_[number].cleared = true;
  }
  for (Stage& stage : stages) {
    stage.check_outputs(outputs_.size());
    if (!stage.launches()) continue;
    parallel_ = parallel_ || stage.parallel();
    stages_.push_back(std::move(stage));
    if (stages_.back().on_host() != stages_.front().on_host()) {
      throw py::value_error("Plan: kernels must be all for the host or all for CUDA devices");
    }
  }
}

void Plan::check(const Value* values, int count) const {
  for (const Stage& stage : stages_) stage.check_values(values, count);
}

void Plan::run(const Torch& torch, const Value* values, PyObject* const* out,
               const Value* out_values, Draw draw, PyObject** tensors) {
  const dlpack::Device device = values[0].view.device;
  PyObject* strided = device.type == dlpack::kCPU        ? torch.empty_cpu
                      : cuda::Scope::holds(device.index) ? torch.empty_cuda
                                                         : nullptr;
  if (!strided && !placed_) place(device);
  char* pointers[kMaxOutputs];
  size_t made = 0;
  try {
    for (; made < outputs_.size(); ++made) {
      if (out && made < returned_ && out[made]) {
        pointers[made] = data_of(out_values[made].view);
        tensors[made] = Py_NewRef(out[made]);
        if (outputs_[made].cleared) clear(&tensors[made]);
        continue;
      }
      tensors[made] = allocate(torch, outputs_[made], strided);
      if (outputs_[made].cleared) clear(&tensors[made]);
      View view;
      if (!view_tensor(torch, tensors[made], &view)) {
        Py_DECREF(tensors[made]);
        throw py::error_already_set();
      }
      pointers[made] = data_of(view);
    }
    if (launches()) launch(torch, values, pointers, draw);
  } catch (...) {
    while (made > 0) Py_DECREF(tensors[--made]);
    throw;
  }
  while (made > returned_) Py_DECREF(tensors[--made]);
}

void Plan::place(dlpack::Device device) {
  const char* type = device.type == dlpack::kCPU ? "cpu" : "cuda";
  const py::object place = py::module_::import("torch").attr("device")(type, device.index);
  for (Output& output : outputs_) {
    output.shape = py::make_tuple(output.strided[0]);
    py::dict options;
    options["dtype"] = output.strided[2];
    options["device"] = place;
    output.options = std::move(options);
  }
  placed_ = true;
}

PyObject* Plan::allocate(const Torch& torch, const Output& output, PyObject* strided) const {
  PyObject* tensor = strided ? PyObject_Call(strided, output.strided.ptr(), nullptr)
                             : PyObject_Call(torch.empty, output.shape.ptr(), output.options.ptr());
  if (!tensor) throw py::error_already_set();
  return tensor;
}

void Plan::launch(const Torch& torch, const Value* values, char* const* outputs, Draw draw) const {
  alignas(16) uint64_t words[Stage::kMaxWords];
  if (stages_.front().on_host()) {
    const int threads = parallel_ ? num_threads(torch) : 1;
    const WithoutGil released;
    for (const Stage& stage : stages_) {
      stage.write(values, outputs, draw, words);
      stage.run_host(words, threads);
    }
    return;
  }
  const dlpack::Device device = values[0].view.device;
  void* stream = nullptr;
  if (torch.exchange->current_stream(device.type, device.index, &stream) != 0) {
    throw py::error_already_set();
  }
  const WithoutGil released;
  const cuda::Scope scope(device.index);
  for (const Stage& stage : stages_) {
    stage.write(values, outputs, draw, words);
    stage.launch_cuda(device.index, static_cast<cuda::Stream>(stream), words);
  }
}

}  // namespace fusedops::runtime
