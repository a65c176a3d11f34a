// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How the rows of a gradient are partitioned into slices. One block, or part of one, processes the
// rows of a slice in order and adds up what they share, so the partition fixes the order of the
// additions: it follows from the call and the size of the device alone.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Rows from `begin` to `end`, which may be none.
struct RowRange {
  int64_t begin, end;
};

/// Slices of `rows` rows; `per_span` of them cover each span of `span` rows, and none straddles two
/// spans.
struct Slices {
  int64_t rows, span, per_span;

  /// The rows of a slice, below `count`. In the first span, which is mostly the only one, nothing is
  /// divided: a division takes a GPU some 60 instructions, one after another, before the first load.
  FUSEDOPS_HD RowRange of(int64_t slice, int64_t count) const {
    int64_t first = 0;
    if (slice >= per_span) {
      const int64_t before = slice / per_span;
      first = before * span;
      slice -= before * per_span;
    }
    const int64_t begin = first + slice * rows;
    int64_t end = begin + rows;
    end = end < first + span ? end : first + span;
    return {begin, end < count ? end : count};
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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
