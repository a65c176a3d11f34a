// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Gate: v = v * act(gate), or v = act(v) * gate, where the gate is a tensor that broadcasts or a
// number, and act an activation.
#pragma once

#include <fusedops/core/pointwise.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// The activations of a Gate: a value, and a gradient g times the derivative.
struct Silu {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return pointwise::silu(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return pointwise::silu_backward(g, x);
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
struct GeluTanh {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return pointwise::gelu_tanh(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    return pointwise::gelu_tanh_backward(g, x);
  }
};

struct Sigmoid {
  template <class T>
  FUSEDOPS_HD static T value(T x) {
    return pointwise::sigmoid(x);
  }
  template <class T>
  FUSEDOPS_HD static T backward(T g, T x) {
    const T share = pointwise::sigmoid(x);
    return g * share * (T(1) - share);
  }
};

/// kOfValue: the activation is that of v, else that of the gate.
template <class By, class Activation, bool kOfValue>
struct Gate {
  By gate;
  static constexpr bool kNeedsInput = true;
  static constexpr int kGradients = 1;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(gate);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    const auto by = gate.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute other = by[i];
      v[i] = kOfValue ? Activation::value(v[i]) * other : v[i] * Activation::value(other);
    }
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&in)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    const auto by = gate.template fetch<N, Compute>(row, col);
    Compute of_gate[N];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      const Compute given = g[i], other = by[i];
      if constexpr (kOfValue) {
        of_gate[i] = given * Activation::value(in[i]);
        g[i] = Activation::backward(given * other, in[i]);
      } else {
        of_gate[i] = Activation::backward(given * in[i], other);
        g[i] = given * Activation::value(other);
      }
    }
    sink.template add<0>(of_gate, row, col);
  }
};

}  // namespace fusedops
