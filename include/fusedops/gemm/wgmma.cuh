// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The instruction wgmma of sm_90a: a warpgroup, which is four warps, multiplies a tile of 64 x 16 by
// one of 16 x N, both in shared memory, and adds the product to N / 2 registers of each thread.
// PTX ISA, "wgmma.mma_async". A factor is K-major: the 16 numbers that meet lie side by side; or it is
// MN-major: neighbours are its numbers of the same K. Of 8 bits 32 numbers meet, and both are K-major.
#pragma once

#include <fusedops/core/detect.cuh>
#include <fusedops/core/dtype.cuh>
#include <fusedops/core/float8.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace gemm {

/// Along which dimension a factor is contiguous: w of shape (N, K), or (K, N).
enum class Major { kK, kMN };

/// Before the first product, and after the registers of a sum were touched by other instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// Closes the group of the products since the last call.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kGroups groups are not complete.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

/// Keeps the compiler from moving accesses to a sum across this line.
template <int kRegisters>
__device__ __forceinline__ void wgmma_keep(float (&sum)[kRegisters]) {
  FUSEDOPS_UNROLL
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

template <int kRegisters>
__device__ __forceinline__ void set_zero(float (&sum)[kRegisters]) {
  FUSEDOPS_UNROLL
  for (int i = 0; i < kRegisters; ++i) sum[i] = 0;
}

/// Describes a tile in shared memory: rows of 128 bytes, whose 16-byte words are exchanged in the
/// pattern of 128 bytes that a bulk tensor copy writes. 32 bytes along a row are 2 more. Of an MN-major
/// tile a row has 64 of its N numbers, 64 rows follow each other, and then come the next numbers.
template <Major kMajor = Major::kK>
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared) {
  constexpr uint64_t kLeading = kMajor == Major::kK ? 1 : 64 * 128 >> 4;
  return uint64_t(shared >> 4 & 0x3fff) | kLeading << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

// The registers of a sum as operands of an instruction.
#define FUSEDOPS_SUM_8(i)                                                               \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define FUSEDOPS_SUM_16(i) FUSEDOPS_SUM_8(i), FUSEDOPS_SUM_8(i + 8)
#define FUSEDOPS_SUM_32(i) FUSEDOPS_SUM_16(i), FUSEDOPS_SUM_16(i + 16)
#define FUSEDOPS_SUM_48 FUSEDOPS_SUM_32(0), FUSEDOPS_SUM_16(32)
#define FUSEDOPS_SUM_64 FUSEDOPS_SUM_32(0), FUSEDOPS_SUM_32(32)
#define FUSEDOPS_SUM_96 FUSEDOPS_SUM_64, FUSEDOPS_SUM_32(64)
#define FUSEDOPS_SUM_128 FUSEDOPS_SUM_96, FUSEDOPS_SUM_32(96)
#define FUSEDOPS_SUMS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FUSEDOPS_SUMS_16 FUSEDOPS_SUMS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FUSEDOPS_SUMS_32 \
  FUSEDOPS_SUMS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FUSEDOPS_SUMS_48 \
  FUSEDOPS_SUMS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FUSEDOPS_SUMS_64 \
  FUSEDOPS_SUMS_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FUSEDOPS_SUMS_96                                                                    \
  FUSEDOPS_SUMS_64                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
  "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FUSEDOPS_SUMS_128                                                                      \
  FUSEDOPS_SUMS_96                                                                             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
  "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
  "%126, %127"
// Of so many columns, and where the operands after the sums are: descriptors, whether it adds, and
// along which dimension each factor is contiguous.
#define FUSEDOPS_WGMMA(type, columns, sums, at_a, at_b, at_adds, first, second, ...)            \
  asm volatile(                                                                                 \
      "{\n"                                                                                     \
      ".reg .pred adds;\n"                                                                      \
      "setp.ne.b32 adds, " at_adds                                                              \
      ", 0;\n"                                                                                  \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" sums "}, " at_a \
      ", " at_b ", adds, 1, 1, " first ", " second                                              \
      ";\n"                                                                                     \
      "}\n"                                                                                     \
      : __VA_ARGS__                                                                             \
      : "l"(a), "l"(b), "r"(int(adds)), "n"(kFirst == Major::kMN), "n"(kSecond == Major::kMN))
