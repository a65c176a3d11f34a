// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The keyword arguments of a call: which operand or option each one is, and which values options
// take.
#pragma once

#include <vector>

#include "key.h"

namespace fusedops::runtime {

/// The name of an operand and the kinds of values that it takes.
struct Slot {
  enum Flags : int { kProbability = 1, kNumber = 2, kTensor = 4, kDescribed = 8 };
  py::object name;  // interned
  int flags;
};

/// The arguments of one call, borrowed from the caller; null where not given.
struct Arguments {
  static constexpr int kMaxSlots = 96;  // x included
  static constexpr int kMaxOut = Plan::kMaxOutputs;
  enum Option { kDim, kNormalizedShape, kDtype, kOut, kTraining, kGenerator, kPartOf, kOptions };

  PyObject* slots[kMaxSlots];  // slot 0 is x
  PyObject* options[kOptions];
  bool training;
  bool drawn;    // whether generator= was a seed and offset
  Draw draw;     // these
  View draw_in;  // the tensor that holds them, where `draw.memory` is set
  int num_out;
  PyObject* out[kMaxOut];
};

/// The names of the options, interned, in the order of Arguments::Option.
PyObject* const* option_names();

/// Assigns the arguments of a vectorcall to the members of `arguments`: x, then the last
/// `inputs - 1` slots by position, and the others by keyword; false if a keyword is unknown.
bool match(const std::vector<Slot>& slots, size_t inputs, PyObject* const* values,
           PyObject* keywords, Arguments* arguments);

/// Reads the options and adds them to the key; false if one has an unexpected type or value.
bool read_options(const Torch& torch, Arguments* arguments, Key* key);

/// Reads a number for a slot; false if it is not a number, or not a probability where the slot
/// takes one.
bool read_number(PyObject* object, const Slot& slot, Value* value);

/// Reads `(dtype, shape)`, which describes a tensor that is absent, and adds it to the key; false
/// if the object is not of that form.
bool read_description(const Torch& torch, PyObject* object, Key* key);

/// The given options as a dict, or null if there are none; null with a Python exception set where
/// memory is exhausted.
PyObject* given_options(const Arguments& arguments);

/// All keywords by name, for an error message of Python; unknown ones are among the operands.
void collect(PyObject* const* values, PyObject* keywords, py::dict* operands, py::dict* options);

}  // namespace fusedops::runtime
