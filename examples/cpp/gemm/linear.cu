// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// y = dropout(gelu(x @ w.T + bias)) + skip in one kernel, with a GELU that is a functor of this file:
// once with a y that the STORE writes itself, and once with one that CUTLASS writes. Every element is
// compared with a product in double on the CPU; the bound is derived in `check`.
#include <cmath>
#include <cstdio>
#include <fusedops/core/pointwise.cuh>
#include <fusedops/functors.cuh>
#include <random>
#include <vector>

#include "linear.cuh"

namespace {

using Half = cutlass::half_t;

/// A functor of one's own: the tanh form of GELU.
struct Gelu {
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, fusedops::int64_t) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) v[i] = fusedops::pointwise::gelu_tanh(v[i]);
  }
  template <class Visit>
  FUSEDOPS_HD void operands(Visit&) const {}
};

constexpr double kP = 0.25;
constexpr uint64_t kSeed = 42, kOffset = 7;

template <class Target>
auto store_of(const Half* bias, const Half* skip, int cols, const Target& target) {
  namespace fo = fusedops;
  const auto b = fo::per_column(reinterpret_cast<const fo::half*>(bias));
  const auto r = fo::direct(reinterpret_cast<const fo::half*>(skip), cols);
  return fo::store(fo::bias(b), Gelu{}, fo::dropout(kP, kSeed, kOffset), fo::residual(r), target);
}

bool failed(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::printf("%s: %s\n", what, cudaGetErrorString(error));
  return error != cudaSuccess;
}

std::vector<Half> random_halves(size_t count, double size, unsigned seed) {
  std::mt19937 source(seed);
  std::normal_distribution<double> normal(0, size);
  std::vector<Half> made(count);
  for (Half& one : made) one = Half(float(normal(source)));
  return made;
}

struct OnDevice {
  Half* data = nullptr;
  explicit OnDevice(const std::vector<Half>& values) {
    if (failed(cudaMalloc(&data, values.size() * sizeof(Half)), "cudaMalloc")) return;
    cudaMemcpy(data, values.data(), values.size() * sizeof(Half), cudaMemcpyHostToDevice);
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data); }
};

/// Of its bound, how much the element farthest off is off. z, the product, is off by the roundings of
/// its additions in float, sqrt(depth) * 2^-23 of the sum of magnitudes
/// (docs/explanation/products.md), and of adding the bias; |gelu'| is below 1.13; gelu_tanh in
/// float is off by a few 2^-24 of |z| + |bias|, and the rest of the chain by a rounding a step. The
/// result is rounded once, to half.
double check(const std::vector<Half>& x, const std::vector<Half>& w, const std::vector<Half>& bias,
             const std::vector<Half>& skip, const std::vector<Half>& y, int rows, int cols,
             int depth) {
  const auto drop = fusedops::dropout(kP, kSeed, kOffset);
  const double eps = std::ldexp(1.0, -23);
  double worst = 0;
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      double z = double(float(bias[col])), sizes = std::abs(z);
      for (int k = 0; k < depth; ++k) {
        const double term =
            double(float(x[size_t(row) * depth + k])) * double(float(w[size_t(col) * depth + k]));
        z += term;
        sizes += std::abs(term);
      }
      const double inner = 0.7978845608028654 * (z + 0.044715 * z * z * z);
      const double gelu = 0.5 * z * (1 + std::tanh(inner));
      float kept[1] = {1.0f};  // what the dropout makes of 1: 0, or the scale
      drop(kept, fusedops::RowIndex<1>{row, {row}}, fusedops::int64_t(col));
      const double r = double(float(skip[size_t(row) * cols + col]));
      const double want = gelu * kept[0] + r;
      const double of_z = std::sqrt(double(depth)) * eps * sizes;
      const double of_chain = 8 * eps * (std::abs(z) * kept[0] + std::abs(r));
      const double rounding = std::ldexp(std::abs(want), -11) + std::ldexp(1.0, -25);
      const double bound = 1.01 * rounding + 1.13 * kept[0] * of_z + of_chain;
      const double off = std::abs(double(float(y[size_t(row) * cols + col])) - want);
      if (!(off <= worst * bound)) worst = off / bound;
      if (std::isnan(off)) return off;
    }
  }
  return worst;
}

/// Both ways; false if one is wrong.
bool compare(int rows, int cols, int depth) {
  const auto x = random_halves(size_t(rows) * depth, 1, 1);
  const auto w = random_halves(size_t(cols) * depth, 1 / std::sqrt(double(depth)), 2);
  const auto bias = random_halves(cols, 1, 3), skip = random_halves(size_t(rows) * cols, 1, 4);
  const OnDevice dx(x), dw(w), db(bias), dr(skip);
  bool right = true;
  for (const bool itself : {true, false}) {
    if (!itself && cols % 8 != 0) continue;  // the rows that CUTLASS writes begin at 16 bytes
    std::vector<Half> y(size_t(rows) * cols, Half(float(NAN)));
    const OnDevice dy(y);
    cutlass::Status status;
    if (itself) {
      const auto to = fusedops::direct(reinterpret_cast<fusedops::half*>(dy.data), cols);
      const auto out = store_of(db.data, dr.data, cols, to);
      using Gemm = Linear<std::decay_t<decltype(out)>, void>;
      status = Gemm::run(nullptr, dx.data, dw.data, nullptr, out, rows, cols, depth);
    } else {
      const auto out = store_of(db.data, dr.data, cols, fusedops::Absent{});
      using Gemm = Linear<std::decay_t<decltype(out)>, Half>;
      status = Gemm::run(nullptr, dx.data, dw.data, dy.data, out, rows, cols, depth);
    }
    const char* way = itself ? "the STORE writes" : "CUTLASS writes";
    if (status != cutlass::Status::kSuccess) {
      std::printf("%d x %d x %d, %s: %s\n", rows, cols, depth, way, cutlassGetStatusString(status));
      return false;
    }
    if (failed(cudaDeviceSynchronize(), "the kernel")) return false;
    cudaMemcpy(y.data(), dy.data, y.size() * sizeof(Half), cudaMemcpyDeviceToHost);
    const double share = check(x, w, bias, skip, y, rows, cols, depth);
    std::printf("%d x %d x %d, %s: %.3f of the bound\n", rows, cols, depth, way, share);
    right = right && share <= 1;
  }
  return right;
}

}  // namespace

int main() {
  bool right = true;
  // Whole tiles; several tiles a block; edges in every dimension; fewer than a tile; odd columns.
  right = compare(256, 256, 128) && right;
  right = compare(1000, 520, 200) && right;
  right = compare(130, 264, 72) && right;
  right = compare(7, 8, 8) && right;
  right = compare(77, 131, 136) && right;
  std::printf(right ? "all within the bound\n" : "WRONG\n");
  return right ? 0 : 1;
}
