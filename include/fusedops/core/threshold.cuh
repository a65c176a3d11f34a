// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// From a dropout's probability to the integers of its contract (docs/dropout.md), for hosts.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

/// Elements whose sixteen random bits are below this are dropped: round(p * 65536), ties to even as
/// in Python, within 1..65535 for 0 < p < 1. 0 for p <= 0 and NaN, 65536 for p >= 1.
FUSEDOPS_HD uint32_t drop_below(double p) {
  if (!(p > 0)) return 0;
  if (p >= 1) return 65536;
  const double exact = p * 65536;
  uint32_t below = static_cast<uint32_t>(exact);
  const double rest = exact - static_cast<double>(below);
  below += rest > 0.5 || (rest == 0.5 && below % 2 == 1);
  return below < 1 ? 1 : below > 65535 ? 65535 : below;
}

/// What the others are multiplied by, so that the expectation is exact.
FUSEDOPS_HD double keep_scale(double p) {
  const uint32_t dropped = drop_below(p);
  return dropped < 65536 ? 65536.0 / (65536 - dropped) : 0.0;
}

}  // namespace fusedops
