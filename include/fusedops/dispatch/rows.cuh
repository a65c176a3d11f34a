// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The forward pass of every operator, on a GPU and on threads of a CPU: checks, choice of a
// schedule, launch. Nothing allocates or synchronizes, so a CUDA graph can capture the launch.
#pragma once

#include <fusedops/dispatch/buckets.cuh>
#include <fusedops/dispatch/on_device.cuh>
#include <fusedops/dispatch/threads.cuh>
#include <fusedops/host/call.cuh>
#include <fusedops/host/rows.cuh>

namespace fusedops {

namespace detail {

template <class Finish>
using MomentsOf = Void<decltype(Finish::mean), decltype(Finish::rstd)>;

/// Writes the statistics of each row: the kKept numbers that the backward pass reads, and a norm's
/// mean and reciprocal standard deviation. Null pointers are skipped.
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
    if constexpr (detected<MomentsOf, Finish>()) {
      if (mean != nullptr) mean[at] = finish.mean;
      if (rstd != nullptr) rstd[at] = finish.rstd;
    }
  }
};

/// The argument of a forward kernel.
template <Access kAccess, class Op, class LoadT, class StoreT>
struct RowsArguments {
  using Compute = typename Op::Compute;
  static constexpr bool kWide = kAccess == Access::kWide;
  Op op;
  LoadT load;
  StoreT store;
  KeepRow<Compute> keep;
  RowsOf<kAccess> rows;
  int64_t cols;
};

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <class Schedule, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows, kBlocks)
    rows_kernel(const __grid_constant__ Arguments a) {
  const auto& load = drawn(a.load);
  const auto& store = drawn(a.store);
  check_on_device<typename Arguments::Compute, false>(load);
  check_on_device<typename Arguments::Compute, false>(store);
  row_kernel<Schedule>(a.op, load, store, a.keep, a.rows, a.cols);
}

/// An attribute of the current device.
inline cudaError_t attribute(cudaDeviceAttr which, int* value) {
  int device = 0;
  const cudaError_t status = cudaGetDevice(&device);
  return status != cudaSuccess ? status : cudaDeviceGetAttribute(value, which, device);
}

/// Dynamic shared memory per block in bytes that the current device allows a kernel of this
/// library; the reserve is for static shared memory.
inline cudaError_t shared_limit(int64_t* limit) {
  constexpr int kReserved = 2048;
  int most = 0;
  const cudaError_t status = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &most);
  *limit = most - kReserved;
  return status;
}

/// Launches a kernel with `shared` bytes of dynamic shared memory; returns the status of this
/// launch, not of an earlier one.
template <class Arguments>
cudaError_t launch(void (*kernel)(const Arguments), int64_t blocks, int threads, int64_t shared,
                   cudaStream_t stream, const Arguments& arguments) {
  // The limit of the kernel is always raised to the same value, the largest: host threads that
  // launch the kernel with different sizes then do not lower it for each other.
  const void* function = reinterpret_cast<const void*>(kernel);
  return exported::launch(function, blocks, static_cast<unsigned>(threads),
                          static_cast<unsigned>(shared), stream, const_cast<Arguments*>(&arguments),
                          1, exported::kAllShared);
}

/// Launches the forward kernel of a bucket: the callbacks of climb().
template <class Range, class Arguments, int kWidth>
struct LaunchRows {
  using Compute = typename Arguments::Compute;
  cudaStream_t stream;
  const Arguments& arguments;

  template <class Bucket, bool kExact>
  cudaError_t resident() const {
    // Kernels for narrow accesses are bound by their loads: there one kernel less to compile is
    // worth more than a constant row length.
    constexpr bool kConstant = kExact && Arguments::kWide;
    using Resident = typename Bucket::template Of<InRegisters, Compute, kWidth, kConstant>;
    return with<Resident, Arguments::kWide ? Bucket::kBlocks : 0>(0);
  }

  template <class Bucket>
  cudaError_t chunked() const {
    using Shared = typename Bucket::template Of<InShared, Compute, kWidth, false>;
    int64_t most = 0;
    const cudaError_t status = shared_limit(&most);
    if (status != cudaSuccess) return status;
    const int64_t chunks = (arguments.cols + Shared::kTile - 1) / Shared::kTile;
    const int64_t bytes = chunks * InShared::chunk_bytes<Shared, Compute>();
    // Narrow accesses and few kernels read twice; the bits are the same.
    if constexpr (Arguments::kWide && !Range::kFew) {
      constexpr int kParts = Parts<Shared, decltype(arguments.op)>::kShared;
      if (bytes + kParts <= most) return with<Shared, 0>(bytes);
    }
    return with<typename Bucket::template Of<Streamed, Compute, kWidth, false>, 0>(0);
  }

  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <class Schedule, int kBlocks>
  cudaError_t with(int64_t shared) const {
    return launch(rows_kernel<Schedule, kBlocks, Arguments>,
                  exported::blocks(arguments.rows.count, Schedule::kRows),
                  Schedule::kThreads * Schedule::kRows, shared, stream, arguments);
  }
};

