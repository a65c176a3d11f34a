// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The targets of the operand gradients of a LOAD or a STORE together with their running sums. They
// form the sink that a chain's backward() gets. A gradient without a target is discarded, and the
// compiler removes the code that computes it.
#pragma once

#include <fusedops/row/channel_target.cuh>
#include <fusedops/row/target.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// References to the targets of the operand gradients of a LOAD or a STORE.
template <class... Targets_>
struct Targets {};
template <class First, class... Rest>
struct Targets<First, Rest...> {
  const First& first;
  Targets<Rest...> rest;
};

FUSEDOPS_HD Targets<> targets() { return {}; }
template <class First, class... Rest>
FUSEDOPS_HD Targets<First, Rest...> targets(const First& first, const Rest&... rest) {
  return {first, targets(rest...)};
}

namespace detail {

template <class Target>
using InSharedFlag = Flag<Target::kInShared>;

}  // namespace detail

/// kInShared: how many sums over rows a block has in shared memory.
template <class Tile, class TargetList>
struct Sinks;

template <class Tile>
struct Sinks<Tile, Targets<>> {
  static constexpr bool kAny = false;
  static constexpr int kInShared = 0;
  FUSEDOPS_HD explicit Sinks(const Targets<>&) {}

  template <class Lane>
  FUSEDOPS_HD void begin(const Lane&) {}
  template <int kFunctor, int kOperand, int N, class Compute, class Lane, class Row>
  FUSEDOPS_HD void add(const Compute (&)[N], const Lane&, const Row&, int64_t, const Visit&, int,
                       int) {}
  template <class Lane, class Row>
  FUSEDOPS_HD void flush(const Lane&, const Row&, const Visit&) {}
};

template <class Tile, class First, class... Rest>
struct Sinks<Tile, Targets<First, Rest...>> {
  using Others = Sinks<Tile, Targets<Rest...>>;
  static constexpr bool kAny = true;
  static constexpr int kInShared =
      detail::flag<false, detail::InSharedFlag, First>() + Others::kInShared;
  const First& target;
  typename First::template Sum<Tile> sum;
  Others rest;

  FUSEDOPS_HD explicit Sinks(const Targets<First, Rest...>& targets)
      : target(targets.first), sum{}, rest(targets.rest) {}

  template <class Lane>
  FUSEDOPS_HD void begin(const Lane& lane) {
    target.template begin<Tile>(sum, lane);
    rest.begin(lane);
  }
  template <int kFunctor, int kOperand, int N, class Compute, class Lane, class Row>
  FUSEDOPS_HD void add(const Compute (&gradient)[N], const Lane& lane, const Row& row, int64_t col,
                       const Visit& visit, int pack, int first) {
    if constexpr (First::kFunctor == kFunctor && First::kOperand == kOperand) {
      target.template add<Tile>(sum, gradient, lane, row, col, visit, pack, first);
    } else {
      rest.template add<kFunctor, kOperand>(gradient, lane, row, col, visit, pack, first);
    }
  }
  /// Writes the sums that are complete; called after each row.
  template <class Lane, class Row>
  FUSEDOPS_HD void flush(const Lane& lane, const Row& row, const Visit& visit) {
    target.template flush<Tile>(sum, lane, row, visit);
    rest.flush(lane, row, visit);
  }
};

/// The sink that a chain's backward() gets for one pack of a tile.
template <class Sinks, class Lane>
struct PackSink {
  Sinks& sinks;
  const Lane& lane;
  const Visit& visit;
  int pack, first;

  /// The sink for the elements of the pack from element i on.
  FUSEDOPS_HD PackSink from(int i) const { return {sinks, lane, visit, pack, first + i}; }

  template <int kFunctor, int kOperand, int N, class Compute, class Row>
  FUSEDOPS_HD void add(const Compute (&gradient)[N], const Row& row, int64_t col) {
    sinks.template add<kFunctor, kOperand>(gradient, lane, row, col, visit, pack, first);
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
