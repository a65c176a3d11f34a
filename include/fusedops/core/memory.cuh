// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Vector accesses: reading and writing W neighbouring elements at once, prefetching them into L2.
// The pointer must be aligned to W elements. Inputs are read through the read-only path, so that a
// compiler may move a load above the stores of an earlier pack: several packs are in flight even
// where a LOAD saves what it read.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// W elements of T, moved by one access of at most 16 bytes.
template <class T, int W>
struct alignas(sizeof(T) * W) Pack {
  T at[W];
};

/// Rounds numbers to a type and converts them back.
template <class T, int N, class Compute>
FUSEDOPS_HD void round_to(Compute (&value)[N]) {
#if defined(FUSEDOPS_ON_DEVICE)
  constexpr bool kByTwos = sizeof(T) == 2 && detail::IsSame<Compute, float>::value && N % 2 == 0;
#else
  constexpr bool kByTwos = false;
#endif
  if constexpr (kByTwos) {
    for (int i = 0; i < N; i += 2) round_two(value[i], value[i + 1], T());
  } else {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = convert<Compute>(convert<T>(value[i]));
  }
}

namespace detail {

template <int kBytes>
struct Raw;
#if defined(FUSEDOPS_ON_DEVICE)
template <>
struct Raw<1> {
  using type = unsigned char;
};
template <>
struct Raw<2> {
  using type = unsigned short;
};
template <>
struct Raw<4> {
  using type = unsigned int;
};
template <>
struct Raw<8> {
  using type = uint2;
};
template <>
struct Raw<16> {
  using type = uint4;
};
#endif

}  // namespace detail

/// Reads an input, which is memory that nothing writes while the kernel runs.
template <int W, class T>
FUSEDOPS_HD Pack<T, W> read_input(const T* from) {
#if defined(FUSEDOPS_ON_DEVICE)
  using Raw = typename detail::Raw<sizeof(T) * W>::type;
  return bit_cast<Pack<T, W>>(__ldg(reinterpret_cast<const Raw*>(from)));
#else
  Pack<T, W> pack;
  __builtin_memcpy(&pack, from, sizeof(pack));  // packs on a host need no alignment
  return pack;
#endif
}

/// Reads memory that this thread has written in the same kernel.
template <int W, class T>
FUSEDOPS_HD Pack<T, W> read_back(const T* from) {
#if defined(FUSEDOPS_ON_DEVICE)
  return *reinterpret_cast<const Pack<T, W>*>(from);
#else
  return read_input<W>(from);
#endif
}

/// Prefetches into the L2 cache (a CPU: all caches) what a later read_input() of W elements reads; of
/// the packs in a cache line of a GPU only the first one does.
template <int W, class T>
FUSEDOPS_HD void prefetch(const T* from) {
#if defined(FUSEDOPS_ON_DEVICE)
  constexpr uint64_t kLine = 128;
  if (reinterpret_cast<uint64_t>(from) % kLine < sizeof(T) * W) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
  }
#else
  constexpr int kLine = 64;
  for (int at = 0; at < static_cast<int>(sizeof(T)) * W; at += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(from) + at);
  }
#endif
}

#if defined(FUSEDOPS_CUDA)

/// Which threads prefetch a range: one thread all of it, or kThreads threads a cache line each in
/// turn.
struct Alone {};
template <int kThreads>
struct ByLine {
  int thread;
};

/// Prefetches a range into the L2 cache: by one bulk prefetch of the aligned 16-byte words that
/// hold it (sm_90 and later, otherwise nothing happens), or line by line.
__device__ __forceinline__ void prefetch_bytes(const void* begin, const void* end, Alone) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint64_t from = reinterpret_cast<uint64_t>(begin) / 16 * 16;
  const uint64_t to = (reinterpret_cast<uint64_t>(end) + 15) / 16 * 16;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                   __cvta_generic_to_global(reinterpret_cast<const void*>(from))),
               "r"(static_cast<uint32_t>(to - from))
               : "memory");
#else
  (void)begin;
  (void)end;
#endif
}

template <int kThreads>
__device__ __forceinline__ void prefetch_bytes(const void* begin, const void* end,
                                               ByLine<kThreads> by) {
  constexpr int kLine = 128;
  const uint64_t from = reinterpret_cast<uint64_t>(begin) / kLine * kLine;
  const int bytes = static_cast<int>(reinterpret_cast<uint64_t>(end) - from);
#pragma unroll 1
  for (int at = by.thread * kLine; at < bytes; at += kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

#endif

#if defined(FUSEDOPS_CUDA)
/// Writes 16 bytes to global memory, where NVVM takes the zeros that it happens to know at an address's
/// end for all of its alignment, and would write smaller pieces.
template <class Pack>
__device__ __forceinline__ void write_aligned(void* to, const Pack& pack) {
  const uint4 words = bit_cast<uint4>(pack);
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
#endif

/// The same number, of which a GPU's compiler knows nothing. NVVM takes the zeros that it happens to know
/// at an address's end for all of its alignment, and writes the first pack of a thread in four pieces.
FUSEDOPS_HD int64_t hidden(int64_t col) {
#if defined(FUSEDOPS_ON_DEVICE)
  asm("" : "+l"(col));
#endif
  return col;
}

template <int W, class T>
FUSEDOPS_HD void write(T* to, const Pack<T, W>& pack) {
#if defined(FUSEDOPS_ON_DEVICE)
  using Raw = typename detail::Raw<sizeof(T) * W>::type;  // a struct may be stored in pieces
  *reinterpret_cast<Raw*>(to) = bit_cast<Raw>(pack);
#else
  __builtin_memcpy(to, &pack, sizeof(pack));
#endif
}

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
