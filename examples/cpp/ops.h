// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The two ops of the example, each declared once for both passes and both places.
#pragma once

#include <fusedops/core/pointwise.cuh>
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>

using fusedops::int64_t;

/// The columns that the example has: kernels for others need not be compiled.
using Columns = fusedops::cols<65, 1024>;

/// A functor of the example's own: v = cap * tanh(v / cap).
struct Softcap {
  float cap;
  static constexpr bool kNeedsInput = true;

  template <int N, class Compute>
  FUSEDOPS_HD void operator()(Compute (&v)[N], int64_t, int64_t) const {
    for (int i = 0; i < N; ++i) v[i] = cap * fusedops::pointwise::tanh(v[i] / cap);
  }
  template <int N, class Compute, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], int64_t, int64_t,
                            Sink&) const {
    for (int i = 0; i < N; ++i) {
      const Compute t = fusedops::pointwise::tanh(in[i] / cap);
      g[i] *= 1 - t * t;
    }
  }
};

/// y = dropout(softmax(mask(softcap(scale * x + bias)))) over (batch, heads, queries, keys); the
/// bias is (heads, queries, keys), the mask (batch, keys). Samples that share a bias are neighbours
/// in visiting order, so its gradient is summed where they are visited.
template <class T>
struct Attention {
  int64_t batch, heads, queries, keys;
  const T *x, *bias, *dy;
  const bool* mask;
  T *y, *dx, *dbias;
  float* kept;  // two numbers a row
  float scale, cap;
  double p;
  fusedops::uint64_t seed, offset;

  int64_t rows() const { return batch * heads * queries; }
  int64_t columns() const { return keys; }
  auto full() const {
    return fusedops::layout({heads, queries, batch, keys},
                            {queries * keys, keys, heads * queries * keys, 1});
  }
  auto shared() const {
    return fusedops::layout({heads, queries, batch, keys}, {queries * keys, keys, 0, 1});
  }
  auto row_number() const {
    return fusedops::layout({heads, queries, batch, keys}, {queries, 1, heads * queries, 0});
  }
  auto in() const {
    using fusedops::broadcast;
    const auto of_sample = fusedops::layout({heads, queries, batch, keys}, {0, 0, keys, 1});
    return fusedops::load(broadcast(x, full()), fusedops::scale(scale),
                          fusedops::bias(broadcast(bias, shared())), Softcap{cap},
                          fusedops::mask(broadcast(mask, of_sample)));
  }
  auto out() const {
    return fusedops::store(fusedops::dropout(p, seed, offset, 0, row_number()),
                           fusedops::broadcast(y, full()));
  }

  template <class Place>
  auto forward(Place place) const {
    return fusedops::dispatch_softmax<float>(place, in(), out(), rows(), Columns(keys), kept);
  }
  auto wanted() const {  // the bias is functor 1 of the LOAD
    const auto to = fusedops::broadcast(dbias, shared());
    return fusedops::gradients(fusedops::in_load<1>(fusedops::shared_by(batch, to)));
  }
  template <class Place>
  auto backward(Place place, void* workspace, size_t bytes) const {
    using fusedops::broadcast;
    return fusedops::dispatch_softmax_gradient<float>(
        place, in(), out(), kept, broadcast(dy, full()), broadcast(dx, full()), wanted(), workspace,
        bytes, rows(), Columns(keys));
  }
};

/// sum = residual + dropout(x + bias); y = LayerNorm(sum) * gamma + beta.
template <class T>
struct AddNorm {
  int64_t count, cols;
  const T *x, *residual, *dy, *dsum;
  const float *bias, *gamma, *beta;
  T *sum, *y, *dx, *dresidual;
  float *dbias, *dgamma, *dbeta;
  float* kept;  // three numbers a row
  double p;
  fusedops::uint64_t seed, offset;

  int64_t rows() const { return count; }
  int64_t columns() const { return cols; }
  auto full(T* data) const { return fusedops::direct(data, cols); }
  auto full(const T* data) const { return fusedops::direct(data, cols); }
  auto out() const {
    return fusedops::store(
        fusedops::affine(fusedops::per_column(gamma), fusedops::per_column(beta)), full(y));
  }

  template <class Place>
  auto forward(Place place) const {
    const auto in = fusedops::load(full(x), fusedops::bias(fusedops::per_column(bias)),
                                   fusedops::dropout(p, seed, offset),
                                   fusedops::saved_residual(full(residual), full(sum)));
    float *const mean = nullptr, *const rstd = nullptr;
    return fusedops::dispatch_layer_norm<float>(place, in, out(), rows(), Columns(cols), 1e-5, mean,
                                                rstd, kept);
  }
  auto wanted() const {
    using namespace fusedops;
    return gradients(in_load<0>(per_column(dbias)), in_load<2>(full(dresidual)),
                     in_store<0, 0>(per_column(dgamma)), in_store<0, 1>(per_column(dbeta)));
  }
  template <class Place>
  auto backward(Place place, void* workspace, size_t bytes) const {
    const auto in = fusedops::load(
        full(x), fusedops::bias(fusedops::per_column(bias)), fusedops::dropout(p, seed, offset),
        fusedops::saved_residual(full(residual), full(sum), 1, full(dsum)));
    return fusedops::dispatch_layer_norm_gradient<float>(place, in, out(), kept, full(dy), full(dx),
                                                         wanted(), workspace, bytes, rows(),
                                                         Columns(cols));
  }
};
