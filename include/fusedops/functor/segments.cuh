// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Segments: masks elements whose query and key have different ids: tensors of integers that
// broadcast, as a rule one id a row and one id a column. They are compared as integers.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Holds the ids of both operands: 32 bits, unless one of them has 64.
template <bool kWide>
struct IdOf {
  using type = int32_t;
};
template <>
struct IdOf<true> {
  using type = int64_t;
};

}  // namespace detail

template <class QueryIds, class KeyIds>
struct Segments {
  QueryIds of_query;
  KeyIds of_key;
  static constexpr bool kMasks = true;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(of_query);
    visit(of_key);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    constexpr bool kWide =
        sizeof(typename QueryIds::Element) > 4 || sizeof(typename KeyIds::Element) > 4;
    using Id = typename detail::IdOf<kWide>::type;
    const auto query = of_query.template fetch<N, Id>(row, col);
    const auto key = of_key.template fetch<N, Id>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = query[i] == key[i] ? v[i] : -infinity<Compute>();
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
