// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The hot path, from the keyword arguments to the launch: match, gate, key, look up, run. A raw
// CPython type with a vectorcall, since a binding layer would cost as much as the path itself.
#pragma once

#include "plan.h"

namespace fusedops::runtime {

/// The Python type `Dispatcher`, a new reference. Throws py::error_already_set.
py::object make_dispatcher_type(const py::module_& module);

/// A number that is part of every key; test hooks change it to part their plans from the others.
void set_salt(int64_t salt);

/// The plan that ran last in this process, or None.
py::object last_plan();

}  // namespace fusedops::runtime
