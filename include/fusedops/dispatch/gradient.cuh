// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of every operator on a GPU and on a CPU's threads. Nothing allocates or
// synchronizes: sums over rows take a workspace, whose size is asked for beforehand.
#pragma once

#include <fusedops/dispatch/gradient_call.cuh>
#include <fusedops/host/gradient.cuh>
#include <fusedops/row/gradient.cuh>

namespace fusedops {

namespace detail {

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <class Schedule, int kAhead, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows)
    gradient_rows_kernel(const __grid_constant__ Arguments a) {
  gradient_kernel<Schedule, kAhead>(a.op, a.load, a.upstream, a.store, a.kept, a.to,
                                    targets_of<Side::kLoad>(a.places),
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

template <class Parts>
cudaError_t launch_sums(cudaStream_t stream, const Parts& parts) {
  const int64_t blocks = sum_blocks(parts);
  return blocks == 0 ? cudaSuccess
                     : launch(sums_kernel<Parts>, blocks, kSumThreads, 0, stream, parts);
}

/// The cut of a device's rows for a rung; `shared` becomes whether its sums fit shared memory.
template <class Rung, bool kVisits>
cudaError_t cut_rows(const Demand& demand, int64_t rows, int64_t bytes, Slicing* cut) {
  constexpr int kReserved = 2048;  // of shared memory, for what warps exchange
  int multiprocessors = 0, shared = 0;
  cudaError_t status = attribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (status != cudaSuccess) return status;
  status = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared);
  if (status != cudaSuccess) return status;
  const int64_t blocks = larger(Rung::kResident / (Rung::kThreads * Rung::kRows), 1);
  const int64_t visitors = kVisits ? multiprocessors * blocks * Rung::kRows : rows;
  cut->slices = slice(rows, visitors, demand.group, Rung::kRows, &cut->total);
  cut->lanes = Rung::kRows;
  cut->in_memory = bytes > shared - kReserved;
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
    constexpr int64_t kWords = int64_t(Rung::kThreads) * Rung::kRows * Schedule::kPacks * kWidth;
    Workspace workspace{static_cast<char*>(call.workspace), 0};
    int64_t offset = 0;
    const auto places =
        all_placed<Compute, kSums>(call.wanted, cut, call.cols, kWords, workspace, offset);
    if (!call.has(workspace.used)) return cudaErrorInvalidValue;
    using Places = typename Plain<decltype(places)>::type;
    using Arguments = typename Call::template Arguments<kAccess, Places>;
    const cudaError_t status =
        launch(gradient_rows_kernel<Schedule, kAhead, Arguments>, cut.total / Rung::kRows,
               Rung::kThreads * Rung::kRows, offset * int64_t(sizeof(Compute)), stream,
               call.template arguments<kAccess>(places, cut.slices));
    if (status != cudaSuccess) return status;
    return launch_sums(stream, all_parts<Compute, kSums>(call.wanted, places, cut, call.cols));
  }
};

template <class Range, class Call>
cudaError_t gradient_on(cudaStream_t stream, const Call& call) {
  using Compute = typename Call::Compute;
  const Demand all = demanded(call.wanted);
  if (!call.valid(all, Range::kLow, Range::kHigh)) return cudaErrorInvalidValue;
  if (call.rows == 0) return launch_sums(stream, call.nothing());
  constexpr int kWidth = smaller(Form<decltype(call.load)>::kWidth, int(32 / sizeof(Compute)));
  if (call.wide()) {
    const LaunchGradient<Call, kWidth, Access::kWide> wide{stream, call, all};
    return climb<Compute, Range, GradientChunk, 0>(GradientLadder{}, call.cols, wide);
  }
  const LaunchGradient<Call, kWidth, Access::kNarrow> narrow{stream, call, all};
  return climb<Compute, Range, GradientChunk, 0>(GradientLadder{}, call.cols, narrow);
}

#endif  // FUSEDOPS_CUDA

#if !defined(__CUDACC_RTC__)

/// The cut of rows on a CPU: the same whatever the number of threads.
template <class Wanted>
Slicing cut_rows(const Demand& demand, int64_t rows, int64_t cols) {
  constexpr int64_t kMost = 64, kElements = 4096;  // slices, and what each has at least
  Slicing cut{};
  const int64_t fewest = (kElements + cols - 1) / cols;
  const int64_t visitors = larger<int64_t>(smaller(kMost, rows / fewest), 1);
  cut.slices = slice(rows, visitors, demand.group, 1, &cut.total);
  cut.lanes = 1;
  return cut;
}

inline void sum_all(const Threads&, const List<>&) {}
template <class First, class... Rest>
void sum_all(const Threads& threads, const List<First, Rest...>& parts) {
  column_sums(parts.first, 0);
  sum_all(threads, parts.rest);
}

template <class Range, class Call>
Status gradient_on(const Threads& threads, const Call& call) {
  using Compute = typename Call::Compute;
  const Demand all = demanded(call.wanted);
  if (!call.valid(all, Range::kLow, Range::kHigh)) return Status::kInvalidValue;
  const Slicing cut =
      cut_rows<typename Call::WantedList>(all, larger<int64_t>(call.rows, 1), call.cols);
  Workspace workspace{static_cast<char*>(call.workspace), 0};
  int64_t offset = 0;
  const auto places =
      all_placed<Compute, Sums::kMemory>(call.wanted, cut, call.cols, 0, workspace, offset);
  if (call.rows > 0) {
    if (!call.has(workspace.used)) return Status::kInvalidValue;
    const auto a = call.template arguments<Access::kUnknown>(places, cut.slices);
    const auto through_load = targets_of<Side::kLoad>(a.places);
    const auto through_store = targets_of<Side::kStore>(a.places);
    share(threads, cut.total, [&](int64_t begin, int64_t end) {
      using Kept = HostSchedule<InRegisters>;
      if (a.cols <= Kept::kBuffered) {
        host_gradient<Kept>(a.op, a.load, a.upstream, a.store, a.kept, a.to, through_load,
                            through_store, a.slices, a.rows, a.cols, begin, end);
      } else {
        host_gradient<HostSchedule<Streamed>>(a.op, a.load, a.upstream, a.store, a.kept, a.to,
                                              through_load, through_store, a.slices, a.rows, a.cols,
                                              begin, end);
      }
    });
    sum_all(threads, all_parts<Compute, Sums::kMemory>(call.wanted, places, cut, call.cols));
  } else {
    sum_all(threads, call.nothing());
  }
  return Status::kSuccess;
}

#endif

#if !defined(__CUDACC_RTC__)

/// The gradient of a declaration: back through its STORE, its operator and its LOAD.
template <class Compute, class Where, class Op, class LoadT, class StoreT, class Kept, class Dy,
          class Dx, class Wanted, class Cols>
auto through_declaration(Where where, const Op& op, const LoadT& given_load,
                         const StoreT& given_store, const Kept& kept, const Dy& dy, const Dx& dx,
                         const Wanted& wanted, void* workspace, uint64_t bytes, int64_t rows,
                         Cols given) {
  const int64_t cols = RangeOf<Cols>::count(given);
  const auto load = as_load<Compute>(given_load, pack_of(given_load, larger<int64_t>(cols, 1), 16));
  const auto back = as_declared(given_store);
  using Call = GradientCall<Op, typename Plain<decltype(load)>::type, Dy,
                            typename Plain<decltype(back)>::type, Kept, Dx, Wanted>;
  return gradient_on<RangeOf<Cols>>(
      where, Call{op, load, dy, back, kept, dx, wanted, workspace, bytes, rows, cols});
}

/// The gradient of the operator alone, from a LOAD of what it saw, or made, to a STORE.
template <class Where, class Op, class LoadT, class LoadDy, class StoreDx, class Kept, class Cols>
auto of_loads(Where where, const Op& op, const LoadT& load, const LoadDy& load_dy,
              const StoreDx& store_dx, const Kept& kept, int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  const int64_t cols = RangeOf<Cols>::count(given);
  const int64_t some = larger<int64_t>(cols, 1);
  const int pack = pack_of(store_dx, some, pack_of(load_dy, some, pack_of(load, some, 16)));
  const auto from = only_values(as_load<Compute>(load, pack));
  const auto dy = as_source<Compute>(load_dy, pack);
  const auto dx = as_target<Compute>(store_dx, pack);
  const auto nothing = store(Absent{});
  using Call =
      GradientCall<Op, typename Plain<decltype(from)>::type, typename Plain<decltype(dy)>::type,
                   typename Plain<decltype(nothing)>::type, Kept,
                   typename Plain<decltype(dx)>::type, List<>>;
  return gradient_on<RangeOf<Cols>>(
      where, Call{op, from, dy, nothing, kept, dx, {}, nullptr, 0, rows, cols});
}

#endif

}  // namespace detail

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

