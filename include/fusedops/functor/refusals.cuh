// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What load(), store() and the functions that make functors and operands do not take, each with the
// sentence that a compiler prints.
#pragma once

#include <fusedops/core/dtype.cuh>
#include <fusedops/functor/contract.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class T>
struct IsPointer {
  static constexpr bool value = false;
};
template <class T>
struct IsPointer<T*> {
  static constexpr bool value = true;
};
template <class T, size_t kCount>
struct IsPointer<T[kCount]> {
  static constexpr bool value = true;
};
/// Refuses a bare pointer, an array, or a number, where an operand is expected. To know that `auto` is void a
/// compiler reads the body at once: its sentence comes before what else is wrong with an array.
template <class... T>
FUSEDOPS_HD constexpr auto refuse_pointers() {
  static_assert(!(IsPointer<T>::value || ...),
                "fusedops: a bare pointer is no operand: say how it lies, as direct(pointer, "
                "row_stride), broadcast(pointer, layout), per_column(pointer), per_row(pointer) or "
                "single(pointer)");
  static_assert(
      ((__is_class(T) || IsPointer<T>::value) && ...),
      "fusedops: a bare number is no operand: scale, softcap, leaky_relu and the alpha of "
      "residual take a float or a double, others what lies in memory, as single(pointer)");
}

template <class T>
using ElementOf = typename T::Element;
template <class T>
struct Unqualified {
  using type = T;
};
template <class T>
struct Unqualified<const T> {
  using type = T;
};
/// The type in memory of an operand, without const; Otherwise of what does not say it.
template <class T, class Otherwise>
using MemoryOf = typename Unqualified<DetectedOr<Otherwise, ElementOf, T>>::type;

/// Refuses flags that are not bytes: a fraction, or a number whose last byte is zero, would be read
/// as false.
template <class Flags>
FUSEDOPS_HD constexpr void refuse_wide_flags() {
  static_assert(
      sizeof(MemoryOf<Flags, bool>) == 1,
      "fusedops: flags are of one byte: bool, or uint8_t. A mask of numbers that are added, 0 "
      "and -inf, is a bias(operand)");
}
/// Refuses fractions where positions or ids are expected.
template <class... T>
FUSEDOPS_HD constexpr void refuse_fractions() {
  static_assert(
      ((!IsSame<MemoryOf<T, int>, float>::value && !IsSame<MemoryOf<T, int>, double>::value &&
        !IsSame<MemoryOf<T, int>, half>::value && !IsSame<MemoryOf<T, int>, bfloat16>::value) &&
       ...),
      "fusedops: lengths, ids and indices are integers in memory, as int32_t or int64_t");
}
/// Refuses a largest value that is not a float: it is joined by its bits.
template <class Amax>
FUSEDOPS_HD constexpr void refuse_other_than_float() {
  static_assert(IsSame<MemoryOf<Amax, float>, float>::value,
                "fusedops: amax of quantize(scale, amax) is a float in memory: single(pointer) or "
                "per_row(pointer)");
}
template <class Target, bool kEnds>
FUSEDOPS_HD constexpr void refuse_to_round() {
  if constexpr (kEnds && detected<ElementOf, Target>()) {
    static_assert(sizeof(typename Target::Element) == 1,
                  "fusedops: quantize() before a target that is not of 8 bits: its scale is for "
                  "float8_e4m3 or float8_e5m2");
  }
}

template <class T>
using SourceCall =
    decltype(any_of<const T>().read(any_of<float[1]>(), any_of<const RowIndex<1>>(), int64_t(0)));
template <class T>
using TargetCall = decltype(any_of<const T>().write(any_of<const float[1]>(),
                                                    any_of<const RowIndex<1>>(), int64_t(0)));

template <class Source>
FUSEDOPS_HD constexpr auto refuse_as_source() {
  static_assert(detected<SourceCall, Source>() || !detected<FunctorCall, Source, float, int64_t>(),
                "fusedops: load(source, functors...) begins with what it reads, as direct(pointer, "
                "row_stride); functors follow in the order in which they run");
}
template <class First, class... Rest>
FUSEDOPS_HD constexpr auto refuse_as_target() {
  if constexpr (sizeof...(Rest) > 0) {
    static_assert(!detected<TargetCall, First>() || detected<FunctorCall, First, float, int64_t>(),
                  "fusedops: store(functors..., target) ends with what it writes, as "
                  "direct(pointer, row_stride); functors come before it in the order in which they "
                  "run");
    refuse_as_target<Rest...>();
  } else {
    static_assert(detected<TargetCall, First>() || !detected<FunctorCall, First, float, int64_t>(),
                  "fusedops: store(functors..., target) ends with what it writes, as "
                  "direct(pointer, row_stride), or Absent{} where a gradient does not write it");
  }
}
/// Refuses what the launch of a kernel cannot copy: it copies bytes.
template <class... T>
FUSEDOPS_HD constexpr auto refuse_constructors() {
  static_assert(
      (__is_trivially_copyable(T) && ...),
      "fusedops: a functor or an operand is copied to the GPU by bytes, so it is trivially "
      "copyable: no virtual members, and no copy constructor or destructor of its own");
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
