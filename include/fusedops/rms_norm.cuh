// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm and its gradient, for C++ and CUDA projects. Include this page alone.
//
//   #include <fusedops/rms_norm.cuh>
//   using namespace fusedops;
//
//   cudaError_t norm(cudaStream_t stream, const bfloat16* x, const bfloat16* gamma, bfloat16* y,
//                    int64_t rows, int64_t cols) {
//     const auto out = store(affine(per_column(gamma)), direct(y, cols));
//     return dispatch_rms_norm<float>(stream, load(direct(x, cols)), out, rows, cols, 1e-6);
//   }
//
// dispatch_rms_norm<Compute>(where, load, store, rows, cols, epsilon, rstd, kept)
//   where, load, store, rows, cols, the result and what may alias: as in softmax.cuh.
//   epsilon  added to the mean square.
//   rstd     null, or (rows) numbers of Compute: 1 / sqrt(mean(v * v) + epsilon).
//   kept     null, or (rows, kRmsNormKept) numbers of Compute that the gradient reads: rstd again,
//            so that a gradient may be given either.
//
// dispatch_rms_norm_gradient<Compute>(where, load, store, kept, dy, dx, wanted, workspace, bytes,
//                                     rows, cols)
//   as in softmax.cuh; the gradient of gamma is gradients(in_store<0>(per_column(dgamma))).
// From rstd, dx alone: dispatch_rms_norm_gradient<Compute>(where, load_x, load_scaled_dy, store_dx, rstd,
// rows, cols), where each may be composed or a plain type.
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/dispatch/gradient.cuh>
#include <fusedops/functors.cuh>
#include <fusedops/op/norm.cuh>
#include <fusedops/op/norm_gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// How many numbers of each row `kept` holds.
inline constexpr int kRmsNormKept = RmsNormGradient<float>::kKept;

#if !defined(__CUDACC_RTC__)

/// y = v / sqrt(mean(v * v) + epsilon), v what `load` reads of a row.
template <class Compute, class LoadT, class StoreT, class Cols, class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_rms_norm(const Where& where, LoadT load,
                                                        StoreT store, int64_t rows, Cols cols,
                                                        double epsilon, Compute* rstd = nullptr,
                                                        Compute* kept = nullptr) {
  detail::refuse_masks_in_norm<LoadT>();
  const RmsNorm<Compute> op{{static_cast<Compute>(epsilon)}};
  const detail::KeepRow<Compute> keep{kept, nullptr, rstd};
  return detail::dispatch_rows<detail::ForwardLadder>(where, op, load, store, keep, rows, cols);
}

/// dv = rstd * (dy - y * mean(y * dy)), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_rms_norm_gradient(const Where& where, LoadT load,
                                                                 StoreT store, const Compute* kept,
                                                                 Dy dy, Dx dx, Wanted wanted,
                                                                 void* workspace, size_t bytes,
                                                                 int64_t rows, Cols cols) {
  return detail::dispatch_gradient<detail::NormGradientLadder>(
      where, RmsNormGradient<Compute>{}, load, store, direct(kept, kRmsNormKept), dy, dx, wanted,
      workspace, bytes, rows, cols);
}
template <class Compute, class LoadX, class LoadDy, class StoreDx, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_rms_norm_gradient(const Where& where, LoadX load_x,
                                                                 LoadDy load_scaled_dy,
                                                                 StoreDx store_dx,
                                                                 const Compute* rstd, int64_t rows,
                                                                 Cols cols) {
  return detail::dispatch_gradient_of_loads<detail::NormGradientLadder>(
      where, RmsNormGradient<Compute>{}, load_x, load_scaled_dy, store_dx, direct(rstd, 1), rows,
      cols);
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
