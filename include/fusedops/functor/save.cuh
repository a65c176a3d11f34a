// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Save: writes v to a tensor, the stream, rounded to its type; the chain continues with the rounded
// value, as in torch. In the backward pass the gradient of the stream is added there.
//
// Joined: what stands for a LOAD that adds, and then saves, in a backward pass that reads the stream in
// the place of x: the incoming gradient of the stream is added, and nothing else is left to do.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Adds the gradient of a stream. A product that g is gets rounded first, so that the sum has the same
/// bits in each kernel.
template <int N, class Compute, class Values>
FUSEDOPS_HD void join(Compute (&g)[N], const Values& joining) {
  FUSEDOPS_VECTOR
  for (int i = 0; i < N; ++i) g[i] = difference(g[i], -joining[i]);
}

}  // namespace detail

/// Upstream: the incoming gradient of the stream, or Absent.
template <class Stream, class Upstream = Absent>
struct Save {
  Stream stream;
  Upstream upstream;
  static constexpr bool kSaves = true;
  static constexpr bool kStreamGradient = !detail::IsSame<Upstream, Absent>::value;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(stream);
    visit(upstream);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
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
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    if constexpr (kStreamGradient) {
      detail::join(g, upstream.template fetch<N, Compute>(row, col));
    }
  }
};

/// Upstream: the incoming gradient of the stream.
template <class Upstream>
struct Joined {
  Upstream upstream;
  static constexpr bool kStreamGradient = true;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(upstream);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&)[N], const Row&, int64_t) const {}

  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    upstream.template prefetch<N>(row, col);
  }

#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    upstream.prefetch_all(row, begin, end, by);
  }
#endif

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    Compute joining[N];
    upstream.read(joining, row, col);
    detail::join(g, joining);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
