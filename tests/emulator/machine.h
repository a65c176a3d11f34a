// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What an emulated kernel asks of the machine that runs it (machine.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct MachineIndex {
  unsigned x, y, z;
};
extern MachineIndex machine_thread, machine_block, machine_grid, machine_dim;

/// Shared memory: kMachineStatic bytes for variables of a fixed size, then what a launch asks for.
extern char machine_shared[];
inline constexpr unsigned kMachineStatic = 48 << 10;

/// What the threads of a block have handed to one another in a shuffle or a vote.
extern char machine_exchange[1024][16];

void machine_block_barrier();
void machine_warp_barrier(unsigned mask);
/// Lets all other threads run before this one goes on: it waits for what one of them does.
void machine_yield();
/// Gives up the launch; the first message of a launch is kept.
[[noreturn]] void machine_fail(const char* message);
/// A copy that may take place at any time from now on; `done` is called after it.
void machine_copy_later(void* to, const void* from, unsigned bytes, void (*done)(void*, unsigned),
                        void* argument);
/// Runs `kernel` in every thread of every block, one after another.
void machine_launch(void (*kernel)(const void*), const void* words, unsigned grid, unsigned block,
                    unsigned shared, const unsigned* used, const char* name);
}
