// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The geometry of a call: shapes and strides become rows and columns, and these say how wide a tensor
// is accessed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace py = pybind11;

namespace fusedops::runtime {

/// The most row dimensions that a kernel can address; each number of them is a variant of its own.
constexpr int kMaxRowDims = 5;

/// Operands of fewer bytes than this stay in the caches in whatever order the rows are visited.
constexpr int64_t kSharedBytes = int64_t{1} << 20;

/// Places operands on a grid of rows and columns, as fusedops.bind.geometry.place says, and returns
/// the fields of its Geometry. `placed` is the class of a place.
py::tuple place(const py::type& placed, const py::handle& shape, const py::handle& reduced,
                const py::handle& operands, const py::handle& element_bytes,
                const py::handle& summed);

/// How rows and columns share the elements of operands in these places, as
/// fusedops.bind.geometry.shares_of says. `sharing` is the class of what is returned.
py::list shares(const py::type& sharing, const py::handle& places, const py::handle& sizes,
                int64_t columns, const py::handle& of_row, const py::handle& whole);

/// The views of parts in their places, as fusedops.generate.views.views_of says. `view` is the class
/// of a view, `storage` has the C++ types of elements by dtype.
py::list views(const py::type& view, const py::dict& storage, const py::handle& parts,
               const py::handle& places, int64_t width, int64_t columns);

/// All that members and patches follow from of views, or None if numbers are among that, as
/// fusedops.plan.symbolic.types_of says.
py::object types(const py::handle& views, const py::handle& maps);

}  // namespace fusedops::runtime
