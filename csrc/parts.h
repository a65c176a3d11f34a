// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a call as the parts that geometry.h places.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace py = pybind11;

namespace fusedops::runtime {

/// The parts of a call by key, as fusedops.generate.views.filled says. `part` is their class, and
/// `values` has the tensors of the call by name, or the pair (dtype, shape) of one without memory.
py::dict parts(const py::type& part, const py::handle& blanks, const py::dict& values,
               const py::handle& shape, const py::handle& reduced);

/// Whether the tensors among these values broadcast against x, whose shape is given, and have no
/// more dimensions.
bool broadcast(const py::handle& shape, const py::handle& values);

/// The sizes of the tensors among these values, those of 2 and more as 2: equal where these are.
py::bytes ones(const py::handle& values);

}  // namespace fusedops::runtime
