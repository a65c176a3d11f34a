// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Causal: masks the columns k > q + shift of query q, where `shift` is the offset of the
// declaration plus, for the bottom-right alignment, columns - queries.
#pragma once

#include <fusedops/functor/columns.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Query: a map from a row to the number of its query.
template <class Query>
struct Causal : KeepColumns<Causal<Query>> {
  Query query;
  int64_t shift;
  static constexpr bool kMovesWithQuery = true, kFromStart = true;

  FUSEDOPS_HD Causal(const Query& of_row, int64_t by) : query(of_row), shift(by) {}

  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    return {0, query(row) + shift + 1};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
