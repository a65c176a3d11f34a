// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The functions that make functors, for load(source, ...) and store(..., target). An operand is the
// result of direct(), broadcast(), per_column(), per_row() or single(), of any dtype.
//
//   scale(0.125f), scale(operand)   v * s                     gradient 0: s
//   bias(operand)                   v + b                     gradient 0: b
//   residual(operand, alpha)        v + alpha * r             gradients 0: r, 1: alpha
//   saved_residual(operand, stream) the same, and saves it    the same
//   save(stream)                    v, and saves it
//   tap(operand)                    v, written as well; in a STORE
//   affine(gamma, beta)             v * gamma + beta          gradients 0: gamma, 1: beta
//   zero_centred(gamma, beta)       v * (1 + gamma) + beta    the same
//   softcap(30.0f), softcap(operand)  cap * tanh(v / cap)     gradient 0: cap
//   activation<Silu>()              silu(v); or Gelu, GeluTanh, Relu, SquaredRelu, Sigmoid, Tanh
//   activation<SiluBy<pointwise::HardwareTanh>>()  the same by a GPU's tanh, of 11 bits; or GeluTanhBy,
//                                   SigmoidBy, TanhBy, for gates too (core/hardware_tanh.cuh)
//   leaky_relu(0.1f), leaky_relu(operand)  v > 0 ? v : v * slope     gradient 0: slope
//   gate<Silu>(operand)             v * silu(g)               gradient 0: g
//   gated<Silu>(operand)            silu(v) * g               gradient 0: g
//   dropout(p, seed, offset)        docs/explanation/dropout.md
//   dropout(p, Draw{pointer})       the same, seed and offset read from memory by the kernel
//   row_dropout(p, seed, offset)    the same, one draw a row
//   cast<half>()                    v rounded to half
//   quantize(scale, amax)           v * scale, for a target of float8_e4m3 or float8_e5m2
//   dynamic_quantize<float8_e4m3, kBlock>(scales)  v / scale for such a target; the scale of each
//                                   kBlock columns, or of a row (kWholeRow), from the largest |v|
//   mask(operand), keep(operand)    -inf where true, and where false; the operand is of bool
//   causal(queries, shift)          keeps column k of query q if k <= q + shift
//   window(queries, left, right)    ... if q - left <= k <= q + right
//   lengths(operand)                keeps the first n columns of a row, n an integer
//   segments(operand, operand)      keeps where the two ids, integers, are equal
//   alibi(operand, queries, shift)  v - slope * |q + shift - k|   gradient 0: slope
//   gather(operand, entries, step, operand)  v + table[index]; the first operand is entry 0
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/core/threshold.cuh>
#include <fusedops/functor/activation.cuh>
#include <fusedops/functor/affine.cuh>
#include <fusedops/functor/alibi.cuh>
#include <fusedops/functor/bias.cuh>
#include <fusedops/functor/cast.cuh>
#include <fusedops/functor/causal.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/functor/dropout.cuh>
#include <fusedops/functor/dynamic_quantize.cuh>
#include <fusedops/functor/gate.cuh>
#include <fusedops/functor/gather.cuh>
#include <fusedops/functor/lengths.cuh>
#include <fusedops/functor/mask.cuh>
#include <fusedops/functor/quantize.cuh>
#include <fusedops/functor/residual.cuh>
#include <fusedops/functor/rotate.cuh>
#include <fusedops/functor/save.cuh>
#include <fusedops/functor/scale.cuh>
#include <fusedops/functor/segments.cuh>
#include <fusedops/functor/softcap.cuh>
#include <fusedops/functor/tap.cuh>
#include <fusedops/functor/window.cuh>
#include <fusedops/row/operand.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

FUSEDOPS_HD Scale<Value<float>> scale(float factor) { return {{{factor}}}; }
FUSEDOPS_HD Scale<Value<double>> scale(double factor) { return {{{factor}}}; }
template <class Factor>
FUSEDOPS_HD Scale<Factor> scale(const Factor& factor) {
  detail::refuse_pointers<Factor>();
  return {factor};
}

template <class Term>
FUSEDOPS_HD Bias<Term> bias(const Term& term) {
  detail::refuse_pointers<Term>();
  return {term};
}

