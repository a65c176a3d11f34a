// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>

namespace fusedops::runtime {
namespace {

// The classic limit of a kernel's arguments, which every device and driver takes.
constexpr size_t kMaxWords = 4096 / sizeof(uint64_t);
constexpr size_t kMaxOutputs = 16;

// Others may run Python while a kernel runs, or while a launch waits for room in the queue.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

template <class T>
void store(uint64_t* word, T value) {
  static_assert(sizeof(T) <= sizeof(*word));
  std::memcpy(word, &value, sizeof(T));
}

// Half a unit rounds to even, as Python's round() does.
uint32_t threshold(double p) {
  if (p >= 1) return 65536;
  return static_cast<uint32_t>(std::clamp(std::nearbyint(p * 65536), 1.0, 65535.0));
}

double keep_scale(double p) {
  const uint32_t t = threshold(p);
  return t == 65536 ? 0.0 : 65536.0 / (65536 - t);
}

int num_threads(const Torch& torch) {
  PyObject* number = PyObject_CallNoArgs(torch.num_threads);
  if (!number) throw py::error_already_set();
  const long threads = PyLong_AsLong(number);
  Py_DECREF(number);
  return static_cast<int>(std::clamp(threads, 1L, 1024L));
}

py::tuple contiguous(const py::tuple& shape) {
  py::tuple strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d].cast<int64_t>(), 1);
  }
  return strides;
}

bool needs_tensor(Patch::Kind kind) { return kind == Patch::kPointer; }

bool needs_number(Patch::Kind kind) {
  return kind >= Patch::kFloat32 && kind <= Patch::kKeepScale64 && kind != Patch::kInt64;
}

}  // namespace

Plan::Plan(std::shared_ptr<Kernel> kernel, const std::string& words, const py::list& patches,
           const py::list& outputs, int64_t rows, int64_t grain, unsigned grid, unsigned block,
           unsigned shared, int draws, py::object info_object)
    : info(std::move(info_object)),
      kernel_(std::move(kernel)),
      words_(words.size() / sizeof(uint64_t)),
      rows_(rows),
      grain_(grain),
      grid_(grid),
      block_(block),
      shared_(shared),
      draws_(draws) {
  if (words.size() % sizeof(uint64_t) || words_.size() > kMaxWords) {
    throw py::value_error("Plan: words must be whole words of 8 bytes, at most 4096 bytes, got " +
                          std::to_string(words.size()) + " bytes");
  }
  std::memcpy(words_.data(), words.data(), words.size());
  if (rows < 0) throw py::value_error("Plan: rows must not be negative");
  if (rows > 0) {
    if (!kernel_) throw py::value_error("Plan: kernel must not be None where there are rows");
    if (kernel_->on_host() && grain < 1) throw py::value_error("Plan: grain must be positive");
    if (!kernel_->on_host() && (grid < 1 || block < 1)) {
      throw py::value_error("Plan: grid and block must be positive");
    }
  }
  if (outputs.empty() || outputs.size() > kMaxOutputs) {
    throw py::value_error("Plan: outputs must be 1 to 16, got " + std::to_string(outputs.size()));
  }
  for (const py::handle item : outputs) {
    const auto [code, bits, shape] = item.cast<std::tuple<uint8_t, uint8_t, py::tuple>>();
    const py::object dtype = Torch::dtype_of({code, bits, 1});
    Output output{py::make_tuple(shape, contiguous(shape), dtype), py::make_tuple(shape), {}};
    output.options["dtype"] = dtype;
    outputs_.push_back(std::move(output));
  }
  for (const py::handle item : patches) {
    const auto [word, kind, source] = item.cast<std::tuple<uint32_t, int, int64_t>>();
    const auto last = kind == Patch::kOutput ? static_cast<int64_t>(outputs_.size()) : INT64_MAX;
    if (word >= words_.size() || kind < 0 || kind >= Patch::kKinds || source < 0 ||
        source >= last) {
      throw py::value_error("Plan: patch (" + std::to_string(word) + ", " + std::to_string(kind) +
                            ", " + std::to_string(source) + ") is out of range");
    }
    patches_.push_back({word, static_cast<Patch::Kind>(kind), source});
  }
}

