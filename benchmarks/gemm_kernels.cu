// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of include/fusedops/gemm/ beside cuBLASLt, for sm_90a: checks each against a product in
// double, then times them. To build and to run it, from the root of the repository:
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -Iinclude
//     benchmarks/gemm_kernels.cu -o gemm_kernels -ldl
//   LD_LIBRARY_PATH=<where libcublasLt.so.13 is> ./gemm_kernels [part of a kernel's name]
//
// Times are medians of 5 rounds of 20 launches, in each round all kernels after another. Inputs and
// outputs rotate through 3 sets.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fusedops/core/pointwise.cuh>
#include <fusedops/core/threshold.cuh>
#include <fusedops/functor/bias.cuh>
#include <fusedops/functor/dropout.cuh>
#include <fusedops/functor/residual.cuh>
#include <fusedops/gemm/kernel.cuh>
#include <string>

#include "cublaslt.h"

using namespace fusedops;

#define CHECK(call) check_cuda(call, #call, __LINE__)
static void check_cuda(cudaError_t status, const char* what, int line) {
  if (status == cudaSuccess) return;
  std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(status));
  std::exit(1);
}

// ---- The STOREs -----------------------------------------------------------------------------------

struct Gelu {
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t) const {
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) v[i] = pointwise::gelu_tanh(v[i]);
  }
};

template <class T>
using Matrix = View<T, 1, Column::kContiguous, 8>;
template <class T>
using Vector = View<T, 0, Column::kContiguous, 8>;
using Drop = Dropout<float, RowMap<1>>;

struct Call {
  int m, n, k;
  const void *x, *w, *bias, *skip;
  void *y, *stream;
  Drop drop;
};

template <class T>
Matrix<T> matrix(const void* p, int n) {
  return {static_cast<T*>(const_cast<void*>(p)), {{n}}, 1};
}
template <class T>
Bias<Vector<T>> bias_of(const Call& c) {
  return {{static_cast<T*>(const_cast<void*>(c.bias)), {0}, 1}};
}

enum Kind { kPlain, kGelu, kDropout, kResidual, kDrop, kKinds };
template <class T, int kKind>
auto store_of(const Call& c) {
  const Matrix<T> y = matrix<T>(c.y, c.n);
  if constexpr (kKind == kPlain) {
    return Store<Matrix<T>, Chain<0>>{y, {}};
  } else if constexpr (kKind == kGelu) {
    return store(bias_of<T>(c), Gelu{}, y);
  } else if constexpr (kKind == kDropout) {
    return store(bias_of<T>(c), c.drop, y);
  } else {
    const SavedResidual<Matrix<T>, Value<float>, Matrix<T>> residual{
        {matrix<T>(c.skip, c.n), {{1.f}}}, {matrix<T>(c.stream, c.n), {0}}};
    if constexpr (kKind == kResidual) {
      return store(bias_of<T>(c), residual, y);
    } else {
      return store(bias_of<T>(c), c.drop, residual, y);
    }
  }
}

// ---- The kernels ----------------------------------------------------------------------------------

template <class StoreT>
struct Arguments {
  gemm::TensorMap x, w;
  StoreT store;
  RowSpace<1> rows;
  int n, k, group;
};

template <class Tiling, class StoreT>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(Tiling::kThreads, 1)
    kernel(const __grid_constant__ Arguments<StoreT> a) {
  gemm::product_kernel<Tiling>(a.x, a.w, gemm::Forward(a.store), a.rows, a.n, a.k, a.group);
}

static int multiprocessors() {
  static const int count = [] {
    int found = 0;
    CHECK(cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, 0));
    return found;
  }();
  return count;
}

