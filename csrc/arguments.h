// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The keyword arguments of a call: which belongs to which operand or option, and what an option
// may be.
#pragma once

#include <vector>

#include "key.h"

namespace fusedops::runtime {

/// An operand's name and what it may be.
struct Slot {
  enum Flags : int { kProbability = 1, kNumber = 2, kTensor = 4, kDescribed = 8 };
  py::object name;  // interned
  int flags;
};

/// The arguments of one call, borrowed from the caller; null where not given.
struct Arguments {
  static constexpr int kMaxSlots = 96;  // x included
  static constexpr int kMaxOut = Plan::kMaxOutputs;
  enum Option { kDim, kNormalizedShape, kDtype, kOut, kTraining, kGenerator, kOptions };

  PyObject* slots[kMaxSlots];  // slot 0 is x
  PyObject* options[kOptions];
  bool training;
  bool drawn;    // generator= was the draw itself
  Draw draw;     // which is this
  View draw_in;  // and lies here, where `draw.memory` is set
  int num_out;
  PyObject* out[kMaxOut];
};

/// The names of the options, interned, in the order of Arguments::Option.
PyObject* const* option_names();

/// Sorts the keywords into `arguments`; false if one is unknown.
bool match(const std::vector<Slot>& slots, PyObject* x, PyObject* const* values, PyObject* keywords,
           Arguments* arguments);

/// Reads the options and adds them to the key; false if one is not what it may be.
bool read_options(const Torch& torch, Arguments* arguments, Key* key);

/// Reads a number that a slot allows; false if it is none, or no probability where one is wanted.
bool read_number(PyObject* object, const Slot& slot, Value* value);

/// Reads the description of a tensor that is not there, `(dtype, shape)`, and adds it to the key;
/// false if it is none.
bool read_description(const Torch& torch, PyObject* object, Key* key);

/// The options that were given as a dict, null if none were; null with a Python exception set where
/// there is no memory.
PyObject* given_options(const Arguments& arguments);

/// All that came, sorted by name, for Python to judge: the unknown are among the operands.
void collect(PyObject* const* values, PyObject* keywords, py::dict* operands, py::dict* options);

}  // namespace fusedops::runtime
