// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Detection of members at compile time, for headers that cannot include <type_traits>: NVRTC has
// none. The detection idiom of std::experimental::is_detected.
#pragma once

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

template <class, template <class...> class Expression, class... Args>
struct Detected {
  static constexpr bool value = false;
};
template <template <class...> class Expression, class... Args>
struct Detected<Void<Expression<Args...>>, Expression, Args...> {
  static constexpr bool value = true;
};

/// Whether the alias template Expression, decltype of a call as a rule, is well-formed.
template <template <class...> class Expression, class... Args>
inline constexpr bool detected_v = Detected<void, Expression, Args...>::value;

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

template <class, bool kDefault, template <class...> class Member, class... Args>
struct FlagOr {
  static constexpr bool value = kDefault;
};
template <bool kDefault, template <class...> class Member, class... Args>
struct FlagOr<Void<Member<Args...>>, kDefault, Member, Args...> {
  static constexpr bool value = Member<Args...>::value;
};

/// The value of an optional flag: Member is the alias template of Flag<T::kName>.
template <bool kDefault, template <class...> class Member, class... Args>
inline constexpr bool flag_v = FlagOr<void, kDefault, Member, Args...>::value;

}  // namespace detail

}  // namespace fusedops