template <class T>
gemm::TensorMap describe(const void* data, int rows, int k, int box) {
  gemm::TensorMap map{};
  const cuuint64_t sizes[] = {cuuint64_t(k), cuuint64_t(rows)}, strides[] = {cuuint64_t(k) * 2};
  const cuuint32_t boxes[] = {gemm::kStageK<T>, cuuint32_t(box)}, steps[] = {1, 1};
  const auto type = std::is_same<T, fusedops::half>::value ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                           : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const CUresult status =
      encode(reinterpret_cast<CUtensorMap*>(&map), type, 2, const_cast<void*>(data), sizes, strides,
             boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  lt::check(status, "cuTensorMapEncodeTiled");
  return map;
}

using Launch = std::function<void()>;
/// A kernel for a set of tensors, set up; group: pairs of tiles of a column.
template <class T, class Tiling, int kKind>
Launch prepare(const Call& c, int group) {
  auto store = store_of<T, kKind>(c);
  using StoreT = decltype(store);
  auto run = kernel<Tiling, StoreT>;
  static const bool set = [&] {
    CHECK(cudaFuncSetAttribute(run, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               Tiling::Ring::kShared));
    return true;
  }();
  (void)set;
  const Arguments<StoreT> a{describe<T>(c.x, c.m, c.k, Tiling::kTileM),
                            describe<T>(c.w, c.n, c.k, Tiling::kTileN / 2),
                            store,
                            {c.m},
                            c.n,
                            c.k,
                            group};
  const int pairs = (c.m + 2 * Tiling::kTileM - 1) / (2 * Tiling::kTileM);
  const int blocks = std::min(multiprocessors() / 2 * 2,
                              2 * pairs * ((c.n + Tiling::kTileN - 1) / Tiling::kTileN));
  return [=] { run<<<blocks, Tiling::kThreads, Tiling::Ring::kShared>>>(a); };
}

using Prepare = Launch (*)(const Call&, int);
struct Config {
  const char* name;
  Prepare of[kKinds];
};
template <class T, class Tiling>
Config config(const char* name) {
  return {name,
          {prepare<T, Tiling, kPlain>, prepare<T, Tiling, kGelu>, prepare<T, Tiling, kDropout>,
           prepare<T, Tiling, kResidual>, prepare<T, Tiling, kDrop>}};
}
template <class T, int kCols, int kStages, bool kInTurns>
using Tiling = gemm::Tiling<T, 128, kCols, kStages, kInTurns, 4, gemm::Major::kK>;
template <class T>
std::vector<Config> configs() {
  return {config<T, Tiling<T, 256, 3, false>>("together"),
          config<T, Tiling<T, 192, 4, false>>("together, 192"),
          config<T, Tiling<T, 128, 5, true>>("in turns")};
}

// ---- The other way: a product, then an elementwise kernel -----------------------------------------

template <class T, class StoreT>
__global__ void __launch_bounds__(256) elementwise(const void* z, int rows, int packs, StoreT to) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i >= int64_t(rows) * packs) return;
  const uint32_t row = uint32_t(i) / uint32_t(packs), pack = uint32_t(i) - row * packs;
  const Matrix<T> from{static_cast<T*>(const_cast<void*>(z)), {{packs * 8}}, 1};
  const RowIndex<1> index{int64_t(row), {int64_t(row)}};
  float v[8];
  from.read(v, index, int64_t(pack) * 8);
  to.template store<8>(v, index, int64_t(pack) * 8);
}
template <class T, int kKind>
void run_elementwise(const Call& c, const void* z) {
  const int packs = c.n / 8;
  const int blocks = int((int64_t(c.m) * packs + 255) / 256);
  const auto to = store_of<T, kKind>(c);
  elementwise<T><<<blocks, 256>>>(z, c.m, packs, to);
}

// ---- Checks ---------------------------------------------------------------------------------------

template <class T>
__global__ void fill(T* p, size_t n, uint32_t seed, float scale) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x) {
    uint32_t c[4] = {uint32_t(i), uint32_t(i >> 32), seed, 7};
    philox(c, 1u, 2u);
    const float u = (c[0] + 1.f) * 2.3283064e-10f, a = c[1] * 1.4629181e-9f;
    p[i] = convert<T>(scale * sqrtf(-2.f * logf(fminf(u, 1.f))) * cosf(a));
  }
}

