// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Conversions of several halves at once by instructions of the CPU (F16C and AVX-512F: "vcvtph2ps" and
// "vcvtps2ph" in Intel's manual). GCC 12 puts them into no loop by itself, and what dtype.cuh computes
// takes some ten times as many instructions. The bits are the same, but for the payload of a NaN.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if !defined(FUSEDOPS_CUDA) && defined(__GNUC__) && !defined(__clang__) && defined(__F16C__)

namespace detail {

/// The halves that one instruction converts.
#if defined(__AVX512F__)
inline constexpr int kHalvesAtOnce = 16;
#else
inline constexpr int kHalvesAtOnce = 8;
#endif

using ShortsOfHalves = short __attribute__((vector_size(2 * kHalvesAtOnce)));
using FloatsOfHalves = float __attribute__((vector_size(4 * kHalvesAtOnce)));

/// Whether a pack of N numbers of type T is converted to and from Compute by these instructions.
template <class T, class Compute, int N>
FUSEDOPS_HD constexpr bool are_halves() {
  return (IsSame<T, half>::value || IsSame<T, const half>::value) &&
         IsSame<Compute, float>::value && N % kHalvesAtOnce == 0;
}

}  // namespace detail

template <int N>
FUSEDOPS_HD void floats_of_halves(const half* from, float (&to)[N]) {
  FUSEDOPS_UNROLL
  for (int i = 0; i < N; i += detail::kHalvesAtOnce) {
    detail::ShortsOfHalves halves;
    __builtin_memcpy(&halves, from + i, sizeof(halves));
#if defined(__AVX512F__)
    const detail::FloatsOfHalves floats = __builtin_ia32_vcvtph2ps512_mask(
        halves, detail::FloatsOfHalves{}, uint16_t(0xffff), 4);  // 4: rounding as it is set
#else
    const detail::FloatsOfHalves floats = __builtin_ia32_vcvtph2ps256(halves);
#endif
    __builtin_memcpy(to + i, &floats, sizeof(floats));
  }
}

template <int N>
FUSEDOPS_HD void halves_of_floats(const float (&from)[N], half* to) {
  constexpr int kToNearestEven = 0;
  FUSEDOPS_UNROLL
  for (int i = 0; i < N; i += detail::kHalvesAtOnce) {
    detail::FloatsOfHalves floats;
    __builtin_memcpy(&floats, from + i, sizeof(floats));
#if defined(__AVX512F__)
    const detail::ShortsOfHalves halves = __builtin_ia32_vcvtps2ph512_mask(
        floats, kToNearestEven, detail::ShortsOfHalves{}, uint16_t(0xffff));
#else
    const detail::ShortsOfHalves halves = __builtin_ia32_vcvtps2ph256(floats, kToNearestEven);
#endif
    __builtin_memcpy(static_cast<void*>(to + i), &halves, sizeof(halves));
  }
}

#else

namespace detail {

/// There are none: a compiler may find them.
template <class T, class Compute, int N>
FUSEDOPS_HD constexpr bool are_halves() {
  return false;
}

}  // namespace detail

template <int N>
void floats_of_halves(const half* from, float (&to)[N]);  // nobody calls these two
template <int N>
void halves_of_floats(const float (&from)[N], half* to);

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
