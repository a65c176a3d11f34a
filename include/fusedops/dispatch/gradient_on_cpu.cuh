// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient of every operator on threads of a CPU. Slices and sums do not depend on how many
// threads there are.
#pragma once

#include <fusedops/dispatch/gradient_call.cuh>
#include <fusedops/host/gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

#if !defined(__CUDACC_RTC__)

/// The row partition on a CPU: slices of 4096 elements or more, 64 at most, one at least.
inline Slicing cut_on_host(const Demand& demand, int64_t rows, int64_t cols) {
  constexpr int64_t kElements = 4096;
  const int64_t most = exported::host_slices(rows, (kElements + cols - 1) / cols);
  return {cut_rows(rows, most, demand.group, 1), 1, true};
}

template <class Parts>
void sum_on_host(const Parts& parts) {
  for_each(parts, [](const auto& one) { host_column_sums(one, 0); });
}

template <class Range, class Ladder, class Call>
Status run_gradient(const Threads& threads, const Call& call) {
  using Compute = typename Call::Compute;
  const Demand all = demanded(call.wanted);
  if (!call.template valid<Range>(all)) return Status::kInvalidValue;
  if (call.rows == 0) {
    sum_on_host(call.no_parts());
    return Status::kSuccess;
  }
  if (!call.operands().fits) return Status::kInvalidValue;
  const Slicing cut = cut_on_host(all, call.rows, call.cols);
  Placer<Compute, Sums::kMemory> placer{cut, call.cols, 0, {static_cast<char*>(call.workspace), 0}};
  const auto places = mapped(call.wanted, placer);
  if (!call.has(placer.workspace.used)) return Status::kInvalidValue;
  const auto a = call.template arguments<Access::kUnknown>(places, cut.slices);
  const auto of_load = targets_of<Side::kLoad>(a.places);
  const auto of_store = targets_of<Side::kStore>(a.places);
  const auto& load = drawn(a.load);
  const auto& upstream = drawn(a.upstream);
  const auto& store = drawn(a.store);
  const auto& to = drawn(a.to);
  using LoadT = decltype(call.load);
  using StoreT = decltype(call.store);
  with_host_schedule<Range, Compute, LoadT, StoreT>(call.cols, [&](auto schedule) {
    share(threads, cut.slices.per_span, [&](int64_t begin, int64_t end) {
      host_gradient<decltype(schedule)>(a.op, load, upstream, store, a.kept, to, of_load, of_store,
                                        a.slices, a.rows, a.cols, begin, end);
    });
  });
  sum_on_host(all_parts<Compute, Sums::kMemory>(call.wanted, places, cut, call.cols));
  return Status::kSuccess;
}

#endif

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
