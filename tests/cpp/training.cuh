// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What training loops in C++ ask for: gradients from mean and rstd, added to what is there and in
// place, and dropout whose seed and offset lie in memory.
#include "place.h"

using fusedops::half;
using fusedops::int64_t;
using fusedops::uint64_t;

namespace {

/// The size of the workspace, or -1 if it is not that of so many sums.
template <class Compute, class Wanted, class Sums>
int workspace_by_shape(Place where, const Wanted& wanted, const Sums& sums, int64_t rows,
                       int64_t cols, size_t* bytes) {
  size_t by_shape = 0;
  const int status = workspace<Compute>(where, sums, rows, cols, &by_shape);
  if (status != workspace<Compute>(where, wanted, rows, cols, bytes)) return -1;
  return *bytes == by_shape ? status : -1;
}

struct As {
  template <class T>
  T operator()(const T& target) const {
    return target;
  }
};
struct Adding {
  template <class T>
  auto operator()(const T& target) const {
    return fusedops::accumulate(target);
  }
};

template <class To>
int sum_norm_gradient_to(To to, Place where, float* sum, const float* gamma, const float* mean,
                         const float* rstd, const float* dy, const float* dsum, float* dx,
                         half* dresidual, float* dgamma, double* dbeta, int64_t rows, int64_t cols,
                         void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const auto wanted =
      gradients(in_load<0>(to(direct(dresidual, cols))), in_store<0, 0>(to(per_column(dgamma))),
                in_store<0, 1>(to(per_column(dbeta))));
  if (needed != nullptr) {
    const auto sums = gradient_sums<2>();
    return workspace_by_shape<float>(where, wanted, sums, rows, cols, needed);
  }
  const auto in = load(direct(static_cast<const float*>(sum), cols),
                       saved_residual(Unread{}, direct(sum, cols), 1, direct(dsum, cols)));
  const auto out = store(affine(per_column(gamma), Unread{}), Absent{});
  return static_cast<int>(dispatch_layer_norm_gradient<float>(
      where, in, out, mean, rstd, direct(dy, cols), to(direct(dx, cols)), wanted, space, bytes,
      rows, few_cols<>(cols)));
}

using Few = fusedops::few_cols<1, 1024>;

auto drawing(const float* x, int64_t cols, double p, const uint64_t* draw) {
  using namespace fusedops;
  return load(direct(x, cols), row_dropout(p, Draw{draw}, 1));
}
auto drawing(const float* x, int64_t cols, double p, uint64_t seed, uint64_t offset) {
  using namespace fusedops;
  return load(direct(x, cols), row_dropout(p, seed, offset, 1));
}

}  // namespace