/// A sampled row of a call: the first ones, the last ones, those at the edges of tiles.
__device__ int sampled(int i, int m) {
  const int edges[] = {0, 1, 8, 63, 64, 127, 128, 255, 256, m - 1, m - 2, m - 9, m - 128, m - 129};
  const int count = sizeof(edges) / sizeof(int);
  return i < count ? min(max(edges[i], 0), m - 1) : int((i - count) * 997ll * 13 % m);
}
constexpr int kSampled = 40;

/// z and the sum of the sizes of its terms, in double.
template <class T>
__global__ void truth(Call c, double* z, double* sizes) {
  const int row = sampled(blockIdx.y, c.m), col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= c.n) return;
  const T* x = static_cast<const T*>(c.x) + size_t(row) * c.k;
  const T* w = static_cast<const T*>(c.w) + size_t(col) * c.k;
  double sum = 0, size = 0;
  for (int i = 0; i < c.k; ++i) {
    const double term = double(convert<float>(x[i])) * double(convert<float>(w[i]));
    sum += term;
    size += fabs(term);
  }
  z[size_t(blockIdx.y) * c.n + col] = sum;
  sizes[size_t(blockIdx.y) * c.n + col] = size;
}

/// Counts the elements of sampled rows that exceed their bound; worst: the largest share of it, in
/// millionths.
template <class T>
__global__ void compare(Call c, int kind, const double* z, const double* sizes, unsigned* bad,
                        unsigned* worst) {
  const int row = sampled(blockIdx.y, c.m), col = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (col >= c.n) return;
  const double u = std::is_same<T, fusedops::half>::value ? 1. / 2048 : 1. / 256;
  float kept[8];
  for (int i = 0; i < 8; ++i) kept[i] = 1;
  c.drop(kept, RowIndex<1>{row, {row}}, col);
  for (int i = 0; i < 8; ++i) {
    const size_t at = size_t(row) * c.n + col + i;
    const double exact = z[size_t(blockIdx.y) * c.n + col + i];
    double off =
        u * fabs(exact) + sqrt(double(c.k)) * sizes[size_t(blockIdx.y) * c.n + col + i] / 8388608.0;
    double v = exact;
    if (kind != kPlain) v += double(convert<float>(static_cast<const T*>(c.bias)[col + i]));
    off += fabs(v) * 1e-6;
    if (kind == kGelu) {
      v = 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v)));
      off = 1.13 * off + 1e-6;
    }
    if (kind == kDropout || kind == kDrop) {
      v *= kept[i];
      off *= kept[i];
    }
    if (kind == kResidual || kind == kDrop) {
      v += double(convert<float>(static_cast<const T*>(c.skip)[at]));
    }
    off += u * (fabs(v) + off) * 1.001 + 6e-8;
    const double y = double(convert<float>(static_cast<const T*>(c.y)[at]));
    double wrong = fabs(y - v) / off;
    if (kind == kResidual || kind == kDrop) {
      const double s = double(convert<float>(static_cast<const T*>(c.stream)[at]));
      wrong = fmax(wrong, fabs(s - v) / off);
      if (!(s == y)) wrong = 1e3;
    }
    if (!(wrong <= 1)) atomicAdd(bad, 1u);
    if (!(wrong <= 4000)) wrong = 4000;
    atomicMax(worst, unsigned(wrong * 1e6));
  }
}

/// Counts what is NaN, as nothing is but what was not written, and what differs from `other`.
template <class T>
__global__ void scan(const T* y, const T* other, size_t n, float near, unsigned* bad) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x) {
    const float a = convert<float>(y[i]);
    bool wrong = !(a == a);
    if (other != nullptr) {
      const float b = convert<float>(other[i]);
      wrong = wrong || !(fabsf(a - b) <= near * (fabsf(b) + 1.f));
    }
    if (wrong) atomicAdd(bad, 1u);
  }
}

// ---- The program ----------------------------------------------------------------------------------

