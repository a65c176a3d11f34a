// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// DynamicQuantize: v / scale before a target of 8 or 4 bits rounds it, with a scale for each block of
// columns that follows from the largest |v| of the block. The scales are written to a tensor. Last in
// a STORE, of a forward pass alone.
//
// A block whose values are all zero has the scale 1. One that holds Inf or NaN has the scale NaN, and
// all that is read from it is NaN. Scales are floats, computed by one IEEE division, and values are
// multiplied by the reciprocal, another one: the same bits on every device.
#pragma once

#include <fusedops/core/float4.cuh>
#include <fusedops/core/math.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/tiled_view.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// How the scale of a block follows from its largest magnitude, `most` being the largest number of the
/// target's type. kNearest: magnitude / most, in float. kPower: the next power of two from there on
/// up. kE8M0: 2^(floor(log2(magnitude)) - floor(log2(most))), the number of that exponent in 8 bits:
/// OCP Microscaling Formats (MX) Specification 1.0, section 6.3. kE4M3: magnitude / most / factor in
/// float8_e4m3, by which, and by the tensor's factor, values are then divided.
enum class Scaling { kNearest, kPower, kE8M0, kE4M3 };

namespace detail {

/// The quotient of two floats, rounded to nearest whatever the compiler's options.
FUSEDOPS_HD float quotient(float a, float b) {
#if defined(FUSEDOPS_ON_DEVICE)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

/// a / kMost, rounded to nearest, for a quotient that is a normal number; kMost is 7 or 3 times a power
/// of two. A GPU needs no division (Markstein, "Computation of elementary functions on the IBM RISC
/// System/6000 processor", 1990): for all mantissas it was found to be the same.
template <int kMost>
FUSEDOPS_HD float share_of(float a) {
#if defined(FUSEDOPS_ON_DEVICE)
  constexpr float kInverse = 1.0f / kMost;
  const float near = a * kInverse;
  return ::fmaf(::fmaf(-near, static_cast<float>(kMost), a), kInverse, near);
#else
  return a / static_cast<float>(kMost);
#endif
}

/// 1 / scale, rounded to nearest, for scales from 2^-126 to 2^125. A GPU's estimate and one step are
/// what __frcp_rn does for such numbers, without its test for others.
FUSEDOPS_HD float inverse_of(float scale) {
#if defined(FUSEDOPS_ON_DEVICE)
  const float estimate = reciprocal_estimate(scale);
  return ::fmaf(::fmaf(-scale, estimate, 1.0f), estimate, estimate);
#else
  return 1.0f / scale;
#endif
}

/// The larger magnitude of two floats, NaN if one is.
FUSEDOPS_HD float larger_magnitude(float a, float b) {
#if defined(FUSEDOPS_ON_DEVICE)
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(::fabsf(a)), "f"(::fabsf(b)));
  return most;
#else
  const uint32_t one = bit_cast<uint32_t>(a) & 0x7fffffffu;
  const uint32_t other = bit_cast<uint32_t>(b) & 0x7fffffffu;
  return bit_cast<float>(one > other ? one : other);
#endif
}

}  // namespace detail

/// The largest magnitude of N values, as the bits of a float. Those are in the order of the floats,
/// with NaN last.
template <int N, class Compute>
FUSEDOPS_HD uint32_t magnitude(const Compute (&v)[N]) {
  float most = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < N; ++i) most = detail::larger_magnitude(most, static_cast<float>(v[i]));
  return bit_cast<uint32_t>(most);
}

