// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What the example does wherever it runs: makes inputs, runs both ops forward and backward, checks
// them and prints their bandwidth. A Machine knows its memory, its clock and its place.
#pragma once

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "naive.h"

/// Random inputs in a machine's memory.
template <class Machine>
class Inputs {
 public:
  explicit Inputs(Machine& machine) : machine_(machine) {}

  template <class T>
  T* normal(int64_t count, float size = 1) {
    std::normal_distribution<float> draw(0, size);
    std::vector<T> values(count);
    for (T& value : values) value = fusedops::convert<T>(draw(bits_));
    return machine_.upload(values);
  }
  bool* flags(int64_t count) {
    std::vector<char> values(count);
    for (char& value : values) value = bits_() % 5 == 0;
    return reinterpret_cast<bool*>(machine_.upload(values));
  }
  template <class T>
  T* room(int64_t count) {
    return machine_.upload(std::vector<T>(count));
  }

 private:
  Machine& machine_;
  std::mt19937 bits_{1};
};

/// Runs an op that reads and writes so many bytes; true if it is right.
template <class Machine, class Op>
bool run(Machine& machine, const char* name, const Op& op, int64_t sums, double forward_bytes,
         double backward_bytes) {
  size_t bytes = 0;
  bool well = machine.workspace(op.wanted(), op.rows(), op.columns(), &bytes);
  char* workspace = machine.upload(std::vector<char>(bytes + 1));
  const auto forward = [&] { well = machine.good(op.forward(machine.place())) && well; };
  const auto backward = [&] {
    well = machine.good(op.backward(machine.place(), workspace, bytes)) && well;
  };
  const double first = machine.seconds(forward);
  const double second = machine.seconds(backward);
  const double of_rows = machine.worst(op.rows(), CheckRow<Op>{op});
  const double of_sums = machine.worst(sums, CheckColumn<Op>{op});
  well = well && of_rows <= 1 && of_sums <= 1;
  std::printf(
      "%-18s forward %7.1f GB/s, gradient %7.1f GB/s; error %.2f and %.2f of the allowed%s\n", name,
      forward_bytes / first * 1e-9, backward_bytes / second * 1e-9, of_rows, of_sums,
      well ? "" : "  WRONG");
  return well;
}

/// The whole example, in T; 0 if all is right.
template <class T, class Machine>
int example(Machine& machine, int64_t batch, int64_t keys, int64_t rows, int64_t cols) {
  Inputs<Machine> inputs(machine);
  const int64_t heads = 4, n = batch * heads * keys * keys, shared = heads * keys * keys;
  Attention<T> attention{};
  attention.batch = batch, attention.heads = heads;
  attention.queries = attention.keys = keys;
  attention.x = inputs.template normal<T>(n, 8);
  attention.bias = inputs.template normal<T>(shared);
  attention.dy = inputs.template normal<T>(n);
  attention.mask = inputs.flags(batch * keys);
  attention.y = inputs.template room<T>(n);
  attention.dx = inputs.template room<T>(n);
  attention.dbias = inputs.template room<T>(shared);
  attention.kept = inputs.template room<float>(2 * attention.rows());
  attention.scale = 0.125f, attention.cap = 30;
  attention.p = 0.1, attention.seed = 7, attention.offset = 3;
  const double one = sizeof(T);
  bool well = run(machine, "attention softmax", attention, shared, one * (2 * n + shared),
                  one * (3 * n + 2 * shared));

  AddNorm<T> norm{};
  norm.count = rows, norm.cols = cols;
  const int64_t m = rows * cols;
  norm.x = inputs.template normal<T>(m), norm.residual = inputs.template normal<T>(m);
  norm.dy = inputs.template normal<T>(m), norm.dsum = inputs.template normal<T>(m);
  norm.bias = inputs.template normal<float>(cols), norm.gamma = inputs.template normal<float>(cols);
  norm.beta = inputs.template normal<float>(cols);
  norm.sum = inputs.template room<T>(m), norm.y = inputs.template room<T>(m);
  norm.dx = inputs.template room<T>(m), norm.dresidual = inputs.template room<T>(m);
  norm.dbias = inputs.template room<float>(cols), norm.dgamma = inputs.template room<float>(cols);
  norm.dbeta = inputs.template room<float>(cols);
  norm.kept = inputs.template room<float>(3 * rows);
  norm.p = 0.1, norm.seed = 8, norm.offset = 0;
  well = run(machine, "residual LayerNorm", norm, cols, one * 4 * m, one * 5 * m) && well;
  return well ? 0 : 1;
}
