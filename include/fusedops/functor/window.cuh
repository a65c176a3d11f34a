// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Window: masks all but a range of columns around the position of the query. The range moves with
// the query, so two numbers suffice: the range of query 0, which may begin before the row.
#pragma once

#include <fusedops/functor/columns.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Query: a map from a row to the number of its query.
template <class Query>
struct Window : KeepColumns<Window<Query>> {
  Query query;
  int64_t begin, end;  // the range of query 0
  static constexpr bool kMovesWithQuery = true, kFromStart = false;

  FUSEDOPS_HD Window(const Query& of_row, int64_t first, int64_t last)
      : query(of_row), begin(first), end(last) {}

  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    const int64_t number = query(row);
    return {number + begin, number + end};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
