// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What the epilogue warps do where a cross entropy reads the product and nobody else does: of each row of a
// tile the logarithm of the sum of its exponentials goes to memory, with few other numbers, and the value at
// the row's target, but no other value. Lanes that have packs of a row combine by a butterfly of shuffles, so
// that bits follow from the tiling alone. The caller joins the numbers of a row's tiles.
#pragma once

#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/tile_order.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The last functor of the chain: it keeps the value at each row's target. A target that is no column is
/// that of no pack, and nothing is written for it. Target: the operand with the column of each row.
template <class Target>
struct KeepTarget {
  const Target& target;
  float* to;

  template <class Row>
  __device__ __forceinline__ void operator()(float (&v)[kPack], const Row& row, int64_t col) const {
    const int64_t label = target.template fetch<1, int64_t>(row, 0)[0];
    if constexpr (!detail::ReadsAhead<Row>::kOnlyIssues) {
      const uint64_t place = static_cast<uint64_t>(label - col);
      if (place >= kPack) return;
      float found = v[0];
      FUSEDOPS_UNROLL
      for (int i = 1; i < kPack; ++i) found = place == i ? v[i] : found;
      to[static_cast<int64_t>(row)] = found;
    }
  }
};
template <class Target>
__device__ __forceinline__ KeepTarget<Target> keep_target(const Target& target, float* to) {
  return {target, to};
}

/// Where the numbers of each row of a tile go: lse, then those of its mean, its entropy and its largest value
/// that are wanted, each of all rows of all tiles. `op/cross_entropy.cuh` says what they are.
template <bool kMean_, bool kEntropy_, bool kLargest_>
struct RowNumbers {
  static constexpr bool kMean = kMean_, kEntropy = kEntropy_, kLargest = kLargest_;
  float* to;
  int64_t tiles;
};

/// The epilogue itself. Chain: the functors, and a KeepTarget.
template <class Tiling, class Chain, class Numbers>
struct RowSums {
  static constexpr bool kSums = false;
  static constexpr int kCols = Tiling::kTileN, kLanes = kCols / kPack;
  static_assert(32 % kLanes == 0, "neighbouring lanes have a row of a tile");
  const Chain& chain;
  const Numbers& numbers;
  int64_t rows;

  template <class PacksT>
  __device__ __forceinline__ void issue(PacksT& packs) const {
    packs.issue(chain);
  }
  template <class PacksT>
  __device__ __forceinline__ void run(PacksT& packs) const {
    constexpr int kCount = PacksT::kCount;
    static_assert(kCount <= kLanes, "a lane of its own writes each row's numbers");
    packs.apply(chain);
    const int lane = lane_of_warp() % kLanes;
    const int tile = (static_cast<int>(packs.col) - lane * kPack + kCols - 1) / kCols;
    // The last tile may begin with columns that the one before it has.
    const bool is_new = packs.col >= tile * kCols;
    float max[kCount];
    FUSEDOPS_UNROLL
    for (int p = 0; p < kCount; ++p) {
      max[p] = packs.values[p][0];
      FUSEDOPS_UNROLL
      for (int i = 1; i < kPack; ++i) max[p] = larger(max[p], packs.values[p][i]);
      max[p] = is_new ? max[p] : -infinity<float>();
    }
    each_butterfly(max, [](float a, float b) { return larger(a, b); });
    FUSEDOPS_UNROLL
    for (int p = 0; p < kCount; ++p) max[p] = max[p] == -infinity<float>() ? 0.0f : max[p];
    auto sum_of = [&](const auto& term) {
      float sums[kCount];
      FUSEDOPS_UNROLL
      for (int p = 0; p < kCount; ++p) {
        sums[p] = term(packs.values[p][0], max[p]);
        FUSEDOPS_UNROLL
        for (int i = 1; i < kPack; ++i) sums[p] += term(packs.values[p][i], max[p]);
        sums[p] = is_new ? sums[p] : 0.0f;
      }
      each_butterfly(sums, [](float a, float b) { return a + b; });
      return of_lane(sums, lane);
    };
    // Each lane has those of the row that it writes.
    float total = 0, classes = 0, weighted = 0;
    if constexpr (Numbers::kMean) {
      total = sum_of([](float v, float) { return v == -infinity<float>() ? 0.0f : v; });
      classes = sum_of([](float v, float) { return v == -infinity<float>() ? 0.0f : 1.0f; });
    }
    if constexpr (Numbers::kEntropy) {
      weighted = sum_of([](float v, float base) {
        const float below = difference(v, base);
        return v == -infinity<float>() ? 0.0f : bounded_exponential(below) * below;
      });
    }
    const float sum =
        sum_of([](float v, float base) { return bounded_exponential(difference(v, base)); });
    const float base = of_lane(max, lane), log_sum = logarithm(sum);
    if (lane >= kCount) return;
    // The packs of a thread lie as many rows apart as a warp has side by side.
    const int64_t row = static_cast<int64_t>(packs.rows[0]) + lane * (32 / kLanes);
    const int64_t apart = numbers.tiles * rows;
    float* to = numbers.to + tile * rows + row;
    *to = base + log_sum;
    if constexpr (Numbers::kMean) *(to += apart) = total * reciprocal(classes);
    if constexpr (Numbers::kEntropy) *(to += apart) = log_sum - weighted * reciprocal(sum);
    if constexpr (Numbers::kLargest) {
      // A sum of 0 has no classes, and NaN is that of a row with NaN or +inf.
      *(to += apart) = sum > 0 ? base : sum == 0 ? -infinity<float>() : sum;
    }
  }

 private:
  /// The nth of these, for the nth of the lanes that have a row.
  template <int kCount>
  __device__ __forceinline__ static float of_lane(const float (&of)[kCount], int lane) {
    float mine = of[0];
    FUSEDOPS_UNROLL
    for (int p = 1; p < kCount; ++p) mine = lane == p ? of[p] : mine;
    return mine;
  }
  /// Combines the numbers of the lanes that have a row, of several rows at the same time.
  template <int kCount, class Combine>
  __device__ __forceinline__ static void each_butterfly(float (&of)[kCount],
                                                        const Combine& combine) {
    FUSEDOPS_UNROLL
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      FUSEDOPS_UNROLL
      for (int p = 0; p < kCount; ++p) {
        of[p] = combine(of[p], __shfl_xor_sync(0xffffffffu, of[p], apart));
      }
    }
  }
};
template <class Tiling, class StoreT, class Numbers>
__device__ __forceinline__ RowSums<Tiling, decltype(StoreT::chain), Numbers> row_sums(
    const StoreT& functors, const Numbers& numbers, int64_t rows) {
  return {functors.chain, numbers, rows};
}

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
