// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The backward kernel for rows abreast (row/abreast.cuh): several neighbouring rows at a time, which read
// the same operands. The rows of a block lie one behind the other, and its groups of threads take them in
// turns; gradients that all rows share are summed in that order.
#pragma once

#include <fusedops/row/abreast.cuh>
#include <fusedops/row/gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

/// Where the gradient of x goes, and sums over rows, of a thread that may have no row.
template <class To>
struct IfMine {
  const To& to;
  bool mine;

  template <int N, class Compute, class Row>
  __device__ __forceinline__ void write(const Compute (&value)[N], const Row& row,
                                        int64_t col) const {
    if (mine) to.write(value, row, col);
  }
};
template <class Sums>
struct SumsIfMine {
  static constexpr bool kAny = Sums::kAny;
  Sums& sums;
  bool mine;

  template <int kFunctor, int kOperand, int N, class Compute, class Lane, class Row>
  __device__ __forceinline__ void add(const Compute (&gradient)[N], const Lane& lane,
                                      const Row& row, int64_t col, const Visit& visit, int pack,
                                      int first) {
    if (mine) sums.template add<kFunctor, kOperand>(gradient, lane, row, col, visit, pack, first);
  }
};

}  // namespace detail

/// The arguments are those of gradient_kernel. The LOAD has no functors, slices are whole groups of
/// Schedule::kAbreast rows, and all rows share what is summed.
template <class Schedule, class Op, class LoadT, class Upstream, class StoreT, class Kept, class To,
          class LoadTargets, class StoreTargets, class Rows>
__device__ __forceinline__ void abreast_gradient_kernel(
    const Op& op, const LoadT& load, const Upstream& upstream, const StoreT& store,
    const Kept& kept, const To& to, const LoadTargets&, const StoreTargets& store_targets,
    const Slices& slices, const Rows& rows, int64_t cols, int64_t = 0) {
  static_assert(detail::check_gradient<Op>());
  using Compute = typename Op::Compute;
  using Row = NearRow<typename Rows::Index>;
  using RowTile = Tile<Compute, Schedule::kPacks, Schedule::kWidth,
                       Schedule::kThreads * Schedule::kWidth, Schedule::kLanes * Schedule::kWidth,
                       Schedule::kExact, Schedule::kFull, Schedule::kPieces>;
  constexpr int kCount = Schedule::kAbreast;
  constexpr Lanes<Schedule::kLanes> kGroup{};
  static_assert(Schedule::kExact && Schedule::kGroups == 1 && Schedule::kBlocks == 1,
                "rows abreast fill tiles of one warp at most");
  static_assert(detail::reduces<Op>() && !Op::kHasMasked && !LoadT::kComputes,
                "rows abreast are those of a norm without functors in its LOAD");

  const int thread = threadIdx.x % Schedule::kThreads;
  const int col = thread * Schedule::kWidth;
  // One H200: with a slice of its own for each group, RMSNorm and rotation of 64 columns reach 80 percent
  // of the ceiling, so 83.
  const int64_t begin = blockIdx.x * (slices.rows * Schedule::kRows);
  const int64_t end = smaller(begin + slices.rows * Schedule::kRows, rows.count);
  const int64_t group = threadIdx.x / Schedule::kThreads;
  const int64_t slice = blockIdx.x * int64_t(Schedule::kRows) + group;
  const uint32_t turns = static_cast<uint32_t>(slices.rows);

  struct {
    RowTile value, gradient;
  } now;
  RowTile &value = now.value, &gradient = now.gradient;
  value.begin(Schedule::kTile - col, 0);
  gradient.begin(Schedule::kTile - col, 0);
  Sinks<RowTile, Targets<>> none{Targets<>{}};
  Sinks<RowTile, StoreTargets> sinks(store_targets);
  const detail::RowLane<Schedule, RowTile> lane{value,           cols,        col,
                                                Schedule::kTile, Share{0, 1}, thread};
  sinks.begin(lane);

  int64_t number = begin + group * kCount;
  for (uint32_t turn = 0; turn < turns; turn += kCount, number += kCount * Schedule::kRows) {
    const bool mine = number < end;
    if (!kGroup.any(mine)) break;  // of a warp all lanes or none
    const auto index = rows.index(mine ? number : 0);
    const Visit visit{slice, turn, turns, begin < end, mine};

    detail::SourceWords<RowTile> x[kCount], dy[kCount];
    detail::OperandWords<RowTile> operands;
    detail::KeptOfRow<Op> kept_of[kCount];
    FUSEDOPS_UNROLL
    for (int j = 0; j < kCount; ++j) {
      detail::read_packs<RowTile>(load.source, x[j], Row(index, j), col);
      detail::read_packs<RowTile>(upstream, dy[j], Row(index, j), col);
      kept_of[j].read(kept, Row(index, j));
    }
    const auto through = [&](const auto& row, const typename Op::Row& known, auto& to_sinks) {
      through_store<Op, false>(value, gradient, known, store, row, col, to_sinks, lane, visit,
                               elsewhere<Op>(load, upstream, store, known));
    };
    const Row first(index, 0);
    value.fill(0);
    gradient.fill(0);
    through(detail::with_operands<true>(first, operands), kept_of[0].known(), none);

    FUSEDOPS_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const Row row(index, j);
      detail::take_packs(value, load.source, x[j], row, col);
      detail::take_packs(gradient, upstream, dy[j], row, col);
      const typename Op::Row known = kept_of[j].known();
      detail::SumsIfMine<decltype(sinks)> of_row{sinks, mine};
      through(detail::with_operands<false>(row, operands), known, of_row);
      if constexpr (!detail::IsSame<To, Absent>::value) {
        const auto finish = op.finish(known, op.reduce(kGroup, value, gradient), row, cols);
        const detail::IfMine<To> target{to, mine};
        through_load<Op, false>(value, gradient, finish, load, target, row, col, none, lane, visit,
                                elsewhere<Op>(load, upstream, store, known));
      }
    }
  }
  const Visit last{slice, turns - 1, turns, begin < end, false};
  sinks.flush(lane, rows.index(0), last);
}

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