constexpr int kSets = 3, kRounds = 5, kLaunches = 20;

static cudaEvent_t begins, ends;

/// The clocks of a multiprocessor, and nanoseconds.
__global__ void read_clocks(long long* to) {
  to[0] = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(to[1]));
}
static long long* clocks;  // before, after: two each; in memory of the host
static double megahertz() {
  return double(clocks[2] - clocks[0]) / double(clocks[3] - clocks[1]) * 1e3;
}

static double microseconds(const std::function<void(int)>& run, int launches) {
  read_clocks<<<1, 1>>>(clocks);
  CHECK(cudaEventRecord(begins));
  for (int i = 0; i < launches; ++i) run(i % kSets);
  CHECK(cudaEventRecord(ends));
  read_clocks<<<1, 1>>>(clocks + 2);
  CHECK(cudaDeviceSynchronize());
  float ms = 0;
  CHECK(cudaEventElapsedTime(&ms, begins, ends));
  CHECK(cudaGetLastError());
  return ms * 1e3 / launches;
}

struct Timed {
  std::string name;
  std::function<void(int)> run;
  std::vector<double> rounds, mhz;
  static double middle(std::vector<double> all) {
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
  }
  double median() const { return middle(rounds); }
};

static void* allocate(size_t bytes) {
  void* p = nullptr;
  CHECK(cudaMalloc(&p, bytes));
  return p;
}

