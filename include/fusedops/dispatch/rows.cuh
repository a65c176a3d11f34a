// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward pass of every operator on a GPU and on a CPU's threads: checks, schedule, launch.
// Nothing allocates or synchronizes, so a launch can be captured in a CUDA graph.
#pragma once

#include <fusedops/dispatch/form.cuh>
#include <fusedops/dispatch/rungs.cuh>
#include <fusedops/dispatch/threads.cuh>
#include <fusedops/host/rows.cuh>

namespace fusedops {

namespace detail {

/// Where what is known of a row goes, each if it is asked for.
template <class Compute>
struct KeepRow {
  Compute *kept, *mean, *rstd;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    const int64_t at = row;
    if (kept != nullptr) {
      Compute numbers[Finish::kKept];
      finish.keep(numbers);
      for (int i = 0; i < Finish::kKept; ++i) kept[at * Finish::kKept + i] = numbers[i];
    }
    moments(finish, at, 0);
  }

 private:
  template <class Finish>
  FUSEDOPS_HD auto moments(const Finish& finish, int64_t at, int) const
      -> decltype(finish.mean, void()) {
    if (mean != nullptr) mean[at] = finish.mean;
    if (rstd != nullptr) rstd[at] = finish.rstd;
  }
  template <class Finish>
  FUSEDOPS_HD void moments(const Finish&, int64_t, long) const {}
};

template <Access kAccess>
struct Accesses {
  static constexpr Access value = kAccess;
};

/// The argument of a forward kernel.
template <Access kAccess, class Op, class LoadT, class StoreT>
struct RowsArguments {
  using Compute = typename Op::Compute;
  static constexpr bool kWide = kAccess == Access::kWide;
  Op op;
  LoadT load;
  StoreT store;
  KeepRow<typename Op::Compute> keep;
  RowsOf<kAccess> rows;
  int64_t cols;
};

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <class Schedule, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows, kBlocks)
    rows_kernel(const __grid_constant__ Arguments a) {
  row_kernel<Schedule>(a.op, a.load, a.store, a.keep, a.rows, a.cols);
}

/// An attribute of the current device.
inline cudaError_t attribute(cudaDeviceAttr which, int* value) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status != cudaSuccess ? status : cudaDeviceGetAttribute(value, which, device);
}

/// Shared memory that a block of the current device can have, besides what warps exchange.
inline cudaError_t shared_limit(int64_t* limit) {
  constexpr int kReserved = 2048;
  int most = 0;
  const cudaError_t status = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
  *limit = most - kReserved;
  return status;
}

/// Launches a kernel; returns what became of this launch, not of an earlier one.
template <class Arguments>
cudaError_t launch(void (*kernel)(const Arguments), int64_t blocks, int threads, int64_t shared,
                   cudaStream_t stream, const Arguments& arguments) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  constexpr int64_t kPlainShared = 40 * 1024;  // static shared memory counts towards the 48 KB
  const void* function = reinterpret_cast<const void*>(kernel);
  if (shared > kPlainShared) {
    // Always as much as there is: threads that launch it with less do not take it from each other.
    int most = 0;
    cudaError_t status = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
    if (status != cudaSuccess) return status;
    cudaFuncAttributes found;
    status = cudaFuncGetAttributes(&found, function);
    if (status != cudaSuccess) return status;
    status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most - static_cast<int>(found.sharedSizeBytes));
    if (status != cudaSuccess) return status;
  }
  const dim3 grid(static_cast<unsigned>(smaller(blocks, kMostBlocks)));
  void* arguments_of[] = {const_cast<Arguments*>(&arguments)};
  return cudaLaunchKernel(function, grid, dim3(static_cast<unsigned>(threads)), arguments_of,
                          static_cast<size_t>(shared), stream);
}

template <class Arguments, int kWidth>
struct LaunchRows {
  using Compute = typename Arguments::Compute;
  cudaStream_t stream;
  const Arguments& arguments;

  template <class Rung, bool kExact>
  cudaError_t resident() const {
    // Narrow accesses take their time anyway: there a kernel less is worth more than a constant.
    constexpr bool kConstant = kExact && Arguments::kWide;
    using Resident = typename Rung::template Of<InRegisters, Compute, kWidth, kConstant>;
    return with<Resident, Arguments::kWide ? Rung::kBlocks : 0>(0);
  }

