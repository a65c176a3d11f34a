// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// DynamicQuantize: v / scale before a target of 8 bits rounds it, with a scale for each block of
// columns that follows from the largest |v| of the block. The scales are written to a tensor. Last in
// a STORE, of a forward pass alone.
//
// A block whose values are all zero has the scale 1. One that holds Inf or NaN has the scale NaN, and
// all that is read from it is NaN. Scales are floats, computed by one IEEE division, and values are
// multiplied by the reciprocal, computed by another: the same bits on every device.
#pragma once

#include <fusedops/core/float8.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/tiled_view.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {

/// How the scale of a block follows from its largest magnitude, `most` being the largest number of the
/// target's type. kNearest: magnitude / most, in float. kPower: the next power of two from there on
/// up. kE8M0: 2^(floor(log2(magnitude)) - floor(log2(most))), the number of that exponent in 8 bits:
/// OCP Microscaling Formats (MX) Specification 1.0, section 6.3.
enum class Scaling { kNearest, kPower, kE8M0 };

namespace detail {

/// The quotient of two floats, rounded to nearest whatever the compiler's options.
FUSEDOPS_HD float quotient(float a, float b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// The largest magnitude of N values, as the bits of a float. Those are in the order of the floats,
/// with NaN last.
template <int N, class Compute>
FUSEDOPS_HD uint32_t magnitude(const Compute (&v)[N]) {
  uint32_t largest = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < N; ++i) {
    const uint32_t bits = bit_cast<uint32_t>(static_cast<float>(v[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// The largest number of a type.
template <class Float8>
FUSEDOPS_HD constexpr int most_of() {
  static_assert(IsSame<Float8, float8_e4m3>::value || IsSame<Float8, float8_e5m2>::value,
                "fusedops: scales are for float8_e4m3 or float8_e5m2");
  return IsSame<Float8, float8_e4m3>::value ? 448 : 57344;
}

/// A scale and its reciprocal.
struct ScaleOf {
  float scale, inverse;
};

/// kMost: the largest number of the target's type. `bits`: those of a magnitude.
template <Scaling kScaling, int kMost>
FUSEDOPS_HD ScaleOf scale_of(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000u, kImplicit = 1u << 23, kFraction = kImplicit - 1;
  if (bits == 0) return {1.0f, 1.0f};
  if (bits >= kInfinity) return {bit_cast<float>(0x7fc00000u), bit_cast<float>(0x7fc00000u)};
  if constexpr (kScaling == Scaling::kE8M0) {
    constexpr int kExponent = kMost >= 57344 ? 15 : kMost >= 448 ? 8 : 2;
    // The exponent of the scale with its bias; a magnitude below 2^-118, or so, has the least.
    const int wanted = static_cast<int>(bits >> 23) - kExponent;
    const uint32_t exponent = wanted > 0 ? static_cast<uint32_t>(wanted) : 0u;
    const uint32_t least = kImplicit >> 1;  // 2^-127, a subnormal float
    return {bit_cast<float>(exponent > 0 ? exponent << 23 : least),
            bit_cast<float>((254u - exponent) << 23)};
  } else {
    // A scale that a float holds with all its digits, so that its reciprocal is finite.
    const float plain = quotient(bit_cast<float>(bits), static_cast<float>(kMost));
    const uint32_t own = bit_cast<uint32_t>(plain);
    const uint32_t scale = own < kImplicit ? kImplicit : own;
    if constexpr (kScaling == Scaling::kPower) {
      const uint32_t exponent = (scale + kFraction) >> 23;
      return {bit_cast<float>(exponent << 23), bit_cast<float>((254u - exponent) << 23)};
    } else {
      return {bit_cast<float>(scale), quotient(1.0f, bit_cast<float>(scale))};
    }
  }
}

}  // namespace detail

/// Scales: one number for each block of each row, whose columns are the blocks: of float, or with
/// kE8M0 of uint8_t. They are written one by one, so `operands` does not ask for wide accesses. kBlock: the columns of a block, or kWholeRow. kMost: the largest number
/// of the target's type.
template <class Scales, int kBlock_, int kMost, Scaling kScaling = Scaling::kNearest>
struct DynamicQuantize {
  Scales scales;
  static constexpr int kGradients = 0;
  static constexpr bool kEnds = true;
  static constexpr int kBlock = kBlock_;

  template <int N, class Compute>
  FUSEDOPS_HD uint32_t measure(const Compute (&v)[N]) const {
    return detail::magnitude(v);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t, uint32_t largest) const {
    const Compute inverse = detail::scale_of<kScaling, kMost>(largest).inverse;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] *= inverse;
  }

  template <class Row>
  FUSEDOPS_HD void keep(const Row& row, int64_t block, uint32_t largest) const {
    const float scale = detail::scale_of<kScaling, kMost>(largest).scale;
    if constexpr (kScaling == Scaling::kE8M0) {
      // The exponent with its bias; 2^-127 has none as a float, and NaN has all bits.
      const float code[1] = {static_cast<float>((bit_cast<uint32_t>(scale) >> 23) & 0xffu)};
      scales.write(code, row, block);
    } else {
      const float one[1] = {scale};
      scales.write(one, row, block);
    }
  }
};

}  // namespace fusedops
