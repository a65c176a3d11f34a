// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients of functors, alone and composed in a LOAD or a STORE, in double. test_backward.py
// has a torch function of the same name for every chain below and compares with autograd.
#include <cstring>
#include <fusedops/functor/affine.cuh>
#include <fusedops/functor/alibi.cuh>
#include <fusedops/functor/bias.cuh>
#include <fusedops/functor/cast.cuh>
#include <fusedops/functor/causal.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/functor/dropout.cuh>
#include <fusedops/functor/lengths.cuh>
#include <fusedops/functor/mask.cuh>
#include <fusedops/functor/residual.cuh>
#include <fusedops/functor/scale.cuh>
#include <fusedops/functor/window.cuh>
#include <type_traits>

using namespace fusedops;

namespace {

constexpr int kFunctors = 6;
constexpr int kOperands = 2;

template <class T>
using Full = View<T, 1, Column::kContiguous, kAnyWidth>;

}  // namespace

/// One call: a chain's name, where it stands, and rows of doubles. Pointers to rows are dense.
struct Problem {
  int64_t rows, cols;
  const char*
      side;  // "alone", "load", "store", or "again": a LOAD's gradient without a load before
  const double* x;
  const double* upstream;
  double* y;
  double* dx;
  const double* operand[4];
  const uint8_t* flags;
  const int64_t* lengths;
  double* stream;
  double* gradient[kFunctors][kOperands];  // by functor and operand, an element each
};

namespace {

Value<double> number(double value) { return {{value}}; }

/// Adds up what it is handed, so that a gradient handed over twice shows.
struct Recorder {
  const Problem& p;
  template <int kFunctor, int kOperand, int N, class Row>
  void add(const double (&gradient)[N], const Row& row, int64_t col) {
    for (int i = 0; i < N; ++i)
      p.gradient[kFunctor][kOperand][row * p.cols + col + i] += gradient[i];
  }
};

/// One pack of one row through the functors, forward and backward.
template <int N, class... F>
void pack(const Problem& p, int64_t number, int64_t col, const F&... functors) {
  const RowIndex<1> row{number, {number}};
  const int64_t at = number * p.cols + col;
  const Full<const double> source{p.x, {{p.cols}}, 1};
  const Full<double> target{p.y, {{p.cols}}, 1};
  Recorder sink{p};
  double v[N], g[N];
  std::memcpy(v, p.x + at, sizeof(v));
  std::memcpy(g, p.upstream + at, sizeof(g));
  const auto is = [&](const char* side) { return std::strcmp(p.side, side) == 0; };
  if (is("load") || is("again")) {
    const auto chain = load(source, functors...);
    if (is("load")) chain.template load<N>(p.y + at, row, col);
    double given[N] = {};
    chain.chain.masks(given, row, col);
    MaskedElements<N> masked;
    for (int i = 0; i < N; ++i) masked.at[i] = given[i] != 0;
    chain.backward(g, row, col, sink, masked);
  } else if (is("store")) {
    auto chain = store(functors..., target);
    chain.template store<N>(v, row, col);
    chain.backward(g, v, row, col, sink, NoneMasked{});
  } else if constexpr (sizeof...(F) == 1 && !(detail::masks<F>() || ...)) {
    SinkAt<0, Recorder> mine{sink};
    (functors.backward(g, v, row, col, mine), ...);
    (functors(v, row, col), ...);
    std::memcpy(p.y + at, v, sizeof(v));
  }
  std::memcpy(p.dx + at, g, sizeof(g));
}

/// All rows, in packs as wide as a CPU's, as wide as a GPU's, and single columns.
template <class... F>
void drive(const Problem& p, const F&... functors) {
  for (int64_t row = 0; row < p.rows; ++row) {
    int64_t col = 0;
    for (; col + 64 <= p.cols; col += 64) pack<64>(p, row, col, functors...);
    for (; col + 8 <= p.cols; col += 8) pack<8>(p, row, col, functors...);
    for (; col < p.cols; ++col) pack<1>(p, row, col, functors...);
  }
}

/// The functors of the chains, made from a problem's operands.
struct Make {
  const Problem& p;
  Full<const double> operand(int i) const { return {p.operand[i], {{p.cols}}, 1}; }

