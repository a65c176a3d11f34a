// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of every operator on a GPU: its row partition, its workspace, and its launches.
#pragma once

#include <fusedops/dispatch/gradient_call.cuh>
#include <fusedops/row/gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

/// kPrefetches: the next row of a slice, in a grid of persistent blocks. Without it rows of clusters
/// are prefetched that are another slice's.
template <class Schedule, bool kPrefetches, class Arguments>
__device__ __forceinline__ void gradient_of_rows(const Arguments& a) {
  using Compute = typename Arguments::Compute;
  const auto& load = drawn(a.load);
  const auto& upstream = drawn(a.upstream);
  const auto& store = drawn(a.store);
  const auto& to = drawn(a.to);
  check_on_device<Compute, true>(load);
  check_on_device<Compute, true>(upstream);
  check_on_device<Compute, true>(store);
  check_on_device<Compute, true>(to);
  constexpr bool kAcross =
      Schedule::kBlocks > 1 && reads_ahead<decltype(a.load), decltype(a.upstream)>();
  constexpr Prefetch kPrefetch = kPrefetches ? Prefetch::kPerThread
                                 : kAcross   ? Prefetch::kAcrossRows
                                             : Prefetch::kNever;
  constexpr bool kEagerOperands = sizeof(Compute) == 4;  // doubles have no registers to spare
  gradient_kernel<Schedule, kPrefetch, kEagerOperands>(
      a.op, load, upstream, store, a.kept, to, targets_of<Side::kLoad>(a.places),
      targets_of<Side::kStore>(a.places), a.slices, a.rows, a.cols,
      kAcross && !kPrefetches ? rows_ahead<decltype(a.load)>(a.cols) : 1, a.even);
}
// Of persistent blocks all have to fit.
template <bool kPersistent, int kBlocks>
inline constexpr int kBlocksOf = kPersistent ? kBlocks : kBlocksHere<kBlocks>;

template <class Schedule, bool kPrefetches, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads* Schedule::kRows,
                                  kBlocksOf<kPrefetches, kBlocks>)
    gradient_rows_kernel(const __grid_constant__ Arguments a) {
  gradient_of_rows<Schedule, kPrefetches>(a);
}
// As clustered_rows_kernel.
template <class Schedule, bool kPrefetches, int kBlocks, class Arguments>
__global__ void __launch_bounds__(Schedule::kThreads, kBlocksOf<kPrefetches, kBlocks>)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __cluster_dims__(Schedule::kBlocks, 1, 1)
#endif
        clustered_gradient_rows_kernel(const __grid_constant__ Arguments a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  gradient_of_rows<Schedule, kPrefetches>(a);
#endif
}

template <class... Found>
__device__ __forceinline__ void sum_all(const List<>&, const Found&... found) {
  if constexpr (sizeof...(Found) > 0) all_column_sums(int64_t(blockIdx.x), found...);
}
template <class First, class... Rest, class... Found>
__device__ __forceinline__ void sum_all(const List<First, Rest...>& parts, const Found&... found) {
  sum_all(parts.rest, found..., parts.first);
}
template <class Parts>
__global__ void __launch_bounds__(kSumThreads) sums_kernel(const __grid_constant__ Parts parts) {
  sum_all(parts);
}

/// The second stage, if there is one.
template <class Parts>
cudaError_t launch_sums(cudaStream_t stream, const Parts& parts) {
  if constexpr (IsSame<Parts, List<>>::value) {
    return cudaSuccess;
  } else {
    int64_t blocks = 0;
    for_each(parts, [&](const auto& one) { blocks += (one.cols + kSumColumns - 1) / kSumColumns; });
    return launch(sums_kernel<Parts>, blocks, kSumThreads, 0, stream, parts);
  }
}

/// The row partition on the current device for blocks of so many threads, `most` of them on a
/// multiprocessor, whose sums take so many bytes of shared memory. kPersistent: blocks process several
/// rows each; otherwise a slice is one row.
template <class Bucket, bool kPersistent, int kCluster = 1>
cudaError_t cut_on_device(const Demand& demand, int64_t rows, int threads, int most, int64_t bytes,
                          Slicing* cut) {
  int multiprocessors = 0;
  int64_t shared = 0;
  cudaError_t status = attribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (status != cudaSuccess) return status;
  status = shared_limit(&shared);
  if (status != cudaSuccess) return status;
  // Sums over small groups of rows end soon, so slices are short: there the most blocks at a time
  // are best.
  const int64_t blocks = larger((demand.group > 1 ? larger(most, 4096) : most) / threads, 1);
  // Clusters of more than two blocks do not fill the groups of multiprocessors (GPCs) of a device:
  // schedule/backward.py has what one H200 holds of them.
  constexpr int kLost = kCluster <= 2 ? 0 : kCluster <= 4 ? 6 : 9;  // percent
  const int64_t clusters = multiprocessors * blocks / kCluster * (100 - kLost) / 100;
  const int64_t slices = kPersistent ? larger<int64_t>(clusters, 1) * Bucket::kRows : rows;
  *cut = {cut_rows(rows, slices, demand.group, Bucket::kRows), Bucket::kRows, bytes > shared};
  return cudaSuccess;
}

