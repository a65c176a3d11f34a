// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm in bfloat16, a causal log-softmax in float with a scale that all elements share, LayerNorm
// in double, and a softmax's gradient from its result, with rows that lie apart.
#include "place.h"

using fusedops::bfloat16;
using fusedops::int64_t;

extern "C" {

int rms(void* stream, const bfloat16* x, const bfloat16* gamma, bfloat16* y, float* rstd,
        float* kept, int64_t rows, int64_t cols) {
  using namespace fusedops;
  const auto out = store(affine(per_column(gamma)), direct(y, cols));
  return static_cast<int>(dispatch_rms_norm<float>(place(stream), load(direct(x, cols)), out, rows,
                                                   cols, 1e-6, rstd, kept));
}

int rms_gradient(void* stream, const bfloat16* x, const bfloat16* gamma, const float* kept,
                 const bfloat16* dy, bfloat16* dx, bfloat16* dgamma, int64_t rows, int64_t cols,
                 void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted = gradients(in_store<0>(per_column(dgamma)));
  if (needed != nullptr) return workspace<float>(place(stream), wanted, rows, cols, needed);
  return static_cast<int>(dispatch_rms_norm_gradient<float>(
      place(stream), load(direct(x, cols)), store(affine(per_column(gamma)), Absent{}), kept,
      direct(dy, cols), direct(dx, cols), wanted, space, bytes, rows, cols));
}

int causal_log_softmax(void* stream, const float* x, const float* factor, const double* shift,
                       float* y, float* kept, int64_t rows, int64_t queries, int64_t keys) {
  using namespace fusedops;
  const auto in = load(direct(x, keys), scale(single(factor)), bias(per_row(shift)),
                       causal(queries, keys - queries));
  return static_cast<int>(
      dispatch_log_softmax<float>(place(stream), in, store(direct(y, keys)), rows, keys, kept));
}

int causal_log_softmax_gradient(void* stream, const float* x, const float* factor,
                                const double* shift, const float* kept, const float* dy, float* dx,
                                float* dfactor, double* dshift, int64_t rows, int64_t queries,
                                int64_t keys, void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted = gradients(in_load<0>(single(dfactor)), in_load<1>(per_row(dshift)));
  if (needed != nullptr) return workspace<float>(place(stream), wanted, rows, keys, needed);
  const auto in = load(direct(x, keys), scale(single(factor)), bias(per_row(shift)),
                       causal(queries, keys - queries));
  return static_cast<int>(dispatch_log_softmax_gradient<float>(
      place(stream), in, store(Absent{}), kept, direct(dy, keys), direct(dx, keys), wanted, space,
      bytes, rows, keys));
}

int double_norm(void* stream, const double* x, const double* gamma, double* y, double* kept,
                int64_t rows, int64_t cols) {
  using namespace fusedops;
  const auto out = store(affine(per_column(gamma)), direct(y, cols));
  double *const mean = nullptr, *const rstd = nullptr;
  return static_cast<int>(dispatch_layer_norm<double>(place(stream), load(direct(x, cols)), out,
                                                      rows, fusedops::cols<1, 2048>(cols), 1e-5,
                                                      mean, rstd, kept));
}

int double_norm_gradient(void* stream, const double* x, const double* gamma, const double* kept,
                         const double* dy, double* dx, double* dgamma, int64_t rows, int64_t cols,
                         void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted = gradients(in_store<0>(per_column(dgamma)));
  if (needed != nullptr) return workspace<double>(place(stream), wanted, rows, cols, needed);
  return static_cast<int>(dispatch_layer_norm_gradient<double>(
      place(stream), load(direct(x, cols)), store(affine(per_column(gamma)), Absent{}), kept,
      direct(dy, cols), direct(dx, cols), wanted, space, bytes, rows,
      fusedops::cols<1, 2048>(cols)));
}

int softmax_gradient_of_result(void* stream, const float* y, const float* dy, float* dx,
                               int64_t rows, int64_t cols, int64_t pitch, int64_t other) {
  using namespace fusedops;
  return static_cast<int>(dispatch_softmax_gradient<float>(place(stream), load(direct(y, pitch)),
                                                           direct(dy, other), direct(dx, other),
                                                           rows, fusedops::cols<1, 1024>(cols)));
}

int failed(void*) {
#if defined(__CUDACC__)
  return static_cast<int>(cudaSetDevice(-1));
#else
  return 1;
#endif
}

}  // extern "C"
