// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of every operator on threads of a CPU. Slices and sums do not depend on how many
// threads there are.
#pragma once

#include <fusedops/dispatch/gradient_call.cuh>
#include <fusedops/host/gradient.cuh>

namespace fusedops {

namespace detail {

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

inline void sum_all_on_host(const List<>&) {}
template <class First, class... Rest>
void sum_all_on_host(const List<First, Rest...>& parts) {
  host_column_sums(parts.first, 0);
  sum_all_on_host(parts.rest);
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
    sum_all_on_host(all_parts<Compute, Sums::kMemory>(call.wanted, places, cut, call.cols));
  } else {
    sum_all_on_host(call.nothing());
  }
  return Status::kSuccess;
}

#endif

}  // namespace detail

}  // namespace fusedops
