// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a STORE for packs of a tile of a product. Few warps do that, so nothing hides the latency of an
// instruction but the instructions beside it: operands are read ahead, and several packs go through
// each functor together.
#pragma once

#include <fusedops/core/math.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/row/ahead.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Whether a functor without operands takes all packs of a thread together.
template <class F, class P>
using BelowEachOtherCall = decltype(any_of<const F>().below_each_other(
    any_of<P>().values, any_of<const P>().rows, int64_t(0)));

}  // namespace detail

namespace gemm {

/// The columns of a pack: what one access of 16-bit elements has.
inline constexpr int kPack = 8;

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

/// Calls f with 0, 1, ... kCount - 1 as constants.
template <int kCount, int kFirst = 0, class F>
__device__ __forceinline__ void unrolled(const F& f) {
  f(Constant<kFirst>{});
  if constexpr (kFirst + 1 < kCount) unrolled<kCount, kFirst + 1>(f);
}

/// kPacks packs of a thread, below each other.
template <class Index, int kPacks>
struct Packs {
  using Row = Index;
  static constexpr int kCount = kPacks;
  float values[kPacks][kPack];
  Index rows[kPacks];
  int64_t col;
  OperandsAhead operands[kPacks];

  /// Issues the reads of the operands.
  template <class Functors>
  __device__ __forceinline__ void issue(const Functors& chain) {
    FUSEDOPS_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      float none[kPack];
      FUSEDOPS_UNROLL
      for (int i = 0; i < kPack; ++i) none[i] = 0;
      call_all(chain, none, AheadRow<Index, true>(rows[p], operands[p]));
    }
  }
  /// Runs the functors.
  template <class Functors>
  __device__ __forceinline__ void apply(const Functors& chain) {
    int read[kPacks];  // of the operands, in words
    FUSEDOPS_UNROLL
    for (int p = 0; p < kPacks; ++p) read[p] = 0;
    through(chain, read);
  }
  /// Runs the STORE.
  template <class Target, class Functors>
  __device__ __forceinline__ void run(const Store<Target, Functors>& to) {
    apply(to.chain);
    FUSEDOPS_UNROLL
    for (int p = 0; p < kPacks; ++p) to.target.write(values[p], rows[p], col);
  }

  /// Writes the same number everywhere.
  template <class Target>
  __device__ __forceinline__ void fill(const Target& target, float value) {
    FUSEDOPS_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kPack; ++i) values[p][i] = value;
      target.write(values[p], rows[p], col);
    }
  }

 private:
  /// All functors, masks among them, in their order.
  template <int kFirst, class F, class... Rest, class Row>
  __device__ __forceinline__ void call_all(const Chain<kFirst, F, Rest...>& chain,
                                           float (&none)[kPack], const Row& row) {
    chain.first(none, detail::row_for<F>(row), col);
    call_all(chain.rest, none, row);
  }
  template <int kFirst, class Row>
  __device__ __forceinline__ void call_all(const Chain<kFirst>&, float (&)[kPack], const Row&) {}

  template <int kFirst, class F, class... Rest>
  __device__ __forceinline__ void through(const Chain<kFirst, F, Rest...>& chain,
                                          int (&read)[kPacks]) {
    if constexpr (detail::detected<detail::BelowEachOtherCall, F, Packs>()) {
      chain.first.below_each_other(values, rows, col);
    } else {
      FUSEDOPS_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const AheadRow<Index, false> row(rows[p], operands[p], read[p]);
        chain.first(values[p], detail::row_for<F>(row), col);
        read[p] = row.next;
      }
    }
    through(chain.rest, read);
  }
  template <int kFirst>
  __device__ __forceinline__ void through(const Chain<kFirst>&, int (&)[kPacks]) {}
};

/// What the epilogue warps do in a forward pass: run the STORE.
template <class StoreT>
struct Forward {
  static constexpr bool kSums = false;
  const StoreT& store;
  __device__ __forceinline__ explicit Forward(const StoreT& to) : store(to) {}

  template <class PacksT>
  __device__ __forceinline__ void issue(PacksT& packs) const {
    packs.issue(store.chain);
  }
  template <class PacksT>
  __device__ __forceinline__ void run(PacksT& packs) const {
    packs.run(store);
  }
  /// In place of both, where all elements are masked, and nothing comes after the masks.
  template <class PacksT>
  __device__ __forceinline__ void mask(PacksT& packs) const {
    packs.fill(store.target, -infinity<float>());
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
