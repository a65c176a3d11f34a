// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A small GPT: embeddings, blocks of attention and of a perceptron with norms in front, a norm, the
// next token. All that is no row operation is a loop over elements, written for reading.
#pragma once

#include <vector>

#include "rows.h"

struct Sizes {
  int64_t batch = 4, tokens = 16, width = 32, heads = 2, layers = 2, vocabulary = 13;
  int64_t rows() const { return batch * tokens; }
};

/// A parameter and its gradient.
template <class T>
struct Parameter {
  T *at, *gradient;
  int64_t count;
};

/// out[m, n] += the sum over k of a[m * am + k * ak] * b[k * bk + n * bn].
template <class Place, class T>
void multiply(Place& place, int64_t rows, int64_t cols, int64_t terms, const T* a, int64_t am,
              int64_t ak, const T* b, int64_t bk, int64_t bn, T* out, int64_t om) {
  place.each(
      rows * cols, EACH(int64_t i) {
        const int64_t m = i / cols, n = i % cols;
        T sum = 0;
        for (int64_t k = 0; k < terms; ++k) sum += a[m * am + k * ak] * b[k * bk + n * bn];
        out[m * om + n] += sum;
      });
}

template <class Place, class T, class Rows>
class Model {
 public:
  Model(Place& place, const Sizes& sizes) : place_(place), s_(sizes) {
    tokens_ = parameter(s_.vocabulary * s_.width, 1);
    places_ = parameter(s_.tokens * s_.width, 2);
    for (int64_t i = 0; i < s_.layers; ++i) {
      const unsigned seed = static_cast<unsigned>(10 * i);
      layers_.push_back({norm(), norm(), parameter(3 * s_.width * s_.width, seed + 3),
                         parameter(s_.width * s_.width, seed + 4),
                         parameter(4 * s_.width * s_.width, seed + 5),
                         parameter(4 * s_.width * s_.width, seed + 6)});
    }
    last_ = norm();

    good_ = place_.template workspace<T>(Fused::wanted(last_), s_.rows(), s_.width, &bytes_);
    workspace_ = place_.template zeros<char>(static_cast<int64_t>(bytes_) + 16);
  }

  /// One step of gradient descent; the loss before it.
  double step(const int* ids, const int* next, T rate) {
    const int64_t rows = s_.rows(), width = s_.width, count = rows * width;
    std::vector<Saved> saved;
    T* x = zeros(count);
    const T *of_token = tokens_.at, *of_place = places_.at;
    const int64_t length = s_.tokens;
    place_.each(
        count, EACH(int64_t i) {
          const int64_t row = i / width, c = i % width;
          x[i] = of_token[ids[row] * width + c] + of_place[row % length * width + c];
        });
    for (const Layer& layer : layers_) {
      saved.push_back(forward(layer, x));
      x = saved.back().out;
    }
    T *y = zeros(count), *logits = zeros(rows * s_.vocabulary), *losses = zeros(rows);
    T* kept = zeros(2 * rows);
    good_ = Rows::norm(place_, last_, static_cast<const T*>(x), y, rows, width) && good_;
    linear(tokens_, y, logits, rows, width, s_.vocabulary);
    good_ = Rows::losses(place_, static_cast<const T*>(logits), next, losses, kept, rows,
                         s_.vocabulary) &&
            good_;
    good_ = Rows::losses_gradient(place_, logits, next, static_cast<const T*>(kept), rows,
                                  s_.vocabulary) &&
            good_;
    T *dy = zeros(count), *dx = zeros(count);
    linear_gradient(tokens_, y, logits, dy, rows, width, s_.vocabulary);
    norm_gradient(last_, x, dy, dx);
    for (size_t i = layers_.size(); i-- > 0;) backward(layers_[i], saved[i], dx);
    T *dtoken = tokens_.gradient, *dplace = places_.gradient;
    place_.each(
        width, EACH(int64_t c) {
          for (int64_t row = 0; row < rows; ++row) {
            dtoken[ids[row] * width + c] += dx[row * width + c];
            dplace[row % length * width + c] += dx[row * width + c];
          }
        });
    for (const Parameter<T>& p : all_) {
      T *at = p.at, *gradient = p.gradient;
      place_.each(
          p.count, EACH(int64_t i) {
            at[i] -= rate * gradient[i];
            gradient[i] = 0;
          });
    }
    double loss = 0;
    for (const T one : place_.download(static_cast<const T*>(losses), rows)) loss += double(one);
    used_ = 0;
    return loss / double(rows);
  }
  bool good() const { return good_; }

