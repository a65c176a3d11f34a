// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The same two ops one row, or one column, at a time, in double and step by step: what the fused
// kernels are checked against. Each function returns the largest error of what it looks at, as a
// share of what is allowed.
#pragma once

#include <cmath>

#include "ops.h"

/// The number that a dropout multiplies an element by.
FUSEDOPS_HD double kept_by(double p, fusedops::uint64_t seed, fusedops::uint64_t offset,
                           int64_t row, int64_t col) {
  double one[1] = {1};
  fusedops::dropout<double>(p, seed, offset)(one, fusedops::RowIndex<1>{row, {row}}, col);
  return one[0];
}

/// How far a number is from the truth, as a share of a rounding and `slack` of the size at hand.
template <class T>
FUSEDOPS_HD double share(T got, double truth, double size, double slack) {
  const double rounding = sizeof(T) == 2 ? 0x1p-10 : 0x1p-23;
  const double value = fusedops::convert<double>(got);
  const double allowed = fabs(truth) * rounding + size * slack + 1e-7;
  const double off = fabs(value - truth) / allowed;
  return off == off ? off : 1e300;  // NaN is as wrong as can be
}

template <class T>
struct AttentionRow {
  const Attention<T>& op;
  int64_t row;

  FUSEDOPS_HD double capped(int64_t k, double& slope) const {
    const int64_t of_head = row % (op.heads * op.queries);
    const double sum = fusedops::convert<double>(op.x[row * op.keys + k]) * op.scale +
                       fusedops::convert<double>(op.bias[of_head * op.keys + k]);
    const double t = tanh(sum / op.cap);
    slope = 1 - t * t;
    return op.cap * t;
  }
  FUSEDOPS_HD bool masked(int64_t k) const {
    return op.mask[row / (op.heads * op.queries) * op.keys + k];
  }
};

/// Checks y and dx of a row.
template <class T>
FUSEDOPS_HD double check_row(const Attention<T>& op, int64_t row) {
  const AttentionRow<T> of{op, row};
  double max = -1e300, total = 0, along = 0, slope = 0, worst = 0;
  for (int64_t k = 0; k < op.keys; ++k) max = of.masked(k) ? max : fmax(max, of.capped(k, slope));
  for (int64_t k = 0; k < op.keys; ++k) {
    total += of.masked(k) ? 0 : exp(of.capped(k, slope) - max);
  }
  const auto probability = [&](int64_t k) {
    return of.masked(k) ? 0 : exp(of.capped(k, slope) - max) / total;
  };
  const auto arriving = [&](int64_t k) {
    return fusedops::convert<double>(op.dy[row * op.keys + k]) *
           kept_by(op.p, op.seed, op.offset, row, k);
  };
  for (int64_t k = 0; k < op.keys; ++k) along += probability(k) * arriving(k);
  for (int64_t k = 0; k < op.keys; ++k) {
    const double y = probability(k) * kept_by(op.p, op.seed, op.offset, row, k);
    const double g = probability(k) * (arriving(k) - along) * slope;
    const double size = probability(k) * (fabs(arriving(k)) + fabs(along));
    worst = fmax(worst, share(op.y[row * op.keys + k], y, y, 1e-5));
    worst = fmax(worst, share(op.dx[row * op.keys + k], g * op.scale, size * op.scale, 1e-5));
  }
  return worst;
}

/// Checks dbias at one element of the bias, from the dx that check_row() has checked.
template <class T>
FUSEDOPS_HD double check_column(const Attention<T>& op, int64_t element) {
  const int64_t step = op.heads * op.queries * op.keys;
  double sum = 0, size = 0;
  for (int64_t b = 0; b < op.batch; ++b) {
    const double term = fusedops::convert<double>(op.dx[b * step + element]) / op.scale;
    sum += term;
    size += fabs(term);
  }
  // Each dx was rounded; small ones by no less than half the smallest number of their type.
  const double rounded = sizeof(T) == 2 ? 0x1p-11 : 0x1p-24;
  const double least = sizeof(T) == 2 ? 0x1p-25 : 0;
  const double slack = 1.1 * rounded * size + op.batch * least / op.scale;
  return share(op.dbias[element], sum, 1, slack + 1e-6);
}