/// The bytes of workspace that a gradient with these wanted() needs on the current device.
template <class Compute, class Wanted>
cudaError_t gradient_workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) {
  const detail::Demand all = detail::demanded(wanted);
  *bytes = 0;
  if (rows < 0 || cols < 1 || cols > 0x7fffffff) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  using Range = detail::RangeOf<int64_t>;
  const detail::MeasureGradient<Compute, Wanted> measure{wanted, all, rows, cols, bytes};
  return detail::climb<Compute, Range, detail::GradientChunk, 0>(detail::GradientLadder{}, cols,
                                                                 measure);
}

#endif

#if !defined(__CUDACC_RTC__)

/// The same on a CPU.
template <class Compute, class Wanted>
Status gradient_workspace(Threads, const Wanted& wanted, int64_t rows, int64_t cols,
                          size_t* bytes) {
  *bytes = 0;
  if (rows < 0 || cols < 1 || cols > 0x7fffffff) return Status::kInvalidValue;
  if (rows == 0) return Status::kSuccess;
  const auto cut = detail::cut_rows<Wanted>(detail::demanded(wanted), rows, cols);
  detail::Workspace workspace{nullptr, 0};
  int64_t offset = 0;
  (void)detail::all_placed<Compute, Sums::kMemory>(wanted, cut, cols, 0, workspace, offset);
  *bytes = workspace.used;
  return Status::kSuccess;
}

#endif

}  // namespace fusedops
