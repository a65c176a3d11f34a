// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Softmax and log-softmax, and their gradients, for C++ and CUDA projects. Include this page alone.
//
//   #include <fusedops/softmax.cuh>
//   using namespace fusedops;
//
//   cudaError_t attention(cudaStream_t stream, const half* scores, const bool* padding,
//                         half* probs, int64_t rows, int64_t cols) {
//     const auto padded = layout({8, 16, 1024, 1024}, {1024, 0, 0, 1});
//     const auto in = load(direct(scores, cols), scale(0.125f), mask(broadcast(padding, padded)));
//     const auto out = store(dropout(0.1, 42, 0), direct(probs, cols));
//     return dispatch_softmax<float>(stream, in, out, rows, cols);
//   }
//
// dispatch_softmax<Compute>(where, load, store, rows, cols, kept)
//   Compute  float for half, bfloat16 and float in memory, double for double.
//   where    a cudaStream_t of the current device (or what converts to one), or Threads{n} of the
//            CPU.
//   load     load(source, functors...), or any type with load<N>() (functor/contract.cuh).
//   store    store(functors..., target), or any type with store<N>().
//   rows     0 or more.
//   cols     1 or more; an integer, or fusedops::cols<low, high>(n), which compiles fewer kernels.
//   kept     null, or (rows, kSoftmaxKept) numbers of Compute that the gradient reads: the maximum
//            of each row, and the factor that the sum gives.
//   returns  cudaSuccess, cudaErrorInvalidValue for rows or cols out of range, for an operand without
//            memory, and for a layout of fewer rows, or the status of the launch; Status on a CPU.
//            Without rows nothing is launched.
// Pointers need the alignment of their type; pointers, row strides and rows that are multiples of 16
// bytes are faster. The target may be the memory of the source if it has its dtype and layout, but
// not that of another operand. Nothing allocates or synchronizes, so a CUDA graph can capture the
// call. Rows whose maximum is -inf give zeros (log-softmax: -inf), or NaN with EmptyRow::kNan as
// the second template argument.
//
// dispatch_softmax_gradient<Compute>(where, load, store, kept, dy, dx, wanted, workspace, bytes, rows,
//                                    cols)
//   load, store  as in the forward pass; the target of store is not written, may be Absent{}.
//   kept         what the forward pass wrote: a pointer to (rows, kSoftmaxKept) numbers.
//   dy, dx       direct() or broadcast(); dx may be Absent{}, or the memory of dy or of the incoming
//                gradient of a saved stream, if it has its dtype and layout. accumulate(dx) adds to
//                what is there.
//   wanted       gradients(...) of operands: dispatch/wanted.cuh.
//   workspace    of the size that gradient_workspace<Compute>(wanted, rows, cols, &bytes) gives,
//                aligned to 16 bytes; may be null if that is 0. On a CPU:
//                gradient_workspace<Compute>(Threads{n}, wanted, rows, cols, &bytes). Before there
//                are targets: gradient_sums<number of per_column() targets, of single() ones>()
//                stands for `wanted` there.
//   returns      also cudaErrorInvalidValue where the workspace is too small, or the number of rows
//                is no multiple of a group. Without rows the sums are zeros.
// From the result y: dispatch_softmax_gradient<Compute>(where, load_y, load_dy, store_dx, rows,
// cols), where each may be composed or a plain type. Masked elements of y are zeros there.
// dispatch_log_softmax and dispatch_log_softmax_gradient take the same arguments.
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/dispatch/gradient.cuh>
#include <fusedops/functors.cuh>
#include <fusedops/op/softmax.cuh>
#include <fusedops/op/softmax_gradient.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// How many numbers of each row `kept` holds.
inline constexpr int kSoftmaxKept = SoftmaxGradient<float, false, false>::kKept;

/// The result of a row whose maximum is -inf.
enum class EmptyRow { kZero, kNan };

