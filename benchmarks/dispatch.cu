// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks/dispatch.py measures: one dispatch of the C++ entry points in half, PART of three.
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>

using namespace fusedops;

#if PART == 0
extern "C" int softmax(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y) {
  return dispatch_softmax<float>(stream, load(direct(x, cols)), store(direct(y, cols)), rows, cols);
}
#elif PART == 1
extern "C" int layer_norm(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y,
                          const half* gamma, const half* beta) {
  const auto out = store(affine(per_column(gamma), per_column(beta)), direct(y, cols));
  return dispatch_layer_norm<float>(stream, load(direct(x, cols)), out, rows, cols, 1e-5);
}
#else
extern "C" int layer_norm_gradient(cudaStream_t stream, int64_t rows, int64_t cols, const half* x,
                                   half* dx, const half* gamma, const half* dy, const float* kept,
                                   half* dgamma, half* dbeta, void* workspace, size_t bytes,
                                   size_t* needed) {
  const auto wanted =
      gradients(in_store<0, 0>(per_column(dgamma)), in_store<0, 1>(per_column(dbeta)));
  if (needed != nullptr) return gradient_workspace<float>(wanted, rows, cols, needed);
  const auto out = store(affine(per_column(gamma), per_column(gamma)), Absent{});
  return dispatch_layer_norm_gradient<float>(stream, load(direct(x, cols)), out, kept,
                                             direct(dy, cols), direct(dx, cols), wanted, workspace,
                                             bytes, rows, cols);
}
#endif
