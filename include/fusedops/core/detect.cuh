// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Detection of members at compile time, for headers that cannot include <type_traits>: NVRTC has
// none. The detection idiom of std::experimental::is_detected.
#pragma once

#include <fusedops/core/config.cuh>

namespace fusedops {

namespace detail {

template <class T>
T& any_of();  // stands for a value in unevaluated contexts, as std::declval does

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

// Answers are functions, which leave nothing behind: NVRTC gives every static constexpr member, and
// every constexpr variable, a symbol and a place in the binary, whether or not anything reads it.
template <class, template <class...> class Expression, class... Args>
struct Detected {
  FUSEDOPS_HD static constexpr bool get() { return false; }
};
template <template <class...> class Expression, class... Args>
struct Detected<Void<Expression<Args...>>, Expression, Args...> {
  FUSEDOPS_HD static constexpr bool get() { return true; }
};

/// Whether the alias template Expression, decltype of a call as a rule, is well-formed.
template <template <class...> class Expression, class... Args>
FUSEDOPS_HD constexpr bool detected() {
  return Detected<void, Expression, Args...>::get();
}

template <bool kValue>
struct Flag {
  FUSEDOPS_HD static constexpr bool get() { return kValue; }
};

template <class, bool kDefault, template <class...> class Member, class... Args>
struct FlagOr : Flag<kDefault> {};
template <bool kDefault, template <class...> class Member, class... Args>
struct FlagOr<Void<Member<Args...>>, kDefault, Member, Args...> : Member<Args...> {};

/// The value of an optional flag: Member is the alias template of Flag<T::kName>.
template <bool kDefault, template <class...> class Member, class... Args>
FUSEDOPS_HD constexpr bool flag() {
  return FlagOr<void, kDefault, Member, Args...>::get();
}

}  // namespace detail

}  // namespace fusedops
