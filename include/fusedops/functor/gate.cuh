// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Gate: v = v * act(gate), or v = act(v) * gate, where the gate is a tensor that broadcasts or a
// number, and act an activation.
#pragma once

#include <fusedops/functor/activation.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// kOfValue: the activation is that of v, else that of the gate.
template <class By, class Function, bool kOfValue>
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
      v[i] = kOfValue ? Function::value(v[i]) * other : v[i] * Function::value(other);
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
        of_gate[i] = given * Function::value(in[i]);
        g[i] = Function::backward(given * other, in[i]);
      } else {
        of_gate[i] = Function::backward(given * in[i], other);
        g[i] = given * Function::value(other);
      }
    }
    sink.template add<0>(of_gate, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
