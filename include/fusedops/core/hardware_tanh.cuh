// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What an activation takes its tanh and its sigmoid from: Precise, the functions of pointwise.cuh, or
// HardwareTanh, a GPU's instruction for tanh.
#pragma once

#include <fusedops/core/pointwise.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {
namespace pointwise {

/// What activations are made of, as precise as the functions above.
struct Precise {
  template <class T>
  FUSEDOPS_HD static T tanh(T x) {
    return pointwise::tanh(x);
  }

  /// 1 - tanh^2 by the exponential: the difference would lose its digits where tanh is near 1.
  template <class T>
  FUSEDOPS_HD static T tanh_slope(T x) {
    const T decay = pointwise::exp(T(-2) * pointwise::fabs(x));
    const T half = reciprocal_estimate(T(1) + decay);
    return T(4) * decay * (half * half);
  }

  template <class T>
  FUSEDOPS_HD static T sigmoid(T x) {
    return pointwise::sigmoid(x);
  }

  template <class T>
  FUSEDOPS_HD static T silu(T x) {
    return pointwise::silu(x);
  }

  template <class T>
  FUSEDOPS_HD static T gelu_tanh(T x) {
    return pointwise::gelu_tanh(x);
  }

  template <class T>
  FUSEDOPS_HD static T gelu_tanh_backward(T g, T x) {
    return pointwise::gelu_tanh_backward(g, x);
  }
};

/// The same of a float by a GPU's instruction for tanh, whose result t PTX promises within e = 2^-11 of
/// itself, infinities and NaN included. So 1 - t^2 is within 2 e t^2 and sigmoid(x), which is
/// (1 + tanh(x / 2)) / 2, within e |tanh(x / 2)| / 2: errors that are absolute, and do not get less
/// where these functions are nearly 0. Of a double, and on a CPU, it is as Precise.
struct HardwareTanh : Precise {
#if defined(FUSEDOPS_ON_DEVICE)
  using Precise::gelu_tanh;
  using Precise::gelu_tanh_backward;
  using Precise::sigmoid;
  using Precise::silu;
  using Precise::tanh;
  using Precise::tanh_slope;

  FUSEDOPS_HD static float tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  FUSEDOPS_HD static float tanh_slope(float x) {
    const float y = tanh(x);
    return ::fmaf(-y, y, 1.0f);
  }

  FUSEDOPS_HD static float sigmoid(float x) { return ::fmaf(0.5f, tanh(0.5f * x), 0.5f); }

  FUSEDOPS_HD static float silu(float x) {
    const float half = 0.5f * x;
    return ::fmaf(half, tanh(half), half);
  }

  FUSEDOPS_HD static float gelu_tanh(float x) { return x * gelu_tanh_gate(x); }

  FUSEDOPS_HD static float gelu_tanh_backward(float g, float x) {
    const float gate = gelu_tanh_gate(x);
    return pointwise::gelu_tanh_backward(g, x, gate, 1.0f - gate);
  }

 private:
  /// (1 + tanh(inner)) / 2, inner = sqrt(2 / pi) (x + 0.044715 x^3).
  FUSEDOPS_HD static float gelu_tanh_gate(float x) {
    return ::fmaf(0.5f, tanh(x * ::fmaf(x * x, 0.035677408f, 0.79788456f)), 0.5f);
  }
#endif
};

}  // namespace pointwise
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
