// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of one dispatch of several, of which tests/test_dispatch_spills.py counts the spills.
#include <fusedops/cross_entropy.cuh>
#include <fusedops/layer_norm.cuh>
#include <fusedops/rms_norm.cuh>
#include <fusedops/softmax.cuh>
using namespace fusedops;
using S = cudaStream_t;
using I = int64_t;
#ifndef C
#define C c
#endif
#if PASS == 0
cudaError_t a(S s, const TYPE* x, TYPE* y, I r, I c) {
  return dispatch_softmax<CT>(s, load(direct(x, c)), store(direct(y, c)), r, C);
}
#elif PASS == 1
cudaError_t a(S s, const TYPE* x, TYPE* y, I r, I c) {
  return dispatch_layer_norm<CT>(s, load(direct(x, c)), store(direct(y, c)), r, C, 1e-5);
}
cudaError_t b(S s, const TYPE* x, TYPE* y, I r, I c) {
  return dispatch_rms_norm<CT>(s, load(direct(x, c)), store(direct(y, c)), r, C, 1e-5);
}
#elif PASS == 2
cudaError_t a(S s, const TYPE* x, TYPE* y, const TYPE* g, const TYPE* b, I r, I c) {
  return dispatch_layer_norm<CT>(
      s, load(direct(x, c)), store(affine(per_column(g), per_column(b)), direct(y, c)), r, C, 1e-5);
}
#elif PASS == 3
cudaError_t a(S s, const TYPE* x, const CT* k, const TYPE* dy, TYPE* dx, I r, I c) {
  return dispatch_softmax_gradient<CT>(s, load(direct(x, c)), store(Absent{}), k, direct(dy, c),
                                       direct(dx, c), gradients(), nullptr, 0, r, C);
}
cudaError_t b(S s, const TYPE* y, const TYPE* dy, TYPE* dx, I r, I c) {
  return dispatch_softmax_gradient<CT>(s, load(direct(y, c)), load(direct(dy, c)),
                                       store(direct(dx, c)), r, C);
}
#elif PASS == 4
cudaError_t a(S s, const TYPE* x, const CT* k, const TYPE* dy, TYPE* dx, const TYPE* g, TYPE* dg,
              TYPE* db, void* w, size_t n, I r, I c) {
  return dispatch_layer_norm_gradient<CT>(
      s, load(direct(x, c)), store(affine(per_column(g), per_column(g)), Absent{}), k,
      direct(dy, c), direct(dx, c),
      gradients(in_store<0, 0>(per_column(dg)), in_store<0, 1>(per_column(db))), w, n, r, C);
}
#elif PASS == 5
cudaError_t a(S s, const TYPE* x, const CT* k, const TYPE* dy, TYPE* dx, const TYPE* g, TYPE* dg,
              void* w, size_t n, I r, I c) {
  return dispatch_rms_norm_gradient<CT>(
      s, load(direct(x, c)), store(affine(per_column(g)), Absent{}), k, direct(dy, c),
      direct(dx, c), gradients(in_store<0, 0>(per_column(dg))), w, n, r, C);
}
#elif PASS == 6
cudaError_t a(S s, const TYPE* x, const I* t, CT* l, CT* k, I r, I c) {
  return dispatch_cross_entropy<CT>(s, load(direct(x, c)), per_row(t), l, r, C, k);
}
cudaError_t b(S s, const TYPE* x, const I* t, CT* l, CT* k, I r, I c) {
  return dispatch_cross_entropy<CT>(s, load(direct(x, c)), per_row(t), l, r, C, k, l,
                                    LossTerms{0.1, 1e-4});
}
#elif PASS == 7
cudaError_t a(S s, const TYPE* x, const I* t, const CT* k, TYPE* dx, I r, I c) {
  return dispatch_cross_entropy_gradient<CT>(s, load(direct(x, c)), per_row(t), k, CT(0.5),
                                             direct(dx, c), gradients(), nullptr, 0, r, C);
}
cudaError_t b(S s, const TYPE* x, const I* t, const CT* k, const CT* d, TYPE* dx, I r, I c) {
  return dispatch_cross_entropy_gradient<CT>(s, load(direct(x, c)), per_row(t), k, per_row(d),
                                             direct(dx, c), gradients(), nullptr, 0, r, C,
                                             LossTerms{0.1, 1e-4});
}
#endif
