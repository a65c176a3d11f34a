// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What LOAD and STORE of a norm with masks have beside their functors (op/masked_norm.cuh). Masks mark
// what they take out by -inf; so a -inf that is there before them becomes NaN, as which it shows in
// the results of its row. And what is masked is zero in y, whatever the STORE's functors make there.
#pragma once

#include <fusedops/core/math.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class Compute>
FUSEDOPS_HD bool is_marked(Compute v) {
  return v == -infinity<Compute>();
}

/// The result of a masked element of a norm: the lowest finite number, which is the result of no
/// other.
template <class Compute>
inline constexpr Compute kMaskedResult =
    static_cast<Compute>(sizeof(Compute) == 4 ? -0x1.fffffep127 : -0x1.fffffffffffffp1023);

}  // namespace detail

/// The last functor of such a LOAD. The masks act after it, as after all others.
struct NanForInfinity {
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) v[i] = detail::is_marked(v[i]) ? quiet_nan<Compute>() : v[i];
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&)[N], const Compute (&)[N], const Row&, int64_t,
                            Sink&) const {}
};

/// The last functor of the LOAD of a map with masks, on its way back: so that -inf is what a mask has taken
/// out, and what is -inf by itself has a gradient as any other number has.
struct FiniteForInfinity {
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      v[i] = detail::is_marked(v[i]) ? detail::kMaskedResult<Compute> : v[i];
    }
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&)[N], const Compute (&)[N], const Row&, int64_t,
                            Sink&) const {}
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