template <class T>
int shape(int m, int n, int k, const char* type, const char* only, bool timed) {
  constexpr cudaDataType_t kType =
      std::is_same<T, fusedops::half>::value ? CUDA_R_16F : CUDA_R_16BF;
  const size_t mn = size_t(m) * n;
  std::vector<void*> owned;
  auto take = [&](size_t bytes) {
    owned.push_back(allocate(bytes));
    return owned.back();
  };
  Call calls[kSets];
  void* z[kSets];
  void* w = take(size_t(n) * k * 2);
  void* bias = take(n * 2);
  void* workspace = take(lt::kWorkspace);
  fill<<<1024, 256>>>(static_cast<T*>(w), size_t(n) * k, 2, 1.f / std::sqrt(float(k)));
  fill<<<1024, 256>>>(static_cast<T*>(bias), n, 3, 0.5f);
  for (int s = 0; s < kSets; ++s) {
    const uint64_t below = drop_below(0.1);
    calls[s] = {m,
                n,
                k,
                take(size_t(m) * k * 2),
                w,
                bias,
                take(mn * 2),
                take(mn * 2),
                take(mn * 2),
                {0x123456789abcdefull, 4242, below, {float(keep_scale(0.1))}, {{1}}}};
    z[s] = take(mn * 2);
    fill<<<1024, 256>>>(static_cast<T*>(const_cast<void*>(calls[s].x)), size_t(m) * k, 10 + s, 1.f);
    fill<<<1024, 256>>>(static_cast<T*>(const_cast<void*>(calls[s].skip)), mn, 20 + s, 1.f);
  }
  double* exact = static_cast<double*>(take(size_t(kSampled) * n * 8));
  double* sizes = static_cast<double*>(take(size_t(kSampled) * n * 8));
  unsigned* counts = static_cast<unsigned*>(take(8));
  truth<T><<<dim3((n + 127) / 128, kSampled), 128>>>(calls[0], exact, sizes);
  CHECK(cudaDeviceSynchronize());

  // cuBLASLt: the fastest algorithm of each epilogue.
  auto fastest = [&](int epilogue, const void* x, void* y) {
    std::vector<lt::Product> all =
        lt::products({m, n, k, kType, x, w, bias, y}, epilogue, workspace);
    double best = 0;
    lt::Product chosen{};
    for (const lt::Product& product : all) {
      auto run = [&](int s) { product(calls[s].x, z[s]); };
      microseconds(run, 3);
      const double us = microseconds(run, timed ? 10 : 1);
      if (best == 0 || us < best) best = us, chosen = product;
    }
    return chosen;
  };
  const lt::Product plain = fastest(lt::kDefault, calls[0].x, z[0]);
  const lt::Product gelu = timed ? fastest(lt::kGeluBias, calls[0].x, z[0]) : plain;

  std::vector<Timed> runs;
  runs.push_back({"lt", [&](int s) { plain(calls[s].x, z[s]); }, {}, {}});
  runs.push_back({"lt gelu", [&](int s) { gelu(calls[s].x, z[s]); }, {}, {}});
  runs.push_back({"lt+gelu",
                  [&](int s) {
                    plain(calls[s].x, z[s]);
                    run_elementwise<T, kGelu>(calls[s], z[s]);
                  },
                  {},
                  {}});
  runs.push_back({"lt+drop",
                  [&](int s) {
                    plain(calls[s].x, z[s]);
                    run_elementwise<T, kDrop>(calls[s], z[s]);
                  },
                  {},
                  {}});
  runs.push_back({"lt+residual",
                  [&](int s) {
                    plain(calls[s].x, z[s]);
                    run_elementwise<T, kResidual>(calls[s], z[s]);
                  },
                  {},
                  {}});
  const int others = int(runs.size());

  int failures = 0;
  struct Checked {
    std::string verdict[kKinds];
    int group = 8;
    double by_group[3] = {};
  };
  std::vector<Config> all;
  for (const Config& each : configs<T>()) {
    if (std::strstr(each.name, only) != nullptr) all.push_back(each);
  }
  std::vector<Checked> checked(all.size());
  plain(calls[0].x, z[0]);
  std::vector<std::vector<Launch>> launches;
  for (size_t c = 0; c < all.size(); ++c) {
    for (int kind = 0; kind < kKinds; ++kind) {
      const int groups[] = {4, 8, 16};
      for (int tries = 0; tries < (kind == kPlain ? 3 : 1); ++tries) {
        const int group = kind == kPlain ? groups[tries] : checked[c].group;
        CHECK(cudaMemset(calls[0].y, 0xff, mn * 2));
        CHECK(cudaMemset(calls[0].stream, 0xff, mn * 2));
        CHECK(cudaMemset(counts, 0, 8));
        all[c].of[kind](calls[0], group)();
        const cudaError_t status = cudaDeviceSynchronize();
        if (status != cudaSuccess) {
          std::printf("%s kind %d: %s\n", all[c].name, kind, cudaGetErrorString(status));
          std::exit(1);
        }
        compare<T><<<dim3((n / 8 + 63) / 64, kSampled), 64>>>(calls[0], kind, exact, sizes, counts,
                                                              counts + 1);
        scan<T><<<1024, 256>>>(static_cast<T*>(calls[0].y),
                               kind == kPlain ? static_cast<T*>(z[0]) : nullptr, mn,
                               kType == CUDA_R_16F ? 0.002f : 0.016f, counts);
        if (kind == kResidual || kind == kDrop) {
          scan<T><<<1024, 256>>>(static_cast<T*>(calls[0].stream), static_cast<T*>(calls[0].y), mn,
                                 0.f, counts);
        }
        unsigned got[2];
        CHECK(cudaMemcpy(got, counts, 8, cudaMemcpyDeviceToHost));
        char text[64];
        std::snprintf(text, sizeof text, got[0] ? "BAD %u (%.2f)" : "ok", got[0], got[1] * 1e-6);
        if (checked[c].verdict[kind].empty() || got[0]) checked[c].verdict[kind] = text;
        failures += got[0] != 0;
        if (kind == kPlain && timed) {
          std::vector<Launch> sets;
          for (int s = 0; s < kSets; ++s) sets.push_back(all[c].of[kind](calls[s], group));
          auto run = [&](int s) { sets[s](); };
          microseconds(run, 3);
          checked[c].by_group[tries] = microseconds(run, 20);
          if (checked[c].by_group[tries] <=
              *std::min_element(checked[c].by_group, checked[c].by_group + tries + 1)) {
            checked[c].group = group;
          }
        }
      }
      std::vector<Launch> sets;
      for (int s = 0; s < kSets; ++s) sets.push_back(all[c].of[kind](calls[s], checked[c].group));
      runs.push_back({all[c].name, [sets](int s) { sets[s](); }, {}, {}});
    }
  }
  if (timed) {
    for (Timed& run : runs) microseconds(run.run, 3);
    for (int round = 0; round < kRounds; ++round) {
      for (Timed& run : runs) {
        run.rounds.push_back(microseconds(run.run, kLaunches));
        run.mhz.push_back(megahertz());
      }
    }
  }
  auto cell = [&](int nth, double other) {
    char text[48];
    const Timed& run = runs[nth];
    std::snprintf(text, sizeof text, "%.1f@%.0f", run.median(), Timed::middle(run.mhz));
    std::string made = text;
    if (other > 0) {
      std::snprintf(text, sizeof text, " %.2f", other / run.median());
      made += text;
    }
    return made;
  };
  if (timed) {
    std::printf(
        "%s %d %d %d: lt %s (%.0f TFLOP/s), its gelu %s; lt + map: gelu %s, drop %s, "
        "residual %s\n",
        type, m, n, k, cell(0, 0).c_str(), 2e-6 * m * n * k / runs[0].median(), cell(1, 0).c_str(),
        cell(2, 0).c_str(), cell(3, 0).c_str(), cell(4, 0).c_str());
  }
  for (size_t c = 0; c < all.size(); ++c) {
    std::string verdict;
    for (const std::string& each : checked[c].verdict) {
      if (each != "ok") verdict += " " + each;
    }
    const int at = int(others + c * kKinds);
    if (timed) {
      std::printf(
          "  %-13s plain %s (g%d) | gelu lt %s map %s | dropout %s | residual %s | drop %s |%s\n",
          all[c].name, cell(at, runs[0].median()).c_str(), checked[c].group,
          cell(at + kGelu, runs[1].median()).c_str(),
          cell(at + kGelu, runs[2].median()).c_str() + 0, cell(at + kDropout, 0).c_str(),
          cell(at + kResidual, runs[4].median()).c_str(),
          cell(at + kDrop, runs[3].median()).c_str(), verdict.empty() ? " ok" : verdict.c_str());
    } else if (!verdict.empty()) {
      std::printf("%s %d %d %d: %s%s\n", type, m, n, k, all[c].name, verdict.c_str());
    }
  }
  std::fflush(stdout);
  for (void* p : owned) CHECK(cudaFree(p));
  return failures;
}

