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
inline namespace FUSEDOPS_ABI {

namespace detail {

template <class Finish>
using MomentsOf = Void<decltype(Finish::mean), decltype(Finish::rstd)>;

template <class Finish, class Compute>
FUSEDOPS_HD void write_kept(const Finish& finish, Compute* kept, int64_t row) {
  if (kept == nullptr) return;
  Compute numbers[Finish::kKept];
  finish.keep(numbers);
  for (int i = 0; i < Finish::kKept; ++i) kept[row * Finish::kKept + i] = numbers[i];
}

/// Writes the statistics of each row: the kKept numbers that the backward pass reads, and a norm's
/// mean and reciprocal standard deviation. Null pointers are skipped.
template <class Compute>
struct KeepRow {
  Compute *kept, *mean, *rstd;

  template <class Finish, class Row>
  FUSEDOPS_HD void write(const Finish& finish, const Row& row) const {
    const int64_t at = row;
    write_kept(finish, kept, at);
    if constexpr (detected<MomentsOf, Finish>()) {
      if (mean != nullptr) mean[at] = finish.mean;
      if (rstd != nullptr) rstd[at] = finish.rstd;
    }
  }
};

/// The argument of a forward kernel. Keep: writes the statistics of a row, as KeepRow does.
template <Access kAccess, class Op, class LoadT, class StoreT, class Keep>
struct RowsArguments {
  using Compute = typename Op::Compute;
  static constexpr bool kWide = kAccess == Access::kWide;
  Op op;
  LoadT load;
  StoreT store;
  Keep keep;
  RowsOf<kAccess> rows;
  int64_t cols;
  int64_t even;  // the columns of a chunk, where chunks are even
};

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

/// The second bound of a launch, blocks per multiprocessor. For Blackwell ptxas 13.0 needs more
/// registers for the same text.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
template <int kBlocks>
inline constexpr int kBlocksHere = kBlocks > 2 ? kBlocks * 2 / 3 : kBlocks;
#else
template <int kBlocks>
inline constexpr int kBlocksHere = kBlocks;
#endif

/// Rows that fill several warps, and those of clusters, are prefetched where the LOAD says where it
/// reads.
template <class Schedule, class Arguments>
__device__ __forceinline__ void process_rows(const Arguments& a) {
  using Compute = typename Arguments::Compute;
  const auto& load = drawn(a.load);
  const auto& store = drawn(a.store);
  check_on_device<Compute, false>(load);
  check_on_device<Compute, false>(store);
  constexpr bool kAhead = (Schedule::kFitted || Schedule::kBlocks > 1) && Arguments::kWide &&
                          Schedule::Storage::kOneTile && reads_ahead<decltype(a.load)>();
  // A wait at the cluster's barrier evicts what the STORE reads. One H200, a user's structs: with a
  // handshake in its place a LayerNorm of 65536 columns 3.54 TB/s, and not 3.22; but a softmax, whose
  // parts are two numbers, 3.51, and not 4.18, and clusters of 2 and of 16 blocks lose, too.
  constexpr bool kRelays = Schedule::kBlocks > 2 && Schedule::kBlocks <= 8 &&
                           sizeof(typename decltype(a.op)::Partial) > 2 * sizeof(Compute) &&
                           flag<true, ComputesFlag, typename Plain<decltype(store)>::type>();
  row_kernel<Schedule, kAhead, false, kRelays, true>(
      a.op, load, store, a.keep, a.rows, a.cols, kAhead ? rows_ahead<decltype(a.load)>(a.cols) : 0,
      a.even);
}
template <class Schedule, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows, kBlocksHere<kBlocks>)
    rows_kernel(const __grid_constant__ Arguments a) {
  process_rows<Schedule>(a);
}
// What is compiled for an older architecture has no clusters; `clusters_run` says so at run time.
template <class Schedule, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads, kBlocksHere<kBlocks>)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_dims__(Schedule::kBlocks, 1, 1)
#endif
        clustered_rows_kernel(const __grid_constant__ Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  process_rows<Schedule>(a);
#endif
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

/// Whether the code of a kernel that the current device runs has clusters of so many blocks: neither
/// the device nor the architecture that it was compiled for is older than sm_90. Clusters of more than
/// 8 blocks run on sm_90 and sm_100, and not on sm_120.
template <int kBlocks, class Arguments>
cudaError_t clusters_run(void (*kernel)(const Arguments), bool* run) {
  cudaFuncAttributes found{};
  const exported::Uncaptured uncaptured;  // it loads the kernel
  const cudaError_t status = cudaFuncGetAttributes(&found, reinterpret_cast<const void*>(kernel));
  *run = found.ptxVersion >= 90 && (kBlocks <= 8 || found.binaryVersion < 110);
  return status;
}

/// Launches a kernel with `shared` bytes of dynamic shared memory, in clusters of `cluster` blocks;
/// returns the status of this launch, not of an earlier one.
template <class Arguments>
cudaError_t launch(void (*kernel)(const Arguments), int64_t blocks, int threads, int64_t shared,
                   cudaStream_t stream, const Arguments& arguments, int cluster = 1) {
  // The limit of the kernel is always raised to the same value, the largest: host threads that
  // launch the kernel with different sizes then do not lower it for each other.
  const void* function = reinterpret_cast<const void*>(kernel);
  return exported::launch(function, blocks, static_cast<unsigned>(threads),
                          static_cast<unsigned>(shared), stream, const_cast<Arguments*>(&arguments),
                          cluster, exported::kAllShared);
}

/// Launches the forward kernel of a bucket: the callbacks of climb().
template <class Range, class Arguments, int kWidth>
struct LaunchRows {
  using Compute = typename Arguments::Compute;
  static constexpr bool kFits = true;
  cudaStream_t stream;
  const Arguments& arguments;

  /// Narrow accesses are bound by their loads: clusters do not help them, nor do kernels for constant
  /// lengths or for whole packs.
  template <class Bucket, int64_t kLeast, bool kExact>
  cudaError_t resident() const {
    if constexpr (!Arguments::kWide && Bucket::kCluster > 1) {
      return chunked<Bucket>();
    } else if constexpr (!Arguments::kWide || Range::kFew) {
      return in_one_tile<Bucket, kLeast, false, true>();
    } else {
      // Of rows that one block holds, those whose end cuts a pack have narrow accesses.
      if constexpr (!kExact && Bucket::kCluster > 1) {
        if (arguments.cols % kWidth != 0) return chunked<Bucket>();
      }
      return in_one_tile<Bucket, kLeast, kExact, false>();
    }
  }

  template <class Bucket>
  cudaError_t chunked() const {
    using Shared = typename Bucket::template Chunked<InShared, Compute, kWidth>;
    int64_t most = 0;
    const cudaError_t status = shared_limit(&most);
    if (status != cudaSuccess) return status;
    const int64_t tiles = (arguments.cols + Shared::kTile - 1) / Shared::kTile;
    const int64_t chunks = larger<int64_t>(tiles, Bucket::kCluster);
    const int64_t bytes = chunks * InShared::chunk_bytes<Shared, Compute>();
    // Narrow accesses and few kernels read twice; the bits are the same. Without a result there is
    // nothing to read again.
    if constexpr (Arguments::kWide && !Range::kFew && has_result<decltype(Arguments::op)>()) {
      constexpr int kParts = Parts<Shared, decltype(arguments.op)>::kShared;
      if (bytes + kParts <= most) {
        return with<Bucket, Shared>(rows_kernel<Shared, kNoBound<Bucket>, Arguments>, bytes);
      }
    }
    using Twice = typename Bucket::template Chunked<Streamed, Compute, kWidth>;
    return with<Bucket, Twice>(rows_kernel<Twice, kNoBound<Bucket>, Arguments>, 0);
  }

  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <class Bucket>
  static constexpr int kNoBound = Bucket::template kNoBound<Compute>;
  /// A chunk begins with a block of columns, where the STORE has such.
  static constexpr int kEven = larger(kWidth, block_of<decltype(Arguments::store)>());

  template <class Bucket, int64_t kLeast, bool kExact, bool kPieces>
  cudaError_t in_one_tile() const {
    using Resident =
        typename Bucket::template Resident<Compute, kWidth, kLeast, kExact, kPieces, kEven>;
    constexpr int kBlocks =
        Arguments::kWide ? Bucket::template kBlocks<Compute, Resident::kPacks> : kNoBound<Bucket>;
    if constexpr (Bucket::kCluster > 1) {
      const auto kernel = clustered_rows_kernel<Resident, kBlocks, Arguments>;
      bool run = false;
      const cudaError_t status = clusters_run<Resident::kBlocks>(kernel, &run);
      if (status != cudaSuccess) return status;
      return run ? with<Bucket, Resident>(kernel, 0) : chunked<Bucket>();
    } else {
      return with<Bucket, Resident>(rows_kernel<Resident, kBlocks, Arguments>, 0);
    }
  }
  template <class Bucket, class Schedule>
  cudaError_t with(void (*kernel)(const Arguments), int64_t shared) const {
    Arguments mine = arguments;
    mine.even = Bucket::template even_chunk<kEven>(arguments.cols);
    return launch(kernel,
                  exported::blocks(arguments.rows.count, Schedule::kRows, Schedule::kBlocks),
                  Bucket::template threads<Compute, kEven>(arguments.cols), shared, stream, mine,
                  Schedule::kBlocks);
  }
};

template <class Range, class Ladder, int kWidth, Access kAccess, class Op, class LoadT,
          class StoreT, class Keep>
cudaError_t launch_rows(cudaStream_t stream, const Op& op, const LoadT& load, const StoreT& store,
                        const Keep& keep, int64_t rows, int64_t cols) {
  using Arguments = RowsArguments<kAccess, Op, LoadT, StoreT, Keep>;
  const Arguments arguments{op, load, store, keep, {rows}, cols, 0};
  const LaunchRows<Range, Arguments, kWidth> launch{stream, arguments};
  using Buckets = LadderOf<Range, Ladder, FewForwardLadder>;
  return climb<typename Op::Compute, Range, ForwardChunk, 0>(Buckets{}, cols, launch);
}

template <class Range, class Ladder, int kWidth, class Op, class LoadT, class StoreT, class Keep>
cudaError_t run_rows(cudaStream_t stream, const Op& op, const LoadT& load, const StoreT& store,
                     const Keep& keep, int64_t rows, int64_t cols) {
  Operands all{rows};
  all(load);
  all(store);
  if (!all.fits) return cudaErrorInvalidValue;
  // Few kernels, and chunks, take rows whose end cuts a pack; others are as narrow ones.
  const bool whole = Range::kFew || cols % kWidth == 0 ||
                     cols > LongestTile::template kCapacity<typename Op::Compute>;
  return all.wide && whole ? launch_rows<Range, Ladder, kWidth, Access::kWide>(
                                 stream, op, load, store, keep, rows, cols)
                           : launch_rows<Range, Ladder, kWidth, Access::kNarrow>(
                                 stream, op, load, store, keep, rows, cols);
}

#endif  // FUSEDOPS_CUDA

#if !defined(__CUDACC_RTC__)

/// The number of the schedule for a row on a CPU. Short rows, up to 16, 32 or 64 columns, are one tile
/// each, and several are worked on together: a softmax or a norm of 8 columns then takes a sixth of
/// the time, one of 32 a quarter. From 65 on there was no gain.
template <class Range>
constexpr int host_schedule_of(int64_t cols) {
  if (!Range::kFew && cols <= 64) return cols <= 16 ? 0 : cols <= 32 ? 1 : 2;
  return cols <= HostSchedule<InRegisters>::kBuffered ? 3 : 4;
}

template <class LoadT>
inline constexpr int kFunctorsOf = 0;
template <class Source, class... Functors>
inline constexpr int kFunctorsOf<Load<Source, Functors...>> = sizeof...(Functors);

/// Whether what several schedules can share is to be compiled once. Without functors there is little
/// of it, and with few of them a function call would take short rows of numbers that need no
/// conversion up to twice the time.
template <class Compute, class LoadT, class StoreT>
constexpr bool shares(int schedule) {
  if (operator_alone<Compute, LoadT, StoreT>()) return false;
  return schedule > 2 || kFunctorsOf<LoadT> > 1 || !flag<true, LoadsSame, Compute, LoadT>();
}

/// Calls f(schedule) with the schedule for a row on a CPU. Only what the range allows is compiled.
template <class Range, class Compute, class LoadT, class StoreT,
          int kSchedule = host_schedule_of<Range>(Range::kLow), class F>
void with_host_schedule(int64_t cols, const F& f) {
  constexpr int kLast = host_schedule_of<Range>(Range::kHigh);
  constexpr bool kSeveral = host_schedule_of<Range>(Range::kLow) != kLast;
  constexpr bool kApart = kSeveral && shares<Compute, LoadT, StoreT>(kSchedule);
  constexpr int kColumns = kSchedule < 3 ? 16 << kSchedule : HostSchedule<InRegisters>::kBuffered;
  if constexpr (kSchedule == kLast) {
    using Storage = typename Either<(kSchedule > 3), InRegisters, Streamed>::type;
    return f(HostSchedule<Storage, kColumns, kApart>{});
  } else {
    if (cols <= kColumns) return f(HostSchedule<InRegisters, kColumns, kApart>{});
    return with_host_schedule<Range, Compute, LoadT, StoreT, kSchedule + 1>(cols, f);
  }
}

template <class Range, class Ladder, int kWidth, class Op, class LoadT, class StoreT, class Keep>
Status run_rows(const Threads& threads, const Op& op, const LoadT& given_load,
                const StoreT& given_store, const Keep& keep, int64_t rows, int64_t cols) {
  Operands all{rows};
  all(given_load);
  all(given_store);
  if (!all.fits) return Status::kInvalidValue;
  const auto& load = drawn(given_load);
  const auto& store = drawn(given_store);
  with_host_schedule<Range, typename Op::Compute, LoadT, StoreT>(cols, [&](auto schedule) {
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

/// The forward pass of an operator: LOAD, reduction, STORE. Ladder: the GPU schedules to choose from
/// (dispatch/buckets.cuh).
template <class Ladder, class Where, class Op, class LoadT, class StoreT, class Keep, class Cols>
StatusOf<Where> dispatch_rows(const Where& where, const Op& op, const LoadT& load,
                              const StoreT& store, const Keep& keep, int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  using Range = RangeOf<Cols>;
  check_compute<Compute>();
  static_assert(
      !Form<LoadT>::kStore && !Form<StoreT>::kLoad,
      "fusedops: LOAD and STORE are exchanged: the LOAD, load(source, functors...), comes "
      "before the STORE, store(functors..., target)");
  const auto on = detail::place(where);
  const int64_t cols = Range::count(given);
  if (rows < 0 || cols < Range::kLow || cols > Range::kHigh) return detail::invalid_value(on);
  if (rows == 0) return detail::success(on);
  constexpr int kMost = smaller(Form<LoadT>::kMost, Form<StoreT>::kMost);
  constexpr int kWidth = smaller(Form<LoadT>::kWidth, int(32 / sizeof(Compute)));
  const int pack = pack_of(store, cols, pack_of(load, cols, kMost));
  return run_rows<Range, Ladder, kWidth>(on, op, as_load<Compute, kMost>(load, pack),
                                         as_store<Compute, kMost>(store, pack), keep, rows, cols);
}

#endif

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
