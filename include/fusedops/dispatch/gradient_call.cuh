// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A gradient as it is dispatched: what it reads and writes, its kernel's argument, and which sums
// it makes on the way.
#pragma once

#include <fusedops/dispatch/form.cuh>
#include <fusedops/dispatch/rows.cuh>
#include <fusedops/dispatch/slicing.cuh>

namespace fusedops {

namespace detail {

/// How many gradients a functor has; unknown ones are as many as are asked for.
template <class F, class = void>
struct GradientCount {
  static constexpr int value = 0x7fffffff;
};
template <class F>
struct GradientCount<F, Void<decltype(F::kGradients)>> {
  static constexpr int value = F::kGradients;
};

/// Which gradients a LOAD or a STORE has.
template <class T>
struct GradientsOf {
  static constexpr bool has(int, int) { return false; }
};
template <class... Functors>
struct GradientsOf<List<Functors...>> {
  static constexpr bool has(int functor, int operand) {
    const int counts[] = {GradientCount<Functors>::value..., 0};
    return functor >= 0 && functor < int(sizeof...(Functors)) && operand >= 0 &&
           operand < counts[functor];
  }
};
template <class Source, class... Functors>
struct GradientsOf<Load<Source, Functors...>> : GradientsOf<List<Functors...>> {};
template <class Target, class... Functors>
struct GradientsOf<Store<Target, Chain<0, Functors...>>> : GradientsOf<List<Functors...>> {};

/// The argument of a gradient kernel.
template <Access kAccess, class Op, class LoadT, class Upstream, class StoreT, class Kept, class To,
          class Places>
struct GradientArguments {
  Op op;
  LoadT load;
  Upstream upstream;
  StoreT store;
  Kept kept;
  To to;
  Places places;
  Slices slices;
  RowsOf<kAccess> rows;
  int64_t cols;
};

/// What a gradient reads and writes, before it is known how.
template <class Op_, class LoadT, class Upstream, class StoreT, class Kept, class To, class Wanted>
struct GradientCall {
  using Op = Op_;
  using Compute = typename Op::Compute;
  using WantedList = Wanted;
  Op op;
  LoadT load;
  Upstream upstream;
  StoreT store;
  Kept kept;
  To to;
  Wanted wanted;
  void* workspace;
  uint64_t bytes;  // of the workspace
  int64_t rows, cols;

  template <Access kAccess, class Places>
  using Arguments = GradientArguments<kAccess, Op, LoadT, Upstream, StoreT, Kept, To, Places>;

  template <Access kAccess, class Places>
  Arguments<kAccess, Places> arguments(const Places& places, const Slices& slices) const {
    return {op, load, upstream, store, kept, to, places, slices, {rows}, cols};
  }
  bool valid(const Demand& all, int64_t fewest, int64_t most) const {
    return rows >= 0 && cols >= fewest && cols <= most && all.divides && rows % all.group == 0 &&
           lie_right(wanted);
  }
  bool has(uint64_t needed) const {
    return needed == 0 || (workspace != nullptr && bytes >= needed &&
                           reinterpret_cast<uint64_t>(workspace) % 16 == 0);
  }
  /// The second stage where there are no rows: zeros.
  auto nothing() const {
    Workspace none{nullptr, 0};
    int64_t offset = 0;
    const Slicing cut{{1, 1, 1}, 0, 1, true};
    const auto places = all_placed<Compute, Sums::kMemory>(wanted, cut, cols, 0, none, offset);
    return all_parts<Compute, Sums::kMemory>(wanted, places, cut, cols);
  }
  bool wide() const {
    AllWide all;
    all(load);
    all(upstream);
    all(store);
    all(to);
    visit(all, wanted);
    return all.wide;
  }

 private:
  bool lie_right(const List<>&) const { return true; }
  template <class First, class... Rest>
  bool lie_right(const List<First, Rest...>& all) const {
    static_assert(
        exists<First>(),
        "fusedops: gradients(...) names a functor or an operand that the LOAD or the STORE "
        "does not have; both are counted from 0");
    return lies_right(all.first.to) && lie_right(all.rest);
  }
  template <class Wanted_>
  static constexpr bool exists() {
    if constexpr (Wanted_::kSide == Side::kLoad) {
      return GradientsOf<LoadT>::has(Wanted_::kFunctor, Wanted_::kOperand);
    } else {
      return GradientsOf<StoreT>::has(Wanted_::kFunctor, Wanted_::kOperand);
    }
  }

  /// Whether no two elements of x have one place, but for those that are summed.
  template <class Target>
  bool lies_right(const Target&) const {
    return true;
  }
  template <class T>
  bool lies_right(const Operand<T, RowMap<1>>& target) const {
    return rows <= 1 || target.rows.stride[0] != 0;
  }
  template <class T, int kRank>
  bool lies_right(const Operand<T, Layout<kRank>>& target) const {
    return (cols <= 1 || target.column_stride != 0) && target.rows.repeats() == 1;
  }
  template <class T, int kRank>
  bool lies_right(const SharedBy<Operand<T, Layout<kRank>>>& target) const {
    return (cols <= 1 || target.to.column_stride != 0) && target.to.rows.repeats() == target.group;
  }

  static void visit(AllWide&, const List<>&) {}
  template <class First, class... Rest>
  static void visit(AllWide& all, const List<First, Rest...>& wanted) {
    visit_target(all, wanted.first.to);
    visit(all, wanted.rest);
  }
  template <class Target>
  static void visit_target(AllWide& all, const Target& target) {
    // What all rows share is summed in the workspace first.
    if constexpr (SharingOf<Target>::value == Sharing::kNone) all(target);
  }
  template <class Target>
  static void visit_target(AllWide& all, const SharedBy<Target>& target) {
    all(target.to);
  }
};

/// What a rung needs of shared memory or workspace, as far as types tell.
template <class Wanted>
struct WantsSums;
template <>
struct WantsSums<List<>> {
  static constexpr bool value = false;
  static constexpr int kByColumn = 0;
};
template <class First, class... Rest>
struct WantsSums<List<First, Rest...>> {
  static constexpr Sharing kSharing = SharingOf<decltype(First::to)>::value;
  static constexpr bool kRow = kSharing == Sharing::kRows || kSharing == Sharing::kGroup;
  static constexpr bool value =
      kRow || kSharing == Sharing::kAll || WantsSums<List<Rest...>>::value;
  static constexpr int kByColumn = kRow + WantsSums<List<Rest...>>::kByColumn;
};

/// Where a rung's sums over rows are, by columns, and whether another place may be needed where a
/// device has little shared memory. One H200: docs/measured-facts.md, section 10.
template <class Wanted, class Compute, class Rung>
struct SumsOf {
  static constexpr int64_t kRegisterSums = 512;    // columns
  static constexpr int64_t kAnywhere = 96 * 1024;  // bytes that every device has
  static constexpr int64_t kCapacity = Rung::template kCapacity<Compute>;
  static constexpr int64_t kBytes =
      WantsSums<Wanted>::kByColumn * Rung::kRows * kCapacity * int64_t(sizeof(Compute));
  static constexpr Sums value = kCapacity <= kRegisterSums ? Sums::kRegisters : Sums::kShared;
  static constexpr bool kMayLack = value == Sums::kShared && kBytes > kAnywhere;
  static constexpr bool kVisits = WantsSums<Wanted>::value || kCapacity > 8192;
};

}  // namespace detail

}  // namespace fusedops