template <class Skip>
FUSEDOPS_HD Residual<Skip, Value<float>> residual(const Skip& skip, float alpha = 1) {
  detail::refuse_pointers<Skip>();
  return {skip, {{alpha}}};
}
template <class Skip>
FUSEDOPS_HD Residual<Skip, Value<double>> residual(const Skip& skip, double alpha) {
  detail::refuse_pointers<Skip>();
  return {skip, {{alpha}}};
}

/// Saves the sum to `stream`; the chain continues with the saved values. In a gradient `stream` is
/// read, and `upstream` is the incoming gradient of the stream, if it has one.
template <class Skip, class Stream>
FUSEDOPS_HD SavedResidual<Skip, Value<float>, Stream> saved_residual(const Skip& skip,
                                                                     const Stream& stream) {
  detail::refuse_pointers<Skip, Stream>();
  return {{skip, {{1}}}, {stream, {}}};
}
template <class Skip, class Stream, class Number>
FUSEDOPS_HD SavedResidual<Skip, Value<Number>, Stream> saved_residual(const Skip& skip,
                                                                      const Stream& stream,
                                                                      Number alpha) {
  detail::refuse_pointers<Skip, Stream>();
  return {{skip, {{alpha}}}, {stream, {}}};
}
template <class Skip, class Stream, class Number, class Upstream>
FUSEDOPS_HD SavedResidual<Skip, Value<Number>, Stream, Upstream> saved_residual(
    const Skip& skip, const Stream& stream, Number alpha, const Upstream& upstream) {
  detail::refuse_pointers<Skip, Stream, Upstream>();
  return {{skip, {{alpha}}}, {stream, upstream}};
}

/// Saves the value to `stream`, with which the chain continues; `stream` and `upstream` as above.
template <class Stream, class Upstream = Absent>
FUSEDOPS_HD Save<Stream, Upstream> save(const Stream& stream, const Upstream& upstream = {}) {
  detail::refuse_pointers<Stream, Upstream>();
  return {stream, upstream};
}

/// Writes the value to `target` as well, in a STORE. In a gradient the target is Unread{}, and
/// `upstream` is its incoming gradient, if it has one.
template <class Target, class Upstream = Absent>
FUSEDOPS_HD Tap<Target, Upstream> tap(const Target& target, const Upstream& upstream = {}) {
  detail::refuse_pointers<Target, Upstream>();
  return {target, upstream};
}

/// v * gamma + beta; either may be Absent{}, and both: then v.
template <class Gamma, class Beta = Absent>
FUSEDOPS_HD Affine<Gamma, Beta> affine(const Gamma& gamma, const Beta& beta = {}) {
  detail::refuse_pointers<Gamma, Beta>();
  return {gamma, beta};
}

/// v * (1 + gamma) + beta; either may be Absent{}, and both.
template <class Gamma, class Beta = Absent>
FUSEDOPS_HD Affine<Gamma, Beta, true> zero_centred(const Gamma& gamma, const Beta& beta = {}) {
  detail::refuse_pointers<Gamma, Beta>();
  return {gamma, beta};
}

template <class Cap>
FUSEDOPS_HD Softcap<Cap> softcap(const Cap& cap) {
  detail::refuse_pointers<Cap>();
  return {cap};
}
FUSEDOPS_HD Softcap<Value<float>> softcap(float cap) { return {{{cap}}}; }
FUSEDOPS_HD Softcap<Value<double>> softcap(double cap) { return {{{cap}}}; }

/// act(v), where the function is Silu, Gelu, GeluTanh, Relu, SquaredRelu, Sigmoid or Tanh.
template <class Function>
FUSEDOPS_HD Activation<Function> activation() {
  return {};
}

/// v > 0 ? v : v * slope.
template <class Slope>
FUSEDOPS_HD LeakyRelu<Slope> leaky_relu(const Slope& slope) {
  detail::refuse_pointers<Slope>();
  return {slope};
}
FUSEDOPS_HD LeakyRelu<Value<float>> leaky_relu(float slope) { return {{{slope}}}; }
FUSEDOPS_HD LeakyRelu<Value<double>> leaky_relu(double slope) { return {{{slope}}}; }

/// v * act(gate), where the activation is one of the same.
template <class Function, class By>
FUSEDOPS_HD Gate<By, Function, false> gate(const By& by) {
  detail::refuse_pointers<By>();
  return {by};
}
/// act(v) * gate.
template <class Function, class By>
FUSEDOPS_HD Gate<By, Function, true> gated(const By& by) {
  detail::refuse_pointers<By>();
  return {by};
}

