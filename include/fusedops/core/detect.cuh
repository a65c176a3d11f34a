// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Detection of members at compile time, for headers that cannot include <type_traits>: NVRTC has
// none. This is the one idiom for it, that of std::experimental::is_detected: an alias template of
// the expression, and detected<Alias, T>(), DetectedOr<Default, Alias, T> or, for a constant,
// flag<default, Alias, T>(). Answers are functions, since NVRTC gives each constexpr variable and
// static member a symbol in the binary, whether anything reads it or not.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class T>
T& any_of();  // a value in unevaluated contexts, as std::declval

template <class T>
void accept(const T&);  // accept<T>(value) is well-formed where value converts to T

template <class A, class B>
struct IsSame {
  static constexpr bool value = false;
};
template <class A>
struct IsSame<A, A> {
  static constexpr bool value = true;
};

template <class...>
struct MakeVoid {
  using type = void;
};
template <class... T>
using Void = typename MakeVoid<T...>::type;

template <class, class Default, template <class...> class Expression, class... Args>
struct Detected {
  using type = Default;
  FUSEDOPS_HD static constexpr bool get() { return false; }
};
template <class Default, template <class...> class Expression, class... Args>
struct Detected<Void<Expression<Args...>>, Default, Expression, Args...> {
  using type = Expression<Args...>;
  FUSEDOPS_HD static constexpr bool get() { return true; }
};

/// The type Expression<Args...> where that is well-formed, otherwise Default.
template <class Default, template <class...> class Expression, class... Args>
using DetectedOr = typename Detected<void, Default, Expression, Args...>::type;

/// Whether the alias template Expression, usually decltype of a call, is well-formed.
template <template <class...> class Expression, class... Args>
FUSEDOPS_HD constexpr bool detected() {
  return Detected<void, void, Expression, Args...>::get();
}

template <bool kValue>
struct Flag {
  FUSEDOPS_HD static constexpr bool get() { return kValue; }
};

/// The value of an optional constant: Member is the alias template of Flag<T::kName>.
template <bool kDefault, template <class...> class Member, class... Args>
FUSEDOPS_HD constexpr bool flag() {
  return DetectedOr<Flag<kDefault>, Member, Args...>::get();
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
