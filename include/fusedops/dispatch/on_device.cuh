// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Refuses a LOAD, a STORE or a functor that a kernel cannot call, since __device__ is missing from a
// member. Our own functions are for both sides, and from these nvcc lets such a call pass: with a
// warning at best, and the kernel computes something else. From a function for the device alone it is
// an error, which names the member. These functions are compiled and never called.
#pragma once

#include <fusedops/dispatch/drawn.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

#if defined(FUSEDOPS_CUDA)

struct AnySink {
  template <int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&)[N], const Row&, int64_t) {}
};

template <class T, class Loaded>
__device__ void load_needs_device(T& given, Loaded* values) {
  given.template load<1>(values, int64_t(0), int64_t(0));
}
template <class T, class Compute>
__device__ void store_needs_device(T& given, const Compute* values) {
  given.template store<1>(values, int64_t(0), int64_t(0));
}
template <class F, class Compute>
__device__ void functor_needs_device(const F& given, Compute (&values)[1]) {
  if constexpr (block_of<F>() == kNoBlock) {
    given(values, RowIndex<1>{0, {0}}, int64_t(0));
  } else {
    const RowIndex<1> row{0, {0}};
    given(values, row, int64_t(0), given.of_block(row, given.measure(values)));
  }
}
template <class F, class Compute>
__device__ void backward_needs_device(const F& given, Compute (&values)[1]) {
  AnySink sink;
  given.backward(values, values, RowIndex<1>{0, {0}}, int64_t(0), sink);
}

template <class Compute, bool kBackward, class F>
__device__ __forceinline__ void check_functor() {
  (void)&functor_needs_device<F, Compute>;
  if constexpr (kBackward && !masks<F>()) (void)&backward_needs_device<F, Compute>;
}

/// Whatever a kernel is given; kBackward: whether it goes back through functors.
template <class Compute, bool kBackward, class T>
__device__ __forceinline__ void check_on_device(const T&) {}
template <class Compute, bool kBackward, class T, int kMost>
__device__ __forceinline__ void check_on_device(const PlainLoad<T, Compute, kMost>&) {
  (void)&load_needs_device<T, DetectedOr<Compute, LoadTypeOf, T>>;
}
template <class Compute, bool kBackward, class T, int kMost>
__device__ __forceinline__ void check_on_device(const PlainStore<T, Compute, kMost>&) {
  (void)&store_needs_device<T, Compute>;
}
template <class Compute, bool kBackward, class Source, class... Functors>
__device__ __forceinline__ void check_on_device(const Load<Source, Functors...>&) {
  (check_functor<Compute, kBackward, Functors>(), ...);
}
template <class Compute, bool kBackward, class Target, class... Functors>
__device__ __forceinline__ void check_on_device(const Store<Target, Chain<0, Functors...>>&) {
  (check_functor<Compute, kBackward, Functors>(), ...);
}
template <class Compute, bool kBackward, class T>
__device__ __forceinline__ void check_on_device(const OnlyValues<T>& load) {
  check_on_device<Compute, false>(static_cast<const T&>(load));
}
template <class Compute, bool kBackward, class T>
__device__ __forceinline__ void check_on_device(const AsOperand<T>& composed) {
  check_on_device<Compute, false>(composed.inner);
}

#endif

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
