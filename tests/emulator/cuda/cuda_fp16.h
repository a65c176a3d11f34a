// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA's half for a host compiler, as far as kernels use it: storage, and conversion from and to
// float with rounding to nearest even. Its arithmetic is that of floats.
#pragma once

#include <cstdint>
#include <cstring>

inline float __half_bits_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa ? __builtin_nanf("") : sign * __builtin_inff();
  if (exponent == 0) return sign * (static_cast<float>(mantissa) * 0x1p-24f);
  return sign * __builtin_ldexpf(static_cast<float>(1024 + mantissa), exponent - 25);
}
inline uint16_t __float_to_half_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const uint16_t sign = bits >> 16 & 0x8000u;
  const float size = __builtin_fabsf(x);
  if (size != size) return 0x7fffu;
  if (size >= 65520.0f) return sign | 0x7c00u;
  int exponent = size < 0x1p-14f ? -14 : static_cast<int>(bits >> 23 & 255) - 127;
  // Both are exact, so that the one rounding is that of the nearest integer, ties to even.
  const int steps = static_cast<int>(__builtin_nearbyintf(__builtin_ldexpf(size, 10 - exponent)));
  // A mantissa of 2048 carries into the exponent, one of 1024 at the smallest makes it normal.
  return static_cast<uint16_t>(sign | (steps + (exponent + 14) * 1024));
}

struct __half {
  uint16_t bits;
  __half() = default;
  __half(float x) : bits(__float_to_half_bits(x)) {}
  operator float() const { return __half_bits_to_float(bits); }
};
inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return x; }

struct __half2 {
  __half x, y;
};
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline float __low2float(__half2 two) { return two.x; }
inline float __high2float(__half2 two) { return two.y; }
