// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "threads.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace fusedops::runtime {
namespace {

// How long an idle worker spins for the next job before it sleeps. Waking it takes some 50 us;
// longer spinning would take the core from torch's threads.
constexpr std::chrono::microseconds kSpin{20};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// In the pool threads take rows dynamically, since a sleeping worker may wake late.
struct Job {
  HostKernel kernel;
  const void* words;
  int64_t rows;
  int64_t grain;
  alignas(64) std::atomic<int64_t> next{0};

  void work() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= rows) return;
      kernel(words, begin, std::min(begin + grain, rows));
    }
  }
};

class Pool {
 public:
  bool try_lock() { return busy_.try_lock(); }

  // Called with the lock held; releases it.
  void run(Job* job, int helpers) {
    grow(helpers);
    const uint64_t places = std::min(helpers, workers_);
    job_ = job;
    finished_.store(0, std::memory_order_relaxed);
    gate_.store((gate_.load(std::memory_order_relaxed) | kPlaces) + 1 + places);
    wake();
    job->work();
    // Closes the gate: a worker that has not taken a place by now takes none, so that the caller
    // does not wait for a sleeper to wake.
    const uint64_t came = places - (gate_.fetch_and(~kPlaces) & kPlaces);
    for (int spins = 0; finished_.load(std::memory_order_acquire) != came; ++spins) {
      spins < 1000 ? pause() : std::this_thread::yield();
    }
    busy_.unlock();
  }

 private:
  // The gate holds the number of the job and, in the lower bits, the number of free places. A
  // worker takes a place by compare-and-swap of both, so it never runs a job whose caller has
  // returned.
  static constexpr uint64_t kPlaces = 0xffff;

  void grow(int helpers) {
    if (workers_ >= helpers) return;
    // Workers block all signals, which the threads of Python handle.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (; workers_ < helpers; ++workers_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // The system has no more threads: fewer do the same work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void wake() {
    if (sleepers_.load() == 0) return;
    {
      std::lock_guard<std::mutex> lock(sleep_);
    }  // every sleeper that was counted now waits
    alarm_.notify_all();
  }

  void serve() {
    uint64_t seen = 0;
    for (;;) {
      uint64_t gate = await(seen);
      seen = gate | kPlaces;
      while ((gate & kPlaces) && !gate_.compare_exchange_weak(gate, gate - 1)) {
      }
      if (gate & kPlaces) {
        job_->work();
        finished_.fetch_add(1, std::memory_order_release);
      }
    }
  }

  // Waits for a job other than that of `seen`; returns the gate.
  uint64_t await(uint64_t seen) {
    const auto fresh = [&] { return (gate_.load() | kPlaces) != (seen | kPlaces); };
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int i = 0; i < 32; ++i) {
        if (fresh()) return gate_.load();
        pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(sleep_);
    sleepers_.fetch_add(1);
    alarm_.wait(lock, fresh);
    sleepers_.fetch_sub(1);
    return gate_.load();
  }

  std::mutex busy_;  // held by the caller whose job it is
  Job* job_ = nullptr;
  int workers_ = 0;
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint64_t> finished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::mutex sleep_;
  std::condition_variable alarm_;
};

// Never destroyed, since detached workers wait in it until the process ends.
std::atomic<Pool*> pool{nullptr};

std::atomic<bool> own_threads{false};
std::atomic<bool> forked{false};

// A forked child has its parent's memory but none of its threads, and perhaps locks that no thread
// of it holds.
const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  pool.store(nullptr);
  forked.store(true);
});

// torch's OpenMP team: the entry point of libgomp for a parallel region (libgomp/libgomp_g.h;
// LLVM's runtime has it as well), and the functions by which a member finds its share.
struct Team {
  void (*parallel)(void (*work)(void*), void* data, unsigned threads, unsigned flags);
  int (*number)();
  int (*size)();
};

template <class Function>
void find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// torch loads its OpenMP runtime with global symbols. Looked up at first use, when torch is loaded.
const Team* find_team() {
  static const Team team = [] {
    Team found{};
    find(found.parallel, "GOMP_parallel");
    find(found.number, "omp_get_thread_num");
    find(found.size, "omp_get_num_threads");
    return found;
  }();
  const bool whole = team.parallel && team.number && team.size;
  return !whole || own_threads.load() || forked.load() ? nullptr : &team;
}

// Each member processes the same share of the rows at every call, so that they are in its cache
// when the next call has the same tensors.
struct Shares {
  HostKernel kernel;
  const void* words;
  int64_t rows;
  const Team* team;

  void work() const {
    const int64_t size = team->size(), number = team->number();
    const int64_t share = rows / size, more = rows % size;
    const int64_t begin = number * share + std::min(number, more);
    const int64_t end = begin + share + (number < more);
    if (begin < end) kernel(words, begin, end);
  }
};

Pool& get_pool() {
  Pool* current = pool.load();
  if (current) return *current;
  auto* fresh = new Pool;
  if (pool.compare_exchange_strong(current, fresh)) return *fresh;
  delete fresh;
  return *current;
}

}  // namespace

void run_rows(HostKernel kernel, const void* words, int64_t rows, int64_t grain, int threads) {
  const int64_t pieces = rows / grain + (rows % grain != 0);
  const int useful = static_cast<int>(std::min<int64_t>({pieces, threads, 1024}));
  if (useful <= 1) return kernel(words, 0, rows);
  if (const Team* team = find_team()) {
    // The whole team runs, even where some members find no rows: libgomp would create a team of
    // another size anew, which took a millisecond for 16 threads.
    Shares shares{kernel, words, rows, team};
    const auto work = [](void* data) { static_cast<Shares*>(data)->work(); };
    return team->parallel(work, &shares, static_cast<unsigned>(std::min(threads, 1024)), 0);
  }
  Job job{kernel, words, rows, grain};
  Pool& shared = get_pool();
  if (shared.try_lock()) return shared.run(&job, useful - 1);
  kernel(words, 0, rows);
}

void use_own_threads(bool own) { own_threads.store(own); }

}  // namespace fusedops::runtime
