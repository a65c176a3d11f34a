// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What the model does with rows, twice: `Fused` calls this library, `Plain` is the reference, one
// loop for each row. Gradients of parameters are added to what is there, and so is dx of a norm: the
// residual stream has another gradient already.
#pragma once

#include <cmath>

#include "place.h"

/// The short rows of this example need few kernels.
using ShortRows = fusedops::few_cols<1, 256>;

template <class T>
struct Norm {
  const T *gamma, *beta;
  T *dgamma, *dbeta;
  T *mean, *rstd;  // of each row
};

struct Fused {
  template <class Place, class T>
  static bool norm(Place& place, const Norm<T>& p, const T* x, T* y, int64_t rows, int64_t cols) {
    using namespace fusedops;
    const auto out = store(affine(per_column(p.gamma), per_column(p.beta)), direct(y, cols));
    return place.good(dispatch_layer_norm<T>(place.where(), load(direct(x, cols)), out, rows,
                                             ShortRows(cols), 1e-5, p.mean, p.rstd));
  }
  template <class Place, class T>
  static bool norm_gradient(Place& place, const Norm<T>& p, const T* x, const T* dy, T* dx,
                            void* workspace, size_t bytes, int64_t rows, int64_t cols) {
    using namespace fusedops;
    const auto out = store(affine(per_column(p.gamma), per_column(p.beta)), Absent{});
    return place.good(dispatch_layer_norm_gradient<T>(
        place.where(), load(direct(x, cols)), out, static_cast<const T*>(p.mean),
        static_cast<const T*>(p.rstd), direct(dy, cols), accumulate(direct(dx, cols)), wanted(p),
        workspace, bytes, rows, ShortRows(cols)));
  }
  template <class T>
  static auto wanted(const Norm<T>& p) {
    using namespace fusedops;
    return gradients(in_store<0, 0>(accumulate(per_column(p.dgamma))),
                     in_store<0, 1>(accumulate(per_column(p.dbeta))));
  }

  /// Softmax of scale * x, causal: the rows are the queries of each head, one after another.
  template <class T>
  static auto scores(const T* x, T scale, int64_t cols) {
    using namespace fusedops;
    return load(direct(x, cols), fusedops::scale(scale), causal(cols));
  }
  template <class Place, class T>
  static bool softmax(Place& place, const T* x, T scale, T* y, T* kept, int64_t rows,
                      int64_t cols) {
    using namespace fusedops;
    return place.good(dispatch_softmax<T>(place.where(), scores(x, scale, cols),
                                          store(direct(y, cols)), rows, ShortRows(cols), kept));
  }
  template <class Place, class T>
  static bool softmax_gradient(Place& place, const T* x, T scale, const T*, const T* kept,
                               const T* dy, T* dx, int64_t rows, int64_t cols) {
    using namespace fusedops;
    return place.good(dispatch_softmax_gradient<T>(
        place.where(), scores(x, scale, cols), store(Absent{}), kept, direct(dy, cols),
        direct(dx, cols), gradients(), nullptr, 0, rows, ShortRows(cols)));
  }

  template <class Place, class T>
  static bool losses(Place& place, const T* logits, const int* target, T* loss, T* kept,
                     int64_t rows, int64_t cols) {
    using namespace fusedops;
    return place.good(dispatch_cross_entropy<T>(place.where(), load(direct(logits, cols)),
                                                per_row(target), loss, rows, ShortRows(cols),
                                                kept));
  }
  /// The gradient of the mean loss, in place of the logits.
  template <class Place, class T>
  static bool losses_gradient(Place& place, T* logits, const int* target, const T* kept,
                              int64_t rows, int64_t cols) {
    using namespace fusedops;
    const auto in = load(direct(static_cast<const T*>(logits), cols));
    return place.good(dispatch_cross_entropy_gradient<T>(
        place.where(), in, per_row(target), kept, T(1) / T(rows), direct(logits, cols), gradients(),
        nullptr, 0, rows, ShortRows(cols)));
  }
};

