// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a dispatch runs: on a CUDA stream, or on threads of the CPU (of OpenMP where it is compiled
// with it, otherwise std::thread), which take equal ranges of the work, so that no result depends
// on timing.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/math.cuh>

#if !defined(__CUDACC_RTC__)

#if !defined(_OPENMP)
#include <system_error>
#include <thread>
#endif

namespace fusedops {
/// What a dispatch on a CPU returns, as cudaError_t is on a GPU; the values are equal.
enum class [[nodiscard]] Status {
  kSuccess = 0,
  kInvalidValue = 1,  // rows, columns or workspace out of range
};

inline namespace FUSEDOPS_ABI {

/// Runs on this many threads of the CPU, the calling one included.
struct Threads {
  int count = 1;
};

namespace detail {

/// The first argument of a dispatch as one of two types. On a GPU it may be anything that converts
/// to a cudaStream_t, and a number: 0 is the default stream.
inline Threads place(const Threads& threads) { return threads; }
inline Status success(const Threads&) { return Status::kSuccess; }
inline Status invalid_value(const Threads&) { return Status::kInvalidValue; }
#if defined(FUSEDOPS_CUDA)
inline cudaStream_t place(cudaStream_t stream) { return stream; }
inline cudaStream_t place(int64_t handle) { return reinterpret_cast<cudaStream_t>(handle); }
inline cudaError_t success(cudaStream_t) { return cudaSuccess; }
inline cudaError_t invalid_value(cudaStream_t) { return cudaErrorInvalidValue; }
#endif

/// What a dispatch returns: cudaError_t, or Status on a CPU.
template <class Where>
using StatusOf = decltype(detail::success(detail::place(any_of<const Where>())));

/// Calls f(begin, end) on parts of 0 <= i < count.
template <class F>
void share(const Threads& threads, int64_t count, const F& f) {
  constexpr int kMost = 256;
  const int64_t most = smaller<int64_t>(smaller<int64_t>(threads.count, kMost), count);
  const int parts = static_cast<int>(larger<int64_t>(most, 1));
  const auto part = [&](int i) { f(count * i / parts, count * (i + 1) / parts); };
#if defined(_OPENMP)
#pragma omp parallel for num_threads(parts) schedule(static, 1)
  for (int i = 0; i < parts; ++i) part(i);
#else
  std::thread crew[kMost];
  for (int i = 1; i < parts; ++i) {
#if defined(__cpp_exceptions)
    try {
      crew[i] = std::thread(part, i);
    } catch (const std::system_error&) {
      part(i);  // the system has no more threads
    }
#else
    crew[i] = std::thread(part, i);
#endif
  }
  part(0);
  for (int i = 1; i < parts; ++i) {
    if (crew[i].joinable()) crew[i].join();
  }
#endif
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

#endif  // !__CUDACC_RTC__
