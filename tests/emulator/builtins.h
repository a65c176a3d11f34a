// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA's builtins and the PTX instructions of the headers, for a host compiler. Included before a
// generated kernel; headers.py has made calls of ptx_*() out of inline assembly.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "machine.h"

#define threadIdx machine_thread
#define blockIdx machine_block
#define gridDim machine_grid
#define blockDim machine_dim
#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace emulated {

/// Shared variables of this kernel lie one behind another, each with a gap behind it.
inline unsigned used_shared = 0;
inline char* reserve_shared(unsigned bytes, unsigned alignment) {
  const unsigned begin = (used_shared + alignment - 1) / alignment * alignment;
  if (begin + bytes > kMachineStatic) machine_fail("too many shared variables");
  used_shared = begin + bytes;
  return machine_shared + begin;
}

template <class T>
T from_lane(unsigned mask, T x, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(machine_exchange[0]));
  const unsigned thread = threadIdx.x;
  std::memcpy(machine_exchange[thread], &x, sizeof(T));
  machine_warp_barrier(mask);
  if (!(mask >> lane & 1)) machine_fail("a shuffle from a lane that is not in the mask");
  T y;
  std::memcpy(&y, machine_exchange[(thread & ~31u) | lane], sizeof(T));
  machine_warp_barrier(mask);
  return y;
}

/// The lanes of a mask, as bits, whose number holds.
template <class F>
unsigned lanes_where(unsigned mask, int mine, const F& holds) {
  const unsigned thread = threadIdx.x;
  std::memcpy(machine_exchange[thread], &mine, sizeof(mine));
  machine_warp_barrier(mask);
  unsigned lanes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    int one = 0;
    std::memcpy(&one, machine_exchange[(thread & ~31u) | lane], sizeof(one));
    lanes |= unsigned(mask >> lane & 1 && holds(one)) << lane;
  }
  machine_warp_barrier(mask);
  return lanes;
}

}  // namespace emulated

static inline void __syncthreads() { machine_block_barrier(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { machine_warp_barrier(mask); }
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int step) {
  return emulated::from_lane(mask, x, (threadIdx.x & 31) ^ step);
}
template <class T>
static inline T __shfl_sync(unsigned mask, T x, int lane, int width) {
  return emulated::from_lane(mask, x, (threadIdx.x & 31 & ~(width - 1)) | (lane & (width - 1)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, int step) {
  const int lane = static_cast<int>(threadIdx.x & 31);
  return emulated::from_lane(mask, x, lane < step ? lane : lane - step);
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
  for (int step = 16; step > 0; step /= 2) {
    const unsigned other = __shfl_xor_sync(mask, x, step);
    x = other > x ? other : x;
  }
  return x;
}
static inline int __any_sync(unsigned mask, int holds) {
  return emulated::lanes_where(mask, holds, [](int one) { return one != 0; }) != 0;
}
static inline int __all_sync(unsigned mask, int holds) { return !__any_sync(mask, !holds); }
static inline unsigned __match_any_sync(unsigned mask, int x) {
  return emulated::lanes_where(mask, x, [x](int other) { return other == x; });
}

template <class T>
static inline T __ldg(const T* from) {
  return *from;
}
static inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned there = *at;
  if (value > there) *at = value;
  return there;
}
static inline int atomicAdd(int* at, int value) {
  const int there = *at;
  *at += value;
  return there;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint64_t(a) * b >> 32; }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  __extension__ using Product = unsigned __int128;
  return static_cast<uint64_t>(Product(a) * b >> 64);
}
// The compiler is told not to contract.
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(double(x))); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline size_t __cvta_generic_to_shared(const void* p) {
  return static_cast<const char*>(p) - machine_shared;
}
static inline size_t __cvta_generic_to_global(const void* p) { return size_t(p); }

