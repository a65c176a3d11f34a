// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Gather: v = v + table[index], for a tensor of integers that broadcasts. An index that is none of
// an entry gives NaN, and nothing is read for it.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The gradient of the table has the index's place, an element for each of the index: who asks for
/// it adds up those of equal indices. The dispatch of C++ projects cannot, so it has none there.
template <class Table, class Index>
struct Gather {
  Table table;  // the first entry, for every row
  int64_t entries;
  int64_t step;  // from one entry to the next, in elements
  Index index;
  static constexpr bool kNeedsInput = false;
  static constexpr int kGradients = 0;

  template <class Visit>
  FUSEDOPS_HD void operands(Visit& visit) const {
    visit(index);  // of the table single elements are read, which are always aligned
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row& row, int64_t col) const {
    if constexpr (!detail::IsSame<Table, Unread>::value) {
      const auto at = index.template fetch<N, int64_t>(row, col);
      const auto* first = table.data + table.rows(row);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) {
        const int64_t entry = at[i];
        const bool known = static_cast<uint64_t>(entry) < static_cast<uint64_t>(entries);
        const auto found = read_input<1>(first + (known ? entry : 0) * step).at[0];
        v[i] += known ? convert<Compute>(found) : quiet_nan<Compute>();
      }
    }
  }

  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], const Row& row, int64_t col,
                            Sink& sink) const {
    sink.template add<0>(g, row, col);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