/// What is known of a row of the sum.
template <class T>
struct NormRow {
  const AddNorm<T>& op;
  int64_t row;
  double mean, rstd;

  FUSEDOPS_HD NormRow(const AddNorm<T>& op, int64_t row) : op(op), row(row), mean(0), rstd(0) {
    for (int64_t c = 0; c < op.cols; ++c) mean += value(c) / op.cols;
    double squares = 0;
    for (int64_t c = 0; c < op.cols; ++c) squares += (value(c) - mean) * (value(c) - mean);
    rstd = 1 / sqrt(squares / op.cols + 1e-5);
  }
  FUSEDOPS_HD double value(int64_t c) const {
    return fusedops::convert<double>(op.sum[row * op.cols + c]);
  }
  FUSEDOPS_HD double normal(int64_t c) const { return (value(c) - mean) * rstd; }
  FUSEDOPS_HD double arriving(int64_t c) const {
    return fusedops::convert<double>(op.dy[row * op.cols + c]);
  }
};

/// Checks sum, y, dresidual and dx of a row.
template <class T>
FUSEDOPS_HD double check_row(const AddNorm<T>& op, int64_t row) {
  const NormRow<T> of(op, row);
  double plain = 0, along = 0, worst = 0;
  for (int64_t c = 0; c < op.cols; ++c) {
    const double g = of.arriving(c) * op.gamma[c];
    plain += g / op.cols;
    along += g * of.normal(c) / op.cols;
  }
  for (int64_t c = 0; c < op.cols; ++c) {
    const int64_t at = row * op.cols + c;
    const double keep = kept_by(op.p, op.seed, op.offset, row, c);
    const double added = (fusedops::convert<double>(op.x[at]) + op.bias[c]) * keep;
    const double residual = fusedops::convert<double>(op.residual[at]);
    const double y = of.normal(c) * op.gamma[c] + op.beta[c];
    const double g = of.arriving(c) * op.gamma[c];
    const double through = of.rstd * (g - plain - of.normal(c) * along);
    const double dsum = through + fusedops::convert<double>(op.dsum[at]);
    worst = fmax(worst, share(op.sum[at], residual + added, fabs(residual) + fabs(added), 1e-6));
    worst = fmax(worst, share(op.y[at], y, fabs(y) + 1, 1e-5));
    worst = fmax(worst, share(op.dresidual[at], dsum, fabs(dsum) + fabs(through) + 1, 1e-5));
    worst = fmax(worst, share(op.dx[at], dsum * keep, fabs(dsum) + 2, 1e-5));
  }
  return worst;
}

/// Checks dgamma, dbeta and dbias at one column; dbias from the dx that is checked already.
template <class T>
FUSEDOPS_HD double check_column(const AddNorm<T>& op, int64_t c) {
  double gamma = 0, beta = 0, bias = 0, of_gamma = 0, of_beta = 0, of_bias = 0;
  for (int64_t row = 0; row < op.count; ++row) {
    const int64_t at = row * op.cols + c;
    const double mean = op.kept[row * 3], rstd = op.kept[row * 3 + 1];
    const double y = (fusedops::convert<double>(op.sum[at]) - mean) * rstd + op.kept[row * 3 + 2];
    const double g = fusedops::convert<double>(op.dy[at]);
    const double dx = fusedops::convert<double>(op.dx[at]);
    gamma += g * y;
    beta += g;
    bias += dx;
    of_gamma += fabs(g * y);
    of_beta += fabs(g);
    of_bias += fabs(dx);
  }
  const double worst =
      fmax(share(op.dgamma[c], gamma, of_gamma, 1e-6), share(op.dbeta[c], beta, of_beta, 1e-6));
  // Each dx was rounded after it had been added up.
  return fmax(worst, share(op.dbias[c], bias, of_bias, sizeof(T) == 2 ? 0x1p-11 : 1e-6));
}

/// The checks as a machine runs them: once a row, once a sum.
template <class Op>
struct CheckRow {
  Op op;
  FUSEDOPS_HD double operator()(int64_t row) const { return check_row(op, row); }
};
template <class Op>
struct CheckColumn {
  Op op;
  FUSEDOPS_HD double operator()(int64_t element) const { return check_column(op, element); }
};
