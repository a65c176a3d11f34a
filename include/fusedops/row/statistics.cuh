// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a row's statistics go: nowhere, to a norm's mean and reciprocal standard deviation, or to
// what the backward pass keeps of a row.
#pragma once

#include <fusedops/op/check.cuh>
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

/// Keeps what the operator's gradient wants to know of a row, Finish::kKept numbers, and hands on.
template <class To, class Others>
struct Kept {
  To to;
  Others others;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    static_assert(
        detail::detected<detail::KeepCall, Finish>(),
        "fusedops: an operator without a gradient: its Finish needs Compute, int kKept and "
        "void keep(Compute (&kept)[kKept]) const (see fusedops/op/contract.cuh)");
    others.write(finish, row);
    typename Finish::Compute kept[Finish::kKept];
    finish.keep(kept);
    to.write(kept, row, 0);
  }
};

}  // namespace fusedops
