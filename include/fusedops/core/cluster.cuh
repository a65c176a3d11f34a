// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Thread block clusters (sm_90 and later): blocks that run at the same time, synchronize, and write
// to each other's shared memory. PTX ISA, "barrier.cluster", "mbarrier", "mapa" and "st.async".
#pragma once

#include <fusedops/core/dtype.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

namespace detail {

__device__ __forceinline__ uint32_t shared_address(const void* in_shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(in_shared));
}

}  // namespace detail

/// An mbarrier in shared memory that counts bytes of asynchronous stores and copies. The parity of
/// its phases alternates between 0 and 1; a phase completes when one thread has called expect(),
/// and that many bytes have arrived.
struct Barrier {
  uint64_t word;

  /// Initializes the barrier; called by one thread, before a barrier of the block.
  __device__ __forceinline__ void make() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(detail::shared_address(this)));
  }
  /// Makes initialized barriers visible to the cluster; called after the last make().
  __device__ __forceinline__ static void made() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ __forceinline__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     detail::shared_address(this)),
                 "r"(bytes)
                 : "memory");
  }
  /// Waits until the phase of this parity has completed. Called by whole warps: a loop that lanes
  /// may leave one by one makes ptxas wrap the shuffles that follow in warp synchronization.
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

namespace detail {

/// Copies 16-byte words to shared memory asynchronously; the barrier counts the bytes.
__device__ __forceinline__ void fetch_words(void* to, const void* from, uint32_t bytes,
                                            Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

}  // namespace detail

/// Arrives at the barrier of the cluster, without ordering of earlier writes.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

/// Arrives at the barrier of the cluster; threads that wait there see this thread's earlier writes.
__device__ __forceinline__ void cluster_arrive_released() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/// Waits until all threads of the cluster have arrived.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Writes a value to the shared memory of another block of the cluster, at the address that `own`
/// has in this block.
template <class T>
__device__ __forceinline__ void write_in_block(T* own, T value, int block) {
  uint64_t other;
  asm("mapa.u64 %0, %1, %2;" : "=l"(other) : "l"(reinterpret_cast<uint64_t>(own)), "r"(block));
  *reinterpret_cast<T*>(other) = value;
}

/// The same by asynchronous stores, whose bytes the other block's `barrier` counts. It orders no
/// earlier writes of this thread: a barrier of the cluster, which does, costs 10 to 20 percent.
template <class T>
__device__ __forceinline__ void send(T* own, const T& value, Barrier& barrier, int block) {
  struct Words {
    uint32_t at[sizeof(T) / 4];
  };
  const Words words = bit_cast<Words>(value);
  uint32_t to, completes;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(to)
      : "r"(detail::shared_address(own)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(completes)
      : "r"(detail::shared_address(&barrier)), "r"(block));
  // Wider stores are fewer messages, which arrive sooner.
  constexpr int kWords = sizeof(T) / 4;
  constexpr int kStep = alignof(T) % 16 == 0 ? 4 : alignof(T) % 8 == 0 ? 2 : 1;
  FUSEDOPS_UNROLL
  for (int i = 0; i < kWords; i += kStep) {
    if constexpr (kStep == 4) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
          "[%5];" ::"r"(to + 4 * i),
          "r"(words.at[i]), "r"(words.at[i + 1]), "r"(words.at[i + 2]), "r"(words.at[i + 3]),
          "r"(completes)
          : "memory");
    } else if constexpr (kStep == 2) {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::
              "r"(to + 4 * i),
          "r"(words.at[i]), "r"(words.at[i + 1]), "r"(completes)
          : "memory");
    } else {
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to +
                                                                                            4 * i),
          "r"(words.at[i]), "r"(completes)
          : "memory");
    }
  }
}

/// Start-up handshake of a cluster: a block may not write to the shared memory of a peer before the
/// peer runs. Waiting at the cluster's own barrier also invalidates the L1 cache of the
/// multiprocessor, which evicts the operands that rows share. With kRelays only one warp of block 0
/// waits there, and signals the other blocks through an mbarrier.
template <int kBlocks, bool kRelays = false>
class ClusterHandshake {
 public:
  static constexpr bool kNeeded = kBlocks > 1;

  /// Called by all threads, before __syncthreads() and cluster_arrive().
  __device__ __forceinline__ static void prepare() {
    if (!kRelays || threadIdx.x != 0) return;
    barrier().make();
    barrier().expect(sizeof(uint32_t));
    Barrier::made();
  }

  /// Called once by all threads of the block of this rank, after it has issued its first loads.
  __device__ __forceinline__ static void relay(int rank) {
    if constexpr (kNeeded && kRelays) {
      if (rank != 0 || threadIdx.x >= 32) return;
      cluster_wait();
      if (threadIdx.x < kBlocks) send(&word(), 1u, barrier(), static_cast<int>(threadIdx.x));
    }
  }

  /// Called by all threads before each write to a peer; waits the first time only.
  __device__ __forceinline__ void wait() {
    if constexpr (kNeeded && kRelays) {
      barrier().wait(0);
    } else if constexpr (kNeeded) {
      if (!done_) cluster_wait();
      done_ = true;
    }
  }

 private:
  __device__ __forceinline__ static Barrier& barrier() {
    __shared__ Barrier relayed;
    return relayed;
  }
  __device__ __forceinline__ static uint32_t& word() {
    __shared__ uint32_t any;
    return any;
  }

  bool done_ = false;
};

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