template <class Storage>
FUSEDOPS_HD Cast<Storage> cast() {
  return {};
}

/// v * scale, the last functor of a STORE whose target is of float8_e4m3 or float8_e5m2, which
/// saturates (core/float8.cuh). `amax`: single(pointer) or per_row(pointer) of float, which becomes
/// the larger of what is there and the largest |v| (NaN, if any is), v before the scale; so begin
/// with zeros. It has no gradient: the STORE of a gradient leaves it out.
template <class Factor, class Amax = Absent>
FUSEDOPS_HD Quantize<Factor, Amax> quantize(const Factor& scale, const Amax& amax = {}) {
  detail::refuse_pointers<Factor, Amax>();
  detail::refuse_other_than_float<Amax>();
  return {scale, amax};
}

/// v / scale, the last functor of a STORE whose target is of Float8, float8_e4m3 or float8_e5m2. The
/// scale of each kBlock neighbouring columns, 16, 32, 64 or 128, or of the row, kWholeRow, follows from
/// the largest |v|, and is written to `scales`: direct(pointer, blocks of a row), tiled(pointer, blocks
/// of a row), or per_row of a row's; of float, or of uint8_t with Scaling::kE8M0 (functor/dynamic_quantize.cuh). A gradient
/// leaves it out.
template <class Float8, int kBlock, Scaling kScaling = Scaling::kNearest, class Scales,
          class Factor = Absent>
FUSEDOPS_HD auto dynamic_quantize(const Scales& scales, const Factor& factor = {}) {
  detail::refuse_pointers<Scales, Factor>();
  static_assert(
      kBlock == kWholeRow || kBlock == 16 || kBlock == 32 || kBlock == 64 || kBlock == 128,
      "fusedops: a block has 16, 32, 64 or 128 columns, or is a row (kWholeRow)");
  return DynamicQuantize<Scales, kBlock, detail::most_of<Float8>(), kScaling, Factor>{scales,
                                                                                      factor};
}

template <class Flags>
FUSEDOPS_HD Mask<Flags, false> mask(const Flags& flags) {
  detail::refuse_pointers<Flags>();
  detail::refuse_wide_flags<Flags>();
  return {flags};
}
template <class Flags>
FUSEDOPS_HD Mask<Flags, true> keep(const Flags& flags) {
  detail::refuse_pointers<Flags>();
  detail::refuse_wide_flags<Flags>();
  return {flags};
}

namespace detail {

/// A map from a row to its query, where the query is the innermost dimension of the rows.
FUSEDOPS_HD Layout<2> query_of(int64_t queries) {
  const int64_t shape[3] = {2, queries, 1};
  const int64_t strides[3] = {0, 1, 1};
  return layout(shape, strides);
}

template <class Inner, class Compute>
using DropCall =
    decltype(any_of<const Inner>().drop(any_of<Compute[1]>(), uint64_t(0), int64_t(0)));

/// Dropout whose p is a runtime value: p = 0 keeps everything.
template <class Inner>
struct MaybeDropout {
  Inner inner;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    static_assert(detected<DropCall, Inner, Compute>(),
                  "fusedops: a dropout of another compute type than the dispatch: "
                  "dropout<double>(p, seed, offset) in a dispatch of double");
    // Computed before the branch, so that the packs of a row share it.
    const auto logical = static_cast<uint64_t>(inner.logical_row(row));
    if (inner.threshold != 0) inner.drop(v, logical, col);
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink&) const {
    (*this)(g, row, col);
  }
};

/// The same where seed and offset lie in memory.
template <class Inner>
struct MaybeDropoutFrom {
  Inner inner;
  static constexpr int kGradients = 0;

  FUSEDOPS_HD auto drawn() const { return MaybeDropout<decltype(inner.drawn())>{inner.drawn()}; }
};

}  // namespace detail

/// Keeps column k of query q if k <= q + shift, where the query is the innermost dimension of the
/// rows. For torch's bottom-right alignment shift = columns - queries.
FUSEDOPS_HD Causal<Layout<2>> causal(int64_t queries, int64_t shift = 0) {
  return {detail::query_of(queries), shift};
}
/// The same for another order of rows: the layout maps a row to its query.
template <int kRank>
FUSEDOPS_HD Causal<Layout<kRank>> causal(const Layout<kRank>& query, int64_t shift = 0) {
  return {query, shift};
}

