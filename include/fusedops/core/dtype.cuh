// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Storage types and their conversion to and from the compute type. With a CUDA compiler half and
// bfloat16 are CUDA's; a host compiler gets types of this file, or CUDA's as well where
// FUSEDOPS_CUDA_TYPES is defined, so that functions of half have one name in a .cpp and in a .cu.
// Its conversions are branch-free, and vectorize. Rounding is to nearest even.
#pragma once

#include <fusedops/core/config.cuh>

#if defined(FUSEDOPS_CUDA) || defined(FUSEDOPS_CUDA_TYPES)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace fusedops {

#if defined(FUSEDOPS_CUDA) || defined(FUSEDOPS_CUDA_TYPES)
using half = __half;
using bfloat16 = __nv_bfloat16;
#else
// As CUDA's, they convert from and to float by themselves; sums and products are then of floats.
struct half {
  uint16_t bits;
  half() = default;
  FUSEDOPS_HD half(float x);
  FUSEDOPS_HD operator float() const;
};
struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  FUSEDOPS_HD bfloat16(float x);
  FUSEDOPS_HD operator float() const;
};
#endif

inline namespace FUSEDOPS_ABI {

/// The bits of a value as another type of the same size.
template <class To, class From>
FUSEDOPS_HD To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
  To to;
#if defined(__CUDACC_RTC__)
  memcpy(&to, &from, sizeof(To));
#else
  __builtin_memcpy(static_cast<void*>(&to), &from, sizeof(To));
#endif
  return to;
}

/// Conversion between storage and compute types. Each conversion rounds once, except from double to
/// 16 bits, which goes through float.
template <class To, class From>
struct Convert {
  FUSEDOPS_HD static To apply(From x) { return static_cast<To>(x); }
};

#if defined(FUSEDOPS_CUDA)

template <>
struct Convert<float, half> {
  FUSEDOPS_HD static float apply(half x) { return __half2float(x); }
};
template <>
struct Convert<half, float> {
  FUSEDOPS_HD static half apply(float x) { return __float2half_rn(x); }
};
template <>
struct Convert<float, bfloat16> {
  FUSEDOPS_HD static float apply(bfloat16 x) { return __bfloat162float(x); }
};
template <>
struct Convert<bfloat16, float> {
  FUSEDOPS_HD static bfloat16 apply(float x) { return __float2bfloat16_rn(x); }
};

/// Rounds two floats to a type of 16 bits. sm_90 converts one by a slow instruction, and two by a fast one.
FUSEDOPS_HD void round_two(float& a, float& b, half) {
  const __half2 both = __floats2half2_rn(a, b);
  a = __low2float(both);
  b = __high2float(both);
}
FUSEDOPS_HD void round_two(float& a, float& b, bfloat16) {
  const uint32_t both = bit_cast<uint32_t>(__floats2bfloat162_rn(a, b));
  a = bit_cast<float>(both << 16);
  b = bit_cast<float>(both & 0xffff0000u);
}

#else

template <>
struct Convert<float, half> {
  FUSEDOPS_HD static float apply(half x) { return of_word(bit_cast<uint16_t>(x)); }
  /// Of the bits in a word.
  FUSEDOPS_HD static float of_word(uint32_t bits) {
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const uint32_t sign = (bits & 0x8000u) << 16;
    // Multiplying by 2^112 changes the exponent bias from 15 to 127 and normalizes subnormals.
    const uint32_t finite = bit_cast<uint32_t>(bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t value = magnitude >= 0x0f800000u ? (magnitude | 0x7f800000u) : finite;
    return bit_cast<float>(value | sign);
  }
};
template <>
struct Convert<half, float> {
  FUSEDOPS_HD static half apply(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding one half aligns the last bit of a subnormal half with that of the float sum, whose
    // rounding then is that of the conversion.
    const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t value = magnitude < 0x38800000u ? subnormal : normal;
    value = magnitude >= 0x477ff000u ? 0x7c00u : value;
    value = magnitude > 0x7f800000u ? 0x7e00u : value;
    return bit_cast<half>(static_cast<uint16_t>(value | sign));
  }
};
template <>
struct Convert<float, bfloat16> {
  FUSEDOPS_HD static float apply(bfloat16 x) { return of_word(bit_cast<uint16_t>(x)); }
  FUSEDOPS_HD static float of_word(uint32_t bits) { return bit_cast<float>(bits << 16); }
};
template <>
struct Convert<bfloat16, float> {
  FUSEDOPS_HD static bfloat16 apply(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t value = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
    return bit_cast<bfloat16>(static_cast<uint16_t>(value));
  }
};

#endif

template <>
struct Convert<double, half> {
  FUSEDOPS_HD static double apply(half x) {
    return static_cast<double>(Convert<float, half>::apply(x));
  }
};
template <>
struct Convert<half, double> {
  FUSEDOPS_HD static half apply(double x) {
    return Convert<half, float>::apply(static_cast<float>(x));
  }
};
template <>
struct Convert<double, bfloat16> {
  FUSEDOPS_HD static double apply(bfloat16 x) {
    return static_cast<double>(Convert<float, bfloat16>::apply(x));
  }
};
template <>
struct Convert<bfloat16, double> {
  FUSEDOPS_HD static bfloat16 apply(double x) {
    return Convert<bfloat16, float>::apply(static_cast<float>(x));
  }
};

template <class To, class From>
FUSEDOPS_HD To convert(From x) {
  return Convert<To, From>::apply(x);
}

}  // namespace FUSEDOPS_ABI

#if !defined(FUSEDOPS_CUDA) && !defined(FUSEDOPS_CUDA_TYPES)
FUSEDOPS_HD half::half(float x) : bits(Convert<half, float>::apply(x).bits) {}
FUSEDOPS_HD half::operator float() const { return Convert<float, half>::apply(*this); }
FUSEDOPS_HD bfloat16::bfloat16(float x) : bits(Convert<bfloat16, float>::apply(x).bits) {}
FUSEDOPS_HD bfloat16::operator float() const { return Convert<float, bfloat16>::apply(*this); }
#endif

}  // namespace fusedops
