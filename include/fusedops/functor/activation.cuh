// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Activations: v = act(v), and LeakyRelu: v = v > 0 ? v : v * slope. Each formula stands here or in
// core/pointwise.cuh once, for functors of their own and for gates, in rows and after products. Those
// that are made of tanh take it from a By, pointwise::Precise or pointwise::HardwareTanh.
#pragma once

#include <fusedops/core/hardware_tanh.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The activations without operands: a value, and a gradient g times the derivative.
template <class By>
struct SiluBy {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return By::silu(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return pointwise::silu_backward(g, x, By::sigmoid(x));
  }
};

struct Gelu {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return pointwise::gelu_none(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return pointwise::gelu_none_backward(g, x);
  }
};

/// The approximation of Gelu by a hyperbolic tangent.
template <class By>
struct GeluTanhBy {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return By::gelu_tanh(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return By::gelu_tanh_backward(g, x);
  }
};

template <class By>
struct SigmoidBy {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return By::sigmoid(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    const T share = By::sigmoid(x);
    return g * share * (T(1) - share);
  }
};

template <class By>
struct TanhBy {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return By::tanh(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return g * By::tanh_slope(x);
  }
};

using Silu = SiluBy<pointwise::Precise>;
using GeluTanh = GeluTanhBy<pointwise::Precise>;
using Sigmoid = SigmoidBy<pointwise::Precise>;
using Tanh = TanhBy<pointwise::Precise>;

/// The gradient at 0 is 0, as in torch.
struct Relu {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return pointwise::maximum(x, T(0));
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return x <= T(0) ? T(0) : g;
  }
};

struct SquaredRelu {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    const T kept = pointwise::maximum(x, T(0));
    return kept * kept;
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return x <= T(0) ? T(0) : g * (T(2) * x);
  }
};

/// v = act(v), for one of the structs above.
template <class Function>
struct Activation {
  static constexpr bool kNeedsInput = true;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit&) const {}

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = Function::value(v[i]);
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row&, int64_t,
                            Sink&) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) g[i] = Function::backward(g[i], in[i]);
  }
};

/// v > 0 ? v : v * slope, where the slope is a tensor that broadcasts or a number.
template <class Slope>
struct LeakyRelu {
  Slope slope;
  static constexpr bool kNeedsInput = true;
  static constexpr int kGradients = 1;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(slope);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto factor = slope.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = v[i] > Compute(0) ? v[i] : v[i] * factor[i];
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const auto factor = slope.template fetch<N, Compute>(row, col);
    Compute of_slope[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute given = g[i];
      of_slope[i] = in[i] > Compute(0) ? Compute(0) : given * in[i];
      g[i] = in[i] > Compute(0) ? given : given * factor[i];
    }
    sink.template add<0>(of_slope, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