/// Keeps column k of query q if q - left <= k <= q + right; any large number means no limit.
FUSEDOPS_HD Window<Layout<2>> window(int64_t queries, int64_t left, int64_t right) {
  constexpr int64_t kFar = int64_t(1) << 40;  // larger than any column, and sums do not overflow
  const int64_t back = left < kFar ? left : kFar, ahead = right < kFar ? right : kFar;
  return {detail::query_of(queries), -back, ahead + 1};
}

template <class Length>
FUSEDOPS_HD Lengths<Length> lengths(const Length& length) {
  detail::refuse_pointers<Length>();
  detail::refuse_fractions<Length>();
  return Lengths<Length>(length);
}

/// Ids of the queries and of the keys: per_row() and per_column() of integers, say.
template <class QueryIds, class KeyIds>
FUSEDOPS_HD Segments<QueryIds, KeyIds> segments(const QueryIds& queries, const KeyIds& keys) {
  detail::refuse_pointers<QueryIds, KeyIds>();
  detail::refuse_fractions<QueryIds, KeyIds>();
  return {queries, keys};
}

/// v + table[index]. `table` is the first of so many entries, of which the next lies `step` elements
/// further: per_row(table) or broadcast(table, layout), where rows have other numbers.
template <class Table, class Index>
FUSEDOPS_HD Gather<Table, Index> gather(const Table& table, int64_t entries, int64_t step,
                                        const Index& index) {
  detail::refuse_pointers<Table, Index>();
  detail::refuse_fractions<Index>();
  return {table, entries, step, index};
}

template <class Slope>
FUSEDOPS_HD Alibi<Slope, Layout<2>> alibi(const Slope& slope, int64_t queries, int64_t shift = 0) {
  detail::refuse_pointers<Slope>();
  return {slope, detail::query_of(queries), shift};
}

/// Drops elements with probability p and scales the others (docs/explanation/dropout.md); p <= 0
/// and NaN drop none, p >= 1 drops all. Compute is that of the dispatch: dropout<double>(...) for
/// double. `slot` distinguishes the dropouts of one declaration: 0, 1, ... from LOAD to STORE.
/// `row` maps a row to its number in the mask, where rows are not processed in the order of memory.
template <class Compute = float, class LogicalRow = RowMap<1>>
FUSEDOPS_HD detail::MaybeDropout<Dropout<Compute, LogicalRow>> dropout(
    double p, uint64_t seed, uint64_t offset, int slot = 0, const LogicalRow& row = {{1}}) {
  return {{seed,
           offset + static_cast<uint64_t>(slot),
           drop_below(p),
           {static_cast<Compute>(keep_scale(p))},
           row}};
}

/// Seed and offset in memory that the kernel can read, one after another. What is there when the
/// kernel runs counts, so that a captured CUDA graph draws anew at each replay if they are changed
/// between replays or by the graph itself; for the gradient they must be what they were.
struct Draw {
  const uint64_t* seed_and_offset;
};
template <class Compute = float, class LogicalRow = RowMap<1>>
FUSEDOPS_HD detail::MaybeDropoutFrom<DropoutFrom<Compute, LogicalRow>> dropout(
    double p, Draw draw, int slot = 0, const LogicalRow& row = {{1}}) {
  return {{draw.seed_and_offset,
           static_cast<uint64_t>(slot),
           drop_below(p),
           {static_cast<Compute>(keep_scale(p))},
           row}};
}

/// The same with one draw for each row, for all its columns. Where `row` gives several rows one
/// number, they share the draw as well.
template <class Compute = float, class LogicalRow = RowMap<1>>
FUSEDOPS_HD detail::MaybeDropout<Dropout<Compute, LogicalRow, true>> row_dropout(
    double p, uint64_t seed, uint64_t offset, int slot = 0, const LogicalRow& row = {{1}}) {
  return {dropout<Compute>(p, seed, offset, slot, row).inner.one_a_row()};
}
template <class Compute = float, class LogicalRow = RowMap<1>>
FUSEDOPS_HD detail::MaybeDropoutFrom<DropoutFrom<Compute, LogicalRow, true>> row_dropout(
    double p, Draw draw, int slot = 0, const LogicalRow& row = {{1}}) {
  const DropoutFrom<Compute, LogicalRow> all = dropout<Compute>(p, draw, slot, row).inner;
  return {{all.draw, all.slot, all.threshold, all.scale, all.logical_row}};
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
