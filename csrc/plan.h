// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A plan: all that is known of a call before its pointers and numbers are. Running one allocates
// the outputs, rewrites the words that change and launches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernel.h"
#include "tensor.h"

namespace fusedops::runtime {

/// One value of a call as the gate understood it. Slot 0 is x, slot i the i-th operand.
struct Value {
  enum Kind : uint8_t { kAbsent, kTensor, kReal, kInteger };
  Kind kind = kAbsent;
  View view;        // kTensor
  double real;      // kReal, kInteger
  int64_t integer;  // kInteger
};

/// Rewrites one word of the kernel's argument at each call. `source` is a slot, an output
/// (kOutput), nothing (kSeed), or a number to add (kOffset).
struct Patch {
  enum Kind : int {
    kPointer,      // the slot's data
    kOutput,       // the output's data
    kFloat32,      // the slot's number; the upper half of the word stays
    kFloat64,      //
    kInt64,        //
    kThreshold,    // of the probability p: round(p * 65536) in 1..65535, 65536 for p = 1 (32 bits)
    kKeepScale32,  // 65536 / (65536 - threshold), 0 for p = 1
    kKeepScale64,  //
    kSeed,         // of the draw
    kOffset,       // of the draw, plus the slot number `source`
    kKinds,
  };
  uint32_t word;
  Kind kind;
  int64_t source;
};

/// One output, as the two ways to allocate it take it (Torch::empty).
struct Output {
  py::tuple strided;  // shape, strides, dtype
  py::tuple shape;    // the shape
  py::dict options;   // dtype, and device from the first run on
};

/// What the random numbers of one call start from.
struct Draw {
  uint64_t seed = 0;
  uint64_t offset = 0;
};

class Plan {
 public:
  /// Throws ValueError where the parts do not fit together.
  Plan(std::shared_ptr<Kernel> kernel, const std::string& words, const py::list& patches,
       const py::list& outputs, int64_t rows, int64_t grain, unsigned grid, unsigned block,
       unsigned shared, int draws, py::object info);

  /// Throws ValueError if a patch asks these values for something that they are not.
  void check(const Value* values, int count) const;

  /// Allocates what `out` does not give. `tensors` gets new references, one for each output.
  /// Throws py::error_already_set, std::runtime_error.
  void run(const Torch& torch, const Value* values, PyObject* const* out, const Value* out_values,
           Draw draw, PyObject** tensors);

  size_t num_outputs() const { return outputs_.size(); }
  int draws() const { return draws_; }
  bool launches() const { return rows_ > 0; }

  py::object info;

 private:
  PyObject* allocate(const Torch& torch, const Output& output, dlpack::Device device) const;
  void patch(const Value* values, char* const* outputs, Draw draw, uint64_t* words) const;
  void launch(const Torch& torch, dlpack::Device device, uint64_t* words);

  std::shared_ptr<Kernel> kernel_;
  std::vector<uint64_t> words_;
  std::vector<Patch> patches_;
  std::vector<Output> outputs_;
  int64_t rows_;
  int64_t grain_;
  unsigned grid_;
  unsigned block_;
  unsigned shared_;
  int draws_;
  bool placed_ = false;  // the outputs' options hold the device
};

}  // namespace fusedops::runtime