  template <class Rung>
  cudaError_t chunked() const {
    using Shared = typename Rung::template Of<InShared, Compute, kWidth, false>;
    int64_t most = 0;
    const cudaError_t status = shared_limit(&most);
    if (status != cudaSuccess) return status;
    const int64_t chunks = (arguments.cols + Shared::kChunk - 1) / Shared::kChunk;
    const int64_t bytes = chunks * Shared::kChunk * int64_t(sizeof(Compute));
    if constexpr (Arguments::kWide) {  // elsewhere reading twice does: bits do not depend on it
      constexpr int kParts = Parts<Shared, decltype(arguments.op)>::kShared;
      if (bytes + kParts <= most) return with<Shared, 0>(bytes);
    }
    return with<typename Rung::template Of<Streamed, Compute, kWidth, false>, 0>(0);
  }

  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <class Schedule, int kBlocks>
  cudaError_t with(int64_t shared) const {
    const int64_t blocks = (arguments.rows.count + Schedule::kRows - 1) / Schedule::kRows;
    return launch(rows_kernel<Schedule, kBlocks, Arguments>, blocks,
                  Schedule::kThreads * Schedule::kRows, shared, stream, arguments);
  }
};

template <class Op, class LoadT, class StoreT, class Cols>
cudaError_t rows_on(cudaStream_t stream, const Op& op, const LoadT& load, const StoreT& store,
                    const KeepRow<typename Op::Compute>& keep, int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  using Range = RangeOf<Cols>;
  const int64_t cols = Range::count(given);
  if (rows < 0 || cols < Range::kLow || cols > Range::kHigh) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  constexpr int kMost = smaller(Form<LoadT>::kMost, Form<StoreT>::kMost);
  const int pack = pack_of(store, cols, pack_of(load, cols, kMost));
  const auto through_load = as_load<Compute, kMost>(load, pack);
  const auto through_store = as_store<Compute, kMost>(store, pack);
  AllWide all;
  all(through_load);
  all(through_store);
  constexpr int kWidth = smaller(Form<LoadT>::kWidth, int(32 / sizeof(Compute)));
  const auto go = [&](auto access) {
    using Arguments =
        RowsArguments<decltype(access)::value, Op, typename Plain<decltype(through_load)>::type,
                      typename Plain<decltype(through_store)>::type>;
    const Arguments arguments{op, through_load, through_store, keep, {rows}, cols};
    const LaunchRows<Arguments, kWidth> launch{stream, arguments};
    return climb<Compute, Range, ForwardChunk, 0>(ForwardLadder{}, cols, launch);
  };
  return all.wide ? go(Accesses<Access::kWide>{}) : go(Accesses<Access::kNarrow>{});
}

#endif  // FUSEDOPS_CUDA

#if !defined(__CUDACC_RTC__)

template <class Op, class LoadT, class StoreT, class Cols>
Status rows_on(const Threads& threads, const Op& op, const LoadT& load, const StoreT& store,
               const KeepRow<typename Op::Compute>& keep, int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  using Range = RangeOf<Cols>;
  const int64_t cols = Range::count(given);
  if (rows < 0 || cols < Range::kLow || cols > Range::kHigh) return Status::kInvalidValue;
  constexpr int kMost = smaller(Form<LoadT>::kMost, Form<StoreT>::kMost);
  const int pack = pack_of(store, cols, pack_of(load, cols, kMost));
  const auto through_load = as_load<Compute, kMost>(load, pack);
  const auto through_store = as_store<Compute, kMost>(store, pack);
  share(threads, rows, [&](int64_t begin, int64_t end) {
    using Kept = HostSchedule<InRegisters>;
    if (cols <= Kept::kBuffered) {
      host_rows<Kept>(op, through_load, through_store, keep, RowSpace<1>{rows}, cols, begin, end);
    } else {
      host_rows<HostSchedule<Streamed>>(op, through_load, through_store, keep, RowSpace<1>{rows},
                                        cols, begin, end);
    }
  });
  return Status::kSuccess;
}

#endif

}  // namespace detail

}  // namespace fusedops