int main(int argc, char** argv) {
  const char* only = argc > 1 ? argv[1] : "";
  CHECK(cudaEventCreate(&begins));
  CHECK(cudaEventCreate(&ends));
  CHECK(cudaMallocHost(&clocks, 4 * sizeof(long long)));
  const int shapes[][3] = {{16384, 1024, 64},   {16384, 1024, 1024}, {16384, 4096, 1024},
                           {16384, 1024, 4096}, {8192, 12288, 4096}, {4096, 4096, 4096},
                           {512, 4096, 4096},   {10007, 3000, 1000}};
  int failures = 0;
  // Small and ragged ones first, for their results alone: fewer steps than packs, one tile, no tile
  // for some clusters, and in bfloat16.
  const int small[][3] = {{128, 256, 8}, {129, 264, 72}, {300, 520, 1000}, {1000, 768, 2048}};
  for (const auto& s : small) {
    failures += shape<bfloat16>(s[0], s[1], s[2], "bf16", only, false);
    failures += shape<fusedops::half>(s[0], s[1], s[2], "fp16", only, false);
  }
  for (const auto& s : shapes) {
    failures += shape<fusedops::half>(s[0], s[1], s[2], "fp16", only, true);
    failures += shape<bfloat16>(s[0], s[1], s[2], "bf16", only, true);
  }
  std::printf(failures == 0 ? "all right\n" : "%d WRONG\n", failures);
  return failures != 0;
}