  // Public, since nvcc takes no lambda for the device in a function that is not.
  struct Layer {
    Norm<T> first, second;
    Parameter<T> qkv, out, up, down;
  };
  struct Saved {
    const T* x;
    T *normed, *qkv, *scores, *weights, *kept, *heads, *middle, *again, *before, *after, *out;
  };

  Saved forward(const Layer& layer, const T* x) {
    const int64_t rows = s_.rows(), width = s_.width, count = rows * width;
    const int64_t all = s_.batch * s_.heads * s_.tokens;
    Saved s{x,
            zeros(count),
            zeros(3 * count),
            zeros(all * s_.tokens),
            zeros(all * s_.tokens),
            zeros(all * 2),
            zeros(count),
            zeros(count),
            zeros(count),
            zeros(4 * count),
            zeros(4 * count),
            zeros(count)};
    good_ = Rows::norm(place_, layer.first, x, s.normed, rows, width) && good_;
    linear(layer.qkv, s.normed, s.qkv, rows, width, 3 * width);
    of_heads(
        [&](int64_t head, T* at, int64_t depth, T* out) {
          multiply(place_, s_.tokens, s_.tokens, depth, static_cast<const T*>(at), 3 * width, 1,
                   static_cast<const T*>(at + width), 1, 3 * width, s.scores + head, s_.tokens);
          (void)out;
        },
        s.qkv, s.heads);
    good_ = Rows::softmax(place_, static_cast<const T*>(s.scores), scale(), s.weights, s.kept, all,
                          s_.tokens) &&
            good_;
    of_heads(
        [&](int64_t head, T* at, int64_t depth, T* out) {
          multiply(place_, s_.tokens, depth, s_.tokens, static_cast<const T*>(s.weights + head),
                   s_.tokens, 1, static_cast<const T*>(at + 2 * width), 3 * width, 1, out, width);
        },
        s.qkv, s.heads);
    add(s.middle, x, count);
    linear(layer.out, s.heads, s.middle, rows, width, width);
    good_ =
        Rows::norm(place_, layer.second, static_cast<const T*>(s.middle), s.again, rows, width) &&
        good_;
    linear(layer.up, s.again, s.before, rows, width, 4 * width);
    const T* before = s.before;
    T* after = s.after;
    place_.each(
        4 * count,
        EACH(int64_t i) { after[i] = before[i] / (T(1) + std::exp(T(-1.702) * before[i])); });
    add(s.out, s.middle, count);
    linear(layer.down, s.after, s.out, rows, 4 * width, width);
    return s;
  }

  /// dx: on entry the gradient of the layer's result, on exit that of its x.
  void backward(const Layer& layer, const Saved& s, T* dx) {
    const int64_t rows = s_.rows(), width = s_.width, count = rows * width;
    const int64_t all = s_.batch * s_.heads * s_.tokens;
    T *dafter = zeros(4 * count), *dagain = zeros(count), *dheads = zeros(count);
    linear_gradient(layer.down, s.after, dx, dafter, rows, 4 * width, width);
    const T* before = s.before;
    place_.each(
        4 * count, EACH(int64_t i) {
          const T sigmoid = T(1) / (T(1) + std::exp(T(-1.702) * before[i]));
          dafter[i] *= sigmoid * (T(1) + T(1.702) * before[i] * (T(1) - sigmoid));
        });
    linear_gradient(layer.up, s.again, dafter, dagain, rows, width, 4 * width);
    norm_gradient(layer.second, s.middle, dagain, dx);
    linear_gradient(layer.out, s.heads, dx, dheads, rows, width, width);
    T *dqkv = zeros(3 * count), *dweights = zeros(all * s_.tokens),
      *dscores = zeros(all * s_.tokens);
    of_heads(
        [&](int64_t head, T* at, int64_t depth, T* dhead) {
          const T* value = s.qkv + (at - dqkv) + 2 * width;
          multiply(place_, s_.tokens, s_.tokens, depth, static_cast<const T*>(dhead), width, 1,
                   value, 1, 3 * width, dweights + head, s_.tokens);
          multiply(place_, s_.tokens, depth, s_.tokens, static_cast<const T*>(s.weights + head), 1,
                   s_.tokens, static_cast<const T*>(dhead), width, 1, at + 2 * width, 3 * width);
        },
        dqkv, dheads);
    good_ = Rows::softmax_gradient(place_, static_cast<const T*>(s.scores), scale(),
                                   static_cast<const T*>(s.weights), static_cast<const T*>(s.kept),
                                   static_cast<const T*>(dweights), dscores, all, s_.tokens) &&
            good_;
    of_heads(
        [&](int64_t head, T* at, int64_t depth, T*) {
          const T *query = s.qkv + (at - dqkv), *key = query + width, *of = dscores + head;
          multiply(place_, s_.tokens, depth, s_.tokens, of, s_.tokens, 1, key, 3 * width, 1, at,
                   3 * width);
          multiply(place_, s_.tokens, depth, s_.tokens, of, 1, s_.tokens, query, 3 * width, 1,
                   at + width, 3 * width);
        },
        dqkv, dheads);
    T* dnormed = zeros(count);
    linear_gradient(layer.qkv, s.normed, dqkv, dnormed, rows, width, 3 * width);
    norm_gradient(layer.first, s.x, dnormed, dx);
  }

