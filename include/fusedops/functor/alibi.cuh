// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Alibi: v = v - slope * |q + shift - k|, where the slope is a tensor that broadcasts or a number,
// k the column, q the query of the row, and `shift` the offset of the declaration plus, for the
// bottom-right alignment, columns - queries.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Query: a map from a row to the number of its query.
template <class Slope, class Query>
struct Alibi {
  Slope slope;
  Query query;
  int64_t shift;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 1;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto slopes = slope.template fetch<N, Compute>(row, col);
    const Compute first = behind<Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = fused(-slopes[i], distance(first, i), v[i]);
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const Compute first = behind<Compute>(row, col);
    Compute of_slope[N];
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) of_slope[i] = -distance(first, i) * g[i];
    sink.template add<0>(of_slope, row, col);
  }

 private:
  // The distance from the first column of a pack to the query: one conversion per pack, since those
  // from 64 bits are slow on GPUs and do not vectorize on CPUs. distance() is then exact up to 2^24
  // (double: 2^53); longer distances are rounded twice.
  template <class Compute, class Row>
  FUSEDOPS_HD Compute behind(const Row& row, int64_t col) const {
    return static_cast<Compute>(query(row) + shift - col);
  }
  template <class Compute>
  FUSEDOPS_HD static Compute distance(Compute first, int i) {
    const Compute signed_distance = first - static_cast<Compute>(i);
    return signed_distance < 0 ? -signed_distance : signed_distance;
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
