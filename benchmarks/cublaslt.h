// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt for gemm_kernels.cu: y = x @ w.T by the fastest of the algorithms that its heuristic names.
// The library is loaded at run time, so that neither its header nor its import library is needed.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <library_types.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace lt {

// As in cublasLt.h.
enum { kComputeFloat = 68 };
enum { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8, kBiasType = 26 };
enum { kMaxWorkspace = 1 };
enum { kDefault = 1, kBias = 4, kGeluBias = 36 };
struct Algo {
  uint64_t data[8];
};
struct Found {
  Algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

template <class F>
F symbol(const char* name) {
  static void* const library = [] {
    for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
      if (void* opened = dlopen(file, RTLD_NOW | RTLD_GLOBAL)) return opened;
    }
    std::printf("cuBLASLt was not found: %s\n", dlerror());
    std::exit(1);
  }();
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    std::printf("%s was not found\n", name);
    std::exit(1);
  }
  return reinterpret_cast<F>(found);
}

inline void check(int status, const char* what) {
  if (status != 0) {
    std::printf("%s: status %d\n", what, status);
    std::exit(1);
  }
}

constexpr size_t kWorkspace = size_t(64) << 20;

struct Problem {
  int m, n, k;
  cudaDataType_t type;
  const void *x, *w, *bias;
  void* y;
};

/// A product that was set up, by one algorithm.
struct Product {
  void *op, *a, *b, *c;
  Problem problem;
  Algo algo;
  void* workspace;

  void operator()(const void* x, void* y) const {
    using Run =
        int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                const void*, void*, void*, void*, const Algo*, void*, size_t, cudaStream_t);
    static const Run run = symbol<Run>("cublasLtMatmul");
    static const float one = 1, zero = 0;
    check(run(handle(), op, &one, problem.w, a, x, b, &zero, y, c, y, c, &algo, workspace,
              kWorkspace, nullptr),
          "cublasLtMatmul");
  }
  static void* handle() {
    static void* const made = [] {
      void* handle = nullptr;
      check(symbol<int (*)(void**)>("cublasLtCreate")(&handle), "cublasLtCreate");
      return handle;
    }();
    return made;
  }
};

/// The candidates for a product with an epilogue; none where cuBLASLt has no algorithm.
inline std::vector<Product> products(const Problem& p, int epilogue, void* workspace) {
  using Create = int (*)(void**, int, int);
  using Layout = int (*)(void**, int, uint64_t, uint64_t, int64_t);
  using Set = int (*)(void*, int, const void*, size_t);
  const auto set = symbol<Set>("cublasLtMatmulDescSetAttribute");
  const auto layout = symbol<Layout>("cublasLtMatrixLayoutCreate");
  Product product{};
  product.problem = p;
  product.workspace = workspace;
  check(symbol<Create>("cublasLtMatmulDescCreate")(&product.op, kComputeFloat, CUDA_R_32F), "desc");
  const int transposed = 1, plain = 0;
  check(set(product.op, kTransA, &transposed, sizeof(int)), "transa");
  check(set(product.op, kTransB, &plain, sizeof(int)), "transb");
  check(set(product.op, kEpilogue, &epilogue, sizeof(int)), "epilogue");
  if (epilogue != kDefault) {
    const int type = p.type;
    check(set(product.op, kBiasPointer, &p.bias, sizeof(p.bias)), "bias");
    check(set(product.op, kBiasType, &type, sizeof(type)), "bias type");
  }
  check(layout(&product.a, p.type, p.k, p.n, p.k), "layout");
  check(layout(&product.b, p.type, p.k, p.m, p.k), "layout");
  check(layout(&product.c, p.type, p.n, p.m, p.n), "layout");
  void* preference = nullptr;
  check(symbol<int (*)(void**)>("cublasLtMatmulPreferenceCreate")(&preference), "preference");
  check(symbol<Set>("cublasLtMatmulPreferenceSetAttribute")(preference, kMaxWorkspace, &kWorkspace,
                                                            sizeof(kWorkspace)),
        "workspace");
  Found found[16];
  int count = 0;
  using Heuristic = int (*)(void*, void*, void*, void*, void*, void*, void*, int, Found*, int*);
  const int status = symbol<Heuristic>("cublasLtMatmulAlgoGetHeuristic")(
      Product::handle(), product.op, product.a, product.b, product.c, product.c, preference, 16,
      found, &count);
  std::vector<Product> all;
  for (int i = 0; status == 0 && i < count; ++i) {
    if (found[i].state != 0) continue;
    product.algo = found[i].algo;
    all.push_back(product);
  }
  return all;
}

}  // namespace lt
