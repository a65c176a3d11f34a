// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The operator that reduces nothing: y = v, the value of the LOAD. Kernels know it by kReduces and
// leave out all that serves a reduction: parts of a row, barriers, numbers kept for the gradient.
//
// kMasked: whether the LOAD masks elements. What is masked is -inf in y, and its gradient is zero, by
// selection. On the way back -inf is what the masks have made (functor/masked.cuh, FiniteForInfinity);
// what is -inf by itself is a value like any other.
#pragma once

#include <fusedops/op/contract.cuh>
#include <fusedops/row/tile.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

template <class Compute_, bool kMasked>
struct Map {
  using Compute = Compute_;
  static constexpr bool kReduces = false;
  uint64_t unused;

  struct Partial {
    uint32_t unused;
  };
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static Partial identity() { return {0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group, Tile&) const {
    return identity();
  }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}
  template <class Group>
  FUSEDOPS_HD Partial combine(Group, Partial part) const {
    return part;
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial) const { return a; }

  struct Finish {
    using Compute = Compute_;
    FUSEDOPS_HD Compute operator()(Compute v) const { return v; }
    FUSEDOPS_HD Finish of(Partial) const { return *this; }
  };
  template <class Row>
  FUSEDOPS_HD Finish finish(Partial, const Row&, int64_t) const {
    return {};
  }
};

template <class Compute_, bool kMasked>
struct MapGradient {
  using Compute = Compute_;
  static constexpr bool kReduces = false;
  uint64_t unused;
  static constexpr int kKept = 0;
  static constexpr bool kHasMasked = kMasked, kMaskedIsConstant = true;

  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static bool is_masked(Compute v) { return v == -infinity<Compute>(); }
  FUSEDOPS_HD static Compute masked_result() { return -infinity<Compute>(); }
  FUSEDOPS_HD static bool is_masked_result(Compute y) { return y == -infinity<Compute>(); }

  struct Row {
    FUSEDOPS_HD Compute result(Compute v) const { return v; }
  };

  struct Partial {
    uint32_t unused;
  };
  FUSEDOPS_HD static Partial identity() { return {0}; }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group, const Tile&, const Tile&) const {
    return identity();
  }
  template <class Group>
  FUSEDOPS_HD Partial combine(Group, Partial part) const {
    return part;
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial) const { return a; }

  struct Finish {
    FUSEDOPS_HD Compute operator()(Compute, Compute g) const { return g; }
  };
  template <class AnyRow>
  FUSEDOPS_HD Finish finish(const Row&, Partial, const AnyRow&, int64_t) const {
    return {};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