  auto scale(int i) const { return Scale<Full<const double>>{operand(i)}; }
  auto bias(int i) const { return Bias<Full<const double>>{operand(i)}; }
  auto mask() const { return Mask<Full<const uint8_t>, false>{{p.flags, {{p.cols}}, 1}}; }
  auto keep() const { return Mask<Full<const uint8_t>, true>{{p.flags, {{p.cols}}, 1}}; }
  auto causal() const { return Causal<RowMap<1>>{RowMap<1>{{1}}, 2}; }
  auto window() const { return Window<RowMap<1>>{RowMap<1>{{1}}, -2, 60}; }
  auto alibi(int i) const { return Alibi<Full<const double>, RowMap<1>>{operand(i), {{1}}, 40}; }
  auto lengths() const {
    using Lengths1 = View<const int64_t, 1, Column::kBroadcast, kAnyWidth>;
    return Lengths<Lengths1>{Lengths1{p.lengths, {{1}}, 0}};
  }
  auto dropout() const { return Dropout<double, RowMap<1>>{11, 3, 1 << 14, {4.0 / 3.0}, {{1}}}; }
  auto residual(int i) const {
    return Residual<Full<const double>, Value<double>>{operand(i), number(0.5)};
  }
  auto saved(int i) const {
    using Stream = Full<double>;
    return SavedResidual<Full<const double>, Value<double>, Stream>{
        residual(i), {{p.stream, {{p.cols}}, 1}, {}}};
  }
  auto gamma(int i) const { return Affine<Full<const double>, Absent>{operand(i), {}}; }
  auto beta(int i) const { return Affine<Absent, Full<const double>>{{}, operand(i)}; }
  auto affine(int i, int j) const {
    return Affine<Full<const double>, Full<const double>>{operand(i), operand(j)};
  }
  auto cast() const { return Cast<float>{}; }
};

}  // namespace

/// Runs the chain of this name; false if there is none.
extern "C" bool run(const char* name, const Problem* problem) {
  const Problem& p = *problem;
  const Make make{p};
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };

  if (is("scale")) return drive(p, make.scale(0)), true;
  if (is("bias")) return drive(p, make.bias(0)), true;
  if (is("mask")) return drive(p, make.mask()), true;
  if (is("keep")) return drive(p, make.keep()), true;
  if (is("causal")) return drive(p, make.causal()), true;
  if (is("window")) return drive(p, make.window()), true;
  if (is("lengths")) return drive(p, make.lengths()), true;
  if (is("alibi")) return drive(p, make.alibi(0)), true;
  if (is("dropout")) return drive(p, make.dropout()), true;
  if (is("residual")) return drive(p, make.residual(0)), true;
  if (is("saved")) return drive(p, make.saved(0)), true;
  if (is("gamma")) return drive(p, make.gamma(0)), true;
  if (is("beta")) return drive(p, make.beta(0)), true;
  if (is("affine")) return drive(p, make.affine(0, 1)), true;
  if (is("cast")) return drive(p, make.cast()), true;

  if (is("attention"))
    return drive(p, make.scale(0), make.bias(1), make.mask(), make.dropout()), true;
  if (is("add_norm"))
    return drive(p, make.bias(0), make.dropout(), make.saved(1), make.affine(2, 3)), true;
  if (is("written"))
    return drive(p, make.affine(0, 1), make.dropout(), make.scale(2), make.cast()), true;
  if (is("twice"))
    return drive(p, make.scale(0), make.bias(1), make.scale(2), make.residual(3)), true;
  if (is("indices"))
    return drive(p, make.causal(), make.scale(0), make.lengths(), make.bias(1)), true;
  if (is("positions"))
    return drive(p, make.scale(0), make.window(), make.alibi(1), make.scale(2)), true;
  if (is("mask_first"))
    return drive(p, make.mask(), make.scale(0), make.bias(1), make.scale(2)), true;
  if (is("mask_within"))
    return drive(p, make.scale(0), make.mask(), make.bias(1), make.scale(2)), true;
  if (is("mask_last"))
    return drive(p, make.scale(0), make.bias(1), make.scale(2), make.mask()), true;
  return false;
}