/// What f.with() returns where a bucket's clusters do not run on the device, or do not pay: one block
/// processes their chunks.
inline constexpr cudaError_t kNoClusters = cudaErrorNotSupported;

/// The callbacks of climb() for a gradient: partitions the rows for the bucket, chooses where sums
/// over rows are kept, and returns f.with<Bucket, Storage, kLeast, kExact, kSums, kPersistent>(cut).
template <class Compute, class Wanted, class F>
struct OnBucket {
  /// Sums over rows take shared memory by the number of threads. One H200: with a number that is not
  /// a constant LayerNorm's gradients of 4096 to 65536 columns were 2 to 10 percent slower.
  static constexpr bool kFits = !kSumsOf<Wanted>.any && sizeof(Compute) == 4;
  const F& f;
  Demand all;
  int64_t rows, cols;

  template <class Bucket, int64_t kLeast, bool kExact>
  cudaError_t resident() const {
    using Where = SumsOf<Wanted, Compute, Bucket>;
    constexpr bool kPersistent = Where::kPersistent;
    Slicing cut{};
    const int threads = Bucket::template threads<Compute>(cols);
    const int64_t bytes = Where::kBytes / Bucket::kBlock * threads;
    cudaError_t status = cut_on_device<Bucket, kPersistent, Bucket::kCluster>(
        all, rows, threads, kMost<Bucket>, bytes, &cut);
    if (status != cudaSuccess) return status;
    status = on<Bucket, kLeast, kExact, Where, kPersistent>(cut);
    if constexpr (Bucket::kCluster > 1) {
      if (status == kNoClusters) return chunked<Bucket>();
    }
    return status;
  }
  template <class Bucket>
  cudaError_t chunked() const {
    Slicing cut{};
    const int threads = Bucket::template threads<Compute>(cols);
    const cudaError_t status =
        cut_on_device<Bucket, kSumsOf<Wanted>.any>(all, rows, threads, kMost<Bucket>, 0, &cut);
    if (status != cudaSuccess) return status;
    return f.template with<Bucket, Streamed, 0, false, Sums::kMemory, false>(cut);
  }
  cudaError_t outside() const { return cudaErrorInvalidValue; }

 private:
  template <class Bucket>
  static constexpr int kMost = Bucket::template kPersistentThreads<Compute>;

  template <class Bucket, int64_t kLeast, bool kExact, class Where, bool kPersistent>
  cudaError_t on(const Slicing& cut) const {
    if constexpr (Where::kMayLack) {
      if (cut.in_memory) {
        return f.template with<Bucket, InRegisters, kLeast, kExact, Sums::kMemory, kPersistent>(
            cut);
      }
    }
    return f.template with<Bucket, InRegisters, kLeast, kExact, Where::value, kPersistent>(cut);
  }
};

template <class Compute, class Range, class Ladder, class Wanted, class F>
cudaError_t on_bucket(const Wanted&, const F& f, const Demand& all, int64_t rows, int64_t cols) {
  const OnBucket<Compute, Wanted, F> callbacks{f, all, rows, cols};
  using Chunk = LadderOf<Range, GradientChunk, FewGradientChunk>;
  return climb<Compute, Range, Chunk, 0>(Ladder{}, cols, callbacks);
}

/// Measures the workspace: with clusters and without.
template <class Compute, class Wanted>
struct MeasureGradient {
  const Wanted& wanted;
  int64_t cols;
  size_t* bytes;

  template <class Bucket, class Storage, int64_t kLeast, bool kExact, Sums kSums, bool kPersistent>
  cudaError_t with(const Slicing& cut) const {
    Placer<Compute, kSums> placer{cut, cols, 0, {nullptr, 0}};
    (void)mapped(wanted, placer);
    if (placer.workspace.used > *bytes) *bytes = placer.workspace.used;
    return Bucket::kCluster > 1 && IsSame<Storage, InRegisters>::value ? kNoClusters : cudaSuccess;
  }
};

/// Launches the gradient kernel, and the second stage if slices share sums. Doubles have no kernels
/// for full tiles, which would spill; beside so many bytes the checks of others cost little.
template <class Range, class Call, int kWidth, Access kAccess>
struct LaunchGradient {
  using Compute = typename Call::Compute;
  cudaStream_t stream;
  const Call& call;

