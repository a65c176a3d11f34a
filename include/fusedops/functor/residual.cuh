// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Residual: v = v + alpha * residual. SavedResidual also saves the sum to a tensor, the stream,
// rounded to its type; the chain continues with the rounded value, as in torch. In the backward
// pass the gradient of the stream is added there.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

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

/// Upstream: the incoming gradient of the stream, or Absent.
template <class Skip, class Alpha, class Stream, class Upstream = Absent>
struct SavedResidual {
  Residual<Skip, Alpha> residual;
  Stream stream;
  Upstream upstream;
  static constexpr bool kSaves = true;
  static constexpr bool kStreamGradient = !detail::IsSame<Upstream, Absent>::value;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 2;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    residual.operands(visit);
    visit(stream);
    visit(upstream);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    residual(v, row, col);
    stream.write(v, row, col);
    stream.round(v);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void reread(Compute (&v)[N], const Row& row, int64_t col) const {
    stream.read_again(v, row, col);
  }

  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    stream.template prefetch<N>(row, col);
    if constexpr (kStreamGradient) {
      upstream.template prefetch<N>(row, col);
    }
  }

#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    stream.prefetch_all(row, begin, end, by);
    if constexpr (kStreamGradient) upstream.prefetch_all(row, begin, end, by);
  }
#endif

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    if constexpr (kStreamGradient) {
      const auto joining = upstream.template fetch<N, Compute>(row, col);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) g[i] += joining[i];
    }
    residual.backward(g, in, row, col, sink);
  }
};

}  // namespace fusedops
