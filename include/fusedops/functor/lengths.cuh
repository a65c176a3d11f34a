// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Lengths: each row keeps its first n columns; n is a tensor of integers that broadcasts over the rows, or a
// number.
#pragma once

#include <fusedops/functor/columns.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

template <class Length>
struct Lengths : KeepColumns<Lengths<Length>> {
  Length length;

  FUSEDOPS_HD explicit Lengths(const Length& length) : length(length) {}

  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    int64_t n[1];
    length.read(n, row, 0);
    return {0, n[0]};
  }
};

}  // namespace fusedops
