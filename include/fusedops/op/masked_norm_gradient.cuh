// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of op/masked_norm.cuh: those of op/norm_gradient.cuh and op/l2_norm_gradient.cuh, in
// which means are over the elements that masks leave. A masked element has neither a gradient nor a
// share in any sum, and y is the constant 0 there, whatever the STORE does.
#pragma once

#include <fusedops/functor/masked.cuh>
#include <fusedops/op/l2_norm_gradient.cuh>
#include <fusedops/op/norm_gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// What is masked in the row of a norm. The mark in place of a result is finite, so that its product
/// with a gradient of zero is zero.
template <class Compute>
struct MaskedInNorm {
  static constexpr bool kHasMasked = true, kMaskedIsConstant = true;
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static bool is_masked(Compute v) { return is_marked(v); }
  FUSEDOPS_HD static Compute masked_result() { return kMaskedResult<Compute>; }
  FUSEDOPS_HD static bool is_masked_result(Compute y) { return y == kMaskedResult<Compute>; }
};

}  // namespace detail

template <class Compute_>
struct MaskedLayerNormGradient : LayerNormGradient<Compute_>, detail::MaskedInNorm<Compute_> {
  using Base = LayerNormGradient<Compute_>;
  using Masked = detail::MaskedInNorm<Compute_>;
  using Masked::kHasMasked;
  using Masked::kMaskedIsConstant;
  using Masked::padding_value;
  using typename Base::Compute;
  using typename Base::Finish;
  using typename Base::Partial;
  static constexpr int kKept = 4;

  struct Row : Base::Row {
    Compute count;
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) {
    return {{kept[0], kept[1], kept[2]}, kept[3]};
  }

  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t) const {
    return {known.rstd, average(all.plain, known.count), average(all.along, known.count)};
  }
};

template <class Compute_>
struct MaskedRmsNormGradient : RmsNormGradient<Compute_>, detail::MaskedInNorm<Compute_> {
  using Base = RmsNormGradient<Compute_>;
  using Masked = detail::MaskedInNorm<Compute_>;
  using Masked::kHasMasked;
  using Masked::kMaskedIsConstant;
  using Masked::padding_value;
  using typename Base::Compute;
  using typename Base::Finish;
  using typename Base::Partial;
  static constexpr int kKept = 2;

  struct Row : Base::Row {
    Compute count;
  };
  FUSEDOPS_HD static Row row(const Compute (&kept)[kKept]) { return {{kept[0]}, kept[1]}; }

  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row& known, Partial all, const AnyRow&, int64_t) const {
    return {known.rstd, average(all.along, known.count)};
  }
};

template <class Compute_>
struct MaskedL2NormGradient : L2NormGradient<Compute_>, detail::MaskedInNorm<Compute_> {
  using Masked = detail::MaskedInNorm<Compute_>;
  using Masked::kHasMasked;
  using Masked::kMaskedIsConstant;
  using Masked::padding_value;
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
