// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// One dispatched gradient: what it reads and writes, the argument of its kernel, and where its sums
// over rows are kept.
#pragma once

#include <fusedops/dispatch/rows.cuh>
#include <fusedops/dispatch/slicing.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class F>
using GradientsMember = decltype(F::kGradients);

template <class F>
using HasGradientMember = decltype(F::has_gradient(0));

/// Whether a functor has a gradient of that operand; one that says nothing of it has all.
template <class F>
constexpr bool has_gradient(int operand) {
  if constexpr (detected<GradientsMember, F>()) {
    if (operand >= F::kGradients) return false;
  }
  if constexpr (detected<HasGradientMember, F>()) return F::has_gradient(operand);
  return operand >= 0;
}

/// Whether a LOAD or a STORE has functor number `functor`, with a gradient of that operand.
template <class... Functors>
constexpr bool has_gradient_of(int functor, int operand) {
  const bool has[] = {has_gradient<Functors>(operand)..., false};
  return functor >= 0 && functor < int(sizeof...(Functors)) && operand >= 0 && has[functor];
}
template <class T>
struct GradientsOf {
  static constexpr bool has(int, int) { return false; }
};
template <class Source, class... Functors>
struct GradientsOf<Load<Source, Functors...>> {
  static constexpr bool has(int f, int operand) { return has_gradient_of<Functors...>(f, operand); }
};
template <class Target, class... Functors>
struct GradientsOf<Store<Target, Chain<0, Functors...>>> {
  static constexpr bool has(int f, int operand) { return has_gradient_of<Functors...>(f, operand); }
};

/// The argument of a gradient kernel.
template <Access kAccess, class Op, class LoadT, class Upstream, class StoreT, class Kept, class To,
          class Places>
struct GradientArguments {
  using Compute = typename Op::Compute;
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
  int64_t even;  // as in RowsArguments
};

#if !defined(__CUDACC_RTC__)

/// What a gradient reads and writes.
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
  GradientArguments<kAccess, Op, LoadT, Upstream, StoreT, Kept, To, Places> arguments(
      const Places& places, const Slices& slices, int64_t even = 0) const {
    return {op, load, upstream, store, kept, to, places, slices, {rows}, cols, even};
  }

  /// Whether rows, columns, groups and targets are as they must be.
  template <class Range>
  bool valid(const Demand& all) const {
    static_assert(all_exist(static_cast<const Wanted*>(nullptr)),
                  "fusedops: gradients(...) names a functor or an operand that the LOAD or the "
                  "STORE does not have; both are counted from 0");
    bool fits = rows >= 0 && cols >= Range::kLow && cols <= Range::kHigh && all.divides &&
                rows % all.group == 0;
    for_each(wanted, [&](const auto& one) { fits = fits && is_injective(one.to); });
    return fits && is_injective(to);
  }
  /// Whether the workspace has that many bytes, aligned to 16.
  bool has(uint64_t needed) const {
    return needed == 0 || (workspace != nullptr && bytes >= needed &&
                           reinterpret_cast<uint64_t>(workspace) % 16 == 0);
  }
  /// The second stage where there are no rows: it writes zeros.
  auto no_parts() const {
    const Slicing cut{{1, 1, 0}, 1, true};
    Placer<Compute, Sums::kMemory> placer{cut, cols, 0, {nullptr, 0}};
    return all_parts<Compute, Sums::kMemory>(wanted, mapped(wanted, placer), cut, cols);
  }
  /// The operands that it reads and writes. Gradients that all rows share are summed in the
  /// workspace, which is aligned.
  Operands operands() const {
    Operands all{rows};
    for_each(wanted, [&](const auto& one) {
      constexpr Sharing kSharing = kSharingOf<decltype(one.to)>;
      const bool wide = all.wide;
      if constexpr (kSharing == Sharing::kGroup) {
        all(one.to.to);
      } else {
        all(one.to);
        if constexpr (kSharing != Sharing::kNone) all.wide = wide;
      }
    });
    all(load);
    all(upstream);
    store.chain.operands(all);
    all(to);
    return all;
  }

 private:
  template <class Item>
  static constexpr bool exists() {
    if constexpr (Item::kSide == Side::kLoad) {
      return GradientsOf<LoadT>::has(Item::kFunctor, Item::kOperand);
    } else {
      return GradientsOf<StoreT>::has(Item::kFunctor, Item::kOperand);
    }
  }
  template <class... Items>
  static constexpr bool all_exist(const List<Items...>*) {
    return (exists<Items>() && ...);
  }

  /// Whether no two elements of x have one element of the target, except those that are summed.
  template <class Target>
  bool is_injective(const Target&) const {
    return true;
  }
  template <class T>
  bool is_injective(const Operand<T, RowMap<1>>& target) const {
    return rows <= 1 || target.rows.stride[0] != 0;
  }
  template <class T, int kRank>
  bool is_injective(const Operand<T, Layout<kRank>>& target) const {
    return (cols <= 1 || target.column_stride != 0) && target.rows.repeats() == 1;
  }
  template <class To_>
  bool is_injective(const Accumulated<To_>& target) const {
    return is_injective(target.to);
  }
  template <class To_>
  bool is_injective(const SharedBy<Accumulated<To_>>& target) const {
    return is_injective(SharedBy<To_>{target.group, target.to.to});
  }
  template <class T, int kRank>
  bool is_injective(const SharedBy<Operand<T, Layout<kRank>>>& target) const {
    return (cols <= 1 || target.to.column_stride != 0) && target.to.rows.repeats() == target.group;
  }
};

#endif

/// Which sums the wanted gradients need: `any` over rows, `by_column` of them one per column.
struct SumCount {
  bool any = false;
  int by_column = 0;
};
template <class... Items>
constexpr SumCount count_sums(const List<Items...>*) {
  SumCount all;
  const Sharing each[] = {Sharing::kNone, kSharingOf<decltype(Items::to)>...};
  for (const Sharing one : each) {
    const bool by_column = one == Sharing::kRows || one == Sharing::kGroup;
    all.any = all.any || by_column || one == Sharing::kAll;
    all.by_column += by_column;
  }
  return all;
}
template <class Wanted>
inline constexpr SumCount kSumsOf = count_sums(static_cast<const Wanted*>(nullptr));

/// Where a bucket keeps its sums over rows, by columns, and whether that may have to be another place
/// on a device with little shared memory. One H200: benchmarks/log, entry 10.
template <class Wanted, class Compute, class Bucket>
struct SumsOf {
  static constexpr int64_t kRegisterSums = 512;    // columns
  static constexpr int64_t kAnywhere = 96 * 1024;  // bytes of shared memory that every device has
  static constexpr int64_t kCapacity = Bucket::template kCapacity<Compute>;
  static constexpr int64_t kBytes = kSumsOf<Wanted>.by_column * Bucket::kRows *
                                    (kCapacity / Bucket::kCluster) *
                                    int64_t(sizeof(Compute));  // of a block
  static constexpr Sums value = kCapacity <= kRegisterSums ? Sums::kRegisters : Sums::kShared;
  static constexpr bool kMayLack = value == Sums::kShared && kBytes > kAnywhere;
  static constexpr bool kPersistent =
      kSumsOf<Wanted>.any || (kCapacity > 8192 && Bucket::kCluster == 1);
};

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
