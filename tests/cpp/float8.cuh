// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Results of 8 bits: conversions of numbers, and a LayerNorm that quantizes.
#include "place.h"

using fusedops::int64_t;
using fusedops::uint8_t;

namespace {

template <class Float8>
int normalized(Place where, const float* x, const float* scale, float* amax, float* of_rows,
               float* y, void* quantized, int64_t rows, int64_t cols) {
  using namespace fusedops;
  const auto in = load(direct(x, cols));
  const few_cols<> n(cols);
  const auto plain = dispatch_layer_norm<float>(where, in, store(direct(y, cols)), rows, n, 1e-5);
  if (int(plain) != 0) return int(plain);
  const auto to = direct(static_cast<Float8*>(quantized), cols);
  const auto of_row = dispatch_layer_norm<float>(
      where, in, store(quantize(single(scale), per_row(of_rows)), to), rows, n, 1e-5);
  if (int(of_row) != 0) return int(of_row);
  return int(dispatch_layer_norm<float>(where, in, store(quantize(single(scale), single(amax)), to),
                                        rows, n, 1e-5));
}

template <class Float8>
int scaled(Place where, const float* x, float* scales, float* of_rows, float* y, void* blocks,
           void* rows_, int64_t rows, int64_t cols) {
  using namespace fusedops;
  const auto in = load(direct(x, cols));
  const few_cols<> n(cols);
  const auto tapped = direct(y, cols);
  const auto by_block =
      store(tap(tapped), dynamic_quantize<Float8, 128>(direct(scales, (cols + 127) / 128)),
            direct(static_cast<Float8*>(blocks), cols));
  const auto of_block = dispatch_layer_norm<float>(where, in, by_block, rows, n, 1e-5);
  if (int(of_block) != 0) return int(of_block);
  const auto by_row = store(dynamic_quantize<Float8, kWholeRow>(per_row(of_rows)),
                            direct(static_cast<Float8*>(rows_), cols));
  return int(dispatch_layer_norm<float>(where, in, by_row, rows, n, 1e-5));
}

template <class Float8, class From>
void converted(const From* x, uint8_t* y, From* back, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Float8 rounded = fusedops::convert<Float8>(x[i]);
    y[i] = rounded.bits;
    back[i] = fusedops::convert<From>(rounded);
  }
}

}  // namespace

extern "C" {

int quantized_norm(void* stream, int64_t e5m2, const float* x, const float* scale, float* amax,
                   float* of_rows, float* y, void* quantized, int64_t rows, int64_t cols) {
  const auto go = e5m2 ? normalized<fusedops::float8_e5m2> : normalized<fusedops::float8_e4m3>;
  return go(place(stream), x, scale, amax, of_rows, y, quantized, rows, cols);
}

int dynamic_norm(void* stream, int64_t e5m2, const float* x, float* scales, float* of_rows,
                 float* y, void* blocks, void* by_row, int64_t rows, int64_t cols) {
  const auto go = e5m2 ? scaled<fusedops::float8_e5m2> : scaled<fusedops::float8_e4m3>;
  return go(place(stream), x, scales, of_rows, y, blocks, by_row, rows, cols);
}

// On the host, whatever compiled it.
int converted_floats(void*, int64_t e5m2, const float* x, uint8_t* y, float* back, int64_t count) {
  (e5m2 ? converted<fusedops::float8_e5m2, float>
        : converted<fusedops::float8_e4m3, float>)(x, y, back, count);
  return 0;
}
int converted_doubles(void*, int64_t e5m2, const double* x, uint8_t* y, double* back,
                      int64_t count) {
  (e5m2 ? converted<fusedops::float8_e5m2, double>
        : converted<fusedops::float8_e4m3, double>)(x, y, back, count);
  return 0;
}

}  // extern "C"