namespace emulated {

inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline void ptx_max_NaN_f32(float& y, float a, float b) {
  y = a != a || b != b ? std::numeric_limits<float>::quiet_NaN() : a > b ? a : b;
}
inline void ptx_ex2_approx_ftz_f32(float& y, float x) {
  y = flushed(static_cast<float>(exp2(double(flushed(x)))));
}
// As far off as PTX allows, up or down by a hash of x.
inline void ptx_tanh_approx_f32(float& y, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof x);
  y = tanhf(x) * (bits * 2654435761u >> 31 ? 1.0f + 0x1p-11f : 1.0f - 0x1p-11f);
}
inline void ptx_rcp_approx_ftz_f32(float& y, float x) { y = flushed(1.0f / flushed(x)); }

inline void ptx_mul_wide_u32(uint64_t& product, uint32_t a, uint32_t b) {
  product = uint64_t(a) * b;
}
inline void ptx_prefetch_global_L2(const void*) {}
inline void ptx_prefetch_global_L2(uint64_t) {}
inline void ptx_st_global_v4_b32(size_t to, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  *reinterpret_cast<uint4*>(to) = uint4{x, y, z, w};
}

/// An mbarrier for one arrival: a phase ends when that came and no bytes are awaited.
struct Mbarrier {
  int32_t awaited;
  uint16_t parity, has_arrived;
  static Mbarrier& at(uint32_t address) {
    return *reinterpret_cast<Mbarrier*>(machine_shared + address);
  }
  void check() {
    if (!has_arrived || awaited != 0) return;
    has_arrived = 0;
    parity ^= 1;
  }
  static void count(void* barrier, unsigned bytes) {
    auto& self = *static_cast<Mbarrier*>(barrier);
    self.awaited -= static_cast<int32_t>(bytes);
    self.check();
  }
};
inline void ptx_mbarrier_init_shared_cta_b64(uint32_t at) { Mbarrier::at(at) = {0, 0, 0}; }
inline void ptx_mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t at, uint32_t bytes) {
  Mbarrier& barrier = Mbarrier::at(at);
  if (barrier.has_arrived) machine_fail("a second arrival in one phase");
  barrier.awaited += static_cast<int32_t>(bytes);
  barrier.has_arrived = 1;
  barrier.check();
}
inline void ptx_mbarrier_try_wait_parity_shared_cta_b64(uint32_t& done, uint32_t at,
                                                        uint32_t parity) {
  done = Mbarrier::at(at).parity != parity;
  if (!done) machine_yield();
}
inline void ptx_cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(uint32_t to,
                                                                               uint64_t from,
                                                                               uint32_t bytes,
                                                                               uint32_t barrier) {
  if (to % 16 || from % 16 || bytes % 16) machine_fail("a bulk copy that is not of 16-byte words");
  machine_copy_later(machine_shared + to, reinterpret_cast<const void*>(from), bytes,
                     Mbarrier::count, &Mbarrier::at(barrier));
}
inline void ptx_fence_mbarrier_init_release_cluster() {}
inline void ptx_fence_proxy_async_shared_cta() {}

// Clusters are not emulated: no schedule has them where the target has none.
template <class... T>
[[noreturn]] void no_clusters(const T&...) {
  machine_fail("an instruction of thread block clusters, which are not emulated");
}
inline void ptx_barrier_cluster_arrive_relaxed_aligned() { no_clusters(); }
inline void ptx_barrier_cluster_arrive_release_aligned() { no_clusters(); }
inline void ptx_barrier_cluster_wait_acquire_aligned() { no_clusters(); }
inline void ptx_mapa_u64(uint64_t&, uint64_t, int) { no_clusters(); }
inline void ptx_mapa_shared_cluster_u32(uint32_t&, uint32_t, int) { no_clusters(); }
template <class... T>
void ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(const T&...) {
  no_clusters();
}
template <class... T>
void ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_v2_b32(const T&...) {
  no_clusters();
}
template <class... T>
void ptx_st_async_shared_cluster_mbarrier_complete_tx_bytes_b32(const T&...) {
  no_clusters();
}

}  // namespace emulated
