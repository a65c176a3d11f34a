// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How the rows of a gradient are partitioned into slices. One block, or part of one, processes the
// rows of a slice in order and adds up what they share, so the partition fixes the order of the
// additions: it follows from the call and the size of the device alone.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

/// Slices of `rows` rows; `per_span` of them cover each span of `span` rows, and none straddles two
/// spans.
struct Slices {
  int64_t rows, span, per_span;

  FUSEDOPS_HD int64_t begin(int64_t slice) const {
    return slice / per_span * span + slice % per_span * rows;
  }
  /// One past the last row of the slice, at most `count`.
  FUSEDOPS_HD int64_t end(int64_t slice, int64_t count) const {
    const int64_t of_span = (slice / per_span + 1) * span;
    int64_t end = begin(slice) + rows;
    end = end < of_span ? end : of_span;
    return end < count ? end : count;
  }
};

/// Partitions rows into `most` slices at most, one at least, none of which splits a group of
/// `group` rows. The slices form one span, so `per_span` is their number, rounded up to a multiple
/// of `lanes`. As schedule/row_partition.py does with rows of one dimension.
FUSEDOPS_HD Slices cut_rows(int64_t rows, int64_t most, int64_t group, int64_t lanes) {
  const int64_t fewer = most < rows ? most : rows;
  const int64_t wanted = fewer > 1 ? fewer : 1;
  const int64_t groups = ((rows + wanted - 1) / wanted + group - 1) / group;
  const int64_t size = group * (groups > 1 ? groups : 1);
  const int64_t slices = (rows + size - 1) / size;
  return {size, rows > 1 ? rows : 1, (slices + lanes - 1) / lanes * lanes};
}

/// One row of a slice, as the targets of operand gradients see it.
struct Visit {
  int64_t slice;
  uint32_t turn, turns;  // the number of the row in its slice, and the number of rows
  bool any, here;        // whether the slice has any row, and whether it has this one

  /// Whether a group of rows begins or ends with this row; `group` is 0 for the whole slice.
  FUSEDOPS_HD bool begins(int64_t group) const {
    return group == 0 ? turn == 0 : turn % static_cast<uint32_t>(group) == 0;
  }
  FUSEDOPS_HD bool ends(int64_t group) const {
    return group == 0 ? turn + 1 == turns : (turn + 1) % static_cast<uint32_t>(group) == 0;
  }
};

}  // namespace fusedops
