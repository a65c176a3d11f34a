// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How a dispatched gradient cuts its rows into slices and its workspace into sums. Both follow from
// rows, columns, wanted gradients and device, so that a query and the dispatch that follows agree.
#pragma once

#include <fusedops/dispatch/wanted.cuh>
#include <fusedops/op/column_sums.cuh>
#include <fusedops/row/slices.cuh>

namespace fusedops {

namespace detail {

/// What the wanted gradients have in common.
struct Demand {
  int64_t group = 1;    // rows of the largest group
  bool divides = true;  // all groups divide it
};

FUSEDOPS_HD void demand(Demand&, const List<>&) {}
template <class First, class... Rest>
FUSEDOPS_HD void demand(Demand& all, const List<First, Rest...>& wanted) {
  using To = decltype(wanted.first.to);
  constexpr Sharing kSharing = SharingOf<To>::value;
  if constexpr (kSharing == Sharing::kGroup) {
    const int64_t group = wanted.first.to.group;
    const int64_t larger_one = group > all.group ? group : all.group;
    const int64_t other = group > all.group ? all.group : group;
    all.divides = all.divides && other > 0 && larger_one % other == 0;
    all.group = larger_one;
  }
  demand(all, wanted.rest);
}

template <class Wanted>
Demand demanded(const Wanted& wanted) {
  Demand all;
  demand(all, wanted);
  return all;
}

/// Slices of the rows, none of which cuts a group: about `visitors` of them, a multiple of `lanes`.
inline Slices slice(int64_t rows, int64_t visitors, int64_t group, int64_t lanes, int64_t* total) {
  const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t size = group * ceil(ceil(rows, visitors < rows ? visitors : rows), group);
  *total = ceil(ceil(rows, size), lanes) * lanes;
  return {size, rows, *total};
}

/// The slices and what they need.
struct Slicing {
  Slices slices;
  int64_t total;   // slices
  int64_t lanes;   // that leave one part of a sum together
  bool in_memory;  // sums over rows lie in the workspace while a slice is visited
};

/// Hands out the workspace.
struct Workspace {
  char* begin;
  size_t used;

  template <class T>
  T* take(int64_t count) {
    constexpr size_t kLine = 128;
    T* found = begin == nullptr ? nullptr : reinterpret_cast<T*>(begin + used);
    used += (static_cast<size_t>(count) * sizeof(T) + kLine - 1) / kLine * kLine;
    return found;
  }
};

/// A target of one side.
template <Side kSide_, class Target>
struct Placed {
  static constexpr Side kSide = kSide_;
  Target target;
};

/// Where a wanted gradient goes, as a kernel whose sums are kept so sees it.
template <class Compute, Sums kSums, class Wanted>
auto placed(const Wanted& wanted, const Slicing& cut, int64_t cols, int64_t words,
            Workspace& workspace, int64_t& offset) {
  using To = decltype(wanted.to);
  constexpr Sharing kSharing = SharingOf<To>::value;
  constexpr int kFunctor = Wanted::kFunctor, kOperand = Wanted::kOperand;
  constexpr bool kMemory = kSums == Sums::kMemory;
  if constexpr (kSharing == Sharing::kRows) {
    Compute* const sums =
        workspace.take<Compute>((kMemory ? cut.total : cut.total / cut.lanes) * cols);
    using View = Operand<Compute, RowMap<1>>;
    const int64_t at = offset;
    if (kSums == Sums::kShared) offset += words;
    return Placed<Wanted::kSide, ByColumn<kFunctor, kOperand, View, true, kSums, Compute>>{
        {direct(sums, cols), {kMemory ? sums : nullptr}, at, 0, cols}};
  } else if constexpr (kSharing == Sharing::kGroup) {
    Compute* const sums = kMemory ? workspace.take<Compute>(cut.total * cols) : nullptr;
    using View = decltype(wanted.to.to);
    const int64_t at = offset;
    if (kSums == Sums::kShared) offset += words;
    return Placed<Wanted::kSide, ByColumn<kFunctor, kOperand, View, false, kSums, Compute>>{
        {wanted.to.to, {sums}, at, wanted.to.group, cols}};
  } else if constexpr (kSharing == Sharing::kColumns) {
    return Placed<Wanted::kSide, ByRow<kFunctor, kOperand, To, false, Compute>>{{wanted.to, 1}};
  } else if constexpr (kSharing == Sharing::kAll) {
    Compute* const sums = workspace.take<Compute>(cut.total);
    using View = View<Compute, 1, Column::kBroadcast, 1>;
    return Placed<Wanted::kSide, ByRow<kFunctor, kOperand, View, true, Compute>>{
        {per_row(sums), 0}};
  } else {
    return Placed<Wanted::kSide, Each<kFunctor, kOperand, To>>{{wanted.to}};
  }
}

template <class Compute, Sums kSums>
List<> all_placed(const List<>&, const Slicing&, int64_t, int64_t, Workspace&, int64_t&) {
  return {};
}
template <class Compute, Sums kSums, class First, class... Rest>
auto all_placed(const List<First, Rest...>& wanted, const Slicing& cut, int64_t cols, int64_t words,
                Workspace& workspace, int64_t& offset) {
  const auto first = placed<Compute, kSums>(wanted.first, cut, cols, words, workspace, offset);
  const auto rest = all_placed<Compute, kSums>(wanted.rest, cut, cols, words, workspace, offset);
  return prepended(first, rest);
}

/// What a second stage adds up: the parts of each sum that all rows share.
template <class Compute, Sums kSums>
List<> all_parts(const List<>&, const List<>&, const Slicing&, int64_t) {
  return {};
}
template <class Compute, Sums kSums, class First, class... Rest, class Place, class... Places>
auto all_parts(const List<First, Rest...>& wanted, const List<Place, Places...>& places,
               const Slicing& cut, int64_t cols) {
  const auto rest = all_parts<Compute, kSums>(wanted.rest, places.rest, cut, cols);
  using To = decltype(wanted.first.to);
  constexpr Sharing kSharing = SharingOf<To>::value;
  if constexpr (kSharing == Sharing::kRows || kSharing == Sharing::kAll) {
    constexpr bool kWhole = kSharing == Sharing::kAll || kSums == Sums::kMemory;
    const int64_t parts = kWhole ? cut.total : cut.total / cut.lanes;
    const int64_t columns = kSharing == Sharing::kAll ? 1 : cols;
    return prepended(
        PartsOf<To, Compute>{wanted.first.to, {places.first.target.to.data}, parts, 1, columns},
        rest);
  } else {
    return rest;
  }
}

/// The targets of one side, as a kernel takes them.
template <Side kSide, class... Found>
FUSEDOPS_HD auto targets_of(const List<>&, const Found&... found) {
  return targets(found...);
}
template <Side kSide, class First, class... Rest, class... Found>
FUSEDOPS_HD auto targets_of(const List<First, Rest...>& all, const Found&... found) {
  if constexpr (First::kSide == kSide) {
    return targets_of<kSide>(all.rest, found..., all.first.target);
  } else {
    return targets_of<kSide>(all.rest, found...);
  }
}

}  // namespace detail

}  // namespace fusedops
