// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What differs between nvcc, NVRTC and a host compiler: function qualifiers, loop pragmas and
// fixed-width integers; the version, and the oldest language, toolkit and architecture. No other
// header leaves macros defined.
#pragma once

#define FUSEDOPS_VERSION 100  // major * 10000 + minor * 100 + patch; CMake reads it here
#define FUSEDOPS_VERSION_MAJOR (FUSEDOPS_VERSION / 10000)
#define FUSEDOPS_VERSION_MINOR (FUSEDOPS_VERSION / 100 % 100)
#define FUSEDOPS_VERSION_PATCH (FUSEDOPS_VERSION % 100)

// A host compiler continues after an #error, so these come first: theirs is then the first message.
#if __cplusplus < 201703L
#error "fusedops needs C++17, this is older: compile with -std=c++17 (CMAKE_CXX_STANDARD=17)"
#endif
#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1204
#error "fusedops needs CUDA 12.4, this is older: use a newer nvcc or NVRTC (CMAKE_CUDA_COMPILER)"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "fusedops needs sm_80, this is older: compile with -arch=sm_80 (CMAKE_CUDA_ARCHITECTURES=80)"
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FUSEDOPS_CUDA 1
#define FUSEDOPS_HD __host__ __device__ __forceinline__
#else
#define FUSEDOPS_HD inline __attribute__((always_inline))
#endif

// A function of a host's that is compiled once, whatever calls it.
#if defined(FUSEDOPS_CUDA)
#define FUSEDOPS_APART FUSEDOPS_HD
#else
#define FUSEDOPS_APART __attribute__((noinline))
#endif

// Defined in code for a GPU, but not in the host code that nvcc compiles.
#if defined(__CUDA_ARCH__)
#define FUSEDOPS_ON_DEVICE 1
#endif

// Loops over the elements of a pack. A GPU compiler unrolls them. A host compiler vectorizes them,
// which unrolling first would prevent; FUSEDOPS_VECTOR promises it that the operands of one access
// do not overlap. The host code of nvcc has none: its compiler may not know the pragma.
#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#define FUSEDOPS_UNROLL _Pragma("unroll")
#define FUSEDOPS_VECTOR _Pragma("unroll")
#elif defined(FUSEDOPS_CUDA)
#define FUSEDOPS_UNROLL
#define FUSEDOPS_VECTOR
#else
#define FUSEDOPS_UNROLL
#if defined(__clang__)
#define FUSEDOPS_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#elif defined(_OPENMP) || defined(FUSEDOPS_OPENMP_SIMD)
// GCC unrolls a short loop before it would vectorize it, unless it is told so (-fopenmp-simd).
#define FUSEDOPS_VECTOR _Pragma("omp simd")
#else
#define FUSEDOPS_VECTOR _Pragma("GCC ivdep")
#endif
#endif

// Whether a vector is loaded and stored as far as a mask says, 16 bits or more an element.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(FUSEDOPS_CUDA)
#define FUSEDOPS_MASKED_VECTORS 1
#endif

// On a host, a value that the compiler does not contract into a fused multiply-add with what uses
// it. Clang contracts within a statement only, and the host code of nvcc lacks the builtin.
#if defined(__has_builtin) && !defined(FUSEDOPS_CUDA)
#if __has_builtin(__builtin_assoc_barrier)
#define FUSEDOPS_ROUNDED(x) __builtin_assoc_barrier(x)
#endif
#endif
#if !defined(FUSEDOPS_ROUNDED)
#define FUSEDOPS_ROUNDED(x) (x)
#endif

// An array of n elements in the caller's frame: a frame of a fixed size would be that of the longest
// row, beyond the stack of a small thread.
#define FUSEDOPS_ON_STACK(T, n) \
  static_cast<T*>(__builtin_alloca_with_align(static_cast<size_t>(n) * sizeof(T), 8 * alignof(T)))

// Around what public and exported headers include and declare. Under -Wsign-conversion GCC warns of
// each array in a template whose length is an int, here and in every source that includes the header.
#if defined(__GNUC__) && !defined(__clang__) && !defined(FUSEDOPS_CUDA)
#define FUSEDOPS_HEADER_BEGINS \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")
#define FUSEDOPS_HEADER_ENDS _Pragma("GCC diagnostic pop")
#else
#define FUSEDOPS_HEADER_BEGINS
#define FUSEDOPS_HEADER_ENDS
#endif

// Before a __host__ __device__ function that calls a member of a user's type, which may be for one
// of the two alone.
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#define FUSEDOPS_ANY_SIDE _Pragma("nv_exec_check_disable")
#else
#define FUSEDOPS_ANY_SIDE
#endif

// Explicit instantiation of a dispatch for given types: in one source, and with `extern` in front in
// the header that others include, so that those do not compile the kernels.
// docs/how-to/cpp-project.md has an example. Where is cudaStream_t or fusedops::Threads, Cols the
// type of the columns.
#define FUSEDOPS_INSTANTIATE_SOFTMAX(Where, Compute, Load, Store, Cols)                     \
  template fusedops::detail::StatusOf<Where>                                                \
  fusedops::dispatch_softmax<Compute, fusedops::EmptyRow::kZero, Load, Store, Cols, Where>( \
      const Where&, Load, Store, fusedops::int64_t, Cols, Compute*)
#define FUSEDOPS_INSTANTIATE_LAYER_NORM(Where, Compute, Load, Store, Cols) \
  template fusedops::detail::StatusOf<Where>                               \
  fusedops::dispatch_layer_norm<Compute, Load, Store, Cols, Where>(        \
      const Where&, Load, Store, fusedops::int64_t, Cols, double, Compute*, Compute*, Compute*)