namespace detail {

/// The largest number of a type.
template <class Float8>
FUSEDOPS_HD constexpr int most_of() {
  static_assert(IsSame<Float8, float8_e4m3>::value || IsSame<Float8, float8_e5m2>::value ||
                    IsSame<Float8, float4_e2m1x2>::value,
                "fusedops: scales are for float8_e4m3, float8_e5m2 or float4_e2m1x2");
  if (IsSame<Float8, float4_e2m1x2>::value) return 6;
  return IsSame<Float8, float8_e4m3>::value ? 448 : 57344;
}

/// A scale, as it is written, and the reciprocal of what values are divided by.
struct ScaleOf {
  float scale, inverse;
};

/// The scale of a magnitude, whose bits are given, that is neither zero nor infinity nor NaN. kFactor:
/// whether the factor is not 1.
template <Scaling kScaling, int kMost, bool kFactor>
FUSEDOPS_HD ScaleOf usual_scale_of(uint32_t bits, float factor) {
  constexpr uint32_t kImplicit = 1u << 23, kFraction = kImplicit - 1;
  if constexpr (kScaling == Scaling::kE8M0) {
    constexpr int kExponent = kMost >= 57344 ? 15 : kMost >= 448 ? 8 : 2;
    // The exponent of the scale with its bias; a magnitude below 2^-118, or so, has the least.
    const int wanted = static_cast<int>(bits >> 23) - kExponent;
    const uint32_t exponent = wanted > 0 ? static_cast<uint32_t>(wanted) : 0u;
    const uint32_t least = kImplicit >> 1;  // 2^-127, a subnormal float
    return {bit_cast<float>(exponent > 0 ? exponent << 23 : least),
            bit_cast<float>((254u - exponent) << 23)};
  } else if constexpr (kScaling == Scaling::kE4M3) {
    const float plain = share_of<kMost>(bit_cast<float>(bits));
    const float of_block = kFactor ? quotient(plain, factor) : plain;
    const float wanted = convert<float>(convert<float8_e4m3>(of_block));
    const float scale = wanted == 0 ? 0x1p-9f : wanted;  // no block is divided by zero
    return {scale, kFactor ? quotient(1.0f, scale * factor) : inverse_of(scale)};
  } else {
    // A scale that a float holds with all its digits, so that its reciprocal is finite.
    const float plain = share_of<kMost>(bit_cast<float>(bits));
    const uint32_t own = bit_cast<uint32_t>(plain);
    const uint32_t scale = own < kImplicit ? kImplicit : own;
    if constexpr (kScaling == Scaling::kPower) {
      const uint32_t exponent = (scale + kFraction) >> 23;
      return {bit_cast<float>(exponent << 23), bit_cast<float>((254u - exponent) << 23)};
    } else {
      return {bit_cast<float>(scale), inverse_of(bit_cast<float>(scale))};
    }
  }
}

/// kMost: the largest number of the target's type. `bits`: those of a magnitude.
template <Scaling kScaling, int kMost, bool kFactor>
FUSEDOPS_HD ScaleOf scale_of(uint32_t bits, float factor) {
  // Selected at the end, without branches: neither the division of zero nor that of NaN is read.
  const ScaleOf usual = usual_scale_of<kScaling, kMost, kFactor>(bits, factor);
  const float special = bit_cast<float>(bits == 0 ? 0x3f800000u : 0x7fc00000u);
  const bool is_usual = bits - 1 < 0x7f7fffffu;
  return {is_usual ? usual.scale : special, is_usual ? usual.inverse : special};
}

}  // namespace detail

/// Scales: one number for each block of each row, whose columns are the blocks: of float, with kE8M0
/// of uint8_t, with kE4M3 of float8_e4m3. They are written one by one, so `operands` does not ask for
/// wide accesses. kBlock: the columns of a block, or kWholeRow. kMost: the largest number of the
/// target's type. Factor: with kE4M3 the tensor's factor, an operand; Absent for 1. Rounded: a type of
/// 8 bits to which values are rounded here, and multiplied by the scale again, for a target of another
/// type; Absent where the target rounds.
template <class Scales, int kBlock_, int kMost, Scaling kScaling = Scaling::kNearest,
          class Factor = Absent, class Rounded = Absent>
struct DynamicQuantize {
  Scales scales;
  Factor factor;
  static constexpr int kGradients = 0;
  static constexpr bool kEnds = detail::IsSame<Rounded, Absent>::value;
  static constexpr int kBlock = kBlock_;

  template <int N, class Compute>
  FUSEDOPS_HD uint32_t measure(const Compute (&v)[N]) const {
    return magnitude(v);
  }

  /// By what values are multiplied, and again where they are rounded here.
  template <class Row>
  FUSEDOPS_HD auto of_block(const Row& row, uint32_t largest) const {
    const detail::ScaleOf both = scale_of(row, largest);
    if constexpr (kEnds) {
      return both.inverse;
    } else {
      return both;
    }
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t, float inverse) const {
    const Compute by = inverse;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] *= by;
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col,
                              detail::ScaleOf both) const {
    (*this)(v, row, col, both.inverse);
    const Compute scale = both.scale;
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = convert<Compute>(convert<Rounded>(v[i])) * scale;
  }

  template <class Row>
  FUSEDOPS_HD void keep(const Row& row, int64_t block, uint32_t largest) const {
    const float scale = scale_of(row, largest).scale;
    if constexpr (kScaling == Scaling::kE8M0) {
      // The exponent with its bias; 2^-127 has none as a float, and NaN has all bits.
      const float code[1] = {static_cast<float>((bit_cast<uint32_t>(scale) >> 23) & 0xffu)};
      scales.write(code, row, block);
    } else {
      const float one[1] = {scale};
      scales.write(one, row, block);
    }
  }

 private:
  template <class Row>
  FUSEDOPS_HD detail::ScaleOf scale_of(const Row& row, uint32_t largest) const {
    constexpr bool kFactor = !detail::IsSame<Factor, Absent>::value;
    float of_tensor = 1;
    if constexpr (kFactor) {
      of_tensor = factor.template fetch<1, float>(row, 0)[0];
    }
    return detail::scale_of<kScaling, kMost, kFactor>(largest, of_tensor);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
