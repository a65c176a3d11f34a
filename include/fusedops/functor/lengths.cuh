// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Lengths: masks all but the first n columns of each row, where n is a number or a tensor of
// integers that broadcasts over the rows.
#pragma once

#include <fusedops/functor/columns.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Length>
struct Lengths : KeepColumns<Lengths<Length>> {
  Length length;
  static constexpr bool kFromStart = true;

  FUSEDOPS_HD explicit Lengths(const Length& of_row) : length(of_row) {}

  template <class Row>
  FUSEDOPS_HD Columns columns(const Row& row) const {
    return {0, length.template fetch<1, int64_t>(row, 0)[0]};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
