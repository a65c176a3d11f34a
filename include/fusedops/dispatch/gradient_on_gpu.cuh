// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of every operator on a GPU: how its rows are cut, its workspace, and its launches.
#pragma once

#include <fusedops/dispatch/gradient_call.cuh>
#include <fusedops/op/norm_gradient.cuh>
#include <fusedops/row/gradient.cuh>

namespace fusedops {

namespace detail {

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <class Schedule, int kAhead, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows, kBlocks)
    gradient_rows_kernel(const __grid_constant__ Arguments a) {
  gradient_kernel<Schedule, kAhead ? Ask::kEachThread : Ask::kNever>(
      a.op, a.load, a.upstream, a.store, a.kept, a.to, targets_of<Side::kLoad>(a.places),
      targets_of<Side::kStore>(a.places), a.slices, a.rows, a.cols);
}

template <class... Done>
__device__ __forceinline__ void sum_all(const List<>&, const Done&... done) {
  if constexpr (sizeof...(Done) > 0) all_column_sums(int64_t(blockIdx.x), done...);
}
template <class First, class... Rest, class... Done>
__device__ __forceinline__ void sum_all(const List<First, Rest...>& parts, const Done&... done) {
  sum_all(parts.rest, done..., parts.first);
}
template <class Parts>
__global__ void __launch_bounds__(kSumThreads) sums_kernel(const __grid_constant__ Parts parts) {
  sum_all(parts);
}

inline int64_t sum_blocks(const List<>&) { return 0; }
template <class First, class... Rest>
int64_t sum_blocks(const List<First, Rest...>& parts) {
  return (parts.first.cols + kSumColumns - 1) / kSumColumns + sum_blocks(parts.rest);
}

inline cudaError_t launch_sums(cudaStream_t, const List<>&) { return cudaSuccess; }
template <class First, class... Rest>
cudaError_t launch_sums(cudaStream_t stream, const List<First, Rest...>& parts) {
  return launch(sums_kernel<List<First, Rest...>>, sum_blocks(parts), kSumThreads, 0, stream,
                parts);
}

/// The cut of a device's rows for a rung; its sums are in memory where shared memory lacks.
template <class Rung, bool kVisits>
cudaError_t cut_rows(const Demand& demand, int64_t rows, int64_t bytes, Slicing* cut) {
  int multiprocessors = 0;
  int64_t shared = 0;
  cudaError_t status = attribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (status != cudaSuccess) return status;
  status = shared_limit(&shared);
  if (status != cudaSuccess) return status;
  // Few rows share such a sum, so each takes a short visit: the more at a time, the better.
  constexpr int kMany = 4096 / Rung::kBlock;
  const int64_t blocks = demand.group > 1 && Rung::kVisitors < kMany ? kMany : Rung::kVisitors;
  const int64_t visitors = kVisits ? multiprocessors * blocks * Rung::kRows : rows;
  cut->slices = slice(rows, visitors, demand.group, Rung::kRows, &cut->total);
  cut->lanes = Rung::kRows;
  cut->in_memory = bytes > shared;
  return cudaSuccess;
}

/// Measures the workspace.
template <class Compute, class Wanted>
struct MeasureGradient {
  const Wanted& wanted;
  Demand all;
  int64_t rows, cols;
  size_t* bytes;

  template <class Rung, bool>
  cudaError_t resident() const {
    using Where = SumsOf<Wanted, Compute, Rung>;
    Slicing cut{};
    const cudaError_t status = cut_rows<Rung, Where::kVisits>(all, rows, Where::kBytes, &cut);
    if (status != cudaSuccess) return status;
    return Where::kMayLack && cut.in_memory ? with<Sums::kMemory>(cut) : with<Where::value>(cut);
  }
  template <class Rung>
  cudaError_t chunked() const {
    Slicing cut{};
    const cudaError_t status = cut_rows<Rung, WantsSums<Wanted>::value>(all, rows, 0, &cut);
    return status != cudaSuccess ? status : with<Sums::kMemory>(cut);
  }
  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <Sums kSums>
  cudaError_t with(const Slicing& cut) const {
    Workspace workspace{nullptr, 0};
    int64_t offset = 0;
    (void)all_placed<Compute, kSums>(wanted, cut, cols, 0, workspace, offset);
    *bytes = workspace.used;
    return cudaSuccess;
  }
};

/// Launches the kernel, and the second stage if slices share sums.
template <class Call, int kWidth, Access kAccess>
struct LaunchGradient {
  using Compute = typename Call::Compute;
  using Wanted = typename Call::WantedList;
  cudaStream_t stream;
  const Call& call;
  Demand all;

