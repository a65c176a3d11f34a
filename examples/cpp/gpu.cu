// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The example on a GPU, in half, on a stream of its own.
#include "example.h"

namespace {

template <class Check>
__global__ void check_all(Check check, int64_t count, double* errors) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) errors[i] = check(i);
}

class Gpu {
 public:
  Gpu() { well_ = good(cudaStreamCreate(&stream_)); }
  ~Gpu() {
    for (void* data : memory_) cudaFree(data);
    cudaStreamDestroy(stream_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  bool well() const { return well_; }
  cudaStream_t place() const { return stream_; }
  bool good(cudaError_t status) const {
    if (status != cudaSuccess) std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
    return status == cudaSuccess;
  }

  template <class Wanted>
  bool workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) const {
    return good(fusedops::gradient_workspace<float>(wanted, rows, cols, bytes));
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    void* data = nullptr;
    const size_t bytes = values.size() * sizeof(T);
    well_ = good(cudaMalloc(&data, bytes)) && well_;
    well_ = good(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice)) && well_;
    memory_.push_back(data);
    return static_cast<T*>(data);
  }
  template <class F>
  double seconds(F f) {
    constexpr int kTimes = 20;
    cudaEvent_t begin = nullptr, end = nullptr;
    float milliseconds = 1e9f;
    f();
    well_ = good(cudaEventCreate(&begin)) && good(cudaEventCreate(&end)) && well_;
    well_ = good(cudaEventRecord(begin, stream_)) && well_;
    for (int i = 0; i < kTimes; ++i) f();
    well_ = good(cudaEventRecord(end, stream_)) && good(cudaEventSynchronize(end)) && well_;
    well_ = good(cudaEventElapsedTime(&milliseconds, begin, end)) && well_;
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return milliseconds * 1e-3 / kTimes;
  }
  template <class Check>
  double worst(int64_t count, const Check& check) {
    std::vector<double> errors(count, 1e300);
    double* found = upload(errors);
    check_all<<<static_cast<unsigned>((count + 63) / 64), 64, 0, stream_>>>(check, count, found);
    well_ = good(cudaStreamSynchronize(stream_)) && well_;
    well_ =
        good(cudaMemcpy(errors.data(), found, count * sizeof(double), cudaMemcpyDeviceToHost)) &&
        well_;
    return *std::max_element(errors.begin(), errors.end());
  }

 private:
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
  bool well_ = true;
};

}  // namespace

int main(int count, char**) {
  Gpu gpu;
  // With an argument sizes are small: a memory checker takes its time.
  const int wrong = count > 1 ? example<fusedops::half>(gpu, 2, 100, 500, 1000)
                              : example<fusedops::half>(gpu, 8, 1024, 49152, 1024);
  return gpu.well() ? wrong : 1;
}
