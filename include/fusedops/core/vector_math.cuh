// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Functions of a float without branches. On a CPU a loop over them vectorizes, which a loop over
// those of the C library does not. On a GPU, which uses tanh alone, the lanes of a warp do not part.
// Each is a polynomial near zero, and elsewhere computed from exp or from the bits of the exponent;
// both are evaluated and one is selected.
//
// Stated errors: tanh 4 ulp, erf 2 ulp, log 2 ulp, log1p 3 ulp, expm1 6 ulp, subnormal arguments
// included. Those of a double are the library's.
#pragma once

#include <fusedops/core/math.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

FUSEDOPS_HD float magnitude(float x) {
#if defined(FUSEDOPS_CUDA)
  return ::fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}

/// `size`, which is not negative, with the sign of x.
FUSEDOPS_HD float with_sign(float size, float x) {
#if defined(FUSEDOPS_CUDA)
  return ::copysignf(size, x);
#else
  return __builtin_copysignf(size, x);
#endif
}

}  // namespace detail

namespace vector_math {

FUSEDOPS_HD float tanh(float x) {
  const float size = detail::magnitude(x);
  const float outer = 1.0f - 2.0f * reciprocal_estimate(fusedops::exponential(2.0f * size) + 1.0f);
  const float z = x * x;
  float p = -0.0062742329f;
  p = p * z + 0.021071674f;
  p = p * z - 0.0538523085f;
  p = p * z + 0.133325861f;
  p = p * z - 0.333333176f;
  const float inner = x + x * z * p;
  return size < 0.55f ? inner : detail::with_sign(outer, x);
}

#if defined(FUSEDOPS_CUDA)

FUSEDOPS_HD double tanh(double x) { return ::tanh(x); }

#else

FUSEDOPS_HD float erf(float x) {
  const float size = __builtin_fabsf(x);
  const float s = size > 4.0f ? 4.0f : size;  // erf(4) rounds to 1; NaN stays NaN
  // log(1 - erf(s))
  float q = -2.16977074e-5f;
  q = q * s + 0.000441473753f;
  q = q * s - 0.00420529019f;
  q = q * s + 0.0252103543f;
  q = q * s - 0.108422122f;
  q = q * s - 0.633216376f;
  q = q * s - 1.12958032f;
  q = q * s + 0.00018846997f;
  const float outer = 1.0f - fusedops::exponential(q);
  const float z = x * x;
  float p = 7.85385767e-5f;
  p = p * z - 0.000801019251f;
  p = p * z + 0.00518832756f;
  p = p * z - 0.0268538119f;
  p = p * z + 0.112835851f;
  p = p * z - 0.376126258f;
  p = p * z + 0.128379167f;  // 2 / sqrt(pi) - 1; the 1 is added as x itself, without rounding
  const float inner = x + x * p;
  return size < 1.0f ? inner : __builtin_copysignf(outer, x);
}

FUSEDOPS_HD float log(float x) {
  const bool subnormal = x < 0x1p-126f;
  const uint32_t bits = bit_cast<uint32_t>(subnormal ? x * 0x1p23f : x);
  // x = 2^n (1 + f), 1 + f between the square roots of 1/2 and 2.
  const int32_t n = int32_t(bits - 0x3f3504f3u) >> 23;
  const float f = bit_cast<float>(bits - (uint32_t(n) << 23)) - 1.0f;
  const float e = float(n) - (subnormal ? 23.0f : 0.0f);
  float p = 0.0674659857f;
  p = p * f - 0.116756401f;
  p = p * f + 0.118881751f;
  p = p * f - 0.124055917f;
  p = p * f + 0.142195509f;
  p = p * f - 0.166679957f;
  p = p * f + 0.200021187f;
  p = p * f - 0.250000096f;
  p = p * f + 0.333333126f;
  const float square = f * f;
  // log(2) is split in two; the product of n and the first part is exact.
  const float low = e * 1.42860677e-6f + (square * f * p - 0.5f * square);
  float result = e * 0.693145752f + (f + low);
  result = x == infinity<float>() ? x : result;
  result = x == 0.0f ? -infinity<float>() : result;
  return x >= 0.0f ? result : quiet_nan<float>();
}

FUSEDOPS_HD float log1p(float x) {
  const float sum = 1.0f + x;
  const float lost = x - (sum - 1.0f);  // the rounding error of the sum
  float share = lost / sum;
  share = sum > 0.0f ? share : 0.0f;
  share = sum < infinity<float>() ? share : 0.0f;
  const float result = log(sum) + share;
  return x == 0.0f ? x : result;  // keeps -0
}

FUSEDOPS_HD float expm1(float x) {
  float p = 2.48334278e-5f;
  p = p * x + 0.000202586053f;
  p = p * x + 0.00138917349f;
  p = p * x + 0.00833147956f;
  p = p * x + 0.0416665547f;
  p = p * x + 0.166666889f;
  const float inner = x + x * x * (0.5f + x * p);
  const float outer = fusedops::exponential(x) - 1.0f;
  return __builtin_fabsf(x) < 0.9f ? inner : outer;
}

FUSEDOPS_HD double tanh(double x) { return std::tanh(x); }
FUSEDOPS_HD double erf(double x) { return std::erf(x); }
FUSEDOPS_HD double log(double x) { return std::log(x); }
FUSEDOPS_HD double log1p(double x) { return std::log1p(x); }
FUSEDOPS_HD double expm1(double x) { return std::expm1(x); }

#endif

}  // namespace vector_math
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
