// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Window: a query sees the columns around its own position. They move with the query, so two
// numbers say it all: which columns query 0 sees, columns before the row included.
#pragma once

#include <fusedops/functor/columns.cuh>

namespace fusedops {

/// Query: a map from a row to the number of its query.
template <class Query>
struct Window : KeepColumns<Window<Query>> {
  Query query;
  int64_t begin, end;  // of query 0

  FUSEDOPS_HD Window(const Query& query, int64_t begin, int64_t end)
      : query(query), begin(begin), end(end) {}

  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    const int64_t number = query(row);
    return {number + begin, number + end};
  }
};

}  // namespace fusedops
