// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions that operators and functors use, for float and double, on GPU and CPU. None has a
// name of the C library: `using namespace fusedops` must not make a call of exp() ambiguous.
//
// Stated errors, float: exponential on a GPU 2 + 1.2 |x| ulp (one multiply and the hardware's exp2;
// results below 2^-126 are zero), on a CPU 2 ulp; logarithm 2 ulp, the reciprocals 1 ulp. Double:
// exponential on a CPU 1 ulp; others, those of the platform's mathematics library.
#pragma once

#include <fusedops/core/dtype.cuh>

#if !defined(FUSEDOPS_CUDA)
#include <cmath>
#endif

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The smallest power of two that is not less than n.
FUSEDOPS_HD constexpr int power_of_two(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

}  // namespace detail

template <class T>
FUSEDOPS_HD T infinity() {
  return T(bit_cast<float>(uint32_t(0x7f800000u)));
}

template <class T>
FUSEDOPS_HD T quiet_nan() {
  return T(bit_cast<float>(uint32_t(0x7fc00000u)));
}

template <class T>
FUSEDOPS_HD constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}

// A compiler may contract a product and a sum into one fused multiply-add, which rounds once, in
// one kernel and not in another that has the same text. Values that the backward pass recomputes
// must have the bits of the forward pass. So where the value of a LOAD enters an operator, and
// where its result leaves it, these functions fix what is rounded. They cost no instruction.

/// a - b; where a is a product, it is rounded first.
FUSEDOPS_HD float difference(float a, float b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return ::__fsub_rn(a, b);
#else
  return FUSEDOPS_ROUNDED(a) - b;
#endif
}
FUSEDOPS_HD double difference(double a, double b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return ::__dsub_rn(a, b);
#else
  return FUSEDOPS_ROUNDED(a) - b;
#endif
}

/// a * b, rounded even where it is added to something.
FUSEDOPS_HD float product(float a, float b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return ::__fmul_rn(a, b);
#else
  return FUSEDOPS_ROUNDED(a * b);
#endif
}
FUSEDOPS_HD double product(double a, double b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return ::__dmul_rn(a, b);
#else
  return FUSEDOPS_ROUNDED(a * b);
#endif
}

