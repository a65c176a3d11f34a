// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a norm's statistics go: nowhere, or to a mean and a reciprocal standard deviation a row.
#pragma once

#include <fusedops/row/view.cuh>

namespace fusedops {

struct NoStatistics {
  uint64_t unused;
  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish&, const Row&) const {}
};

template <class Mean, class Rstd>
struct Statistics {
  Mean mean;
  Rstd rstd;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    const auto of_mean = finish.mean;
    const auto of_rstd = finish.rstd;
    const decltype(finish.mean) means[1] = {of_mean};
    const decltype(finish.rstd) rstds[1] = {of_rstd};
    mean.write(means, row, 0);
    rstd.write(rstds, row, 0);
  }
};

}  // namespace fusedops