void Plan::check(const Value* values, int count) const {
  for (const Patch& patch : patches_) {
    if (patch.kind == Patch::kOutput || patch.kind >= Patch::kSeed) continue;
    const Value::Kind kind = patch.source < count ? values[patch.source].kind : Value::kAbsent;
    const bool number = kind == Value::kReal || kind == Value::kInteger;
    if ((needs_tensor(patch.kind) && kind != Value::kTensor) ||
        (needs_number(patch.kind) && !number) ||
        (patch.kind == Patch::kInt64 && kind != Value::kInteger)) {
      throw py::value_error("Plan: a patch of kind " + std::to_string(patch.kind) +
                            " does not fit the value in slot " + std::to_string(patch.source));
    }
  }
}

void Plan::run(const Torch& torch, const Value* values, PyObject* const* out,
               const Value* out_values, Draw draw, PyObject** tensors) {
  const dlpack::Device device = values[0].view.device;
  if (!placed_) {
    const char* type = device.type == dlpack::kCPU ? "cpu" : "cuda";
    const py::object place = py::module_::import("torch").attr("device")(type, device.index);
    for (Output& output : outputs_) output.options["device"] = place;
    placed_ = true;
  }
  char* pointers[kMaxOutputs];
  size_t made = 0;
  try {
    for (; made < outputs_.size(); ++made) {
      if (out && out[made]) {
        pointers[made] = data_of(out_values[made].view);
        tensors[made] = Py_NewRef(out[made]);
        continue;
      }
      tensors[made] = allocate(torch, outputs_[made], device);
      View view;
      if (!view_tensor(torch, tensors[made], &view)) {
        Py_DECREF(tensors[made]);
        throw py::error_already_set();
      }
      pointers[made] = data_of(view);
    }
    if (rows_ == 0) return;
    alignas(16) uint64_t words[kMaxWords];
    patch(values, pointers, draw, words);
    launch(torch, device, words);
  } catch (...) {
    while (made > 0) Py_DECREF(tensors[--made]);
    throw;
  }
}

PyObject* Plan::allocate(const Torch& torch, const Output& output, dlpack::Device device) const {
  PyObject* strided = device.type == dlpack::kCPU        ? torch.empty_cpu
                      : cuda::Scope::holds(device.index) ? torch.empty_cuda
                                                         : nullptr;
  PyObject* tensor = strided ? PyObject_Call(strided, output.strided.ptr(), nullptr)
                             : PyObject_Call(torch.empty, output.shape.ptr(), output.options.ptr());
  if (!tensor) throw py::error_already_set();
  return tensor;
}

void Plan::patch(const Value* values, char* const* outputs, Draw draw, uint64_t* words) const {
  std::memcpy(words, words_.data(), words_.size() * sizeof(uint64_t));
  for (const Patch& patch : patches_) {
    uint64_t* word = words + patch.word;
    const auto value = [&]() -> const Value& { return values[patch.source]; };
    switch (patch.kind) {
      case Patch::kPointer:
        store(word, data_of(value().view));
        break;
      case Patch::kOutput:
        store(word, outputs[patch.source]);
        break;
      case Patch::kFloat32:
        store(word, static_cast<float>(value().real));
        break;
      case Patch::kFloat64:
        store(word, value().real);
        break;
      case Patch::kInt64:
        store(word, value().integer);
        break;
      case Patch::kThreshold:
        store(word, threshold(value().real));
        break;
      case Patch::kKeepScale32:
        store(word, static_cast<float>(keep_scale(value().real)));
        break;
      case Patch::kKeepScale64:
        store(word, keep_scale(value().real));
        break;
      case Patch::kSeed:
        store(word, draw.seed);
        break;
      case Patch::kOffset:
        store(word, draw.offset + static_cast<uint64_t>(patch.source));
        break;
      case Patch::kKinds:
        break;
    }
  }
}

void Plan::launch(const Torch& torch, dlpack::Device device, uint64_t* words) {
  if (kernel_->on_host()) {
    const int threads = rows_ > grain_ ? num_threads(torch) : 1;
    const WithoutGil released;
    run_rows(kernel_->host(), words, rows_, grain_, threads);
    return;
  }
  void* stream = nullptr;
  if (torch.exchange->current_stream(device.type, device.index, &stream) != 0) {
    throw py::error_already_set();
  }
  const WithoutGil released;
  const cuda::Scope scope(device.index);
  kernel_->prepare(device.index, shared_);
  kernel_->launch(static_cast<cuda::Stream>(stream), grid_, block_, shared_, words);
}

}  // namespace fusedops::runtime
