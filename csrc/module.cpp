// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The Python module fusedops._runtime: bindings only.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "cpu.h"
#include "dispatch.h"
#include "driver.h"
#include "gate.h"
#include "geometry.h"
#include "kernel.h"
#include "parts.h"
#include "plan.h"
#include "threads.h"

namespace py = pybind11;
namespace runtime = fusedops::runtime;

namespace {

py::frozenset cpu_features() { return py::frozenset(py::cast(runtime::cpu_features())); }

py::dict device(int index) {
  const runtime::cuda::Properties found = runtime::cuda::properties(index);
  py::dict properties;
  properties["name"] = found.name;
  properties["capability"] = py::make_tuple(found.capability_major, found.capability_minor);
  properties["multiprocessors"] = found.multiprocessors;
  properties["shared_per_block_optin"] = found.shared_per_block_optin;
  properties["threads_per_multiprocessor"] = found.threads_per_multiprocessor;
  properties["l2_bytes"] = found.l2_bytes;
  properties["registers_per_block"] = found.registers_per_block;
  return properties;
}

void bind_kinds(py::module_& module) {
  using runtime::Patch;
  module.attr("POINTER") = static_cast<int>(Patch::kPointer);
  module.attr("OUTPUT") = static_cast<int>(Patch::kOutput);
  module.attr("FLOAT32") = static_cast<int>(Patch::kFloat32);
  module.attr("FLOAT64") = static_cast<int>(Patch::kFloat64);
  module.attr("INT64") = static_cast<int>(Patch::kInt64);
  module.attr("THRESHOLD") = static_cast<int>(Patch::kThreshold);
  module.attr("KEEP_SCALE32") = static_cast<int>(Patch::kKeepScale32);
  module.attr("KEEP_SCALE64") = static_cast<int>(Patch::kKeepScale64);
  module.attr("SEED") = static_cast<int>(Patch::kSeed);
  module.attr("OFFSET") = static_cast<int>(Patch::kOffset);
  module.attr("DRAW") = static_cast<int>(Patch::kDraw);
  module.attr("TENSOR_MAP") = static_cast<int>(Patch::kTensorMap);
}

void bind_slot_flags(py::module_& module) {
  using runtime::Slot;
  module.attr("SLOT_PROBABILITY") = static_cast<int>(Slot::kProbability);
  module.attr("SLOT_NUMBER") = static_cast<int>(Slot::kNumber);
  module.attr("SLOT_TENSOR") = static_cast<int>(Slot::kTensor);
  module.attr("SLOT_DESCRIBED") = static_cast<int>(Slot::kDescribed);
}

// A further launch of a plan, as Python passes it: kernel, words, patches, rows, grain, grid,
// block, shared.
using StageTuple = std::tuple<std::shared_ptr<runtime::Kernel>, py::bytes, py::list, int64_t,
                              int64_t, unsigned, unsigned, unsigned>;

std::unique_ptr<runtime::Plan> make_plan(std::shared_ptr<runtime::Kernel> kernel,
                                         const py::bytes& words, const py::list& patches,
                                         const py::list& outputs, int64_t rows, int64_t grain,
                                         unsigned grid, unsigned block, unsigned shared, int draws,
                                         py::object info, std::vector<StageTuple> then,
                                         std::optional<size_t> returned,
                                         const std::vector<size_t>& cleared, int64_t calls) {
  std::vector<runtime::Stage> stages;
  stages.emplace_back(std::move(kernel), words, patches, rows, grain, grid, block, shared);
  for (StageTuple& stage : then) {
    stages.push_back(std::make_from_tuple<runtime::Stage>(std::move(stage)));
  }
  return std::make_unique<runtime::Plan>(std::move(stages), outputs,
                                         returned.value_or(outputs.size()), draws, std::move(info),
                                         cleared, calls);
}

}  // namespace

PYBIND11_MODULE(_runtime, module) {
  module.doc() = "Finds the plan for these tensors and launches it.";

  py::class_<runtime::Kernel, std::shared_ptr<runtime::Kernel>>(module, "Kernel")
      .def_property_readonly("symbol", &runtime::Kernel::symbol);
  module.def(
      "load_cuda",
      [](const py::bytes& image, const std::string& symbol, bool waits) {
        return runtime::Kernel::load_cuda(image, symbol, waits);
      },
      py::arg("image"), py::arg("symbol"), py::arg("waits") = false);
  module.def("load_host", &runtime::Kernel::load_host, py::arg("path"), py::arg("symbol"));

  bind_kinds(module);
  bind_slot_flags(module);
  py::class_<runtime::Plan>(module, "Plan")
      .def(py::init(&make_plan), py::arg("kernel"), py::arg("words"), py::arg("patches"),
           py::arg("outputs"), py::arg("rows"), py::arg("grain"), py::arg("grid"), py::arg("block"),
           py::arg("shared"), py::arg("draws"), py::arg("info"), py::arg("then") = py::list(),
           py::arg("returned") = py::none(), py::arg("cleared") = std::vector<size_t>(),
           py::arg("calls") = 0)
      .def_readonly("info", &runtime::Plan::info);

  py::class_<runtime::Delegate>(module, "Delegate")
      .def(py::init<py::object>(), py::arg("function"));

  module.attr("Reason") = runtime::make_reason_type(module);
  module.attr("Dispatcher") = runtime::make_dispatcher_type(module);
  module.def("call_at_once", &runtime::call_at_once, py::arg("type"));
  module.def("set_salt", &runtime::set_salt, py::arg("salt"));
  module.def("use_own_threads", &runtime::use_own_threads, py::arg("own"));
  module.def("last_plan", &runtime::last_plan);

  module.attr("MAX_ROW_DIMS") = runtime::kMaxRowDims;
  module.attr("SHARED_BYTES") = runtime::kSharedBytes;
  module.def("place", &runtime::place, py::arg("placed"), py::arg("shape"), py::arg("reduced"),
             py::arg("operands"), py::arg("element_bytes"), py::arg("summed"));
  module.def("views", &runtime::views, py::arg("view"), py::arg("storage"), py::arg("parts"),
             py::arg("places"), py::arg("width"), py::arg("columns"));
  module.def("types", &runtime::types, py::arg("views"), py::arg("maps"));
  module.def("shares", &runtime::shares, py::arg("sharing"), py::arg("places"), py::arg("sizes"),
             py::arg("columns"), py::arg("of_row"), py::arg("whole"));
  module.def("broadcast", &runtime::broadcast, py::arg("shape"), py::arg("values"));
  module.def("ones", &runtime::ones, py::arg("values"));
  module.def("parts", &runtime::parts, py::arg("part"), py::arg("blanks"), py::arg("values"),
             py::arg("shape"), py::arg("reduced"));

  module.def("cpu_features", &cpu_features);
  module.def("device", &device, py::arg("index"));
  module.def("device_count", &runtime::cuda::device_count);
  module.def("driver_version", &runtime::cuda::driver_version);
}
