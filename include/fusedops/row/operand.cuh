// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// An operand of the C++ entry points: a pointer and a map from rows to offsets. The widest access
// that pointer and strides allow is computed when the operand is made, and tested at each access,
// so one kernel serves every alignment. (In a generated kernel it is a constant: View in
// row/view.cuh.)
//
//   direct(x, row_stride)     row r begins at x + r * row_stride
//   broadcast(bias, layout)   row r begins at bias + layout(r): row/layout.cuh
//   per_column(gamma)         all rows share one row
//   per_row(scale)            all columns share one value of the row
//   single(alpha)             all elements share one value
//   accumulate(target)        of a result: it is added to what is there
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/functor/refusals.cuh>
#include <fusedops/row/accumulate.cuh>
#include <fusedops/row/layout.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class T>
struct Plain {
  using type = T;
};
template <class T>
struct Plain<const T> {
  using type = T;
};

/// Refuses a write through a pointer to const: the cast that reads need would hide it.
template <class T>
FUSEDOPS_HD constexpr void refuse_to_write() {
  static_assert(
      IsSame<T, typename Plain<T>::type>::value,
      "fusedops: a result goes to memory that is const: direct(), broadcast(), "
      "per_column(), per_row() and single() of a pointer to const can be read alone; pass "
      "a pointer without const as the target of a STORE, a stream or a gradient");
}

/// Refuses a result in integers: a fraction would be cut off. The types of 8 bits are for quantize().
template <class T>
FUSEDOPS_HD constexpr void refuse_integers() {
  constexpr bool kInteger = IsSame<T, short>::value || IsSame<T, unsigned short>::value ||
                            IsSame<T, int>::value || IsSame<T, unsigned>::value ||
                            IsSame<T, long>::value || IsSame<T, unsigned long>::value ||
                            IsSame<T, long long>::value || IsSame<T, unsigned long long>::value;
  static_assert(!kInteger,
                "fusedops: a result goes to integers, which would cut off its fraction: use half, "
                "bfloat16, float or double, or quantize() before a target of 8 bits");
}

/// A view of memory that is const.
template <class View>
struct ReadOnly : View {
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&)[N], const Row&, int64_t) const {
    refuse_to_write<const typename View::Element>();
  }
};

/// The view of one value, shared by all columns.
template <class T, int kRank>
FUSEDOPS_HD auto one_value(T* data, const RowMap<kRank>& rows) {
  using Element = typename Plain<T>::type;
  const View<Element, kRank, Column::kBroadcast, 1> view{const_cast<Element*>(data), rows, 0};
  if constexpr (IsSame<T, Element>::value) {
    return view;
  } else {
    return ReadOnly<View<Element, kRank, Column::kBroadcast, 1>>{view};
  }
}

}  // namespace detail

/// Map: from a row to the offset of its first element.
template <class T, class Map>
struct Operand {
  using Element = typename detail::Plain<T>::type;
  T* data;
  Map rows;
  int64_t column_stride;
  int width;  // of the widest access, in columns; 0 where columns are not contiguous

  template <int N, class Compute, class Row>
  FUSEDOPS_HD Values<Compute, N> fetch(const Row& row, int64_t col) const {
    Values<Compute, N> values;
    read(values.at, row, col);
    return values;
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    if constexpr (kIsPack<N>) {
      if (is_wide<N, Row>()) return whole(row).read(value, row, col);
    }
    pieces(row).read(value, row, col);
  }

  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    if (is_wide<N, Row>()) whole(row).template prefetch<N>(row, col);
  }

#if defined(FUSEDOPS_CUDA)
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    if (is_wide<kWidest, Row>()) whole(row).prefetch_all(row, begin, end, by);
  }
