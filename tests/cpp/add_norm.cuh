// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm of residual + dropout(x + bias), whose sum is saved; gamma and beta in float.
#include "place.h"

using fusedops::half;
using fusedops::int64_t;
using fusedops::uint64_t;

extern "C" {

int add_norm(void* stream, const half* x, const half* bias, const half* residual, half* sum,
             const float* gamma, const float* beta, half* y, float* mean, float* rstd, float* kept,
             double p, uint64_t seed, uint64_t offset, int64_t rows, int64_t cols, int64_t pitch) {
  using namespace fusedops;
  const auto in = load(direct(x, pitch), fusedops::bias(per_column(bias)), dropout(p, seed, offset),
                       saved_residual(direct(residual, cols), direct(sum, cols)));
  const auto out = store(affine(per_column(gamma), per_column(beta)), direct(y, cols));
  return static_cast<int>(
      dispatch_layer_norm<float>(place(stream), in, out, rows, cols, 1e-5, mean, rstd, kept));
}

int add_norm_gradient(void* stream, const half* x, const half* bias, half* sum, const float* gamma,
                      const float* kept, const half* dy, const half* dsum, half* dx, half* dbias,
                      half* dresidual, float* dgamma, float* dbeta, double p, uint64_t seed,
                      uint64_t offset, int64_t rows, int64_t cols, int64_t pitch, void* space,
                      size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted =
      gradients(in_load<0>(per_column(dbias)), in_load<2>(direct(dresidual, cols)),
                in_store<0, 0>(per_column(dgamma)), in_store<0, 1>(per_column(dbeta)));
  if (needed != nullptr) return workspace<float>(place(stream), wanted, rows, cols, needed);
  const auto in = load(direct(x, pitch), fusedops::bias(per_column(bias)), dropout(p, seed, offset),
                       saved_residual(Unread{}, direct(sum, cols), 1, direct(dsum, cols)));
  const auto out = store(affine(per_column(gamma), per_column(gamma)), Absent{});
  return static_cast<int>(dispatch_layer_norm_gradient<float>(place(stream), in, out, kept,
                                                              direct(dy, cols), direct(dx, cols),
                                                              wanted, space, bytes, rows, cols));
}

}  // extern "C"