#define FUSEDOPS_WGMMA_OF(type)                                                            \
  if constexpr (kRegisters == 8) {                                                         \
    FUSEDOPS_WGMMA(type, "16", FUSEDOPS_SUMS_8, "%8", "%9", "%10", "%11", "%12",           \
                   FUSEDOPS_SUM_8(0));                                                     \
  } else if constexpr (kRegisters == 16) {                                                 \
    FUSEDOPS_WGMMA(type, "32", FUSEDOPS_SUMS_16, "%16", "%17", "%18", "%19", "%20",        \
                   FUSEDOPS_SUM_16(0));                                                    \
  } else if constexpr (kRegisters == 32) {                                                 \
    FUSEDOPS_WGMMA(type, "64", FUSEDOPS_SUMS_32, "%32", "%33", "%34", "%35", "%36",        \
                   FUSEDOPS_SUM_32(0));                                                    \
  } else if constexpr (kRegisters == 48) {                                                 \
    FUSEDOPS_WGMMA(type, "96", FUSEDOPS_SUMS_48, "%48", "%49", "%50", "%51", "%52",        \
                   FUSEDOPS_SUM_48);                                                       \
  } else if constexpr (kRegisters == 64) {                                                 \
    FUSEDOPS_WGMMA(type, "128", FUSEDOPS_SUMS_64, "%64", "%65", "%66", "%67", "%68",       \
                   FUSEDOPS_SUM_64);                                                       \
  } else if constexpr (kRegisters == 96) {                                                 \
    FUSEDOPS_WGMMA(type, "192", FUSEDOPS_SUMS_96, "%96", "%97", "%98", "%99", "%100",      \
                   FUSEDOPS_SUM_96);                                                       \
  } else {                                                                                 \
    FUSEDOPS_WGMMA(type, "256", FUSEDOPS_SUMS_128, "%128", "%129", "%130", "%131", "%132", \
                   FUSEDOPS_SUM_128);                                                      \
  }

#define FUSEDOPS_WGMMA_OF_EIGHT_BITS(type)                                               \
  asm volatile(                                                                          \
      "{\n"                                                                              \
      ".reg .pred adds;\n"                                                               \
      "setp.ne.b32 adds, %66, 0;\n"                                                      \
      "wgmma.mma_async.sync.aligned.m64n128k32.f32." type "." type " {" FUSEDOPS_SUMS_64 \
      "}, %64, %65, adds, 1, 1;\n"                                                       \
      "}\n"                                                                              \
      : FUSEDOPS_SUM_64                                                                  \
      : "l"(a), "l"(b), "r"(int(adds)))

/// sum += a @ b.T, or sum = a @ b.T where `adds` is false, for a tile a of 64 rows and a tile b of 2 *
/// kRegisters; those of an MN-major tile lie in columns.
template <class T, Major kFirst, Major kSecond, int kRegisters>
__device__ __forceinline__ void wgmma(float (&sum)[kRegisters], uint64_t a, uint64_t b, bool adds) {
  static_assert(sizeof(T) == 1
                    ? kRegisters == 64
                    : kRegisters == 8 || kRegisters == 16 || kRegisters == 32 || kRegisters == 48 ||
                          kRegisters == 64 || kRegisters == 96 || kRegisters == 128,
                "of the second tile");
  if constexpr (detail::IsSame<T, half>::value) {
    FUSEDOPS_WGMMA_OF("f16")
  } else if constexpr (detail::IsSame<T, bfloat16>::value) {
    FUSEDOPS_WGMMA_OF("bf16")
  } else {
    static_assert(kFirst == Major::kK && kSecond == Major::kK, "factors of 8 bits are K-major");
    if constexpr (detail::IsSame<T, float8_e4m3>::value) {
      FUSEDOPS_WGMMA_OF_EIGHT_BITS("e4m3");
    } else {
      static_assert(detail::IsSame<T, float8_e5m2>::value, "factors of 8 or 16 bits");
      FUSEDOPS_WGMMA_OF_EIGHT_BITS("e5m2");
    }
  }
}

#undef FUSEDOPS_SUM_8
#undef FUSEDOPS_SUM_16
#undef FUSEDOPS_SUM_32
#undef FUSEDOPS_SUM_48
#undef FUSEDOPS_SUM_64
#undef FUSEDOPS_SUM_96
#undef FUSEDOPS_SUM_128
#undef FUSEDOPS_SUMS_8
#undef FUSEDOPS_SUMS_16
#undef FUSEDOPS_SUMS_32
#undef FUSEDOPS_SUMS_48
#undef FUSEDOPS_SUMS_64
#undef FUSEDOPS_SUMS_96
#undef FUSEDOPS_SUMS_128
#undef FUSEDOPS_WGMMA
#undef FUSEDOPS_WGMMA_OF
#undef FUSEDOPS_WGMMA_OF_EIGHT_BITS

}  // namespace gemm

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