#define FUSEDOPS_INSTANTIATE_RMS_NORM(Where, Compute, Load, Store, Cols) \
  template fusedops::detail::StatusOf<Where>                             \
  fusedops::dispatch_rms_norm<Compute, Load, Store, Cols, Where>(        \
      const Where&, Load, Store, fusedops::int64_t, Cols, double, Compute*, Compute*)
// Op: softmax, log_softmax, layer_norm or rms_norm, whose gradient reads `kept`.
#define FUSEDOPS_INSTANTIATE_GRADIENT(Op, Where, Compute, Load, Store, Dy, Dx, Wanted, Cols)  \
  template fusedops::detail::StatusOf<Where>                                                  \
      fusedops::dispatch_##Op##_gradient<Compute, Load, Store, Dy, Dx, Wanted, Cols, Where>(  \
          const Where&, Load, Store, const Compute*, Dy, Dx, Wanted, void*, fusedops::size_t, \
          fusedops::int64_t, Cols)

// The inline namespace around all names but those of types that programs pass between sources
// (half, bfloat16, those of 8 and 4 bits, Status). What is compiled of a header depends on what
// this name says: version, compiler, for which GPUs, instruction set of the CPU, and options. Sources
// that differ there have functions of their own, where a linker would otherwise keep one of them for
// all, so code for every CPU could run AVX-512. docs/reference/cpp.md has more.
#if defined(FUSEDOPS_CUDA)
#define FUSEDOPS_ABI_COMPILER _cuda
#elif defined(__clang__)
#define FUSEDOPS_ABI_COMPILER _clang
#else
#define FUSEDOPS_ABI_COMPILER _gcc
#endif
#if defined(__CUDA_ARCH_LIST__)  // 800,900: up to 16 of them, which are sorted
#define FUSEDOPS_ABI_JOIN_ARCHS(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ...) \
  _sm##a##b##c##d##e##f##g##h##i##j##k##l##m##n##o##p
#define FUSEDOPS_ABI_OF_ARCHS(...) \
  FUSEDOPS_ABI_JOIN_ARCHS(__VA_ARGS__, , , , , , , , , , , , , , , , )
#define FUSEDOPS_ABI_ARCHS FUSEDOPS_ABI_OF_ARCHS(__CUDA_ARCH_LIST__)
#else
#define FUSEDOPS_ABI_ARCHS
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
#define FUSEDOPS_ABI_VECTORS _avx512
#elif defined(__AVX512F__)
#define FUSEDOPS_ABI_VECTORS _avx512f
#elif defined(__AVX2__)
#define FUSEDOPS_ABI_VECTORS _avx2
#elif defined(__AVX__)
#define FUSEDOPS_ABI_VECTORS _avx
#elif defined(__ARM_FEATURE_SVE)
#define FUSEDOPS_ABI_VECTORS _sve
#else
#define FUSEDOPS_ABI_VECTORS
#endif
#if defined(__FMA__)
#define FUSEDOPS_ABI_FMA _fma
#else
#define FUSEDOPS_ABI_FMA
#endif
#if defined(__F16C__)
#define FUSEDOPS_ABI_HALVES _f16c
#else
#define FUSEDOPS_ABI_HALVES
#endif
#if defined(_OPENMP)
#define FUSEDOPS_ABI_OPENMP _openmp
#elif defined(FUSEDOPS_OPENMP_SIMD)
#define FUSEDOPS_ABI_OPENMP _simd
#else
#define FUSEDOPS_ABI_OPENMP
#endif
#if defined(__FAST_MATH__)
#define FUSEDOPS_ABI_MATH _fast
#else
#define FUSEDOPS_ABI_MATH
#endif
#if defined(__cpp_exceptions) || defined(__CUDACC_RTC__)
#define FUSEDOPS_ABI_EXCEPTIONS
#else
#define FUSEDOPS_ABI_EXCEPTIONS _nothrow
#endif
#define FUSEDOPS_ABI_JOIN(a, b, c, d, e, f, g, h, i) v##a##b##c##d##e##f##g##h##i
#define FUSEDOPS_ABI_OF(...) FUSEDOPS_ABI_JOIN(__VA_ARGS__)
#define FUSEDOPS_ABI                                                           \
  FUSEDOPS_ABI_OF(FUSEDOPS_VERSION, FUSEDOPS_ABI_COMPILER, FUSEDOPS_ABI_ARCHS, \
                  FUSEDOPS_ABI_VECTORS, FUSEDOPS_ABI_FMA, FUSEDOPS_ABI_HALVES, \
                  FUSEDOPS_ABI_OPENMP, FUSEDOPS_ABI_MATH, FUSEDOPS_ABI_EXCEPTIONS)

#if !defined(__CUDACC_RTC__)
#include <cstdint>
#endif

namespace fusedops {

using size_t = decltype(sizeof(0));
#if defined(__CUDACC_RTC__)
using int64_t = long long;
using uint64_t = unsigned long long;
using int32_t = int;
using int16_t = short;
using int8_t = signed char;
using uint32_t = unsigned int;
using uint16_t = unsigned short;
using uint8_t = unsigned char;
#else
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
#endif

inline namespace FUSEDOPS_ABI {

/// A value in eight bytes: the argument of a generated kernel is a list of 8-byte words.
template <class T>
struct alignas(8) Word {
  T value;
  FUSEDOPS_HD operator T() const { return value; }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
