// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the model lives: memory, and a loop over elements, on a CPU or on a GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fusedops/cross_entropy.cuh>
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>
#include <vector>

using fusedops::int64_t;

#if defined(__CUDACC__)
#define EACH [=] __host__ __device__

template <class F>
__global__ void each_kernel(int64_t count, F f) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) f(i);
}
#else
#define EACH [=]
#endif

class Cpu {
 public:
  fusedops::Threads where() const { return {2}; }
  template <class T>
  T* zeros(int64_t count) {
    memory_.emplace_back(static_cast<size_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(memory_.back().data());
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* to = zeros<T>(static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) to[i] = values[i];
    return to;
  }
  template <class T>
  std::vector<T> download(const T* from, int64_t count) const {
    return {from, from + count};
  }
  template <class F>
  void each(int64_t count, const F& f) const {
    for (int64_t i = 0; i < count; ++i) f(i);
  }
  template <class T, class Wanted>
  bool workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) const {
    return good(fusedops::gradient_workspace<T>(where(), wanted, rows, cols, bytes));
  }
  static bool good(fusedops::Status status) { return status == fusedops::Status::kSuccess; }

 private:
  std::vector<std::vector<char>> memory_;
};

#if defined(__CUDACC__)
class Gpu {
 public:
  cudaStream_t where() const { return nullptr; }
  template <class T>
  T* zeros(int64_t count) {
    void* data = nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (cudaMalloc(&data, bytes) != cudaSuccess || cudaMemset(data, 0, bytes) != cudaSuccess) {
      std::abort();
    }
    return static_cast<T*>(data);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* to = zeros<T>(static_cast<int64_t>(values.size()));
    const size_t bytes = values.size() * sizeof(T);
    if (cudaMemcpy(to, values.data(), bytes, cudaMemcpyHostToDevice) != cudaSuccess) std::abort();
    return to;
  }
  template <class T>
  std::vector<T> download(const T* from, int64_t count) const {
    std::vector<T> to(static_cast<size_t>(count));
    const size_t bytes = to.size() * sizeof(T);
    if (cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost) != cudaSuccess) std::abort();
    return to;
  }
  template <class F>
  void each(int64_t count, const F& f) const {
    each_kernel<<<static_cast<unsigned>((count + 127) / 128), 128>>>(count, f);
  }
  template <class T, class Wanted>
  bool workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) const {
    return good(fusedops::gradient_workspace<T>(wanted, rows, cols, bytes));
  }
  static bool good(cudaError_t status) { return status == cudaSuccess; }
};
#endif
