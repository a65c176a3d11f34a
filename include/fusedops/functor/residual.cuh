// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Residual: v = v + alpha * residual. SavedResidual also saves the sum to a tensor, the stream,
// rounded to its type; the chain continues with the rounded value, as in torch. In the backward
// pass the gradient of the stream is added there.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/functor/save.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Skip, class Alpha>
struct Residual {
  Skip skip;
  Alpha alpha;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 2;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(skip);
    visit(alpha);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto term = skip.template fetch<N, Compute>(row, col);
    const auto factor = alpha.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = fused(factor[i], term[i], v[i]);
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const auto term = skip.template fetch<N, Compute>(row, col);
    const auto factor = alpha.template fetch<N, Compute>(row, col);
    Compute of_skip[N], of_alpha[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      of_skip[i] = g[i] * factor[i];
      of_alpha[i] = g[i] * term[i];
    }
    sink.template add<0>(of_skip, row, col);
    sink.template add<1>(of_alpha, row, col);
  }
};

/// A residual, then a Save. Upstream: the incoming gradient of the stream, or Absent.
template <class Skip, class Alpha, class Stream, class Upstream = Absent>
struct SavedResidual {
  Residual<Skip, Alpha> residual;
  Save<Stream, Upstream> saved;
  static constexpr bool kSaves = true;
  static constexpr bool kStreamGradient = Save<Stream, Upstream>::kStreamGradient;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 2;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    residual.operands(visit);
    saved.operands(visit);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    residual(v, row, col);
    saved(v, row, col);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void reread(Compute (&v)[N], const Row& row, int64_t col) const {
    saved.reread(v, row, col);
  }

  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    saved.template prefetch<N>(row, col);
  }

#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    saved.prefetch_all(row, begin, end, by);
  }
#endif

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    saved.backward(g, in, row, col, sink);
    residual.backward(g, in, row, col, sink);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
