// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the blocks of a grid one after another, and the threads of a block as coroutines: a thread
// runs until it waits at a barrier, and which of those that can run is next is a matter of the
// order that was set. Shared memory is full of 0xff before each block, which makes NaN of floats.
#include "machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

extern "C" {
MachineIndex machine_thread, machine_block, machine_grid, machine_dim;
char machine_exchange[1024][16];

// A guard stands behind what a launch asks for.
static constexpr unsigned kDynamic = 227 << 10, kGuard = 4096;
alignas(1024) char machine_shared[kMachineStatic + kDynamic + kGuard];

/// Saves the registers that a function must keep, and goes on where `to` was saved.
void machine_switch(void** save, void* to);
}

asm(R"(
.text
.globl machine_switch
.type machine_switch,@function
machine_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");

namespace {

constexpr unsigned kThreads = 1024;
constexpr size_t kStack = 128 << 10;
constexpr int kPatience = 1000;  // turns in which threads wait and nothing else happens

enum class State : uint8_t { kReady, kBlockBarrier, kWarpBarrier, kWaiting, kDone };
enum Order { kAscending, kDescending, kRandom };

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;
  void (*done)(void*, unsigned);
  void* argument;
};

struct Thread {
  void* stack;
  State state;
  unsigned mask;  // the lanes that it waits for
};

Thread threads[kThreads];
std::vector<unsigned> ready, waiting;
std::vector<Copy> copies;
unsigned count, live, arrived, now;
void* scheduler;
char* stacks;
void (*kernel)(const void*);
const void* argument;
const char* launched = "";
char message[512];
bool failed;
Order order = kAscending;
std::mt19937 random_numbers;
std::mutex one_launch;

void make_ready(unsigned thread) {
  threads[thread].state = State::kReady;
  ready.push_back(thread);
}

void pass_block_barrier() {
  if (live == 0 || arrived < live) return;
  arrived = 0;
  for (unsigned t = 0; t < count; ++t) {
    if (threads[t].state == State::kBlockBarrier) make_ready(t);
  }
}

// Threads that have ended are waited for no more.
void pass_warp_barrier(unsigned warp, unsigned mask) {
  const unsigned first = warp * 32, end = std::min(first + 32, count);
  const auto takes_part = [&](unsigned t) { return (mask >> (t - first) & 1) != 0; };
  for (unsigned t = first; t < end; ++t) {
    if (!takes_part(t) || threads[t].state == State::kDone) continue;
    if (threads[t].state != State::kWarpBarrier || threads[t].mask != mask) return;
  }
  for (unsigned t = first; t < end; ++t) {
    if (takes_part(t) && threads[t].state == State::kWarpBarrier) make_ready(t);
  }
}

void suspend() { machine_switch(&threads[now].stack, scheduler); }

void report(const char* what) {
  if (!failed) {
    std::snprintf(message, sizeof(message), "%s, in block %u, thread %u of %s", what,
                  machine_block.x, machine_thread.x, launched);
  }
  failed = true;
}

void begin_thread() {
  kernel(argument);
  threads[now].state = State::kDone;
  --live;
  pass_block_barrier();
  const unsigned warp = now / 32;
  for (unsigned t = warp * 32; t < std::min(warp * 32 + 32, count); ++t) {
    if (threads[t].state == State::kWarpBarrier) pass_warp_barrier(warp, threads[t].mask);
  }
  suspend();
  std::abort();  // a thread that has ended is not switched to
}

void copy(const Copy& one) {
  // Byte by byte: the 16-byte words may begin before a tensor, where a sanitizer watches memcpy.
  auto* to = static_cast<volatile char*>(one.to);
  auto* from = static_cast<const volatile char*>(one.from);
  for (unsigned i = 0; i < one.bytes; ++i) to[i] = from[i];
  one.done(one.argument, one.bytes);
}

void copy_all() {
  for (const Copy& one : copies) copy(one);
  copies.clear();
}

unsigned take_next() {
  size_t at = 0;
  if (order == kAscending) at = std::min_element(ready.begin(), ready.end()) - ready.begin();
  if (order == kDescending) at = std::max_element(ready.begin(), ready.end()) - ready.begin();
  if (order == kRandom) at = random_numbers() % ready.size();
  std::swap(ready[at], ready.back());
  const unsigned next = ready.back();
  ready.pop_back();
  return next;
}

void run_block(unsigned shared, const unsigned* used) {
  std::memset(machine_shared, 0xff, kMachineStatic + shared + kGuard);
  ready.clear();
  waiting.clear();
  copies.clear();
  arrived = 0;
  live = count;
  for (unsigned t = 0; t < count; ++t) {
    void** top = reinterpret_cast<void**>(stacks + kStack * (t + 1) - 64);
    *--top = nullptr;  // no return address
    *--top = reinterpret_cast<void*>(begin_thread);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    threads[t] = {top, State::kReady, 0};
    ready.push_back(t);
  }
  int turns = 0;
  while (!failed && (!ready.empty() || !waiting.empty())) {
    if (ready.empty()) {
      copy_all();
      for (unsigned t : waiting) make_ready(t);
      waiting.clear();
      if (++turns > kPatience) report("threads wait for a copy that nobody makes");
      continue;
    }
    now = take_next();
    machine_thread = {now, 0, 0};
    machine_switch(&scheduler, threads[now].stack);
  }
  if (failed) return;
  if (live > 0) report("some threads wait at a barrier that others do not reach");
  if (!copies.empty()) report("the block has ended before a copy that it began");
  const char* const variables = machine_shared;
  const char* const end = variables + kMachineStatic;
  const auto full = [](char c) { return c == static_cast<char>(0xff); };
  if (!std::all_of(end + shared, end + shared + kGuard, full)) {
    report("written behind the shared memory of the launch");
  }
  if (!std::all_of(variables + *used, end, full)) {
    report("written behind the shared variables");
  }
}

}  // namespace

