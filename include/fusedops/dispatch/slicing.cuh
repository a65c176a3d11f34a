// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// How a dispatched gradient partitions its rows into slices, and its workspace into partial sums.
// Both follow from rows, columns, wanted gradients and device alone, so that the query of the
// workspace's size and the dispatch that follows agree.
#pragma once

#include <fusedops/dispatch/wanted.cuh>
#include <fusedops/op/column_sums.cuh>
#include <fusedops/row/slices.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// What the wanted gradients demand of the partition.
struct Demand {
  int64_t group = 1;    // rows in the largest group of rows that share an element
  bool divides = true;  // whether the sizes of all groups divide it
};

#if !defined(__CUDACC_RTC__)

template <class Wanted>
Demand demanded(const Wanted& wanted) {
  Demand all;
  for_each(wanted, [&](const auto& one) {
    if constexpr (kSharingOf<decltype(one.to)> == Sharing::kGroup) {
      const int64_t most = larger(one.to.group, all.group);
      const int64_t least = smaller(one.to.group, all.group);
      all.divides = all.divides && least > 0 && most % least == 0;
      all.group = most;
    }
  });
  return all;
}

#endif

/// The row partition of one gradient.
struct Slicing {
  Slices slices;   // a single span, so slices.per_span is their number
  int64_t lanes;   // slices whose partial sums one block adds up
  bool in_memory;  // whether sums over rows are kept in the workspace between rows
};

/// Hands out pieces of the workspace, each aligned to a cache line. Without memory (`begin` null)
/// it measures the size.
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

/// A target of operand gradients, for the functors of one side.
template <Side kSide_, class Target>
struct Placed {
  static constexpr Side kSide = kSide_;
  Target target;
};

/// Makes the target of each wanted gradient for a kernel that keeps its sums as kSums says.
template <class Compute, Sums kSums>
struct Placer {
  const Slicing& cut;
  int64_t cols;
  int64_t sums;  // elements of shared memory per sum over rows
  Workspace workspace;
  int64_t offset = 0;  // shared memory in use, in elements

  template <class Wanted>
  auto operator()(const Wanted& wanted) {
    using To = decltype(wanted.to);
    constexpr Sharing kSharing = kSharingOf<To>;
    constexpr Side kSide = Wanted::kSide;
    constexpr int kFunctor = Wanted::kFunctor, kOperand = Wanted::kOperand;
    constexpr bool kMemory = kSums == Sums::kMemory;
    const int64_t total = cut.slices.per_span;
    if constexpr (kSharing == Sharing::kRows) {
      Compute* const parts =
          workspace.template take<Compute>((kMemory ? total : total / cut.lanes) * cols);
      using Parts = Operand<Compute, RowMap<1>>;
      return Placed<kSide, ByColumn<kFunctor, kOperand, Parts, true, kSums, Compute>>{
          {direct(parts, cols), {kMemory ? parts : nullptr}, in_shared(), 0, cols}};
    } else if constexpr (kSharing == Sharing::kGroup) {
      Compute* const parts = kMemory ? workspace.template take<Compute>(total * cols) : nullptr;
      using OfGroup = decltype(wanted.to.to);
      return Placed<kSide, ByColumn<kFunctor, kOperand, OfGroup, false, kSums, Compute>>{
          {wanted.to.to, {parts}, in_shared(), wanted.to.group, cols}};
    } else if constexpr (kSharing == Sharing::kColumns) {
      return Placed<kSide, ByRow<kFunctor, kOperand, To, false, Compute>>{{wanted.to, 1}};
    } else if constexpr (kSharing == Sharing::kAll) {
      using Parts = View<Compute, 1, Column::kBroadcast, 1>;
      return Placed<kSide, ByRow<kFunctor, kOperand, Parts, true, Compute>>{
          {per_row(workspace.template take<Compute>(total)), 0}};
    } else {
      return Placed<kSide, Each<kFunctor, kOperand, To>>{{wanted.to}};
    }
  }

 private:
  /// Where the next sum begins in shared memory, in elements.
  int64_t in_shared() {
    const int64_t at = offset;
    if (kSums == Sums::kShared) offset += sums;
    return at;
  }
};

/// What the second stage adds up: the partial sums of each gradient that all rows share.
template <class Compute, Sums kSums>
List<> all_parts(const List<>&, const List<>&, const Slicing&, int64_t) {
  return {};
}
template <class Compute, Sums kSums, class First, class... Rest, class Place, class... Places>
auto all_parts(const List<First, Rest...>& wanted, const List<Place, Places...>& places,
               const Slicing& cut, int64_t cols) {
  const auto rest = all_parts<Compute, kSums>(wanted.rest, places.rest, cut, cols);
  using To = decltype(wanted.first.to);
  constexpr bool kOneValue = kSharingOf<To> == Sharing::kAll;
  if constexpr (kSharingOf<To> == Sharing::kRows || kOneValue) {
    constexpr bool kOfSlices = kOneValue || kSums == Sums::kMemory;
    const int64_t parts = cut.slices.per_span / (kOfSlices ? 1 : cut.lanes);
    return prepended(
        PartsOf<To, Compute>{
            wanted.first.to, {places.first.target.to.data}, parts, 1, kOneValue ? 1 : cols},
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

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
