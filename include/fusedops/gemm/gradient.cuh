// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What the epilogue warps do in a backward pass. The product is the gradient of h, which a LOAD made of
// z: its epilogue goes back through the LOAD, as row/gradient.cuh does. It reads z, writes the gradient of
// z, and by a Tap at the LOAD's end h again, which the gradient of a weight needs. Gradients that all rows share are added up over the
// rows of a tile that a warp has, in their order; a second kernel adds up these sums.
#pragma once

#include <fusedops/functor/tap.cuh>
#include <fusedops/gemm/epilogue.cuh>
#include <fusedops/gemm/tile_order.cuh>
#include <fusedops/row/sinks.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// The target of an operand that all rows share: its first row has the sums of the first warp's rows of
/// the first tiles, and so on, four rows for 128 rows of the product.
template <int kFunctor_, int kOperand_, class View>
struct OfTile {
  static constexpr int kFunctor = kFunctor_, kOperand = kOperand_;
  View to;
};

/// The sums of a lane, which has 8 columns.
template <class Target>
struct TileSum {
  static constexpr bool kAny = false;

  __device__ __forceinline__ void begin() {}
  template <class Row>
  __device__ __forceinline__ void add(const Target& target, const float (&gradient)[kPack],
                                      const Row& row, int64_t col, bool) {
    target.to.write(gradient, row, col);
  }
  template <int kLanes>
  __device__ __forceinline__ void end(const Target&, int, int64_t) {}
};
template <int kFunctor, int kOperand, class View>
struct TileSum<OfTile<kFunctor, kOperand, View>> {
  static constexpr bool kAny = true;
  float at[kPack];

  __device__ __forceinline__ void begin() {
    FUSEDOPS_UNROLL
    for (int i = 0; i < kPack; ++i) at[i] = 0;
  }
  template <class Target, class Row>
  __device__ __forceinline__ void add(const Target&, const float (&gradient)[kPack], const Row&,
                                      int64_t, bool is_new) {
    if (!is_new) return;
    FUSEDOPS_UNROLL
    for (int i = 0; i < kPack; ++i) at[i] += gradient[i];
  }
  /// By all lanes of a warp, kLanes of which have a row.
  template <int kLanes, class Target>
  __device__ __forceinline__ void end(const Target& target, int part, int64_t col) {
    if constexpr (kLanes < 32) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kPack; ++i) at[i] += __shfl_xor_sync(0xffffffffu, at[i], kLanes);
      if (lane_of_warp() >= kLanes) return;
    }
    target.to.write(at, RowIndex<1>{part, {part}}, col);
  }
};

/// Those of all targets.
template <class TargetList>
struct TileSums;
template <>
struct TileSums<Targets<>> {
  static constexpr bool kAny = false;
  __device__ __forceinline__ explicit TileSums(const Targets<>&) {}
  __device__ __forceinline__ void begin() {}
  template <int kFunctor, int kOperand, class Row>
  __device__ __forceinline__ void add(const float (&)[kPack], const Row&, int64_t, bool) {}
  template <int kLanes>
  __device__ __forceinline__ void end(int, int64_t) {}
};
template <class First, class... Rest>
struct TileSums<Targets<First, Rest...>> {
  static constexpr bool kAny = TileSum<First>::kAny || TileSums<Targets<Rest...>>::kAny;
  const First& target;
  TileSum<First> sum;
  TileSums<Targets<Rest...>> rest;

  __device__ __forceinline__ explicit TileSums(const Targets<First, Rest...>& targets)
      : target(targets.first), rest(targets.rest) {}

  __device__ __forceinline__ void begin() {
    sum.begin();
    rest.begin();
  }
  template <int kFunctor, int kOperand, class Row>
  __device__ __forceinline__ void add(const float (&gradient)[kPack], const Row& row, int64_t col,
                                      bool is_new) {
    if constexpr (First::kFunctor == kFunctor && First::kOperand == kOperand) {
      sum.add(target, gradient, row, col, is_new);
    } else {
      rest.template add<kFunctor, kOperand>(gradient, row, col, is_new);
    }
  }
  template <int kLanes>
  __device__ __forceinline__ void end(int part, int64_t col) {
    sum.template end<kLanes>(target, part, col);
    rest.template end<kLanes>(part, col);
  }
};

/// The sink that the chain's backward() gets for a pack. A row that a tile before has too is in that one's
/// sums.
template <class Sums>
struct TileSink {
  Sums& sums;
  bool is_new;

  template <int kFunctor, int kOperand, class Row>
  __device__ __forceinline__ void add(const float (&gradient)[kPack], const Row& row, int64_t col) {
    if constexpr (!detail::ReadsAhead<Row>::kOnlyIssues) {
      sums.template add<kFunctor, kOperand>(gradient, row, col, is_new);
    }
  }
};

/// The epilogue itself. To: where the gradient of z goes.
template <class LoadT, class To, class TargetList>
struct Backward {
  using Sums = TileSums<TargetList>;
  static constexpr bool kSums = Sums::kAny;
  const LoadT& load;
  const To& to;
  Sums sums;
  int new_row = 0, part = 0;
  int64_t col = 0;

  __device__ __forceinline__ Backward(const LoadT& of, const To& gradient,
                                      const TargetList& targets)
      : load(of), to(gradient), sums(targets) {}

  /// Before the nth warp's packs of a tile.
  template <class Tile>
  __device__ __forceinline__ void begin(const Tile& tile, int nth) {
    new_row = tile.new_row;
    part = tile.new_row / 32 + nth;
    sums.begin();
  }
  template <class PacksT>
  __device__ __forceinline__ void issue(PacksT& packs) {
    FUSEDOPS_UNROLL
    for (int p = 0; p < PacksT::kCount; ++p) {
      float none[kPack];
      FUSEDOPS_UNROLL
      for (int i = 0; i < kPack; ++i) none[i] = 0;
      back(none, AheadRow<typename PacksT::Row, true>(packs.rows[p], packs.operands[p]), packs.col,
           false);
    }
  }
  template <class PacksT>
  __device__ __forceinline__ void run(PacksT& packs) {
    FUSEDOPS_UNROLL
    for (int p = 0; p < PacksT::kCount; ++p) {
      const AheadRow<typename PacksT::Row, false> row(packs.rows[p], packs.operands[p]);
      back(packs.values[p], row, packs.col, static_cast<int64_t>(packs.rows[p]) >= new_row);
    }
    col = packs.col;
    FUSEDOPS_UNROLL
    for (int p = 0; p < PacksT::kCount; ++p) {
      to.write(packs.values[p], packs.rows[p], packs.col);
    }
  }
  /// After the last pack of a tile; kLanes have a row.
  template <int kLanes>
  __device__ __forceinline__ void end() {
    sums.template end<kLanes>(part, col);
  }

 private:
  template <class Row>
  __device__ __forceinline__ void back(float (&gradient)[kPack], const Row& row, int64_t at,
                                       bool is_new) {
    TileSink<Sums> sink{sums, is_new};
    load.backward(gradient, row, at, sink, NoneMasked{});
  }
};

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