extern "C" {

int sum_norm(void* stream, const float* x, const half* residual, float* sum, const float* gamma,
             const double* beta, float* y, float* mean, float* rstd, int64_t rows, int64_t cols) {
  using namespace fusedops;
  const auto in = load(direct(x, cols), saved_residual(direct(residual, cols), direct(sum, cols)));
  const auto out = store(affine(per_column(gamma), per_column(beta)), direct(y, cols));
  return static_cast<int>(
      dispatch_layer_norm<float>(place(stream), in, out, rows, few_cols<>(cols), 1e-5, mean, rstd));
}

int sum_norm_gradient(void* stream, int64_t adds, float* sum, const float* gamma, const float* mean,
                      const float* rstd, const float* dy, const float* dsum, float* dx,
                      half* dresidual, float* dgamma, double* dbeta, int64_t rows, int64_t cols,
                      void* space, size_t bytes, size_t* needed) {
  const auto go = [&](auto to) {
    return sum_norm_gradient_to(to, place(stream), sum, gamma, mean, rstd, dy, dsum, dx, dresidual,
                                dgamma, dbeta, rows, cols, space, bytes, needed);
  };
  return adds ? go(Adding{}) : go(As{});
}

// Gradients that eight neighbouring rows share, that the columns of a row share, and that all share.
int shared_gradient(void* stream, int64_t adds, const float* x, const float* pair, const float* row,
                    const float* one, const float* kept, const float* dy, float* dpair, float* drow,
                    float* done, int64_t groups, int64_t cols, void* space, size_t bytes,
                    size_t* needed) {
  using namespace fusedops;
  const auto go = [&](auto to) {
    const int64_t shape[3] = {groups, 8, cols}, strides[3] = {cols, 0, 1};
    const auto shared = layout(shape, strides);
    const auto wanted = gradients(in_load<0>(to(shared_by(8, broadcast(dpair, shared)))),
                                  in_load<1>(to(per_row(drow))), in_load<2>(to(single(done))));
    if (needed != nullptr) {
      const auto sums = gradient_sums<0, 1, 1>(8);
      return workspace_by_shape<float>(place(stream), wanted, sums, 8 * groups, cols, needed);
    }
    const auto in = load(direct(x, cols), bias(broadcast(pair, shared)), scale(per_row(row)),
                         scale(single(one)));
    return static_cast<int>(
        dispatch_softmax_gradient<float>(place(stream), in, store(Absent{}), kept, direct(dy, cols),
                                         Absent{}, wanted, space, bytes, 8 * groups, Few(cols)));
  };
  return adds ? go(Adding{}) : go(As{});
}

int shared(void* stream, const float* x, const float* pair, const float* row, const float* one,
           float* y, float* kept, int64_t groups, int64_t cols) {
  using namespace fusedops;
  const int64_t shape[3] = {groups, 8, cols}, strides[3] = {cols, 0, 1};
  const auto in = load(direct(x, cols), bias(broadcast(pair, layout(shape, strides))),
                       scale(per_row(row)), scale(single(one)));
  return static_cast<int>(dispatch_softmax<float>(place(stream), in, store(direct(y, cols)),
                                                  8 * groups, Few(cols), kept));
}

// From memory where `draw` is not null.
int dropped(void* stream, const float* x, float* y, float* kept, double p, const uint64_t* draw,
            uint64_t seed, uint64_t offset, int64_t rows, int64_t cols) {
  using namespace fusedops;
  if (draw != nullptr) {
    const auto out = store(dropout(p, Draw{draw}), direct(y, cols));
    return static_cast<int>(dispatch_softmax<float>(place(stream), drawing(x, cols, p, draw), out,
                                                    rows, Few(cols), kept));
  }
  const auto out = store(dropout(p, seed, offset), direct(y, cols));
  return static_cast<int>(dispatch_softmax<float>(place(stream), drawing(x, cols, p, seed, offset),
                                                  out, rows, Few(cols), kept));
}

int dropped_gradient(void* stream, const float* x, const float* kept, const float* dy, float* dx,
                     double p, const uint64_t* draw, uint64_t seed, uint64_t offset, int64_t rows,
                     int64_t cols) {
  using namespace fusedops;
  const auto go = [&](const auto& in, const auto& out) {
    return static_cast<int>(dispatch_softmax_gradient<float>(
        place(stream), in, out, kept, direct(dy, cols), direct(dx, cols), gradients(), nullptr, 0,
        rows, Few(cols)));
  };
  if (draw != nullptr) {
    return go(drawing(x, cols, p, draw), store(dropout(p, Draw{draw}), Absent{}));
  }
  return go(drawing(x, cols, p, seed, offset), store(dropout(p, seed, offset), Absent{}));
}

// The gradient from a result, y of `x` as it is dropped; dy is dropped as well. `draw`: as above.
int dropped_gradient_of_result(void* stream, const float* x, const float* dy, float* dx, double p,
                               const uint64_t* draw, uint64_t seed, uint64_t offset, int64_t rows,
                               int64_t cols) {
  using namespace fusedops;
  const auto go = [&](const auto& of_x, const auto& of_dy) {
    return static_cast<int>(dispatch_softmax_gradient<float>(
        place(stream), of_x, of_dy, store(scale(2.f), direct(dx, cols)), rows, Few(cols)));
  };
  if (draw != nullptr) {
    return go(drawing(x, cols, p, draw), load(direct(dy, cols), dropout(p, Draw{draw})));
  }
  return go(drawing(x, cols, p, seed, offset), load(direct(dy, cols), dropout(p, seed, offset)));
}

}  // extern "C"
