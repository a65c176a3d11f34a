// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradients as a dispatch is asked for them: of a whole declaration, or of the operator alone.
// Nothing allocates or synchronizes: sums over rows take a workspace, whose size is asked for
// beforehand.
#pragma once

#include <fusedops/dispatch/gradient_on_cpu.cuh>
#include <fusedops/dispatch/gradient_on_gpu.cuh>

namespace fusedops {

namespace detail {

#if !defined(__CUDACC_RTC__)

/// The gradient of a declaration: back through its STORE, its operator and its LOAD.
template <class Compute, class Where, class Op, class LoadT, class StoreT, class Kept, class Dy,
          class Dx, class Wanted, class Cols>
auto through_declaration(Where where, const Op& op, const LoadT& given_load,
                         const StoreT& given_store, const Kept& kept, const Dy& dy, const Dx& dx,
                         const Wanted& wanted, void* workspace, uint64_t bytes, int64_t rows,
                         Cols given) {
  const int64_t cols = RangeOf<Cols>::count(given);
  constexpr int kMost = Form<LoadT>::kMost;
  const int pack = pack_of(given_load, larger<int64_t>(cols, 1), kMost);
  const auto load = as_load<Compute, kMost>(given_load, pack);
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
  constexpr int kMost =
      smaller(Form<LoadT>::kMost, smaller(Form<LoadDy>::kMost, Form<StoreDx>::kMost));
  const int pack = pack_of(store_dx, some, pack_of(load_dy, some, pack_of(load, some, kMost)));
  const auto from = only_values(as_load<Compute, kMost>(load, pack));
  const auto dy = as_source<Compute, kMost>(load_dy, pack);
  const auto dx = as_target<Compute, kMost>(store_dx, pack);
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

/// The bytes of workspace that a gradient with these wanted needs on the current device, for any
/// operator.
template <class Compute, class Wanted>
cudaError_t gradient_workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) {
  const detail::Demand all = detail::demanded(wanted);
  *bytes = 0;
  if (rows < 0 || cols < 1 || cols > 0x7fffffff) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  using Range = detail::RangeOf<int64_t>;
  size_t of_softmax = 0, of_norm = 0;
  const detail::MeasureGradient<Compute, Wanted> softmax{wanted, all, rows, cols, &of_softmax};
  const detail::MeasureGradient<Compute, Wanted> norm{wanted, all, rows, cols, &of_norm};
  const cudaError_t status = detail::climb<Compute, Range, detail::GradientChunk, 0>(
      detail::SoftmaxGradientLadder{}, cols, softmax);
  if (status != cudaSuccess) return status;
  const cudaError_t also = detail::climb<Compute, Range, detail::GradientChunk, 0>(
      detail::NormGradientLadder{}, cols, norm);
  *bytes = of_softmax > of_norm ? of_softmax : of_norm;
  return also;
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
