// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The destinations of the statistics of a row: none, outputs of the call, or the row statistics
// that are saved for the backward pass.
#pragma once

#include <fusedops/op/check.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class Member>
struct IsFunctionMember {
  static constexpr bool value = false;
};
template <class Result, class Finish>
struct IsFunctionMember<Result (Finish::*)() const> {
  static constexpr bool value = true;
};

}  // namespace detail

struct NoStatistics {
  uint64_t unused;
  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish&, const Row&) const {}
};

/// Writes one statistic of each row to a view. kMember points to the member of the operator's
/// Finish that holds or returns it: a data member, such as &Finish::rstd, or a const member
/// function.
template <auto kMember, class To>
struct Statistic {
  To to;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    if constexpr (detail::IsFunctionMember<decltype(kMember)>::value) {
      put((finish.*kMember)(), row);
    } else {
      put(finish.*kMember, row);
    }
  }

 private:
  template <class Compute, class Row>
  FUSEDOPS_HD void put(Compute value, const Row& row) const {
    const Compute values[1] = {value};
    to.write(values, row, 0);
  }
};

/// Writes the statistics that a call returns, in order.
template <class First, class... Rest>
struct Statistics {
  First first;
  Statistics<Rest...> rest;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    first.write(finish, row);
    rest.write(finish, row);
  }
};
template <class Only>
struct Statistics<Only> : Only {};

/// Writes the Finish::kKept numbers of a row that the operator's gradient reads, and the statistics
/// of `others`. kNumbers is how many numbers the caller has allocated for a row; 0 skips that
/// check.
template <class To, class Others, int kNumbers = 0>
struct Kept {
  To to;
  Others others;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    static_assert(
        detail::detected<detail::KeepCall, Finish>(),
        "fusedops: an operator without a gradient: its Finish needs Compute, int kKept and "
        "void keep(Compute (&kept)[kKept]) const (see fusedops/op/contract.cuh)");
    static_assert(kNumbers == 0 || kNumbers == Finish::kKept,
                  "fusedops: `kept` of the operator's Python class must be kKept of its Finish");
    others.write(finish, row);
    typename Finish::Compute kept[Finish::kKept];
    finish.keep(kept);
    to.write(kept, row, 0);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