  template <class Rung, bool kExact>
  cudaError_t resident() const {
    constexpr bool kConstant = kExact && kAccess == Access::kWide;
    using Resident = typename Rung::template Of<InRegisters, Compute, kWidth, kConstant>;
    using Where = SumsOf<Wanted, Compute, Rung>;
    Slicing cut{};
    const cudaError_t status = cut_rows<Rung, Where::kVisits>(all, call.rows, Where::kBytes, &cut);
    if (status != cudaSuccess) return status;
    if constexpr (Where::kMayLack) {
      if (cut.in_memory) return with<Resident, Rung, Sums::kMemory, Where::kVisits>(cut);
    }
    return with<Resident, Rung, Where::value, Where::kVisits>(cut);
  }
  template <class Rung>
  cudaError_t chunked() const {
    using Chunked = typename Rung::template Of<Streamed, Compute, kWidth, false>;
    Slicing cut{};
    const cudaError_t status = cut_rows<Rung, WantsSums<Wanted>::value>(all, call.rows, 0, &cut);
    return status != cudaSuccess ? status : with<Chunked, Rung, Sums::kMemory, 0>(cut);
  }
  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <class Schedule, class Rung, Sums kSums, int kAhead>
  cudaError_t with(const Slicing& cut) const {
    constexpr int64_t kWords = int64_t(Rung::kBlock) * Schedule::kPacks * kWidth;
    // Visitors stay: one that found no room would come when all others have gone.
    constexpr bool kWide = kAccess == Access::kWide;
    constexpr int kBlocks = !kWide ? 0 : kAhead > 0 ? Rung::kVisitors : Rung::kBlocks;
    Workspace workspace{static_cast<char*>(call.workspace), 0};
    int64_t offset = 0;
    const auto places =
        all_placed<Compute, kSums>(call.wanted, cut, call.cols, kWords, workspace, offset);
    if (!call.has(workspace.used)) return cudaErrorInvalidValue;
    if (cut.total / Rung::kRows > 0x7fffffff) return cudaErrorInvalidValue;  // blocks of a grid
    using Places = typename Plain<decltype(places)>::type;
    using Arguments = typename Call::template Arguments<kAccess, Places>;
    const cudaError_t status =
        launch(gradient_rows_kernel<Schedule, kAhead, kBlocks, Arguments>, cut.total / Rung::kRows,
               Rung::kBlock, offset * int64_t(sizeof(Compute)), stream,
               call.template arguments<kAccess>(places, cut.slices));
    if (status != cudaSuccess) return status;
    return launch_sums(stream, all_parts<Compute, kSums>(call.wanted, places, cut, call.cols));
  }
};

template <class Op>
struct LadderOf {
  using type = SoftmaxGradientLadder;
};
template <class Compute>
struct LadderOf<LayerNormGradient<Compute>> {
  using type = NormGradientLadder;
};
template <class Compute>
struct LadderOf<RmsNormGradient<Compute>> {
  using type = NormGradientLadder;
};

template <class Range, class Call>
cudaError_t gradient_on(cudaStream_t stream, const Call& call) {
  using Compute = typename Call::Compute;
  const Demand all = demanded(call.wanted);
  if (!call.valid(all, Range::kLow, Range::kHigh)) return cudaErrorInvalidValue;
  if (call.rows == 0) return launch_sums(stream, call.nothing());
  using Ladder = typename LadderOf<typename Call::Op>::type;
  constexpr int kWidth = smaller(Form<decltype(call.load)>::kWidth, int(32 / sizeof(Compute)));
  if (call.wide()) {
    const LaunchGradient<Call, kWidth, Access::kWide> wide{stream, call, all};
    return climb<Compute, Range, GradientChunk, 0>(Ladder{}, call.cols, wide);
  }
  const LaunchGradient<Call, kWidth, Access::kNarrow> narrow{stream, call, all};
  return climb<Compute, Range, GradientChunk, 0>(Ladder{}, call.cols, narrow);
}

#endif  // FUSEDOPS_CUDA

}  // namespace detail

}  // namespace fusedops