/// a * b + c, rounded once where the processor has a fused multiply-add.
FUSEDOPS_HD float fused(float a, float b, float c) {
#if defined(FUSEDOPS_CUDA)
  return ::fmaf(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
FUSEDOPS_HD double fused(double a, double b, double c) {
#if defined(FUSEDOPS_CUDA)
  return ::fma(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

/// The larger of two; where one is NaN, the other.
template <class T>
FUSEDOPS_HD constexpr T larger(T a, T b) {
  // A NaN in b is returned: the sum over the row is NaN anyway.
  return a > b ? a : b;
}
#if defined(FUSEDOPS_ON_DEVICE)
template <>
FUSEDOPS_HD float larger<float>(float a, float b) {
  return ::fmaxf(a, b);
}
template <>
FUSEDOPS_HD double larger<double>(double a, double b) {
  return ::fmax(a, b);
}
#endif

namespace detail {

#if !defined(FUSEDOPS_ON_DEVICE)
/// exp(x) = 2^exponent * value, for -104 <= x <= 89.
struct Power {
  float value;
  int32_t exponent;

  // r is the logarithm of the value, |r| <= ln(2)/2. Adding 1.5 * 2^23 rounds n; ln(2) is split in
  // two so that n * high is exact.
  FUSEDOPS_HD explicit Power(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    // A minimax polynomial for what follows 1 + r: 1.2 ulp over all x; Taylor's has 3.
    float q = 1.3814611e-3f;
    q = q * r + 8.36871004e-3f;
    q = q * r + 4.16683874e-2f;
    q = q * r + 1.66665207e-1f;
    q = q * r + 4.99999935e-1f;
    value = (r * r * q + r) + 1.0f;
    exponent = bit_cast<int32_t>(shifted) - 0x4b400000;
  }
};

/// exp(x) = 2^n * value, for -746 <= x <= 710; `bits` are those of n, and others above its 12.
struct DoublePower {
  double value;
  uint64_t bits;

  // As above. Adding 1.5 * 2^52 rounds n, and its bits below 2^12 are zero.
  FUSEDOPS_HD explicit DoublePower(double x) {
    const double shifted = x * 1.4426950408889634 + 6755399441055744.0;
    const double n = shifted - 6755399441055744.0;
    const double r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    // Near to minimax: within 0.003 ulp.
    double q = 2.0914686968086876e-9;
    q = q * r + 2.5105217004720745e-8;
    q = q * r + 2.75572736431103e-7;
    q = q * r + 2.7557255400206422e-6;
    q = q * r + 2.4801587325547743e-5;
    q = q * r + 1.9841269874820627e-4;
    q = q * r + 1.3888888888883748e-3;
    q = q * r + 8.333333333326136e-3;
    q = q * r + 4.166666666666667e-2;
    q = q * r + 0.1666666666666667;
    q = q * r + 0.5;
    value = (r * r * q + r) + 1.0;
    bits = bit_cast<uint64_t>(shifted);
  }
};
#endif

}  // namespace detail

FUSEDOPS_HD float exponential(float x) {
#if defined(FUSEDOPS_ON_DEVICE)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
#else
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const detail::Power power(x);
  // Two powers of two, neither of which overflows.
  const int32_t first = power.exponent >> 1;
  const float low = bit_cast<float>((first + 127) << 23);
  const float high = bit_cast<float>((power.exponent - first + 127) << 23);
  return power.value * low * high;
#endif
}

/// The same, to the bit, for x <= 70: softmax has no other. Fewer instructions on a CPU, of a float a
/// quarter.
FUSEDOPS_HD float bounded_exponential(float x) {
#if defined(FUSEDOPS_ON_DEVICE)
  return exponential(x);
#else
  x = x < -104.0f ? -104.0f : x;
  const detail::Power power(x);
  // The first factor is normal, so that a subnormal result is rounded once.
  const uint32_t bits = (uint32_t(power.exponent) << 23) + ((127u + 24u) << 23);
  return power.value * bit_cast<float>(bits) * 0x1p-24f;
#endif
}
FUSEDOPS_HD double exponential(double x) {
#if defined(FUSEDOPS_ON_DEVICE)
  return ::exp(x);
#else
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  const detail::DoublePower power(x);
  // Two powers of two again. The first is normal and above or below 2^n, away from both ends.
  const bool above = x < 0.0;
  const double first = bit_cast<double>((power.bits + (above ? 1023u + 54u : 1023u - 54u)) << 52);
  return power.value * first * (above ? 0x1p-54 : 0x1p54);
#endif
}
FUSEDOPS_HD double bounded_exponential(double x) {
#if defined(FUSEDOPS_ON_DEVICE)
  return exponential(x);
#else
  x = x < -746.0 ? -746.0 : x;
  const detail::DoublePower power(x);
  return power.value * bit_cast<double>((power.bits + (1023u + 54u)) << 52) * 0x1p-54;
#endif
}

FUSEDOPS_HD float logarithm(float x) {
#if defined(FUSEDOPS_CUDA)
  return ::logf(x);
#else
  return __builtin_logf(x);
#endif
}

FUSEDOPS_HD double logarithm(double x) {
#if defined(FUSEDOPS_CUDA)
  return ::log(x);
#else
  return __builtin_log(x);
#endif
}

/// 1 / x within 1 ulp where x and 1 / x are normal, by a single instruction of a GPU. A subnormal x
/// counts as zero, whose reciprocal is infinity, and that of infinity is zero.
FUSEDOPS_HD float reciprocal_estimate(float x) {
#if defined(FUSEDOPS_ON_DEVICE)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

FUSEDOPS_HD double reciprocal_estimate(double x) { return 1.0 / x; }

/// 1 / x as above, more often correctly rounded: the estimate and a Newton step, a third of the
/// instructions of a correctly rounded division. NaN for zero and infinity.
FUSEDOPS_HD float reciprocal(float x) {
#if defined(FUSEDOPS_ON_DEVICE)
  const float y = reciprocal_estimate(x);
  return ::fmaf(::fmaf(-x, y, 1.0f), y, y);
#else
  return 1.0f / x;
#endif
}

FUSEDOPS_HD double reciprocal(double x) { return 1.0 / x; }

/// sum / count for a positive count, within 0.51 ulp.
FUSEDOPS_HD float average(float sum, float count) {
#if defined(FUSEDOPS_ON_DEVICE)
  const float share = reciprocal(count);
  const float quotient = sum * share;
  const float better = ::fmaf(::fmaf(-quotient, count, sum), share, quotient);
  return sum < 1e38f ? better : quotient;  // a Newton step from infinity gives NaN
#else
  return sum / count;
#endif
}

FUSEDOPS_HD double average(double sum, double count) { return sum / count; }

/// 1 / sqrt(x) within 0.6 ulp; 0 for infinity. The Newton step's residual takes x * y exactly.
FUSEDOPS_HD float reciprocal_sqrt(float x) {
#if defined(FUSEDOPS_CUDA)
  const float y = ::rsqrtf(x);
  const float high = x * y;
  const float low = ::fmaf(x, y, -high);
  const float residual = ::fmaf(-low, y, ::fmaf(-high, y, 1.0f));
  return x > 0.0f && y > 0.0f ? ::fmaf(0.5f * y, residual, y)
                              : y;  // a Newton step from 0 or infinity gives NaN
#else
  return 1.0f / __builtin_sqrtf(x);
#endif
}

FUSEDOPS_HD double reciprocal_sqrt(double x) {
#if defined(FUSEDOPS_CUDA)
  return ::rsqrt(x);
#else
  return 1.0 / __builtin_sqrt(x);
#endif
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
