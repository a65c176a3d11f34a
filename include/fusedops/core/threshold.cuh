// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The integers of the dropout contract, docs/explanation/dropout.md, from a probability. Host code.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// An element is dropped if its sixteen random bits are below this: round(p * 65536), ties to even
/// as in Python, within 1..65535 for 0 < p < 1; 0 for p <= 0 and NaN, 65536 for p >= 1.
FUSEDOPS_HD uint32_t drop_below(double p) {
  if (!(p > 0)) return 0;
  if (p >= 1) return 65536;
  const double exact = p * 65536;
  uint32_t below = static_cast<uint32_t>(exact);
  const double rest = exact - static_cast<double>(below);
  below += rest > 0.5 || (rest == 0.5 && below % 2 == 1);
  return below < 1 ? 1 : below > 65535 ? 65535 : below;
}

/// The factor of the elements that are kept, which makes the expectation exact.
FUSEDOPS_HD double keep_scale(double p) {
  const uint32_t dropped = drop_below(p);
  return dropped < 65536 ? 65536.0 / (65536 - dropped) : 0.0;
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
