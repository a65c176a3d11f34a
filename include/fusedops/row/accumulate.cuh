// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A target that adds to what is there: gradients over micro-batches, say. Each element is read,
// added to and rounded once, by the thread that has its sum, so the result does not depend on timing.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The type of such a sum: a double in memory keeps its digits where the arithmetic is in float.
template <class Element, class Compute>
struct SumOf {
  using type = Compute;
};
template <class Compute>
struct SumOf<double, Compute> {
  using type = double;
};

}  // namespace detail

/// To: a View, or an Operand of a C++ entry point.
template <class To>
struct Accumulated {
  using Element = typename To::Element;
  To to;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    using Sum = typename detail::SumOf<Element, Compute>::type;
    Sum sum[N];
    to.read_again(sum, row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) sum[i] += static_cast<Sum>(value[i]);
    to.write(sum, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
