// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions in the generated code of functors made from Python functions, for float and double,
// on GPU and CPU. At kinks, NaN, infinities and zeros they agree with torch's operations of the
// same names.
//
// Stated errors, float: on a GPU those of vector_math.cuh for tanh, and of CUDA's library otherwise
// (at most 2 ulp for exp, log and erf, 4 for tan); on a CPU those of math.cuh for exp, of
// vector_math.cuh, and of the C library otherwise. sigmoid adds 3 ulp to those of its exp: of the
// sum, the reciprocal and the product. Functions composed of these propagate their errors, as in
// torch. Double: those of math.cuh for exp, and of the library otherwise.
//
// Where FUSEDOPS_ROUNDED_ARGUMENTS is defined before the first header, exp, sigmoid and tanh of a float have
// few instructions on a GPU. exp and sigmoid are exact to 4 ulp for an argument that is off by 2^-23 of itself,
// and 0 below 2^-126; tanh is within 3e-6 of itself. In the kernel of a product that is less than what
// its sums and the rounding of its 16-bit outputs lose, and beside tensor cores instructions are what
// there is too little of. So they are where a kernel reads 16 bits and writes 8, which it rounds to three
// digits. A LayerNorm then takes its deviations from sums of squares (op/norm.cuh).
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/core/vector_math.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {
namespace pointwise {

#if defined(FUSEDOPS_CUDA)
// clang-format off
using ::acos; using ::acosh; using ::asin; using ::asinh; using ::atan; using ::atan2;
using ::atanh; using ::ceil; using ::cos; using ::cosh; using ::erf; using ::erfc; using ::exp2;
using ::expm1; using ::fabs; using ::floor; using ::log; using ::log10; using ::log1p;
using ::log2; using ::pow; using ::rint; using ::sin; using ::sinh; using ::sqrt; using ::tan;
using ::trunc;
#else
using std::acos; using std::acosh; using std::asin; using std::asinh; using std::atan;
using std::atan2; using std::atanh; using std::ceil; using std::cos; using std::cosh;
using std::erfc; using std::exp2; using std::fabs; using std::floor;
using std::log10; using std::log2; using std::pow; using std::rint; using std::sin;
using std::sinh; using std::sqrt; using std::tan; using std::trunc;
using vector_math::erf; using vector_math::expm1; using vector_math::log;
using vector_math::log1p;
// clang-format on
#endif
#if defined(FUSEDOPS_ON_DEVICE) && defined(FUSEDOPS_ROUNDED_ARGUMENTS)

FUSEDOPS_HD double tanh(double x) { return vector_math::tanh(x); }

/// Within 3e-6 of itself.
FUSEDOPS_HD float tanh(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -2.8853900817779268f));
  const float outer = ::fmaf(2.0f, reciprocal_estimate(1.0f + power), -1.0f);
  const float z = x * x;
  const float inner = ::fmaf(x * z, ::fmaf(z, 0.13333334f, -0.33333334f), x);
  return ::fabsf(x) < 0.15f ? inner : outer;
}

#else
using vector_math::tanh;
#endif

FUSEDOPS_HD float exp(float x) {
#if defined(FUSEDOPS_CUDA) && !defined(FUSEDOPS_ROUNDED_ARGUMENTS)
  return ::expf(x);
#else
  return fusedops::exponential(x);  // on a CPU it vectorizes
#endif
}

FUSEDOPS_HD double exp(double x) { return fusedops::exponential(x); }

/// x / c for a constant c with a normal reciprocal, by which a GPU multiplies, as torch does there.
template <class T>
FUSEDOPS_HD T over(T x, T c) {
#if defined(FUSEDOPS_ON_DEVICE)
  return x * (T(1) / c);
#else
  return x / c;
#endif
}

template <class T>
FUSEDOPS_HD T rsqrt(T x) {
  return reciprocal_sqrt(x);
}

/// x to a constant power n, by multiplication, with n roundings at most.
template <int n, class T>
FUSEDOPS_HD T power(T x) {
  static_assert(n >= 1, "a negative power is the reciprocal of a positive one");
  if constexpr (n == 1) {
    return x;
  } else {
    const T half = power<n / 2>(x);
    return n % 2 == 0 ? half * half : half * half * x;
  }
}

