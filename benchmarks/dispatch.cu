// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks/dispatch.py measures: PART of five dispatches of the C++ entry points in half, with
// the LOADs and STOREs of fusedops or, with OPAQUE, with structs as a user writes them by OneFlow's
// contract. ONEFLOW: OneFlow's own dispatchers take these structs; -I has the folder of its headers.
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>
#if defined(ONEFLOW)
#include <oneflow/core/cuda/layer_norm.cuh>
#include <oneflow/core/cuda/softmax.cuh>
#endif

using namespace fusedops;

#if defined(OPAQUE) || defined(ONEFLOW)

/// The reads of a user's LOAD: what lies in memory, times gamma where there is one.
template <bool kScaled = false>
struct Reads {
  using LoadType = float;
  using StorageType = half;
  const half* from;
  int64_t row_size;
  const half* gamma = nullptr;
  template <int N>
  __device__ void load(float* dst, int64_t row, int64_t col) const {
    const auto pack = read_input<N>(from + row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = convert<float>(pack.at[i]);
    if constexpr (kScaled) {
      const auto scales = read_input<N>(gamma + col);
      for (int i = 0; i < N; ++i) dst[i] *= convert<float>(scales.at[i]);
    }
  }
};

/// The writes of a user's STORE, after gamma and beta where there are any.
template <bool kAffine = false>
struct Writes {
  using StorageType = half;
  half* to;
  int64_t row_size;
  const half *gamma = nullptr, *beta = nullptr;
  template <int N>
  __device__ void store(const float* src, int64_t row, int64_t col) {
    Pack<half, N> pack;
    if constexpr (kAffine) {
      const auto scales = read_input<N>(gamma + col), shifts = read_input<N>(beta + col);
      for (int i = 0; i < N; ++i) {
        pack.at[i] =
            convert<half>(src[i] * convert<float>(scales.at[i]) + convert<float>(shifts.at[i]));
      }
    } else {
      for (int i = 0; i < N; ++i) pack.at[i] = convert<half>(src[i]);
    }
    write<N>(to + row * row_size + col, pack);
  }
};

auto reads(const half* x, int64_t cols) { return Reads<>{x, cols}; }
auto reads_scaled(const half* x, int64_t cols, const half* gamma) {
  return Reads<true>{x, cols, gamma};
}
auto writes(half* y, int64_t cols) { return Writes<>{y, cols}; }
auto writes_affine(half* y, int64_t cols, const half* gamma, const half* beta) {
  return Writes<true>{y, cols, gamma, beta};
}

#else

auto reads(const half* x, int64_t cols) { return load(direct(x, cols)); }
auto reads_scaled(const half* x, int64_t cols, const half* gamma) {
  return load(direct(x, cols), scale(per_column(gamma)));
}
auto writes(half* y, int64_t cols) { return store(direct(y, cols)); }
auto writes_affine(half* y, int64_t cols, const half* gamma, const half* beta) {
  return store(affine(per_column(gamma), per_column(beta)), direct(y, cols));
}

#endif

#if defined(ONEFLOW)

/// Where a forward pass writes its statistics, which it always does.
float* statistics(int64_t rows) {
  static float* kept = nullptr;
  static int64_t most = 0;
  if (rows > most) {
    if (cudaFree(kept) != cudaSuccess) return nullptr;
    if (cudaMalloc(&kept, 2 * rows * sizeof(float)) != cudaSuccess) return nullptr;
    most = rows;
  }
  return kept;
}

#if PART == 0
extern "C" int softmax(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y) {
  using oneflow::cuda::softmax::DispatchSoftmax;
  return DispatchSoftmax<Reads<>, Writes<>, float>(stream, reads(x, cols), writes(y, cols), rows,
                                                   cols);
}
#elif PART == 1
extern "C" int softmax_gradient(cudaStream_t stream, int64_t rows, int64_t cols, const half* y,
                                half* dx, const half* dy) {
  using oneflow::cuda::softmax::DispatchSoftmaxGrad;
  return DispatchSoftmaxGrad<Reads<>, Reads<>, Writes<>, float>(
      stream, reads(y, cols), reads(dy, cols), writes(dx, cols), rows, cols);
}
#elif PART == 2
extern "C" int layer_norm(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y,
                          const half* gamma, const half* beta) {
  using oneflow::cuda::layer_norm::DispatchLayerNorm;
  float* const kept = statistics(rows);
  if (kept == nullptr) return cudaErrorMemoryAllocation;
  return DispatchLayerNorm<Reads<>, Writes<true>, float>(stream, reads(x, cols),
                                                         writes_affine(y, cols, gamma, beta), rows,
                                                         cols, 1e-5, kept, kept + rows);
}
#else
extern "C" int layer_norm_dx(cudaStream_t stream, int64_t rows, int64_t cols, const half* x,
                             half* dx, const half* dy, const half* gamma, const float* mean,
                             const float* rstd) {
  using oneflow::cuda::layer_norm::DispatchLayerNormGrad;
  return DispatchLayerNormGrad<Reads<>, Reads<true>, Writes<>, float>(
      stream, reads(x, cols), reads_scaled(dy, cols, gamma), writes(dx, cols), mean, rstd, rows,
      cols);
}
#endif

#elif PART == 0
extern "C" int softmax(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y) {
  return dispatch_softmax<float>(stream, reads(x, cols), writes(y, cols), rows, cols);
}
#elif PART == 1
extern "C" int softmax_gradient(cudaStream_t stream, int64_t rows, int64_t cols, const half* y,
                                half* dx, const half* dy) {
  return dispatch_softmax_gradient<float>(stream, reads(y, cols), reads(dy, cols), writes(dx, cols),
                                          rows, cols);
}
#elif PART == 2
extern "C" int layer_norm(cudaStream_t stream, int64_t rows, int64_t cols, const half* x, half* y,
                          const half* gamma, const half* beta) {
  return dispatch_layer_norm<float>(stream, reads(x, cols), writes_affine(y, cols, gamma, beta),
                                    rows, cols, 1e-5);
}
#elif PART == 3
extern "C" int layer_norm_dx(cudaStream_t stream, int64_t rows, int64_t cols, const half* x,
                             half* dx, const half* dy, const half* gamma, const float* mean,
                             const float* rstd) {
  return dispatch_layer_norm_gradient<float>(stream, reads(x, cols), reads_scaled(dy, cols, gamma),
                                             writes(dx, cols), mean, rstd, rows, cols);
}
#else  // with gradients of gamma and beta, which structs of a user's have not
extern "C" int layer_norm_gradient(cudaStream_t stream, int64_t rows, int64_t cols, const half* x,
                                   half* dx, const half* dy, const half* gamma, const float* kept,
                                   half* dgamma, half* dbeta, void* workspace, size_t bytes,
                                   size_t* needed) {
  const auto wanted =
      gradients(in_store<0, 0>(per_column(dgamma)), in_store<0, 1>(per_column(dbeta)));
  if (needed != nullptr) return gradient_workspace<float>(wanted, rows, cols, needed);
  const auto out = store(affine(per_column(gamma), per_column(gamma)), Absent{});
  return dispatch_layer_norm_gradient<float>(stream, load(direct(x, cols)), out, kept,
                                             direct(dy, cols), direct(dx, cols), wanted, workspace,
                                             bytes, rows, cols);
}
#endif
