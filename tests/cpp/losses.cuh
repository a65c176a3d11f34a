// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy of halves with a bias, a softcap and both terms; of floats with a mask, where class 0
// does not count and few kernels are compiled; and of doubles.
#include <fusedops/cross_entropy.cuh>

#include "place.h"

using fusedops::half;
using fusedops::int64_t;

namespace {

auto capped(const half* x, const float* shift, double cap, int64_t pitch) {
  using namespace fusedops;
  return load(direct(x, pitch), bias(per_column(shift)), softcap(static_cast<float>(cap)));
}

auto masked(const float* x, const bool* gone, int64_t cols) {
  using namespace fusedops;
  return load(direct(x, cols), mask(per_column(gone)));
}

}  // namespace

extern "C" {

int losses(void* stream, const half* x, const float* shift, double cap, const int64_t* labels,
           float* loss, float* lse, float* kept, double smoothing, double z_loss, int64_t rows,
           int64_t cols, int64_t pitch) {
  using namespace fusedops;
  return static_cast<int>(dispatch_cross_entropy<float>(place(stream), capped(x, shift, cap, pitch),
                                                        per_row(labels), loss, rows, cols, kept,
                                                        lse, LossTerms{smoothing, z_loss}));
}

int losses_gradient(void* stream, const half* x, const float* shift, double cap,
                    const int64_t* labels, const float* kept, const float* dloss, half* dx,
                    float* dshift, double smoothing, double z_loss, int64_t rows, int64_t cols,
                    int64_t pitch, void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted = gradients(in_load<0>(per_column(dshift)));
  if (needed != nullptr) return workspace<float>(place(stream), wanted, rows, cols, needed);
  return static_cast<int>(dispatch_cross_entropy_gradient<float>(
      place(stream), capped(x, shift, cap, pitch), per_row(labels), kept, per_row(dloss),
      direct(dx, pitch), wanted, space, bytes, rows, cols, LossTerms{smoothing, z_loss}));
}

// Labels lie two apart.
int masked_losses(void* stream, const float* x, const bool* gone, const int* labels, float* loss,
                  float* kept, int64_t rows, int64_t cols) {
  using namespace fusedops;
  return static_cast<int>(dispatch_cross_entropy<float, 0>(place(stream), masked(x, gone, cols),
                                                           per_row(labels, 2), loss, rows,
                                                           few_cols<>(cols), kept));
}

// dx may be the memory of x. Without dloss it is one half for all rows.
int masked_losses_gradient(void* stream, const float* x, const bool* gone, const int* labels,
                           const float* kept, const float* dloss, float* dx, int64_t rows,
                           int64_t cols) {
  using namespace fusedops;
  const auto go = [&](auto of_loss) {
    return static_cast<int>(dispatch_cross_entropy_gradient<float, 0>(
        place(stream), masked(x, gone, cols), per_row(labels, 2), kept, of_loss, direct(dx, cols),
        gradients(), nullptr, 0, rows, few_cols<>(cols)));
  };
  return dloss != nullptr ? go(single(dloss)) : go(0.5);
}

int double_losses(void* stream, const double* x, const int64_t* labels, double* loss, double* kept,
                  int64_t rows, int64_t cols) {
  using namespace fusedops;
  return static_cast<int>(dispatch_cross_entropy<double>(place(stream), load(direct(x, cols)),
                                                         per_row(labels), loss, rows,
                                                         fusedops::cols<1, 300>(cols), kept));
}

int double_losses_gradient(void* stream, const double* x, const int64_t* labels, const double* kept,
                           const double* dloss, double* dx, int64_t rows, int64_t cols) {
  using namespace fusedops;
  return static_cast<int>(dispatch_cross_entropy_gradient<double>(
      place(stream), load(direct(x, cols)), per_row(labels), kept, per_row(dloss),
      accumulate(direct(dx, cols)), gradients(), nullptr, 0, rows, fusedops::cols<1, 300>(cols)));
}

}  // extern "C"
