// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Types that meet the contract and know nothing of fusedops but its words: what a user would bring
// along.
#pragma once

#include <cstdint>

namespace foreign {

/// A LOAD in the plain form of the contract. Counts what is asked of it, once a column.
struct Load {
  const float* data;
  int64_t cols;
  int32_t* visits;  // may be null
  template <int N>
  void load(float* dst, int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) {
      dst[i] = data[row * cols + col + i];
      if (visits != nullptr) ++visits[row * cols + col + i];
    }
  }
};

/// A LOAD that can be asked again without a second load.
struct RevisitedLoad : Load {
  int32_t* revisits;
  template <int N>
  void revisit(float* dst, int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) {
      dst[i] = data[row * cols + col + i];
      ++revisits[row * cols + col + i];
    }
  }
};

/// A STORE in the plain form of the contract.
struct Store {
  float* data;
  int64_t cols;
  template <int N>
  void store(const float* src, int64_t row, int64_t col) {
    for (int i = 0; i < N; ++i) data[row * cols + col + i] = src[i];
  }
};

/// A functor that takes its row as a number: adds row + 10 * column.
struct Ramp {
  template <int N, class Compute>
  void operator()(Compute (&v)[N], int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) v[i] += static_cast<Compute>(row + 10 * (col + i));
  }
};

}  // namespace foreign