#endif

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read_again(Compute (&value)[N], const Row& row, int64_t col) const {
    if constexpr (kIsPack<N>) {
      if (is_wide<N, Row>()) return whole(row).read_again(value, row, col);
    }
    pieces(row).read_again(value, row, col);
  }

  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    detail::refuse_to_write<T>();
    detail::refuse_integers<T>();
    if constexpr (kIsPack<N>) {
      if (is_wide<N, Row>()) return whole(row).write(value, row, col);
    }
    pieces(row).write(value, row, col);
  }

  template <int N, class Compute>
  FUSEDOPS_HD void round(Compute (&value)[N]) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) value[i] = convert<Compute>(convert<Element>(value[i]));
  }

 private:
  static constexpr int kWidest = 16 / sizeof(T);
  template <int N>
  static constexpr int kMost = N < kWidest ? N : kWidest;

  template <int N>
  static constexpr bool kIsPack = (N & (N - 1)) == 0;  // not LayerNorm's 3 statistics

  /// Whether N columns are one access; a constant where the row's type carries the answer.
  template <int N, class Row>
  FUSEDOPS_HD bool is_wide() const {
    constexpr Access kAccess = detail::AccessOf<Row>::value;
    if constexpr (kAccess == Access::kUnknown) return width >= kMost<N>;
    return kAccess == Access::kWide;
  }

#if defined(FUSEDOPS_CUDA)
  static constexpr int kWhole = kWidest;
#else
  static constexpr int kWhole = kAnyWidth;
#endif
  template <class Row>
  FUSEDOPS_HD View<Element, 0, Column::kContiguous, kWhole> whole(const Row& row) const {
    return {const_cast<Element*>(data) + rows(row), {}, 1};
  }
  template <class Row>
  FUSEDOPS_HD View<Element, 0, Column::kStrided, 1> pieces(const Row& row) const {
    Element* from = const_cast<Element*>(data) + rows(row);
    int64_t stride = column_stride;
#if defined(FUSEDOPS_ON_DEVICE)
    asm volatile("" : "+l"(from), "+l"(stride));
#endif
    return {from, {}, stride};
  }
};

namespace detail {

/// The widest access in columns that pointer and strides allow.
template <class T, class Strides>
FUSEDOPS_HD int widest(const T* data, const Strides& strides) {
  int width = 16 / sizeof(T);
#if !defined(FUSEDOPS_CUDA)
  (void)data;
  return strides.allows(1) ? width : 0;  // packs on a host need no alignment
#endif
  while (width > 0 &&
         (reinterpret_cast<uint64_t>(data) % (static_cast<uint64_t>(width) * sizeof(T)) != 0 ||
          !strides.allows(width))) {
    width /= 2;
  }
  return width;
}

struct Pitch {
  int64_t stride;
  FUSEDOPS_HD bool allows(int width) const { return stride % width == 0; }
};

}  // namespace detail

/// Row r begins at data + r * row_stride (in elements); columns are contiguous.
template <class T>
FUSEDOPS_HD Operand<T, RowMap<1>> direct(T* data, int64_t row_stride) {
  return {data, {{row_stride}}, 1, detail::widest(data, detail::Pitch{row_stride})};
}

/// Element (row, col) is data[layout(row) + col * layout.column_stride].
template <class T, int kRank>
FUSEDOPS_HD Operand<T, Layout<kRank>> broadcast(T* data, const Layout<kRank>& layout) {
  return {data, layout, layout.column_stride, detail::widest(data, layout)};
}

/// One value for each column, shared by all rows.
template <class T>
FUSEDOPS_HD Operand<T, RowMap<0>> per_column(T* data) {
  return {data, {}, 1, detail::widest(data, detail::Pitch{0})};
}

/// One value for each row, `stride` elements apart, shared by all columns.
template <class T>
FUSEDOPS_HD auto per_row(T* data, int64_t stride = 1) {
  return detail::one_value(data, RowMap<1>{{stride}});
}

/// One value, read on the device.
template <class T>
FUSEDOPS_HD auto single(T* data) {
  return detail::one_value(data, RowMap<0>{});
}

/// As a target: the result is added to what is there, in the compute type (in double, if that is
/// what is there), and rounded once.
template <class To>
FUSEDOPS_HD auto accumulate(const To& target) {
  detail::refuse_pointers<To>();
  return Accumulated<To>{target};
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