namespace detail {

/// The gradient from the result of the forward pass, which is not recomputed.
template <class Compute_, bool kLog>
struct SoftmaxGradientOfResult : SoftmaxGradient<Compute_, kLog, false> {
  using Compute = Compute_;
  static constexpr bool kHasMasked = false, kMaskedIsConstant = false;
  FUSEDOPS_HD static Compute padding_value() { return kLog ? -infinity<Compute>() : Compute(0); }
  struct Row {
    FUSEDOPS_HD Compute result(Compute y) const { return y; }
  };
  FUSEDOPS_HD static Row row(const Compute (&)[2]) { return {}; }
  using Base = SoftmaxGradient<Compute_, kLog, false>;
  template <class AnyRow>
  FUSEDOPS_HD typename Base::Finish finish(const Row&, typename Base::Partial all, const AnyRow&,
                                           int64_t) const {
    return {all.sum, Compute(0)};  // it has no sink
  }
};

}  // namespace detail

#if !defined(__CUDACC_RTC__)

/// y = exp(v - max(v)) / sum(exp(v - max(v))), v what `load` reads of a row.
template <class Compute, EmptyRow kEmpty = EmptyRow::kZero, class LoadT, class StoreT, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_softmax(const Where& where, LoadT load, StoreT store,
                                                       int64_t rows, Cols cols,
                                                       Compute* kept = nullptr) {
  using Op = Softmax<Compute, false, kEmpty == EmptyRow::kNan>;
  const detail::KeepRow<Compute> keep{kept, nullptr, nullptr};
  return detail::dispatch_rows<detail::ForwardLadder>(where, Op{}, load, store, keep, rows, cols);
}

/// dv = y * (dy - sum(y * dy)), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_softmax_gradient(const Where& where, LoadT load,
                                                                StoreT store, const Compute* kept,
                                                                Dy dy, Dx dx, Wanted wanted,
                                                                void* workspace, size_t bytes,
                                                                int64_t rows, Cols cols) {
  using Op = SoftmaxGradient<Compute, false, false>;
  return detail::dispatch_gradient<detail::SoftmaxGradientLadder>(
      where, Op{}, load, store, direct(kept, kSoftmaxKept), dy, dx, wanted, workspace, bytes, rows,
      cols);
}
template <class Compute, class LoadY, class LoadDy, class StoreDx, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_softmax_gradient(const Where& where, LoadY load_y,
                                                                LoadDy load_dy, StoreDx store_dx,
                                                                int64_t rows, Cols cols) {
  using Op = detail::SoftmaxGradientOfResult<Compute, false>;
  return detail::dispatch_gradient_of_loads<detail::SoftmaxGradientLadder>(
      where, Op{}, load_y, load_dy, store_dx, Unread{}, rows, cols);
}

/// y = v - max(v) - log(sum(exp(v - max(v)))).
template <class Compute, EmptyRow kEmpty = EmptyRow::kZero, class LoadT, class StoreT, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_log_softmax(const Where& where, LoadT load,
                                                           StoreT store, int64_t rows, Cols cols,
                                                           Compute* kept = nullptr) {
  using Op = Softmax<Compute, true, kEmpty == EmptyRow::kNan>;
  const detail::KeepRow<Compute> keep{kept, nullptr, nullptr};
  return detail::dispatch_rows<detail::ForwardLadder>(where, Op{}, load, store, keep, rows, cols);
}

/// dv = dy - exp(y) * sum(dy), and on through the functors.
template <class Compute, class LoadT, class StoreT, class Dy, class Dx, class Wanted, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_log_softmax_gradient(
    const Where& where, LoadT load, StoreT store, const Compute* kept, Dy dy, Dx dx, Wanted wanted,
    void* workspace, size_t bytes, int64_t rows, Cols cols) {
  using Op = SoftmaxGradient<Compute, true, false>;
  return detail::dispatch_gradient<detail::SoftmaxGradientLadder>(
      where, Op{}, load, store, direct(kept, kSoftmaxKept), dy, dx, wanted, workspace, bytes, rows,
      cols);
}
template <class Compute, class LoadY, class LoadDy, class StoreDx, class Cols,
          class Where = Threads>
[[nodiscard]] detail::StatusOf<Where> dispatch_log_softmax_gradient(const Where& where,
                                                                    LoadY load_y, LoadDy load_dy,
                                                                    StoreDx store_dx, int64_t rows,
                                                                    Cols cols) {
  using Op = detail::SoftmaxGradientOfResult<Compute, true>;
  return detail::dispatch_gradient_of_loads<detail::SoftmaxGradientLadder>(
      where, Op{}, load_y, load_dy, store_dx, Unread{}, rows, cols);
}

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops

FUSEDOPS_HEADER_ENDS
