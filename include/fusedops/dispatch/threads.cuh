// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A CPU as the place of a dispatch: so many threads of OpenMP where it is compiled with it, else of
// its own. Threads share a job in equal parts, so nothing depends on how they are timed.
#pragma once

#include <fusedops/core/math.cuh>

#if !defined(__CUDACC_RTC__)

#if !defined(_OPENMP)
#include <system_error>
#include <thread>
#endif

namespace fusedops {

/// What a dispatch on a CPU returns, as cudaError_t is on a GPU.
enum class Status {
  kSuccess = 0,
  kInvalidValue = 1,  // rows, columns or workspace out of range
};

/// Runs on this many threads of the CPU, the calling one included.
struct Threads {
  int count = 1;
};

namespace detail {

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
      part(i);  // there are no more threads to be had
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

}  // namespace fusedops

#endif  // !__CUDACC_RTC__
