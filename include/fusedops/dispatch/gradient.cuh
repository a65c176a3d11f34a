// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Gradients as the pages dispatch them: of a whole declaration, or of the operator alone. Nothing
// allocates or synchronizes: sums over rows take a workspace, whose size gradient_workspace gives.
#pragma once

#include <fusedops/dispatch/gradient_on_cpu.cuh>
#include <fusedops/dispatch/gradient_on_gpu.cuh>

#if !defined(__CUDACC_RTC__)

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The gradient of a declaration: back through its STORE, its operator and its LOAD. Ladder: the
/// GPU schedules to choose from (dispatch/buckets.cuh). kept: reads Op::kKept numbers of a row.
template <class Ladder, class Where, class Op, class LoadT, class StoreT, class Kept, class Dy,
          class Dx, class Wanted, class Cols>
StatusOf<Where> dispatch_gradient(const Where& where, const Op& op, const LoadT& given_load,
                                  const StoreT& given_store, const Kept& kept, const Dy& dy,
                                  const Dx& dx, const Wanted& wanted, void* workspace, size_t bytes,
                                  int64_t rows, Cols given) {
  check_compute<typename Op::Compute>();
  refuse_pointers<Dy, Dx>();
  const int64_t cols = RangeOf<Cols>::count(given);
  constexpr int kMost = Form<LoadT>::kMost;
  const int pack = pack_of(given_load, larger<int64_t>(cols, 1), kMost);
  auto load = as_load<typename Op::Compute, kMost>(given_load, pack);
  auto back = as_declared(given_store);
  using Call = GradientCall<Op, decltype(load), Dy, decltype(back), Kept, Dx, Wanted>;
  return run_gradient<RangeOf<Cols>, Ladder>(
      detail::place(where),
      Call{op, load, dy, back, kept, dx, wanted, workspace, bytes, rows, cols});
}

/// The gradient of the operator alone: `load` gives what the operator read, or what it made.
template <class Ladder, class Where, class Op, class LoadT, class LoadDy, class StoreDx, class Kept,
          class Cols>
StatusOf<Where> dispatch_gradient_of_loads(const Where& where, const Op& op, const LoadT& load,
                                           const LoadDy& load_dy, const StoreDx& store_dx,
                                           const Kept& kept, int64_t rows, Cols given) {
  using Compute = typename Op::Compute;
  check_compute<Compute>();
  const int64_t cols = RangeOf<Cols>::count(given);
  const int64_t some = larger<int64_t>(cols, 1);
  constexpr int kMost =
      smaller(Form<LoadT>::kMost, smaller(Form<LoadDy>::kMost, Form<StoreDx>::kMost));
  const int pack = pack_of(store_dx, some, pack_of(load_dy, some, pack_of(load, some, kMost)));
  auto from = only_values(as_load<Compute, kMost>(load, pack));
  auto dy = as_source<Compute, kMost>(load_dy, pack);
  auto dx = as_target<Compute, kMost>(store_dx, pack);
  auto none = store(Absent{});
  using Call =
      GradientCall<Op, decltype(from), decltype(dy), decltype(none), Kept, decltype(dx), List<>>;
  return run_gradient<RangeOf<Cols>, Ladder>(
      detail::place(where), Call{op, from, dy, none, kept, dx, {}, nullptr, 0, rows, cols});
}

}  // namespace detail

#if defined(FUSEDOPS_CUDA)

/// The bytes of workspace that these gradients need on the current device, for any operator and any
/// ladder of schedules.
template <class Compute, class Wanted>
[[nodiscard]] cudaError_t gradient_workspace(const Wanted& wanted, int64_t rows, int64_t cols,
                                             size_t* bytes) {
  *bytes = 0;
  if (rows < 0 || cols < 1 || cols > 0x7fffffff) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  using Range = detail::RangeOf<int64_t>;
  const detail::Demand all = detail::demanded(wanted);
  const detail::MeasureGradient<Compute, Wanted> measure{wanted, cols, bytes};
  cudaError_t status = detail::on_bucket<Compute, Range, detail::SoftmaxGradientLadder>(
      wanted, measure, all, rows, cols);
  if (status != cudaSuccess) return status;
  status = detail::on_bucket<Compute, Range, detail::NormGradientLadder>(wanted, measure, all, rows,
                                                                         cols);
  if (status != cudaSuccess) return status;
  status = detail::on_bucket<Compute, Range, detail::LossGradientLadder>(wanted, measure, all, rows,
                                                                         cols);
  if (status != cudaSuccess) return status;
  using Few = detail::RangeOf<few_cols<>>;
  return detail::on_bucket<Compute, Few, detail::FewGradientLadder>(wanted, measure, all, rows,
                                                                    cols);
}

#endif

/// The same on a CPU.
template <class Compute, class Wanted>
[[nodiscard]] Status gradient_workspace(Threads, const Wanted& wanted, int64_t rows, int64_t cols,
                                        size_t* bytes) {
  *bytes = 0;
  if (rows < 0 || cols < 1 || cols > 0x7fffffff) return Status::kInvalidValue;
  if (rows == 0) return Status::kSuccess;
  const detail::Slicing cut = detail::cut_on_host(detail::demanded(wanted), rows, cols);
  detail::Placer<Compute, Sums::kMemory> placer{cut, cols, 0, {nullptr, 0}};
  (void)detail::mapped(wanted, placer);
  *bytes = placer.workspace.used;
  return Status::kSuccess;
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

#endif  // !__CUDACC_RTC__