template <class T>
FUSEDOPS_HD bool is_nan(T x) {
  return x != x;
}

/// The larger of two; NaN where either is.
template <class T>
FUSEDOPS_HD T maximum(T a, T b) {
  return a < b || is_nan(b) ? b : a;
}

/// The smaller of two; NaN where either is.
template <class T>
FUSEDOPS_HD T minimum(T a, T b) {
  return b < a || is_nan(b) ? b : a;
}

/// The larger of two; NaN only where both are.
template <class T>
FUSEDOPS_HD T fmax(T a, T b) {
  return a >= b || is_nan(b) ? a : b;
}

/// The smaller of two; NaN only where both are.
template <class T>
FUSEDOPS_HD T fmin(T a, T b) {
  return a <= b || is_nan(b) ? a : b;
}

/// -1, 0 or 1; 0 for NaN.
template <class T>
FUSEDOPS_HD T sign(T x) {
  return T(x > 0) - T(x < 0);
}

template <class T>
FUSEDOPS_HD T lerp(T from, T to, T weight) {
  // Computed from the nearer end, so that both ends are exact.
  return fabs(weight) < T(0.5) ? from + weight * (to - from) : to - (to - from) * (T(1) - weight);
}

template <class T>
FUSEDOPS_HD T logaddexp(T a, T b) {
  const T largest = maximum(a, b);
  // Equal infinities have the difference NaN.
  return a == b && fabs(a) == infinity<T>() ? a : largest + log1p(exp(-fabs(a - b)));
}

/// x * log(y); 0 where x is 0 and y is not NaN.
template <class T>
FUSEDOPS_HD T xlogy(T x, T y) {
  return x == 0 && !is_nan(y) ? T(0) : x * log(y);
}

template <class T>
FUSEDOPS_HD T sigmoid(T x) {
  const T decay = exp(-fabs(x));  // does not overflow, and a small result keeps its precision
  const T share = reciprocal_estimate(T(1) + decay);
  return x < 0 ? decay * share : share;
}

#if defined(FUSEDOPS_ON_DEVICE) && defined(FUSEDOPS_ROUNDED_ARGUMENTS)
FUSEDOPS_HD float sigmoid(float x) { return reciprocal_estimate(1.0f + fusedops::exponential(-x)); }
#endif

template <class T>
FUSEDOPS_HD T silu(T x) {
  return x * sigmoid(x);
}

/// By share = sigmoid(x).
template <class T>
FUSEDOPS_HD T silu_backward(T g, T x, T share) {
  return g * share * (T(1) + x * (T(1) - share));
}

template <class T>
FUSEDOPS_HD T silu_backward(T g, T x) {
  return silu_backward(g, x, sigmoid(x));
}

template <class T>
FUSEDOPS_HD T log_sigmoid(T x) {
  return minimum(T(0), x) - log1p(exp(-fabs(x)));
}

template <class T>
FUSEDOPS_HD T log_sigmoid_backward(T g, T x) {
  const T decay = exp(-fabs(x));
  const T share = decay * reciprocal_estimate(T(1) + decay);
  return g * (x < 0 ? T(1) - share : share);
}

template <class T>
FUSEDOPS_HD T softplus(T x, T beta, T threshold) {
  const T curve = log1p(exp(x * beta)) / beta;
  return x * beta > threshold ? x : curve;
}

template <class T>
FUSEDOPS_HD T softplus_backward(T g, T x, T beta, T threshold) {
  const T power = exp(x * beta);
  return x * beta > threshold ? g : g * power / (power + T(1));
}

template <class T>
FUSEDOPS_HD T mish(T x) {
  return x * tanh(log1p(exp(x)));
}

template <class T>
FUSEDOPS_HD T mish_backward(T g, T x) {
  const T inner = tanh(log1p(exp(x)));
  return g * (inner + x * sigmoid(x) * (T(1) - inner * inner));
}

