// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// An operand each of whose elements stands for several neighbouring columns: gamma of a group norm,
// say, which has one number for each channel, and the channels of a row lie one after another.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// Division on a host, for rows of any length: it is seldom, since a host's packs are wide.
struct HostDivider {
  int64_t size;
  uint64_t unused;
  FUSEDOPS_HD int64_t divide(int64_t n) const { return n / size; }
};

namespace detail {

template <int W>
struct DividerOf {
  using type = Divider;
};
template <>
struct DividerOf<kAnyWidth> {
  using type = HostDivider;
};

}  // namespace detail

/// Column c reads the element c / repeats. W columns that begin at a multiple of W share one
/// element; W is kAnyWidth on a host.
template <class T, int kRank, int W>
struct RepeatedView {
  using Element = T;
  T* data;
  RowMap<kRank> rows;
  int64_t column_stride;  // from one element to the next
  typename detail::DividerOf<W>::type repeats;

  /// N columns of an input from `col` on, by index, in the compute type.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD auto fetch(const Row& row, int64_t col) const {
    const T* base = data + rows(row);
    if constexpr (W != kAnyWidth && W >= N) {
      return Repeated<Compute>{value_of<Compute>(base, col)};
    } else {
      Values<Compute, N> values;
      if constexpr (W == kAnyWidth) {
        int64_t element = repeats.divide(col);
        int64_t left = (element + 1) * repeats.size - col;  // columns that share this element
        for (int done = 0; done < N; ++element) {
          const Compute value = convert<Compute>(base[element * column_stride]);
          const int end = static_cast<int>(smaller<int64_t>(done + left, N));
          for (; done < end; ++done) values.at[done] = value;
          left = repeats.size;
        }
      } else {
        FUSEDOPS_UNROLL
        for (int i = 0; i < N; i += W) {
          const Compute value = value_of<Compute>(base, col + i);
          FUSEDOPS_UNROLL
          for (int j = 0; j < W; ++j) values.at[i + j] = value;
        }
      }
      return values;
    }
  }

  /// The same into an array: what a LOAD starts from.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    const auto fetched = fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = fetched[i];
  }

  /// A row has few elements, which are not worth announcing.
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row&, int64_t, int64_t, By = {}) const {}
#endif

 private:
  template <class Compute>
  FUSEDOPS_HD Compute value_of(const T* base, int64_t col) const {
    const int64_t element = repeats.divide(static_cast<uint32_t>(col));  // rows are below 2^31
    return convert<Compute>(read_input<1>(base + element * column_stride).at[0]);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
