// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Clusters of blocks (sm_90 and later): neighbouring blocks that run at the same time, wait for one
// another and write into each other's shared memory. PTX ISA, "barrier.cluster", "mbarrier", "mapa"
// and "st.async".
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {

#if defined(FUSEDOPS_CUDA)

namespace detail {

__device__ __forceinline__ uint32_t shared_address(const void* in_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

}  // namespace detail

/// A barrier in shared memory that counts bytes. Its phases alternate between 0 and 1; a phase ends
/// when one thread has said how many bytes it expects, and they are there.
struct Barrier {
  uint64_t word;

  /// By one thread, before the others of its block go on.
  __device__ __forceinline__ void make() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(detail::shared_address(this)));
  }
  /// After the last make(): other blocks shall see them.
  __device__ __forceinline__ static void made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     detail::shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }
  /// Until the phase of this parity has ended, by whole warps: a loop that lanes could leave one by
  /// one makes ptxas wrap the shuffles that follow in warp synchronisation.
  __device__ __forceinline__ void wait(uint32_t parity) {
    uint32_t done;
    do {
      asm volatile(
          "{\n"
          ".reg .pred ended;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
          "selp.u32 %0, 1, 0, ended;\n"
          "}\n"
          : "=r"(done)
          : "r"(detail::shared_address(this)), "r"(parity)
          : "memory");
    } while (!__all_sync(0xffffffffu, done != 0));
  }
};

/// The first half of a barrier of the cluster; says nothing of what this thread wrote.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// The same, and all who wait see what this thread wrote before.
__device__ __forceinline__ void cluster_arrive_released() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/// The second half: until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Writes a value to where another block of the cluster has what this one has at `own`, in shared
/// memory.
template <class T>
__device__ __forceinline__ void write_in_block(T* own, T value, int block) {
  uint64_t other;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(reinterpret_cast<uint64_t>(own)), "r"(block));
  *reinterpret_cast<T*>(other) = value;
}

/// The same, and tells the other block's barrier of the bytes. Waits for nothing, not even for what
/// this thread wrote to memory before: a barrier of the cluster that does costs 10 to 20 percent.
template <class T>
__device__ __forceinline__ void send(T* own, const T& value, Barrier& barrier, int block) {
  struct Words {
    uint32_t at[sizeof(T) / 4];
  };
  const Words words = bit_cast<Words>(value);
  uint32_t to, told;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(detail::shared_address(own)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(told)
      : "r"(detail::shared_address(&barrier)), "r"(block));
  // The fewer messages, the sooner they are there.
  constexpr int kWords = sizeof(T) / 4;
  constexpr int kStep = alignof(T) % 16 == 0 ? 4 : alignof(T) % 8 == 0 ? 2 : 1;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kWords; i += kStep) {
    if constexpr (kStep == 4) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
          "[%5];" ::"r"(to + 4 * i),
          "r"(words.at[i]), "r"(words.at[i + 1]), "r"(words.at[i + 2]), "r"(words.at[i + 3]),
          "r"(told)
          : "memory");
    } else if constexpr (kStep == 2) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
              "r"(to + 4 * i),
          "r"(words.at[i]), "r"(words.at[i + 1]), "r"(told)
          : "memory");
    } else {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to +
                                                                                            4 * i),
          "r"(words.at[i]), "r"(told)
          : "memory");
    }
  }
}

/// Start-up handshake of a cluster: a block may not write to the shared memory of a peer before the
/// peer runs. Waiting for that at the cluster's own barrier also invalidates the L1 cache of the
/// multiprocessor, and evicts the operands that rows share. With kTold only one warp of block 0
/// waits there, and signals the others through an mbarrier.
template <int kBlocks, bool kTold = false>
class Beginning {
 public:
  static constexpr bool kOthers = kBlocks > 1;

  /// By all threads, then __syncthreads(), then cluster_arrive().
  __device__ __forceinline__ static void prepare() {
    if (!kTold || threadIdx.x != 0) return;
    told().make();
    told().expect(sizeof(uint32_t));
    Barrier::made();
  }

  /// By all threads of the block of this rank, once, when its first loads are under way.
  __device__ __forceinline__ static void tell(int rank) {
    if constexpr (kOthers && kTold) {
      if (rank != 0 || threadIdx.x >= 32) return;
      cluster_wait();
      if (threadIdx.x < kBlocks) send(&word(), 1u, told(), static_cast<int>(threadIdx.x));
    }
  }

  /// By all threads, as often as they like.
  __device__ __forceinline__ void wait() {
    if constexpr (kOthers && kTold) {
      told().wait(0);
    } else if constexpr (kOthers) {
      if (!known_) cluster_wait();
      known_ = true;
    }
  }

 private:
  __device__ __forceinline__ static Barrier& told() {
    __shared__ Barrier barrier;
    return barrier;
  }
  __device__ __forceinline__ static uint32_t& word() {
    __shared__ uint32_t any;
    return any;
  }

  bool known_ = false;
};

#endif  // FUSEDOPS_CUDA

}  // namespace fusedops
