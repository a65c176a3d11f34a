// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains the model three times from the same numbers: in float with this library, in float with the
// reference, and with the reference in double. The first loss curve has to be about as near to the
// last as the second is.
#pragma once

#include <algorithm>
#include <cstdio>

#include "model.h"

template <class T, class Rows, class Place>
std::vector<double> curve(Place& place, int steps) {
  const Sizes sizes;
  std::vector<int> ids, next;
  for (int64_t row = 0; row < sizes.rows(); ++row) {
    const int64_t b = row / sizes.tokens, t = row % sizes.tokens;
    const auto token = [&](int64_t i) { return int((3 * i + i * i * (b + 1)) % sizes.vocabulary); };
    ids.push_back(token(t));
    next.push_back(token(t + 1));
  }
  const int *from = place.upload(ids), *to = place.upload(next);
  Model<Place, T, Rows> model(place, sizes);
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(model.step(from, to, T(0.1)));
  if (!model.good()) losses.assign(losses.size(), -1);
  return losses;
}

template <class Place>
int train(Place& place) {
  constexpr int kSteps = 120;
  const auto fused = curve<float, Fused>(place, kSteps), plain = curve<float, Plain>(place, kSteps),
             exact = curve<double, Plain>(place, kSteps);
  double of_fused = 0, of_plain = 0;
  for (size_t i = 0; i < fused.size(); ++i) {
    of_fused = std::max(of_fused, std::abs(fused[i] - exact[i]));
    of_plain = std::max(of_plain, std::abs(plain[i] - exact[i]));
    if (i % 20 == 0) std::printf("step %zu: loss %.6f, %.6f in double\n", i, fused[i], exact[i]);
  }
  std::printf("loss %.6f after %d steps; off by %.2g, the reference in float by %.2g\n",
              fused.back(), kSteps, of_fused, of_plain);
  // Both are a walk of roundings. A wrong gradient is off by far more: one that lacks a term of a
  // norm ends 1e-2 away.
  const bool right = of_fused <= 8 * of_plain + 1e-6 && fused.back() < fused.front() / 2;
  std::puts(right ? "right" : "WRONG");
  return right ? 0 : 1;
}
