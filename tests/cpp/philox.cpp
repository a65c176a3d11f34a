// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The draws of a column, one counter after another.
#include <fusedops/core/philox.cuh>

using namespace fusedops;

/// Writes the four words of the counter (first, low[i], middle, high) for each of `count` numbers.
extern "C" void column_bits(const uint32_t* stream, const uint32_t* low, int count, uint32_t* to) {
  const PhiloxColumn column(PhiloxStream{stream[0], 0, stream[1], stream[2], stream[3], stream[4]});
  for (int i = 0; i < count; ++i) {
    uint32_t words[4];
    column.bits(low[i], words);
    for (int j = 0; j < 4; ++j) to[4 * i + j] = words[j];
  }
}
