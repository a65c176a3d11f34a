// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Quantize: v = v * scale, before a target of 8 bits rounds and saturates it; the largest |v| before
// the scale joins what is in memory. Last in a STORE, of a forward pass alone.
#pragma once

#include <fusedops/core/float8.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Amax: a view of float, one value for all rows or one for each; or Absent.
template <class Factor, class Amax = Absent>
struct Quantize {
  Factor factor;
  Amax amax;
  static constexpr int kGradients = 0;
  static constexpr bool kEnds = true;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(factor);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    // A call that only issues reads (row/ahead.cuh) has no values.
    constexpr bool kHasValues = !detail::ReadsAhead<Row>::kOnlyIssues;
    if constexpr (!detail::IsSame<Amax, Absent>::value && kHasValues) {
      uint32_t largest = 0;
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) {
        const uint32_t bits = bit_cast<uint32_t>(static_cast<float>(v[i])) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
      }
      join(reinterpret_cast<uint32_t*>(amax.begin(row)), largest);
    }
    const auto scale = factor.template fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] *= scale[i];
  }

 private:
  /// The bits of floats without a sign are in the order of the floats, NaN last, and a maximum of
  /// integers does not depend on the order in which they come.
  FUSEDOPS_HD static void join(uint32_t* at, uint32_t bits) {
#if defined(FUSEDOPS_ON_DEVICE)
    // Seldom is a pack larger than all before it: others do not need the atomic access.
    if (bits > *static_cast<volatile uint32_t*>(at)) atomicMax(at, bits);
#else
    uint32_t there = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (bits > there && !__atomic_compare_exchange_n(at, &there, bits, true, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
#endif
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
