// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The names of OneFlow's published softmax.cuh, layer_norm.cuh and rms_norm.cuh, for code written
// for them: include this page instead. Only the names are OneFlow's; they call the dispatches of
// fusedops. docs/tutorials/coming-from.md says what differs.
#pragma once

#include <fusedops/core/config.cuh>

FUSEDOPS_HEADER_BEGINS

#include <fusedops/layer_norm.cuh>
#include <fusedops/rms_norm.cuh>
#include <fusedops/softmax.cuh>

namespace oneflow {
namespace cuda {
inline namespace FUSEDOPS_ABI {

namespace layer_norm {

/// The storage of a pack. Packs of one size have one type: code reads a mask of bool as int8_t.
template <fusedops::size_t kBytes>
struct alignas(kBytes) PackStorage {
  unsigned char bytes[kBytes];
};
template <typename T, int N>
struct GetPackType {
  using type = PackStorage<sizeof(T) * N>;
};
template <typename T, int N>
using PackType = typename GetPackType<T, N>::type;

template <typename T, int N>
union Pack {
  FUSEDOPS_HD Pack() {}
  PackType<T, N> storage;
  T elem[N];
};

template <typename T>
struct DefaultComputeType {
  using type = T;
};
template <>
struct DefaultComputeType<fusedops::half> {
  using type = float;
};
template <>
struct DefaultComputeType<fusedops::bfloat16> {
  using type = float;
};

template <typename SRC, typename DST>
struct DirectLoad {
  using LoadType = DST;
  using StorageType = SRC;
  const SRC* src;
  fusedops::int64_t row_size;

  DirectLoad(const SRC* from, fusedops::int64_t cols) : src(from), row_size(cols) {}
  template <int N>
  FUSEDOPS_HD void load(DST* dst, fusedops::int64_t row, fusedops::int64_t col) const {
    const auto pack = fusedops::read_input<N>(src + row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = fusedops::convert<DST>(pack.at[i]);
  }
};

template <typename SRC, typename DST>
struct DirectStore {
  using StorageType = DST;
  DST* dst;
  fusedops::int64_t row_size;

  DirectStore(DST* to, fusedops::int64_t cols) : dst(to), row_size(cols) {}
  template <int N>
  FUSEDOPS_HD void store(const SRC* src, fusedops::int64_t row, fusedops::int64_t col) {
    fusedops::Pack<DST, N> pack;
    for (int i = 0; i < N; ++i) pack.at[i] = fusedops::convert<DST>(src[i]);
    fusedops::write<N>(dst + row * row_size + col, pack);
  }
};

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <typename LOAD, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchLayerNorm(cudaStream_t stream, LOAD load, STORE store,
                                            const int64_t rows, const int64_t cols,
                                            const double epsilon, ComputeType* mean,
                                            ComputeType* inv_variance) {
  return fusedops::dispatch_layer_norm<ComputeType>(stream, load, store, rows, cols, epsilon, mean,
                                                    inv_variance);
}
template <typename LOAD_X, typename LOAD_SCALED_DY, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchLayerNormGrad(cudaStream_t stream, LOAD_X load_x,
                                                LOAD_SCALED_DY load_scaled_dy, STORE store,
                                                const ComputeType* mean,
                                                const ComputeType* inv_variance, const int64_t rows,
                                                const int64_t cols) {
  return fusedops::dispatch_layer_norm_gradient<ComputeType>(stream, load_x, load_scaled_dy, store,
                                                             mean, inv_variance, rows, cols);
}

#endif

}  // namespace layer_norm

namespace softmax {

using layer_norm::DefaultComputeType;
using layer_norm::DirectLoad;
using layer_norm::DirectStore;
using layer_norm::GetPackType;
using layer_norm::Pack;
using layer_norm::PackType;

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

template <typename LOAD, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchSoftmax(cudaStream_t stream, LOAD load, STORE store,
                                          const int64_t rows, const int64_t cols) {
  return fusedops::dispatch_softmax<ComputeType>(stream, load, store, rows, cols);
}
template <typename LOAD, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchLogSoftmax(cudaStream_t stream, LOAD load, STORE store,
                                             const int64_t rows, const int64_t cols) {
  return fusedops::dispatch_log_softmax<ComputeType>(stream, load, store, rows, cols);
}
template <typename LOAD_Y, typename LOAD_DY, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchSoftmaxGrad(cudaStream_t stream, LOAD_Y load_y, LOAD_DY load_dy,
                                              STORE store, const int64_t rows, const int64_t cols) {
  return fusedops::dispatch_softmax_gradient<ComputeType>(stream, load_y, load_dy, store, rows,
                                                          cols);
}
template <typename LOAD_Y, typename LOAD_DY, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t DispatchLogSoftmaxGrad(cudaStream_t stream, LOAD_Y load_y,
                                                 LOAD_DY load_dy, STORE store, const int64_t rows,
                                                 const int64_t cols) {
  return fusedops::dispatch_log_softmax_gradient<ComputeType>(stream, load_y, load_dy, store, rows,
                                                              cols);
}

#endif

}  // namespace softmax

#if defined(FUSEDOPS_CUDA) && !defined(__CUDACC_RTC__)

namespace rms_norm {

template <typename LOAD, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t LaunchRmsNorm(cudaStream_t stream, LOAD load, STORE store,
                                        const int64_t nrow, const int64_t ncol, const double eps,
                                        ComputeType* inv_rms) {
  return fusedops::dispatch_rms_norm<ComputeType>(stream, load, store, nrow, ncol, eps, inv_rms);
}
template <typename LOAD_X, typename LOAD_DY, typename STORE, typename ComputeType>
[[nodiscard]] cudaError_t LaunchRmsNormGrad(cudaStream_t stream, const int64_t nrow,
                                            const int64_t ncol, LOAD_X load_x, LOAD_DY load_dy,
                                            STORE store, const ComputeType* inv_rms) {
  return fusedops::dispatch_rms_norm_gradient<ComputeType>(stream, load_x, load_dy, store, inv_rms,
                                                           nrow, ncol);
}

}  // namespace rms_norm

#endif

}  // namespace FUSEDOPS_ABI
}  // namespace cuda
}  // namespace oneflow

FUSEDOPS_HEADER_ENDS