struct Plain {
  template <class Place, class T>
  static bool norm(Place& place, const Norm<T>& p, const T* x, T* y, int64_t rows, int64_t cols) {
    place.each(
        rows, EACH(int64_t row) {
          const T* of = x + row * cols;
          T sum = 0, squares = 0;
          for (int64_t c = 0; c < cols; ++c) sum += of[c];
          const T mean = sum / T(cols);
          for (int64_t c = 0; c < cols; ++c) squares += (of[c] - mean) * (of[c] - mean);
          const T rstd = T(1) / std::sqrt(squares / T(cols) + T(1e-5));
          for (int64_t c = 0; c < cols; ++c) {
            y[row * cols + c] = (of[c] - mean) * rstd * p.gamma[c] + p.beta[c];
          }
          p.mean[row] = mean;
          p.rstd[row] = rstd;
        });
    return true;
  }
  template <class Place, class T>
  static bool norm_gradient(Place& place, const Norm<T>& p, const T* x, const T* dy, T* dx, void*,
                            size_t, int64_t rows, int64_t cols) {
    place.each(
        cols, EACH(int64_t c) {
          T dgamma = 0, dbeta = 0;
          for (int64_t row = 0; row < rows; ++row) {
            dgamma += dy[row * cols + c] * (x[row * cols + c] - p.mean[row]) * p.rstd[row];
            dbeta += dy[row * cols + c];
          }
          p.dgamma[c] += dgamma;
          p.dbeta[c] += dbeta;
        });
    place.each(
        rows, EACH(int64_t row) {
          T plain = 0, along = 0;
          for (int64_t c = 0; c < cols; ++c) {
            const T g = dy[row * cols + c] * p.gamma[c];
            plain += g;
            along += g * (x[row * cols + c] - p.mean[row]) * p.rstd[row];
          }
          for (int64_t c = 0; c < cols; ++c) {
            const T y = (x[row * cols + c] - p.mean[row]) * p.rstd[row];
            const T g = dy[row * cols + c] * p.gamma[c];
            dx[row * cols + c] += p.rstd[row] * (g - plain / T(cols) - y * along / T(cols));
          }
        });
    return true;
  }

  template <class Place, class T>
  static bool softmax(Place& place, const T* x, T scale, T* y, T*, int64_t rows, int64_t cols) {
    place.each(
        rows, EACH(int64_t row) {
          const int64_t last = row % cols;
          T most = x[row * cols] * scale, sum = 0;
          for (int64_t c = 0; c <= last; ++c) {
            const T v = x[row * cols + c] * scale;
            most = v > most ? v : most;
          }
          for (int64_t c = 0; c < cols; ++c) {
            const T v = c > last ? T(0) : std::exp(x[row * cols + c] * scale - most);
            y[row * cols + c] = v;
            sum += v;
          }
          for (int64_t c = 0; c < cols; ++c) y[row * cols + c] /= sum;
        });
    return true;
  }
  template <class Place, class T>
  static bool softmax_gradient(Place& place, const T*, T scale, const T* y, const T*, const T* dy,
                               T* dx, int64_t rows, int64_t cols) {
    place.each(
        rows, EACH(int64_t row) {
          T along = 0;
          for (int64_t c = 0; c < cols; ++c) along += y[row * cols + c] * dy[row * cols + c];
          for (int64_t c = 0; c < cols; ++c) {
            dx[row * cols + c] = scale * y[row * cols + c] * (dy[row * cols + c] - along);
          }
        });
    return true;
  }

  /// kept: the largest logit of each row, and the sum of exponentials.
  template <class Place, class T>
  static bool losses(Place& place, const T* logits, const int* target, T* loss, T* kept,
                     int64_t rows, int64_t cols) {
    place.each(
        rows, EACH(int64_t row) {
          const T* of = logits + row * cols;
          T most = of[0], sum = 0;
          for (int64_t c = 1; c < cols; ++c) most = of[c] > most ? of[c] : most;
          for (int64_t c = 0; c < cols; ++c) sum += std::exp(of[c] - most);
          loss[row] = std::log(sum) + most - of[target[row]];
          kept[2 * row] = most;
          kept[2 * row + 1] = sum;
        });
    return true;
  }
  template <class Place, class T>
  static bool losses_gradient(Place& place, T* logits, const int* target, const T* kept,
                              int64_t rows, int64_t cols) {
    place.each(
        rows, EACH(int64_t row) {
          T* of = logits + row * cols;
          for (int64_t c = 0; c < cols; ++c) {
            const T p = std::exp(of[c] - kept[2 * row]) / kept[2 * row + 1];
            of[c] = (p - (c == target[row] ? T(1) : T(0))) / T(rows);
          }
        });
    return true;
  }
};
