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
//   where, load, store, rows, cols, what is returned and what may alias: as in softmax.cuh.
//   epsilon  added to the mean square.
//   rstd     null, or a number of Compute a row: 1 / sqrt(mean(v * v) + epsilon).
//   kept     null, or a number of Compute a row for the gradient.
//
// dispatch_rms_norm_gradient<Compute>(where, load, store, kept, dy, dx, wanted, workspace, bytes,
//                                     rows, cols)
//   as in softmax.cuh; the gradient of gamma is gradients(in_store<0>(per_column(dgamma))).
// From rstd: dispatch_rms_norm_gradient<Compute>(where, load_x, load_scaled_dy, store_dx, rstd,
// rows, cols), where each may be composed or a plain type.
#pragma once

#include <fusedops/dispatch/gradient.cuh>
#include <fusedops/functors.cuh>
#include <fusedops/op/norm.cuh>
#include <fusedops/op/norm_gradient.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

/// y = v / sqrt(mean(v * v) + epsilon), v what `load` reads of a row.
template <class Compute, class LoadT, class StoreT, class Cols>
cudaError_t dispatch_rms_norm(cudaStream_t stream, LoadT load, StoreT store, int64_t rows,
                              Cols cols, double epsilon, Compute* rstd = nullptr,
                              Compute* kept = nullptr) {
  const RmsNorm<Compute> op{{static_cast<Compute>(epsilon)}};
  const detail::KeepRow<Compute> keep{kept, nullptr, rstd};
  static_assert(!detail::Form<LoadT>::kMasks,
                "fusedops: a mask in the LOAD of a norm: a masked element leaves the row, which a "
                "norm has no meaning for");
  return detail::rows_on(stream, op, load, store, keep, rows, cols);
}

/// dv = rstd * (dy - y * mean(y * dy)), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols>
cudaError_t dispatch_rms_norm_gradient(cudaStream_t stream, LoadT load, StoreT store,
                                       const Compute* kept, Dy dy, Dx dx, Wanted wanted,
                                       void* workspace, size_t bytes, int64_t rows, Cols cols) {
  using Op = RmsNormGradient<Compute>;
  return detail::through_declaration<Compute>(stream, Op{}, load, store, direct(kept, Op::kKept),
                                              dy, dx, wanted, workspace, bytes, rows, cols);
}
template <class Compute, class LoadX, class LoadDy, class StoreDx, class Cols>
cudaError_t dispatch_rms_norm_gradient(cudaStream_t stream, LoadX load_x, LoadDy load_scaled_dy,
                                       StoreDx store_dx, const Compute* rstd, int64_t rows,
                                       Cols cols) {
  return detail::of_loads(stream, RmsNormGradient<Compute>{}, load_x, load_scaled_dy, store_dx,
                          direct(rstd, 1), rows, cols);
}

#endif  // FUSEDOPS_CUDA

#if !defined(__CUDACC_RTC__)

/// y = v / sqrt(mean(v * v) + epsilon), v what `load` reads of a row.
template <class Compute, class LoadT, class StoreT, class Cols>
Status dispatch_rms_norm(Threads threads, LoadT load, StoreT store, int64_t rows, Cols cols,
                         double epsilon, Compute* rstd = nullptr, Compute* kept = nullptr) {
  const RmsNorm<Compute> op{{static_cast<Compute>(epsilon)}};
  const detail::KeepRow<Compute> keep{kept, nullptr, rstd};
  static_assert(!detail::Form<LoadT>::kMasks,
                "fusedops: a mask in the LOAD of a norm: a masked element leaves the row, which a "
                "norm has no meaning for");
  return detail::rows_on(threads, op, load, store, keep, rows, cols);
}

/// dv = rstd * (dy - y * mean(y * dy)), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols>
Status dispatch_rms_norm_gradient(Threads threads, LoadT load, StoreT store, const Compute* kept,
                                  Dy dy, Dx dx, Wanted wanted, void* workspace, size_t bytes,
                                  int64_t rows, Cols cols) {
  using Op = RmsNormGradient<Compute>;
  return detail::through_declaration<Compute>(threads, Op{}, load, store, direct(kept, Op::kKept),
                                              dy, dx, wanted, workspace, bytes, rows, cols);
}
template <class Compute, class LoadX, class LoadDy, class StoreDx, class Cols>
Status dispatch_rms_norm_gradient(Threads threads, LoadX load_x, LoadDy load_scaled_dy,
                                  StoreDx store_dx, const Compute* rstd, int64_t rows, Cols cols) {
  return detail::of_loads(threads, RmsNormGradient<Compute>{}, load_x, load_scaled_dy, store_dx,
                          direct(rstd, 1), rows, cols);
}

#endif

}  // namespace fusedops
