// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Softmax of scale * x + a bias that the samples of a batch share, masked by sample, and dropout.
// Rows are visited with the batch innermost, so those that share the bias are neighbours.
#include "place.h"

namespace {

using fusedops::half;
using fusedops::int64_t;
using fusedops::uint64_t;

struct Shape {
  int64_t batch, heads, queries, keys;
  int64_t rows() const { return batch * heads * queries; }
  auto full() const {
    const int64_t row = keys, head = queries * row, sample = heads * head;
    return fusedops::layout({heads, queries, batch, keys}, {head, row, sample, 1});
  }
  auto pair() const {
    return fusedops::layout({heads, queries, batch, keys}, {queries * keys, keys, 0, 1});
  }
  auto padding() const { return fusedops::layout({heads, queries, batch, keys}, {0, 0, keys, 1}); }
  auto number() const {
    return fusedops::layout({heads, queries, batch, keys}, {queries, 1, heads * queries, 0});
  }
  template <class X>
  auto in(X* x, const half* bias, const bool* mask) const {
    using namespace fusedops;
    return load(broadcast(x, full()), scale(0.125f), fusedops::bias(broadcast(bias, pair())),
                fusedops::mask(broadcast(mask, padding())));
  }
  auto out(half* y, double p, uint64_t seed, uint64_t offset) const {
    using namespace fusedops;
    return store(dropout(p, seed, offset, 0, number()), broadcast(y, full()));
  }
};

}  // namespace

extern "C" {

int attention(void* stream, const half* x, const half* bias, const bool* mask, half* y, float* kept,
              double p, uint64_t seed, uint64_t offset, int64_t batch, int64_t heads,
              int64_t queries, int64_t keys) {
  const Shape shape{batch, heads, queries, keys};
  return static_cast<int>(fusedops::dispatch_softmax<float>(
      place(stream), shape.in(x, bias, mask), shape.out(y, p, seed, offset), shape.rows(),
      fusedops::cols<1, 1024>(keys), kept));
}

int attention_gradient(void* stream, const half* x, const half* bias, const bool* mask,
                       const float* kept, const half* dy, half* dx, half* dbias, double p,
                       uint64_t seed, uint64_t offset, int64_t batch, int64_t heads,
                       int64_t queries, int64_t keys, void* space, size_t bytes, size_t* needed) {
  using namespace fusedops;
  const Shape shape{batch, heads, queries, keys};
  const auto wanted = gradients(in_load<1>(shared_by(batch, broadcast(dbias, shape.pair()))));
  if (needed != nullptr) return workspace<float>(place(stream), wanted, shape.rows(), keys, needed);
  return static_cast<int>(dispatch_softmax_gradient<float>(
      place(stream), shape.in(x, bias, mask), shape.out(nullptr, p, seed, offset), kept,
      broadcast(dy, shape.full()), broadcast(dx, shape.full()), wanted, space, bytes, shape.rows(),
      fusedops::cols<1, 1024>(keys)));
}

}  // extern "C"
