// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm and its gradient, for C++ and CUDA projects. Include this page alone.
//
//   #include <fusedops/layer_norm.cuh>
//   using namespace fusedops;
//
//   cudaError_t add_norm(cudaStream_t stream, const half* x, const half* residual, half* sum,
//                        const float* gamma, const float* beta, half* y, int64_t rows,
//                        int64_t cols) {
//     const auto skip = saved_residual(direct(residual, cols), direct(sum, cols));
//     const auto out = store(affine(per_column(gamma), per_column(beta)), direct(y, cols));
//     const auto in = load(direct(x, cols), skip);
//     return dispatch_layer_norm<float>(stream, in, out, rows, cols, 1e-5);
//   }
//
// dispatch_layer_norm<Compute>(where, load, store, rows, cols, epsilon, mean, rstd, kept)
//   where, load, store, rows, cols, the result and what may alias: as in softmax.cuh. The sum that
//   saved_residual() saves may be the memory of the residual.
//   epsilon      added to the variance.
//   mean, rstd   null, or (rows) numbers of Compute; rstd is 1 / sqrt(variance + epsilon).
//   kept         null, or (rows, kLayerNormKept) numbers of Compute that the gradient reads: mean,
//                rstd, and the rounding error of the mean times -rstd.
//
// dispatch_layer_norm_gradient<Compute>(where, load, store, kept, dy, dx, wanted, workspace, bytes,
//                                       rows, cols)
//   as in softmax.cuh; the gradients of gamma and beta are
//   gradients(in_store<0, 0>(per_column(dgamma)), in_store<0, 1>(per_column(dbeta))).
//   A saved stream is read; its incoming gradient is the last argument of saved_residual(), and dx
//   may be in its memory too, if it has its dtype and layout.
// From mean and rstd, all of these gradients: the same with `mean, rstd` in place of `kept`. Without
// the third number y is less exact by rstd * |mean| * 2^-24 (in float), which matters where a row's
// mean is far larger than its deviation.
// From mean and rstd, dx alone: dispatch_layer_norm_gradient<Compute>(where, load_x, load_scaled_dy,
// store_dx, mean, rstd, rows, cols), where each may be composed or a plain type.
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
inline constexpr int kLayerNormKept = LayerNormGradient<float>::kKept;

namespace detail {

/// The saved statistics of a row from mean and rstd alone; the third, the rounding error of the
/// mean, is not known.
template <class Compute>
struct MeanRstd {
  const Compute *mean, *rstd;
  template <int N, class Row>
  FUSEDOPS_HD void read(Compute (&kept)[N], const Row& row, int64_t) const {
    kept[0] = mean[static_cast<int64_t>(row)];
    kept[1] = rstd[static_cast<int64_t>(row)];
    kept[2] = 0;
  }
};

}  // namespace detail

#if !defined(__CUDACC_RTC__)

/// y = (v - mean(v)) / sqrt(variance(v) + epsilon), v what `load` reads of a row.
template <class Compute, class LoadT, class StoreT, class Cols, class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_layer_norm(const Where& where, LoadT load,
                                                          StoreT store, int64_t rows, Cols cols,
                                                          double epsilon, Compute* mean = nullptr,
                                                          Compute* rstd = nullptr,
                                                          Compute* kept = nullptr) {
  detail::refuse_masks_in_norm<LoadT>();
  const LayerNorm<Compute> op{{static_cast<Compute>(epsilon)}};
  const detail::KeepRow<Compute> keep{kept, mean, rstd};
  return detail::dispatch_rows<detail::CentredLadder>(where, op, load, store, keep, rows, cols);
}

/// dv = rstd * (dy - mean(dy) - y * mean(y * dy)), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_layer_norm_gradient(
    const Where& where, LoadT load, StoreT store, const Compute* kept, Dy dy, Dx dx, Wanted wanted,
    void* workspace, size_t bytes, int64_t rows, Cols cols) {
  return detail::dispatch_gradient<detail::NormGradientLadder>(
      where, LayerNormGradient<Compute>{}, load, store, direct(kept, kLayerNormKept), dy, dx,
      wanted, workspace, bytes, rows, cols);
}
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_layer_norm_gradient(
    const Where& where, LoadT load, StoreT store, const Compute* mean, const Compute* rstd, Dy dy,
    Dx dx, Wanted wanted, void* workspace, size_t bytes, int64_t rows, Cols cols) {
  return detail::dispatch_gradient<detail::NormGradientLadder>(
      where, LayerNormGradient<Compute>{}, load, store, detail::MeanRstd<Compute>{mean, rstd}, dy,
      dx, wanted, workspace, bytes, rows, cols);
}
template <class Compute, class LoadX, class LoadDy, class StoreDx, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_layer_norm_gradient(
    const Where& where, LoadX load_x, LoadDy load_scaled_dy, StoreDx store_dx, const Compute* mean,
    const Compute* rstd, int64_t rows, Cols cols) {
  return detail::dispatch_gradient_of_loads<detail::NormGradientLadder>(
      where, LayerNormGradient<Compute>{}, load_x, load_scaled_dy, store_dx,
      detail::MeanRstd<Compute>{mean, rstd}, rows, cols);
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
