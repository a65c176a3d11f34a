// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of 64-bit integers as torch has it for int64: sums and products wrap, divisions round
// down. It goes through unsigned numbers, whose overflow C++ defines.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {
namespace whole {

/// Beyond every column.
inline constexpr int64_t kMost = int64_t(9223372036854775807);

FUSEDOPS_HD int64_t add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
FUSEDOPS_HD int64_t sub(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
FUSEDOPS_HD int64_t mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
FUSEDOPS_HD int64_t neg(int64_t a) { return sub(0, a); }
FUSEDOPS_HD int64_t abs(int64_t a) { return a < 0 ? neg(a) : a; }
FUSEDOPS_HD int64_t sign(int64_t a) { return (a > 0) - (a < 0); }
FUSEDOPS_HD int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }
FUSEDOPS_HD int64_t maximum(int64_t a, int64_t b) { return a < b ? b : a; }

/// The number after a; the largest is its own.
FUSEDOPS_HD int64_t after(int64_t a) { return a == kMost ? a : a + 1; }

/// a / b, rounded down. b is a constant other than 0.
FUSEDOPS_HD int64_t floor_divide(int64_t a, int64_t b) {
  if (b == -1) return neg(a);  // the quotient of the least number would not fit
  const int64_t quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
/// What is left of a then; it has the sign of b.
FUSEDOPS_HD int64_t remainder(int64_t a, int64_t b) { return sub(a, mul(floor_divide(a, b), b)); }

}  // namespace whole
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
