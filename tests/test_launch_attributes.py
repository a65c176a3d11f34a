# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Launch attributes of C++ kernels are set once for a kernel and a device.

The CUDA runtime is one of this test, which counts, so no GPU is needed.
"""

import subprocess

from cpptest import compiler, run

from fusedops.jit import env

SOURCE = r"""
#include <cstddef>
#include <cstdio>

// What a CUDA compiler has, as far as the header uses it.
#define __CUDACC__
#define __host__
#define __device__
#define __forceinline__ inline
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorInvalidConfiguration };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
struct cudaFuncAttributes { size_t sharedSizeBytes; };
struct dim3 { explicit dim3(unsigned) {} };
using cudaStream_t = void*;

int device = 0, set = 0, asked = 0, launched = 0, limit[2][2];  // of device and kernel

cudaError_t cudaGetDevice(int* found) { *found = device; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 200 * 1024;
  return ++asked, cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  found->sharedSizeBytes = 1024;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    limit[device][*static_cast<const int*>(kernel)] = value;
  }
  return ++set, cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t shared, cudaStream_t) {
  const int most = limit[device][*static_cast<const int*>(kernel)];
  if (int(shared) > (most > 48 * 1024 ? most : 48 * 1024)) return cudaErrorInvalidValue;
  return ++launched, cudaSuccess;
}

#include <fusedops/host/call.cuh>

int main() {
  using namespace fusedops::exported;
  static const int kernels[] = {0, 1};
  const auto go = [](int kernel, unsigned shared, int cluster, int most) {
    const int before = set;
    const cudaError_t status = launch(&kernels[kernel], 1, 32, shared, 0, nullptr, cluster, most);
    std::printf("%d:%d ", int(status), set - before);
  };
  go(0, 1000, 1, kAllShared);   // nothing to set
  go(0, 60000, 1, kAllShared);  // once
  go(0, 90000, 1, kAllShared);  // that was all that there is
  go(1, 60000, 1, kAllShared);  // another kernel
  go(0, 60001, 16, 0);          // a number of bytes, and large clusters
  go(0, 60001, 16, 0);
  device = 1;
  go(0, 60000, 1, kAllShared);  // another device
  limit[1][0] = 0;              // as cudaDeviceReset() leaves it
  go(0, 60000, 1, kAllShared);
  go(0, 300000, 1, kAllShared);  // more than there is
  std::printf("asked %d launched %d\n", asked, launched);
}
"""


def test_they_are_set_once(tmp_path):
    source, program = tmp_path / "count.cpp", tmp_path / "count"
    source.write_text(SOURCE)
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{env.include_dir()}")
    run([compiler(), *flags, source, "-o", program])
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    each = "0:0 0:1 0:0 0:1 0:2 0:0 0:1 0:1 1:1"
    assert done.stdout == f"{each} asked 5 launched 8\n"
