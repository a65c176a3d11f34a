// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The tiles of a product all of which a STORE sets to -inf: nothing is read or multiplied for them. Masks
// select, so what stands in the place of the product is never seen.
#pragma once

#include <fusedops/functor/compose.cuh>
#include <fusedops/gemm/batch.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// No tile is.
struct NeverMasked {
  static constexpr bool kNever = true;
  template <class Tile>
  __device__ __forceinline__ bool operator()(const Tile&) const {
    return false;
  }
};

/// Those that masks of a chain exclude whose range of columns moves with the query.
template <class Order, class StoreT, class Rows>
struct MaskedTiles {
  const Batch& batch;
  const StoreT& store;
  const Rows& rows;

  __device__ __forceinline__ MaskedTiles(const Batch& of, const StoreT& to, const Rows& all)
      : batch(of), store(to), rows(all) {}

 private:
  template <class Functors>
  struct Moving;
  template <int kFirst>
  struct Moving<Chain<kFirst>> {
    static constexpr bool kAny = false, kMaskIsLast = false;
  };
  template <int kFirst, class F, class... Rest>
  struct Moving<Chain<kFirst, F, Rest...>> {
    static constexpr bool kAny =
        detail::moves_with_query<F>() || Moving<Chain<kFirst + 1, Rest...>>::kAny;
    static constexpr bool kMaskIsLast =
        sizeof...(Rest) == 0 ? detail::masks<F>() : Moving<Chain<kFirst + 1, Rest...>>::kMaskIsLast;
  };
  using Functors = decltype(store.chain);

 public:
  /// A stream that is saved before the masks shows the product, and a functor after them makes
  /// something of what is masked.
  static constexpr bool kNever =
      Functors::kSaves || !Moving<Functors>::kAny || !Moving<Functors>::kMaskIsLast;

  /// Both blocks of a cluster agree, since they share what is read: it is asked of both tiles.
  template <class Tile>
  __device__ __forceinline__ bool operator()(const Tile& tile) const {
    if constexpr (kNever) {
      return false;
    } else {
      constexpr int kTileM = Order::kTileM, kTileN = Order::kTileN;
      const int count = static_cast<int>(batch.rows), above = tile.product * count;
      const int pair = tile.new_row - rank_in_cluster() * kTileM;
      const auto first = rows.index(above + min(pair, count - kTileM));
      const auto last = rows.index(above + min(pair + 2 * kTileM, count) - 1);
      return excludes(store.chain, first, last, tile.col, tile.col + kTileN);
    }
  }

 private:
  template <int kFirst, class F, class... Rest, class Index>
  __device__ __forceinline__ static bool excludes(const Chain<kFirst, F, Rest...>& chain,
                                                  const Index& first, const Index& last,
                                                  int64_t begin, int64_t end) {
    if constexpr (detail::moves_with_query<F>()) {
      if (chain.first.columns(last).end <= begin || chain.first.columns(first).begin >= end) {
        return true;
      }
    }
    return excludes(chain.rest, first, last, begin, end);
  }
  template <int kFirst, class Index>
  __device__ __forceinline__ static bool excludes(const Chain<kFirst>&, const Index&, const Index&,
                                                  int64_t, int64_t) {
    return false;
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
