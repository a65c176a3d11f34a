// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What kernels do for an operator without y (op/contract.cuh, 8): before the reduction of a row it may
// read single values of it, and after it there is nothing to store.
#pragma once

#include <fusedops/op/check.cuh>
#include <fusedops/row/fetch.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The value of the LOAD at one column of a row, as the reduction sees it.
template <class Op, class LoadT, class Row>
struct ValueAt {
  const LoadT& load;
  const Row& row;
  Columns bounds;

  FUSEDOPS_HD typename Op::Compute operator()(int64_t col) const {
    typename Op::Compute value[1] = {Op::padding_value()};
    bool wanted = true;
    if constexpr (detail::bounds<LoadT, Row>()) wanted = col >= bounds.begin && col < bounds.end;
    if constexpr (detail::skips<LoadT, Row>()) {
      wanted = wanted && load.template any<1>(row, col);
    }
    if (wanted) load.template load<1>(value, row, col);
    return value[0];
  }
};

/// The tensor that a reduction reads beside the LOAD, as a LOAD of its own: it leaves nothing out.
template <class Of, class Row>
struct BesideLoad {
  const Of& view;
  template <int N, class Compute>
  FUSEDOPS_HD void load(Compute* dst, const Row& row, int64_t col) const {
    view.read(*reinterpret_cast<Compute(*)[N]>(dst), row, col);
  }
};
template <class Row, class Of>
FUSEDOPS_HD BesideLoad<Of, Row> beside_load(const Of& view) {
  return {view};
}

struct NothingBegun {};

/// What an operator without y knows of a row before its reduction.
template <class Op, class LoadT, class Row>
FUSEDOPS_HD auto begin_row(const Op& op, const LoadT& load, const Row& row, int64_t cols,
                           Columns bounds) {
  if constexpr (has_result<Op>()) {
    return NothingBegun{};
  } else {
    return op.begin(row, cols, ValueAt<Op, LoadT, Row>{load, row, bounds});
  }
}

template <class Op, class Begun, class Row>
FUSEDOPS_HD typename Op::Finish finish_row(const Op& op, const typename Op::Partial& all,
                                           const Begun& begun, const Row& row, int64_t cols) {
  if constexpr (has_result<Op>()) {
    return op.finish(all, row, cols);
  } else {
    return op.finish(all, begun, row, cols);
  }
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