extern "C" {

void machine_set_order(int which, unsigned seed) {
  order = static_cast<Order>(which);
  random_numbers.seed(seed);
}

/// The message of the first launch that failed since the last call, or an empty one.
const char* machine_take_failure() {
  static char taken[sizeof(message)];
  std::memcpy(taken, message, sizeof(message));
  message[0] = '\0';
  failed = false;
  return taken;
}

void machine_block_barrier() {
  threads[now].state = State::kBlockBarrier;
  ++arrived;
  pass_block_barrier();
  suspend();
}

void machine_warp_barrier(unsigned mask) {
  if (!(mask >> (now & 31) & 1)) machine_fail("a lane is not in the mask that it names");
  threads[now].state = State::kWarpBarrier;
  threads[now].mask = mask;
  pass_warp_barrier(now / 32, mask);
  suspend();
}

void machine_yield() {
  threads[now].state = State::kWaiting;
  waiting.push_back(now);
  suspend();
}

void machine_fail(const char* what) {
  report(what);
  suspend();
  std::abort();  // the scheduler gives up the launch
}

void machine_copy_later(void* to, const void* from, unsigned bytes, void (*done)(void*, unsigned),
                        void* argument) {
  const Copy one{to, from, bytes, done, argument};
  if (order == kAscending) {
    copy(one);
  } else {
    copies.push_back(one);  // as late as can be
  }
}

/// GCC's check of alignment calls this: the vector accesses of a GPU fault instead.
void __ubsan_handle_type_mismatch_v1(void*, void*) {
  machine_fail("an access that is not aligned to its size");
}

void machine_launch(void (*function)(const void*), const void* words, unsigned grid, unsigned block,
                    unsigned shared, const unsigned* used, const char* name) {
  const std::lock_guard<std::mutex> lock(one_launch);
  if (failed) return;
  launched = name;
  if (block > kThreads || shared > kDynamic) {
    report("more threads or shared memory than a block has");
    return;
  }
  if (!stacks) {
    void* const memory = mmap(nullptr, kStack * kThreads, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    stacks = static_cast<char*>(memory);
  }
  kernel = function;
  argument = words;
  count = block;
  machine_grid = {grid, 1, 1};
  machine_dim = {block, 1, 1};
  std::vector<unsigned> blocks(grid);
  for (unsigned i = 0; i < grid; ++i) blocks[i] = order == kDescending ? grid - 1 - i : i;
  if (order == kRandom) std::shuffle(blocks.begin(), blocks.end(), random_numbers);
  for (unsigned each : blocks) {
    if (failed) return;
    machine_block = {each, 0, 0};
    run_block(shared, used);
  }
}
}
