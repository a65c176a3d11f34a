// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the dispatch tests run: each of their sources is compiled once by a host's compiler, for
// threads of the CPU, and once by nvcc, for a GPU.
#pragma once

#include <fusedops/layer_norm.cuh>
#include <fusedops/rms_norm.cuh>
#include <fusedops/softmax.cuh>

#if defined(__CUDACC__)
using Place = cudaStream_t;
inline Place place(void* stream) { return static_cast<Place>(stream); }
template <class Compute, class Wanted>
int workspace(Place, const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) {
  return static_cast<int>(fusedops::gradient_workspace<Compute>(wanted, rows, cols, bytes));
}
#else
using Place = fusedops::Threads;
inline Place place(void*) { return {3}; }
template <class Compute, class Wanted>
int workspace(Place where, const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) {
  return static_cast<int>(fusedops::gradient_workspace<Compute>(where, wanted, rows, cols, bytes));
}
#endif
