// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A plan: all that can be computed of a call before its pointers and numbers are known. Running it
// allocates the outputs; for each stage it writes the words that change, and launches the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "stage.h"
#include "tensor.h"

namespace fusedops::runtime {

/// One output, as the two functions that allocate it take it.
struct Output {
  py::tuple strided;   // shape, strides, dtype
  py::object shape;    // a tuple of the shape, from the first run by Torch::empty on
  py::object options;  // a dict of dtype and device, likewise
  bool cleared;        // whether it is zero when the first stage begins
};

class Plan {
 public:
  static constexpr size_t kMaxOutputs = 64;

  /// The first `returned` outputs are returned to the caller. The others are scratch memory, which
  /// is freed when the last stage is launched: torch's allocator gives it to later work of the same
  /// stream only. `cleared` are the numbers of outputs that are zero when the first stage begins,
  /// those of the caller included. After `calls` calls the plan is made again, never if that is 0.
  /// Throws ValueError where the arguments are inconsistent.
  Plan(std::vector<Stage> stages, const py::list& outputs, size_t returned, int draws,
       py::object info, const std::vector<size_t>& cleared, int64_t calls);

  /// Throws ValueError if a value does not have the kind that a patch needs.
  void check(const Value* values, int count) const;

  /// Allocates the outputs that `out` does not contain, and launches. `tensors`, of kMaxOutputs
  /// elements, gets a new reference for each returned output. Throws py::error_already_set,
  /// std::runtime_error.
  void run(const Torch& torch, const Value* values, PyObject* const* out, const Value* out_values,
           Draw draw, PyObject** tensors);

  size_t returned() const { return returned_; }
  int draws() const { return draws_; }
  bool launches() const { return !stages_.empty(); }
  /// Counts a call; whether the plan is to be made again before it.
  bool outdated() { return calls_left_ > 0 && --calls_left_ == 0; }

  py::object info;

 private:
  void place(dlpack::Device device);
  PyObject* allocate(const Torch& torch, const Output& output, PyObject* strided) const;
  void launch(const Torch& torch, const Value* values, char* const* outputs, Draw draw) const;

  std::vector<Stage> stages_;  // only those that launch a kernel
  std::vector<Output> outputs_;
  size_t returned_;
  int draws_;
  int64_t calls_left_;
  bool parallel_ = false;  // whether some stage can use more than one thread
  bool placed_ = false;    // whether the outputs' options include the device
};

}  // namespace fusedops::runtime
