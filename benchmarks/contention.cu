// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What an instruction costs a product that runs beside it, for sm_90a: two warpgroups issue wgmma without
// end, from stages that stay in shared memory, and four other warps issue one kind of instruction, in 1 to
// 8 chains. To build and to run it, from the root of the repository:
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -Iinclude
//     benchmarks/contention.cu -o contention && ./contention
//
// Printed are, for each number of chains, the instructions a clock that a scheduler issues of its one
// warp alone and beside the product, the clocks of a stage of the product, of 1024 alone, and the clocks
// that one instruction takes from it.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <fusedops/gemm/products.cuh>

using namespace fusedops;
using namespace fusedops::gemm;

#define CHECK(call) check_cuda(call, #call, __LINE__)
static void check_cuda(cudaError_t status, const char* what, int line) {
  if (status == cudaSuccess) return;
  std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(status));
  std::exit(1);
}

/// What a chain works on, and what it takes each time.
struct Registers {
  float f[10];
  uint32_t u[10];
  double d[10];
};

// One instruction each, of chain i.
#define FUSEDOPS_KIND(Name, label, code)                                        \
  struct Name {                                                                 \
    static constexpr const char* kLabel = label;                                \
    __device__ __forceinline__ static void issue(Registers& r, int i) { code; } \
  }
FUSEDOPS_KIND(Fma, "ffma",
              asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(r.f[i]) : "f"(r.f[8]), "f"(r.f[9])));
FUSEDOPS_KIND(Imad, "imad",
              asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(r.u[i]) : "r"(r.u[8]), "r"(r.u[9])));
FUSEDOPS_KIND(ImadHigh, "imad.hi",
              asm volatile("mul.hi.u32 %0, %0, %1;" : "+r"(r.u[i]) : "r"(r.u[8])));
FUSEDOPS_KIND(ImadWide, "imad.wide", uint64_t wide;
              asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(wide) : "r"(r.u[i]), "r"(r.u[8]));
              r.u[i] = uint32_t(wide >> 32) ^ uint32_t(wide));
FUSEDOPS_KIND(Dfma, "dfma",
              asm volatile("fma.rz.f64 %0, %0, %1, %2;" : "+d"(r.d[i]) : "d"(r.d[8]), "d"(r.d[9])));
FUSEDOPS_KIND(Lop3, "lop3",
              asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(r.u[i]) : "r"(r.u[8]),
                           "r"(r.u[9])));
FUSEDOPS_KIND(Iadd, "iadd", asm volatile("add.u32 %0, %0, %1;" : "+r"(r.u[i]) : "r"(r.u[8])));
FUSEDOPS_KIND(Hfma2, "hfma2",
              asm volatile("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(r.u[i]) : "r"(r.u[8]),
                           "r"(r.u[9])));
FUSEDOPS_KIND(Mufu, "mufu.ex2", asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(r.f[i])));
#undef FUSEDOPS_KIND

constexpr int kThreads = 512, kBytes = (128 + 256) * kStageBytes;
constexpr int kShared = 4 * kBytes, kSteps = 2000, kLoops = 1000, kRepeats = 16;

/// Clocks of the product, and of the loops of the others with their number.
struct Found {
  long long product, others, loops;
};

template <class Kind, int kChains>
__global__ void __launch_bounds__(kThreads, 1)
    run(Found* found, char* global, bool products, bool others) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ volatile int done;
  for (int i = threadIdx.x; i < kShared / 4; i += kThreads) {  // numbers of about 1, of either sign
    const uint32_t hash = i * 2654435761u ^ i >> 3;
    reinterpret_cast<uint32_t*>(memory)[i] = 0x3c003c00u ^ (hash & 0x83ff83ffu);
  }
  if (threadIdx.x == 0) done = 0;
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const uint32_t shared = detail::shared_address(memory);
  if (warp < 8) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
    if (!products) return;
    float sums[2][64];
    for (auto& sum : sums) {
      for (float& one : sum) one = 0;
    }
    const long long begins = clock64();
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t stage = shared + step % 3 * kBytes;
      const uint64_t x = wgmma_tile(stage + warp / 4 * 64 * kStageBytes);
      const uint64_t w = wgmma_tile(stage + 128 * kStageBytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kStageBytes / 32; ++k) {
#pragma unroll
        for (int a = 0; a < 2; ++a) {
          wgmma<fusedops::half, Major::kK, Major::kK>(
              sums[a], x + k * 2, w + a * (128 * kStageBytes / 16) + k * 2, true);
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
    }
    wgmma_wait<0>();
    const long long ends = clock64();
    float all = 0;
    for (auto& sum : sums) {
      wgmma_keep(sum);
      for (float one : sum) all += one;
    }
    if (all == 12345.f) *global = 1;  // never, but it keeps the sums
    done = 1;
    if (threadIdx.x == 0 && blockIdx.x == 0) found->product = ends - begins;
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    if (!others || warp >= 12) return;
    Registers r;
    for (int i = 0; i < 10; ++i) r.f[i] = r.d[i] = r.u[i] = threadIdx.x * 77 + i;
    long long loops = 0;
    const long long begins = clock64();
    while (products ? !done : loops < kLoops) {
#pragma unroll
      for (int i = 0; i < kRepeats * kChains; ++i) Kind::issue(r, i % kChains);
      ++loops;
    }
    const long long ends = clock64();
    double all = 0;
    for (int i = 0; i < 10; ++i) all += r.f[i] + r.u[i] + r.d[i];
    if (all == 12345) *global = 2;
    if (threadIdx.x == 256 && blockIdx.x == 0) found->others = ends - begins, found->loops = loops;
  }
}

template <class Kind, int kChains>
Found measure(Found* found, char* global, bool products, bool others) {
  const auto kernel = run<Kind, kChains>;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  for (int i = 0; i < 2; ++i) kernel<<<132, kThreads, kShared>>>(found, global, products, others);
  CHECK(cudaDeviceSynchronize());
  return *found;
}

template <class Kind, int kChains>
void chains(Found* found, char* global) {
  constexpr double kIssued = kRepeats * kChains;
  const double before = double(measure<Kind, kChains>(found, global, true, false).product) / kSteps;
  const Found alone = measure<Kind, kChains>(found, global, false, true);
  const Found beside = measure<Kind, kChains>(found, global, true, true);
  const double step = double(beside.product) / kSteps;
  const double rate = kIssued * beside.loops / beside.others;
  std::printf(" | %.3f %.3f %5.0f %5.2f", kIssued * alone.loops / alone.others, rate, step,
              (step - before) / (rate * step));
}

template <class Kind>
void all_chains(Found* found, char* global) {
  std::printf("%-10s", Kind::kLabel);
  chains<Kind, 1>(found, global);
  chains<Kind, 2>(found, global);
  chains<Kind, 4>(found, global);
  chains<Kind, 8>(found, global);
  std::printf("\n");
}

int main() {
  Found* found;
  char* global;
  CHECK(cudaMallocHost(&found, sizeof(Found)));
  CHECK(cudaMalloc(&global, 1 << 20));
  std::printf("chains     | 1: alone, beside, step, cost  | 2 | 4 | 8\n");
  all_chains<Fma>(found, global);
  all_chains<Imad>(found, global);
  all_chains<ImadHigh>(found, global);
  all_chains<ImadWide>(found, global);
  all_chains<Dfma>(found, global);
  all_chains<Lop3>(found, global);
  all_chains<Iadd>(found, global);
  all_chains<Hfma2>(found, global);
  all_chains<Mufu>(found, global);
}
