// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The two storage types of 8 bits: float8_e4m3 (torch's float8_e4m3fn: up to 448, no infinity) and
// float8_e5m2 (up to 57344). A conversion to them rounds once, to nearest even, also from double,
// and saturates: what is beyond the largest number, infinity included, becomes that number. NaN
// stays NaN. OCP 8-bit Floating Point Specification, revision 1.0.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/dtype.cuh>

namespace fusedops {

struct float8_e4m3 {
  uint8_t bits;
};
struct float8_e5m2 {
  uint8_t bits;
};

inline namespace FUSEDOPS_ABI {

namespace detail {

/// To a float of 8 bits with kMantissa bits of mantissa, whose smallest normal number is that of
/// kSmallest, the bits of a float, and whose largest has the bits kLargest.
template <int kMantissa, uint32_t kSmallest, uint32_t kLargest>
FUSEDOPS_HD uint8_t to_eight_bits(float x) {
  constexpr int kDropped = 23 - kMantissa;
  // The smallest normal number has the exponent 1 there.
  constexpr uint32_t kBias = kSmallest - (1u << 23);
  // The ulp of this number is that of a subnormal one, so adding it rounds as the conversion does.
  constexpr uint32_t kAdded = kSmallest + (static_cast<uint32_t>(kDropped) << 23);
  const uint32_t bits = bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t half_up = (1u << (kDropped - 1)) - 1 + ((magnitude >> kDropped) & 1u);
  const uint32_t normal = (magnitude - kBias + half_up) >> kDropped;
  const uint32_t subnormal =
      bit_cast<uint32_t>(bit_cast<float>(magnitude) + bit_cast<float>(kAdded)) - kAdded;
  uint32_t value = magnitude < kSmallest ? subnormal : normal;
  value = magnitude >= 0x7f800000u || value > kLargest ? kLargest : value;
  value |= (bits >> 24) & 0x80u;
  return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : value);
}

/// A float from which any further rounding to fewer bits gives what it would give from the double:
/// rounded to odd, unless it is exact.
FUSEDOPS_HD float to_odd(double x) {
  const float rounded = static_cast<float>(x);
  const double back = static_cast<double>(rounded);
  uint32_t bits = bit_cast<uint32_t>(rounded);
  const bool beyond = (back > 0 && back > x) || (back < 0 && back < x);
  if (back != x && x == x) bits = (bits - (beyond ? 1u : 0u)) | 1u;
  return bit_cast<float>(bits);
}

}  // namespace detail

template <>
struct Convert<float8_e4m3, float> {
  FUSEDOPS_HD static float8_e4m3 apply(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    return {static_cast<uint8_t>(two)};
#else
    return {detail::to_eight_bits<3, 0x3c800000u, 0x7eu>(x)};
#endif
  }
};
template <>
struct Convert<float8_e5m2, float> {
  FUSEDOPS_HD static float8_e5m2 apply(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
    return {static_cast<uint8_t>(two)};
#else
    return {detail::to_eight_bits<2, 0x38800000u, 0x7bu>(x)};
#endif
  }
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
/// Four floats to as many numbers of 8 bits, two with each instruction.
template <class Float8>
FUSEDOPS_HD uint32_t four_of(float a, float b, float c, float d) {
  uint16_t low, high;
  if constexpr (detail::IsSame<Float8, float8_e4m3>::value) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  }
  return low | static_cast<uint32_t>(high) << 16;
}
#endif

template <>
struct Convert<float, float8_e4m3> {
  FUSEDOPS_HD static float apply(float8_e4m3 x) {
    const uint32_t magnitude = x.bits & 0x7fu;
    const uint32_t sign = (x.bits & 0x80u) << 24;
    // Multiplying by 2^120 changes the exponent bias from 7 to 127 and normalizes subnormals.
    const float finite = bit_cast<float>(magnitude << 20) * 0x1p120f;
    const uint32_t value = magnitude == 0x7fu ? 0x7fc00000u : bit_cast<uint32_t>(finite);
    return bit_cast<float>(value | sign);
  }
};
template <>
struct Convert<float, float8_e5m2> {
  FUSEDOPS_HD static float apply(float8_e5m2 x) {
    return convert<float>(bit_cast<half>(static_cast<uint16_t>(x.bits << 8)));
  }
};
template <>
struct Convert<float8_e4m3, double> {
  FUSEDOPS_HD static float8_e4m3 apply(double x) {
    return Convert<float8_e4m3, float>::apply(detail::to_odd(x));
  }
};
template <>
struct Convert<float8_e5m2, double> {
  FUSEDOPS_HD static float8_e5m2 apply(double x) {
    return Convert<float8_e5m2, float>::apply(detail::to_odd(x));
  }
};
template <>
struct Convert<double, float8_e4m3> {
  FUSEDOPS_HD static double apply(float8_e4m3 x) {
    return static_cast<double>(Convert<float, float8_e4m3>::apply(x));
  }
};
template <>
struct Convert<double, float8_e5m2> {
  FUSEDOPS_HD static double apply(float8_e5m2 x) {
    return static_cast<double>(Convert<float, float8_e5m2>::apply(x));
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
