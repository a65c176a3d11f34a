// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LOADs and STOREs some of whose functors keep seed and offset in memory (the member `drawn` in
// functor/contract.cuh): drawn(side) is the same with the numbers that are there now. A kernel calls
// it once, before its rows.
#pragma once

#include <fusedops/dispatch/form.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class F>
using DrawnCall = decltype(any_of<const F>().drawn());

/// Whether any functor of a LOAD or a STORE has to be drawn.
template <class T>
struct Draws {
  FUSEDOPS_HD static constexpr bool get() { return false; }
};
template <int kFirst, class... Functors>
struct Draws<Chain<kFirst, Functors...>> {
  FUSEDOPS_HD static constexpr bool get() { return (detected<DrawnCall, Functors>() || ...); }
};
template <class Source, class... Functors>
struct Draws<Load<Source, Functors...>> : Draws<Chain<0, Functors...>> {};
template <class Target, class Functors>
struct Draws<Store<Target, Functors>> : Draws<Functors> {};
template <class T>
struct Draws<OnlyValues<T>> : Draws<T> {};
template <class T>
struct Draws<AsOperand<T>> : Draws<T> {};

template <class F>
FUSEDOPS_HD auto drawn_functor(const F& functor) {
  if constexpr (detected<DrawnCall, F>()) {
    return functor.drawn();
  } else {
    return functor;
  }
}
template <int kSecond, class F, class... Rest>
FUSEDOPS_HD Chain<kSecond - 1, F, Rest...> in_front(const F& first,
                                                    const Chain<kSecond, Rest...>& rest) {
  return {first, rest};
}
template <int kFirst>
FUSEDOPS_HD Chain<kFirst> drawn_side(const Chain<kFirst>& none) {
  return none;
}
template <int kFirst, class F, class... Rest>
FUSEDOPS_HD auto drawn_side(const Chain<kFirst, F, Rest...>& chain) {
  return in_front(drawn_functor(chain.first), drawn_side(chain.rest));
}
template <class Source, class... Functors>
FUSEDOPS_HD Load<Source, Functors...> load_of(const Source& source,
                                              const Chain<0, Functors...>& chain) {
  return {source, chain};
}
template <class Source, class... Functors>
FUSEDOPS_HD auto drawn_side(const Load<Source, Functors...>& load) {
  return load_of(load.source, drawn_side(load.chain));
}
template <class Target, class Functors>
FUSEDOPS_HD auto drawn_side(const Store<Target, Functors>& store) {
  const auto chain = drawn_side(store.chain);
  return Store<Target, typename Plain<decltype(chain)>::type>{store.target, chain};
}
template <class T>
FUSEDOPS_HD auto drawn_side(const OnlyValues<T>& load) {
  return only_values(drawn_side(static_cast<const T&>(load)));
}
template <class T>
FUSEDOPS_HD auto drawn_side(const AsOperand<T>& composed) {
  const auto inner = drawn_side(composed.inner);
  return AsOperand<typename Plain<decltype(inner)>::type>{inner};
}

/// Without a functor that has to be drawn, the side itself, which is not copied.
template <class T>
FUSEDOPS_HD decltype(auto) drawn(const T& side) {
  if constexpr (Draws<T>::get()) {
    return drawn_side(side);
  } else {
    return (side);
  }
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