  template <class Bucket, class Storage, int64_t kLeast, bool kExact, Sums kSums, bool kPersistent>
  cudaError_t with(const Slicing& cut) const {
    if constexpr (IsSame<Storage, Streamed>::value) {
      using Schedule = typename Bucket::template Chunked<Streamed, Compute, kWidth>;
      return go<Bucket, Schedule, kSums, kPersistent>(cut);
    } else if constexpr (Bucket::kCluster > 1 && !kPersistent && !kWide) {
      return kNoClusters;  // as in a forward pass; but slices are the same for all accesses
    } else if constexpr (kWide && kExact && !Range::kFew && sizeof(Compute) == 4) {
      using Exact = typename Bucket::template Resident<Compute, kWidth, kLeast, true, false>;
      return go<Bucket, Exact, kSums, kPersistent>(cut);
    } else {
      constexpr bool kPieces = !kWide || Range::kFew;
      constexpr int64_t kFewest = kWide ? kLeast : 1;
      using Others = typename Bucket::template Resident<Compute, kWidth, kFewest, false, kPieces>;
      return go<Bucket, Others, kSums, kPersistent>(cut);
    }
  }

 private:
  static constexpr bool kWide = kAccess == Access::kWide;

  template <class Bucket, class Schedule, Sums kSums, bool kPersistent>
  cudaError_t go(const Slicing& cut) const {
    // All persistent blocks must fit on the device at a time: one that did not would start when the
    // others have ended.
    constexpr bool kBound = kWide && Schedule::Storage::kOneTile;
    constexpr int kBlocks =
        !kBound       ? Bucket::template kNoBound<Compute>
        : kPersistent ? larger(Bucket::template kPersistentThreads<Compute> / Bucket::kBlock, 1)
                      : Bucket::template kBlocks<Compute, 2 * Schedule::kPacks>;
    const int threads = Bucket::template threads<Compute, kWidth>(call.cols);
    Placer<Compute, kSums> placer{cut,
                                  call.cols,
                                  int64_t(threads) * Schedule::kPacks * kWidth,
                                  {static_cast<char*>(call.workspace), 0}};
    const auto places = mapped(call.wanted, placer);
    if (!call.has(placer.workspace.used)) return cudaErrorInvalidValue;
    const int64_t blocks = cut.slices.per_span / Bucket::kRows * Schedule::kBlocks;
    if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
    const auto arguments = call.template arguments<kAccess>(
        places, cut.slices, Bucket::template even_chunk<kWidth>(call.cols));
    using Arguments = typename Plain<decltype(arguments)>::type;
    void (*kernel)(const Arguments) = nullptr;
    if constexpr (Schedule::kBlocks > 1) {
      kernel = clustered_gradient_rows_kernel<Schedule, kPersistent, kBlocks, Arguments>;
      bool run = false;
      const cudaError_t status = clusters_run<Schedule::kBlocks>(kernel, &run);
      if (status != cudaSuccess) return status;
      if (!run) return kNoClusters;
    } else {
      kernel = gradient_rows_kernel<Schedule, kPersistent, kBlocks, Arguments>;
    }
    const cudaError_t status =
        launch(kernel, blocks, threads, placer.offset * int64_t(sizeof(Compute)), stream, arguments,
               Schedule::kBlocks);
    if (status != cudaSuccess) return status;
    return launch_sums(stream, all_parts<Compute, kSums>(call.wanted, places, cut, call.cols));
  }
};

template <class Range, class Ladder, class Call>
cudaError_t run_gradient(cudaStream_t stream, const Call& call) {
  using Compute = typename Call::Compute;
  const Demand all = demanded(call.wanted);
  if (!call.template valid<Range>(all)) return cudaErrorInvalidValue;
  if (call.rows == 0) return launch_sums(stream, call.no_parts());
  constexpr int kWidth = smaller(Form<decltype(call.load)>::kWidth, int(32 / sizeof(Compute)));
  const auto go = [&](const auto& launcher) {
    using Buckets = LadderOf<Range, Ladder, FewGradientLadder>;
    return on_bucket<Compute, Range, Buckets>(call.wanted, launcher, all, call.rows, call.cols);
  };
  const Operands operands = call.operands();
  if (!operands.fits) return cudaErrorInvalidValue;
  // One kernel less to compile: wide accesses of rows whose end cuts a pack are as narrow ones.
  if (operands.wide && (Range::kFew || call.cols % kWidth == 0)) {
    return go(LaunchGradient<Range, Call, kWidth, Access::kWide>{stream, call});
  }
  return go(LaunchGradient<Range, Call, kWidth, Access::kNarrow>{stream, call});
}

#endif  // FUSEDOPS_CUDA

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
