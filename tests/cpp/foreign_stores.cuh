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

#if !defined(__CUDACC__)

/// Saves x += r in place, and says how to read it again.
struct Adds {
  float* x;
  const float* r;
  int64_t cols;
  template <int N>
  void load(float* dst, int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) dst[i] = x[row * cols + col + i] += r[row * cols + col + i];
  }
  template <int N>
  void revisit(float* dst, int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) dst[i] = x[row * cols + col + i];
  }
};

/// Says that ten columns of a row can be unmasked; counts what is loaded.
struct Ten {
  const float* x;
  int64_t cols;
  int64_t* loaded;
  template <int N>
  void load(float* dst, int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) dst[i] = x[row * cols + col + i];
    *loaded += N;
  }
  fusedops::Columns columns(int64_t) const { return {0, 10}; }
};

/// Both through rows that are read twice.
extern "C" int foreign_twice(void*, float* x, const float* r, float* y, int64_t* loaded,
                             int64_t rows, int64_t cols) {
  const auto out = fusedops::store(fusedops::direct(y, cols));
  const fusedops::Threads one{1};
  const Ten ten{r, cols, loaded};
  const auto status = fusedops::dispatch_softmax<float>(one, ten, out, rows, cols);
  if (status != fusedops::Status::kSuccess) return 1;
  return int(fusedops::dispatch_rms_norm<float>(one, Adds{x, r, cols}, out, rows, cols, 1e-6));
}

#endif
