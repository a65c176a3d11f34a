// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A plan: all that is known of a call before its pointers and numbers are. Running one allocates
// the outputs, and for each stage rewrites the words that change and launches.
#pragma once

#include <cstdint>
#include <vector>

#include "stage.h"
#include "tensor.h"

namespace fusedops::runtime {

/// One output, as the two ways to allocate it take it (Torch::empty).
struct Output {
  py::tuple strided;  // shape, strides, dtype
  py::tuple shape;    // the shape
  py::dict options;   // dtype, and device from the first run on
};

class Plan {
 public:
  static constexpr size_t kMaxOutputs = 64;

  /// The first `returned` outputs are the caller's. The others are scratch, which lives until the
  /// last stage is launched: torch's allocator hands it to later work of the same stream only.
  /// Throws ValueError where the parts do not fit together.
  Plan(std::vector<Stage> stages, const py::list& outputs, size_t returned, int draws,
       py::object info);

  /// Throws ValueError if a patch asks these values for something that they are not.
  void check(const Value* values, int count) const;

  /// Allocates what `out` does not give. `tensors` has room for kMaxOutputs, and gets a new
  /// reference for each output that is returned. Throws py::error_already_set, std::runtime_error.
  void run(const Torch& torch, const Value* values, PyObject* const* out, const Value* out_values,
           Draw draw, PyObject** tensors);

  size_t returned() const { return returned_; }
  int draws() const { return draws_; }
  bool launches() const { return !stages_.empty(); }

  py::object info;

 private:
  void place(dlpack::Device device);
  PyObject* allocate(const Torch& torch, const Output& output, dlpack::Device device) const;
  void launch(const Torch& torch, const Value* values, char* const* outputs, Draw draw) const;

  std::vector<Stage> stages_;  // those that launch
  std::vector<Output> outputs_;
  size_t returned_;
  int draws_;
  bool parallel_ = false;  // some stage can use more than one thread
  bool placed_ = false;    // the outputs' options hold the device
};

}  // namespace fusedops::runtime
