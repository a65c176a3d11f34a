// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm in bfloat16, and a causal log-softmax in float with a scale that all elements share.
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

}  // extern "C"