template <class Range, int kWidth, Access kAccess, class Op, class LoadT, class StoreT>
cudaError_t launch_rows(cudaStream_t stream, const Op& op, const LoadT& load, const StoreT& store,
                        const KeepRow<typename Op::Compute>& keep, int64_t rows, int64_t cols) {
  using Arguments = RowsArguments<kAccess, Op, LoadT, StoreT>;
  const Arguments arguments{op, load, store, keep, {rows}, cols};
  const LaunchRows<Range, Arguments, kWidth> launch{stream, arguments};
  using Buckets = LadderOf<Range, ForwardLadder, FewForwardLadder>;
  return climb<typename Op::Compute, Range, ForwardChunk, 0>(Buckets{}, cols, launch);
}

template <class Range, int kWidth, class Op, class LoadT, class StoreT>
cudaError_t run_rows(cudaStream_t stream, const Op& op, const LoadT& load, const StoreT& store,
                     const KeepRow<typename Op::Compute>& keep, int64_t rows, int64_t cols) {
  AllWide all;
  all(load);
  all(store);
  return all.wide
             ? launch_rows<Range, kWidth, Access::kWide>(stream, op, load, store, keep, rows, cols)
             : launch_rows<Range, kWidth, Access::kNarrow>(stream, op, load, store, keep, rows,
                                                           cols);
}

#endif  // FUSEDOPS_CUDA

#if !defined(__CUDACC_RTC__)

/// Calls f(schedule) with the schedule for a row on a CPU. Short rows, up to 16, 32 or 64 columns, are
/// one tile each, and several are worked on together: a softmax or a norm of 8 columns then takes a
/// sixth of the time, one of 32 a quarter. From 65 on there was no gain.
template <class Range, int kColumns = 16, class F>
void with_host_schedule(int64_t cols, const F& f) {
  if constexpr (kColumns <= 64) {
    if constexpr (Range::kLow <= kColumns && !Range::kFew) {
      if (cols <= kColumns) return f(HostSchedule<InRegisters, kColumns>{});
    }
    return with_host_schedule<Range, 2 * kColumns>(cols, f);
  } else {
    using Buffered = HostSchedule<InRegisters>;
    constexpr int kMost = Buffered::kBuffered;
    if constexpr (Range::kHigh > kMost) {
      if (cols > kMost) return f(HostSchedule<Streamed>{});
    }
    return f(Buffered{});
  }
}

template <class Range, int kWidth, class Op, class LoadT, class StoreT>
Status run_rows(const Threads& threads, const Op& op, const LoadT& given_load,
                const StoreT& given_store, const KeepRow<typename Op::Compute>& keep, int64_t rows,
                int64_t cols) {
  const auto& load = drawn(given_load);
  const auto& store = drawn(given_store);
  with_host_schedule<Range>(cols, [&](auto schedule) {
    share(threads, rows, [&](int64_t begin, int64_t end) {
      host_rows<decltype(schedule)>(op, load, store, keep, RowSpace<1>{rows}, cols, begin, end);
    });
  });
  return Status::kSuccess;
}

template <class Compute>
constexpr void check_compute() {
  static_assert(IsSame<Compute, float>::value || IsSame<Compute, double>::value,
                "fusedops: the compute type is float, for half, bfloat16 and float in memory, or "
                "double: dispatch_...<float>(...)");
}

/// The forward pass of an operator: LOAD, reduction, STORE.
template <class Where, class Op, class LoadT, class StoreT, class Cols>
StatusOf<Where> dispatch_rows(const Where& where, const Op& op, const LoadT& load,
                              const StoreT& store, const KeepRow<typename Op::Compute>& keep,
                              int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  using Range = RangeOf<Cols>;
  check_compute<Compute>();
  const auto on = detail::place(where);
  const int64_t cols = Range::count(given);
  if (rows < 0 || cols < Range::kLow || cols > Range::kHigh) return detail::invalid_value(on);
  if (rows == 0) return detail::success(on);
  constexpr int kMost = smaller(Form<LoadT>::kMost, Form<StoreT>::kMost);
  constexpr int kWidth = smaller(Form<LoadT>::kWidth, int(32 / sizeof(Compute)));
  const int pack = pack_of(store, cols, pack_of(load, cols, kMost));
  return run_rows<Range, kWidth>(on, op, as_load<Compute, kMost>(load, pack),
                                 as_store<Compute, kMost>(store, pack), keep, rows, cols);
}

#endif

}  // namespace detail

}  // namespace fusedops
