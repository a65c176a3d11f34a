// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How the rows of a gradient are cut into slices. Whoever takes a slice visits its rows one after
// another and adds up what they share, so the cut decides the order of additions: it is a function
// of the call alone, never of what else runs.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

/// Slices of `rows` rows; `per_span` of them tile a span of rows, which none straddles.
struct Slices {
  int64_t rows, span, per_span;

  FUSEDOPS_HD int64_t begin(int64_t slice) const {
    return slice / per_span * span + slice % per_span * rows;
  }
  /// One past the last row of the slice, if there are so many.
  FUSEDOPS_HD int64_t end(int64_t slice, int64_t count) const {
    const int64_t of_span = (slice / per_span + 1) * span;
    int64_t end = begin(slice) + rows;
    end = end < of_span ? end : of_span;
    return end < count ? end : count;
  }
};

/// One row of a slice, as the targets of operand gradients see it.
struct Visit {
  int64_t slice;
  uint32_t turn, turns;  // which row of the slice, and of how many
  bool any, here;        // whether there is such a slice, and such a row of it

  /// Whether a group of rows begins or ends here; `group` is 0 for all of a slice.
  FUSEDOPS_HD bool begins(int64_t group) const {
    return group == 0 ? turn == 0 : turn % static_cast<uint32_t>(group) == 0;
  }
  FUSEDOPS_HD bool ends(int64_t group) const {
    return group == 0 ? turn + 1 == turns : (turn + 1) % static_cast<uint32_t>(group) == 0;
  }
};

}  // namespace fusedops
