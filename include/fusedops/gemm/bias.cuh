// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The bias of a STORE that begins with AddedBias: the sums of a product begin with it, so that sum and bias
// are rounded once, as by torch's product with a bias. Nobody else hides how long the warps that multiply
// wait for it. In turns they read it while the others multiply; together, from shared memory, where it comes
// with the first stage of a tile.
#pragma once

#include <fusedops/functor/added_bias.cuh>
#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/products.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

struct NoBias {
  static constexpr bool kAny = false;
};

/// One number of the factors' type for each column; they follow each other from a multiple of 16 bytes on.
template <class Term>
struct ColumnBias {
  static constexpr bool kAny = true;
  static_assert(Term::kAccess == kPack, "it is copied by words of 16 bytes");
  const Term& term;

  /// Where the numbers of a tile from this column on lie.
  __device__ __forceinline__ const auto* at(int col) const {
    return term.begin(RowIndex<1>{0, {0}}) + col;
  }
  /// Begins the sums of a warpgroup. from: the tile's numbers.
  template <class Tiling>
  __device__ __forceinline__ static void begin(typename Tiling::Sums& sums,
                                               const typename Tiling::T* from) {
    static_assert(detail::IsSame<typename Term::Element, typename Tiling::T>::value, "of one type");
    const auto* mine = from + lane_of_warp() % 4 * 2;
    begin_with<Tiling>(
        sums, [&](int nth) { return bit_cast<uint32_t>(read_input<2>(mine + nth * kPack)); });
  }
  /// The same of numbers in shared memory.
  template <class Tiling>
  __device__ __forceinline__ static void begin(typename Tiling::Sums& sums, uint32_t from) {
    from += lane_of_warp() % 4 * 4;
    begin_with<Tiling>(sums, [&](int nth) {
      uint32_t pair;
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(from + nth * kPack * 2) : "memory");
      return pair;
    });
    __syncwarp();  // two lanes release the stage, for all
  }

 private:
  /// read: the two of a pack's columns that this thread has.
  template <class Tiling, class Read>
  __device__ __forceinline__ static void begin_with(typename Tiling::Sums& sums, const Read& read) {
    constexpr int kAcross = Tiling::kAcross, kPacks = Tiling::kTileN / kAcross / kPack;
    uint32_t pairs[kAcross][kPacks];
    FUSEDOPS_UNROLL
    for (int a = 0; a < kAcross; ++a) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kPacks; ++j) pairs[a][j] = read(a * kPacks + j);
    }
    FUSEDOPS_UNROLL
    for (int n = 0; n < kAcross * Tiling::kHalves; ++n) {
      FUSEDOPS_UNROLL
      for (int j = 0; j < kPacks; ++j) {
        float* sum = sums[n] + 4 * j;  // of a row, and of the row 8 below
        from_pair<typename Tiling::T>(pairs[n % kAcross][j], sum[0], sum[1]);
        sum[2] = sum[0];
        sum[3] = sum[1];
      }
    }
    FUSEDOPS_UNROLL
    for (auto& sum : sums) wgmma_keep(sum);
  }
};

template <class Functors>
__device__ __forceinline__ NoBias bias_before(const Functors&) {
  return {};
}
template <int kFirst, class Term, class... Rest>
__device__ __forceinline__ ColumnBias<Term> bias_before(
    const Chain<kFirst, AddedBias<Term>, Rest...>& chain) {
  return {chain.first.term};
}

/// What the sums begin with, before what an epilogue does.
template <class Epilogue>
__device__ __forceinline__ NoBias bias_of(const Epilogue&) {
  return {};
}
template <class StoreT>
__device__ __forceinline__ auto bias_of(const Forward<StoreT>& epilogue) {
  return bias_before(epilogue.store.chain);
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
