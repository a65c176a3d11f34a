// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Foreign STOREs, and gradients that are foreign on both sides.
#include "foreign.h"
#include "place.h"

using fusedops::half;

extern "C" {

int foreign_affine(void* stream, const half* x, const half* gamma, const half* beta, half* y,
                   float* mean, float* rstd, int64_t rows, int64_t cols) {
  const foreign::Direct<half, float> in{x, cols};
  const foreign::AffineStore<float, half, true> out{y, gamma, beta, cols, 0};
  return int(
      fusedops::dispatch_layer_norm<float>(place(stream), in, out, rows, cols, 1e-5, mean, rstd));
}

int foreign_softmax_gradient(void* stream, const half* y, const half* dy, half* dx, int64_t rows,
                             int64_t cols) {
  const foreign::Direct<half, float> of_y{y, cols}, of_dy{dy, cols};
  const foreign::TrilScaleStore<float, half> out{dx, rows, cols, 1, 0.5f};
  return int(
      fusedops::dispatch_softmax_gradient<float>(place(stream), of_y, of_dy, out, rows, cols));
}

int foreign_log_softmax_gradient(void* stream, const half* y, const half* dy, half* dx,
                                 int64_t rows, int64_t cols) {
  const foreign::DirectAsStored<half> of_y{y, cols};
  const foreign::Direct<half, float> of_dy{dy, cols};
  oneflow::cuda::softmax::DirectStore<float, half> out(dx, cols);
  return int(
      fusedops::dispatch_log_softmax_gradient<float>(place(stream), of_y, of_dy, out, rows, cols));
}

int foreign_layer_norm_gradient(void* stream, const half* x, const half* dy, const half* gamma,
                                const float* mean, const float* rstd, half* dx, int64_t rows,
                                int64_t cols) {
  const foreign::Direct<half, float> of_x{x, cols};
  const foreign::ScaledLoad<half, float> of_dy{dy, gamma, cols};
  const foreign::AffineStore<float, half, false> out{dx, nullptr, nullptr, cols, 0};
  return int(fusedops::dispatch_layer_norm_gradient<float>(place(stream), of_x, of_dy, out, mean,
                                                           rstd, rows, cols));
}

int foreign_rms_norm_gradient(void* stream, const half* x, const half* dy, const half* gamma,
                              const float* rstd, half* dx, int64_t rows, int64_t cols) {
  const foreign::Direct<half, float> of_x{x, cols};
  const foreign::ScaledLoad<half, float> of_dy{dy, gamma, cols};
  oneflow::cuda::softmax::DirectStore<float, half> out(dx, cols);
  return int(fusedops::dispatch_rms_norm_gradient<float>(place(stream), of_x, of_dy, out, rstd,
                                                         rows, cols));
}

}  // extern "C"