template <class T>
FUSEDOPS_HD T elu(T x, T alpha, T scale, T input_scale) {
  const T of_negative = expm1(x * input_scale) * (alpha * scale);
  return x <= 0 ? of_negative : x * scale;
}

/// `is_result`: x is the result of elu, not its input.
template <class T>
FUSEDOPS_HD T elu_backward(T g, T alpha, T scale, T input_scale, bool is_result, T x) {
  const T of_negative = is_result ? g * input_scale * (x + alpha * scale)
                                  : g * input_scale * (alpha * scale) * exp(x * input_scale);
  return x <= 0 ? of_negative : g * scale;
}

template <class T>
FUSEDOPS_HD T hardtanh_backward(T g, T x, T least, T most) {
  return x <= least || x >= most ? T(0) : g;
}

template <class T>
FUSEDOPS_HD T hardsigmoid(T x) {
  return minimum(maximum(x + T(3), T(0)), T(6)) / T(6);
}

template <class T>
FUSEDOPS_HD T hardsigmoid_backward(T g, T x) {
  return x > T(-3) && x < T(3) ? g / T(6) : T(0);
}

template <class T>
FUSEDOPS_HD T hardswish(T x) {
  return x * minimum(maximum(x + T(3), T(0)), T(6)) / T(6);
}

template <class T>
FUSEDOPS_HD T hardswish_backward(T g, T x) {
  return x <= T(-3) ? T(0) : x < T(3) ? g * (x / T(3) + T(0.5)) : g;
}

/// NaN gives NaN.
template <class T>
FUSEDOPS_HD T softshrink(T x, T width) {
  return x > width ? x - width : x < -width ? x + width : x * T(0);
}

/// The gradient of softshrink and of hardshrink.
template <class T>
FUSEDOPS_HD T shrink_backward(T g, T x, T width) {
  return x >= -width && x <= width ? T(0) : g;
}

template <class T>
FUSEDOPS_HD T gelu_none(T x) {
  return x * T(0.5) * (T(1) + erf(x * T(0.70710678118654752)));
}

template <class T>
FUSEDOPS_HD T gelu_none_backward(T g, T x) {
  const T share = T(0.5) * (T(1) + erf(x * T(0.70710678118654752)));
  const T density = exp(T(-0.5) * x * x) * T(0.39894228040143268);
  return g * (share + x * density);
}

/// exp(-2 inner), inner = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
FUSEDOPS_HD T gelu_tanh_power(T x) {
  return exp(x * (x * x * T(-0.071354816272600248) - T(1.5957691216057307)));
}

#if defined(FUSEDOPS_ON_DEVICE)
/// The same, by the hardware's approximation, of 2 ulp.
FUSEDOPS_HD float gelu_tanh_power(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;"
      : "=f"(power)
      : "f"(x * ::fmaf(x * x, -0.10294324f, -2.3022082f)));
  return power;
}
#endif

/// x (1 + tanh(inner)) / 2 as x sigmoid(2 inner), in a third of the instructions of a GPU. A float is
/// within 4 ulp where x > -1, and within 1e-5 of itself at x = -9, where the sum above is 0; at
/// infinities it is what that is.
template <class T>
FUSEDOPS_HD T gelu_tanh(T x) {
  return x * reciprocal_estimate(T(1) + gelu_tanh_power(x));
}

/// By gate = sigmoid(2 inner) and its derivative, gate (1 - gate) 2 inner', where rest is 1 - gate. A
/// compiler that needs gelu_tanh(x) beside it has the gate once.
template <class T>
FUSEDOPS_HD T gelu_tanh_backward(T g, T x, T gate, T rest) {
  const T slope = x * x * T(0.21406444881780074) + T(1.5957691216057307);
  return g * (x * gate * rest * slope + gate);
}

template <class T>
FUSEDOPS_HD T gelu_tanh_backward(T g, T x) {
  const T power = gelu_tanh_power(x);
  const T gate = reciprocal_estimate(T(1) + power);
  // 1 - gate would be lost where the gate is nearly 1; of an infinite power the gate is 0.
  return gelu_tanh_backward(g, x, gate, power < T(1e30) ? power * gate : T(1));
}

}  // namespace pointwise
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