  /// Calls f(where the scores of the head begin, its queries, its depth, its part of `heads`).
  template <class F>
  void of_heads(const F& f, T* qkv, T* heads) {
    const int64_t depth = s_.width / s_.heads;
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        const int64_t row = b * s_.tokens;
        f((b * s_.heads + h) * s_.tokens * s_.tokens, qkv + row * 3 * s_.width + h * depth, depth,
          heads + row * s_.width + h * depth);
      }
    }
  }
  T scale() const { return T(1) / std::sqrt(T(s_.width) / T(s_.heads)); }

  void norm_gradient(const Norm<T>& p, const T* x, const T* dy, T* dx) {
    good_ =
        Rows::norm_gradient(place_, p, x, dy, dx, workspace_, bytes_, s_.rows(), s_.width) && good_;
  }
  void linear(const Parameter<T>& p, const T* x, T* y, int64_t rows, int64_t in, int64_t out) {
    multiply(place_, rows, out, in, x, in, int64_t(1), static_cast<const T*>(p.at), int64_t(1), in,
             y, out);
  }
  void linear_gradient(const Parameter<T>& p, const T* x, const T* dy, T* dx, int64_t rows,
                       int64_t in, int64_t out) {
    multiply(place_, rows, in, out, dy, out, int64_t(1), static_cast<const T*>(p.at), in,
             int64_t(1), dx, in);
    multiply(place_, out, in, rows, dy, int64_t(1), out, x, in, int64_t(1), p.gradient, in);
  }
  void add(T* to, const T* from, int64_t count) {
    place_.each(count, EACH(int64_t i) { to[i] += from[i]; });
  }

  /// Zeros for one step; the next has the same memory.
  T* zeros(int64_t count) {
    if (used_ == scratch_.size()) scratch_.push_back(place_.template zeros<T>(count));
    T* found = scratch_[used_++];
    place_.each(count, EACH(int64_t i) { found[i] = 0; });
    return found;
  }
  Parameter<T> parameter(int64_t count, unsigned seed) {
    std::vector<T> values(static_cast<size_t>(count));
    unsigned state = seed * 2654435761u + 12345u;
    for (T& value : values) {
      state = state * 1664525u + 1013904223u;
      value = T(double(state >> 8) / double(1 << 24) - 0.5) / T(4);
    }
    all_.push_back({place_.upload(values), place_.template zeros<T>(count), count});
    return all_.back();
  }
  Norm<T> norm() {
    const std::vector<T> ones(static_cast<size_t>(s_.width), T(1)), none(ones.size());
    all_.push_back({place_.upload(ones), place_.template zeros<T>(s_.width), s_.width});
    const Parameter<T> gamma = all_.back();
    all_.push_back({place_.upload(none), place_.template zeros<T>(s_.width), s_.width});
    const Parameter<T> beta = all_.back();
    return {gamma.at,
            beta.at,
            gamma.gradient,
            beta.gradient,
            place_.template zeros<T>(s_.rows()),
            place_.template zeros<T>(s_.rows())};
  }

 private:
  Place& place_;
  Sizes s_;
  Parameter<T> tokens_, places_;
  std::vector<Parameter<T>> all_;
  std::vector<Layer> layers_;
  Norm<T> last_;
  std::vector<T*> scratch_;
  size_t used_ = 0, bytes_ = 0;
  void* workspace_ = nullptr;
  bool good_ = true;
};
