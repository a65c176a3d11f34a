// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A stage of a plan: one launch, and the words of its argument that each call rewrites.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "tensor.h"

namespace fusedops::runtime {

/// One value of a call as the gate understood it. Slot 0 is x, slot i the i-th operand.
struct Value {
  enum Kind : uint8_t { kAbsent, kTensor, kReal, kInteger };
  Kind kind;        // kAbsent also for a tensor that is described only
  View view;        // kTensor
  double real;      // kReal, kInteger
  int64_t integer;  // kInteger
};

/// Rewrites one word of the kernel's argument at each call. `source` is a slot, an output
/// (kOutput), nothing (kSeed, kDraw), or a number to add (kOffset).
struct Patch {
  enum Kind : int {
    kPointer,      // the slot's data
    kOutput,       // the output's data
    kFloat32,      // the slot's number; the upper half of the word stays
    kFloat64,      //
    kInt64,        //
    kThreshold,    // of the probability p: round(p * 65536) in 1..65535, 65536 for p = 1 (32 bits)
    kKeepScale32,  // 65536 / (65536 - threshold), 0 for p = 1
    kKeepScale64,  //
    kSeed,         // of the draw
    kOffset,       // of the draw, plus the slot number `source`
    kDraw,         // the address of a draw that lies in memory
    kKinds,
  };
  uint32_t word;
  Kind kind;
  int64_t source;
};

/// What the random numbers of one call start from: two numbers, or the address of two that a kernel
/// reads when it runs. The numbers are those at the address where the host can read it.
struct Draw {
  /// Streams, an offset plus a slot each: a counter has 48 bits for them.
  static constexpr uint64_t kOffsets = uint64_t{1} << 48;

  uint64_t seed = 0;
  uint64_t offset = 0;
  const char* memory = nullptr;
};

class Stage {
 public:
  /// The classic limit of a kernel's arguments, which every device and driver takes.
  static constexpr size_t kMaxWords = 4096 / sizeof(uint64_t);

  /// Throws ValueError where the parts do not fit together.
  Stage(std::shared_ptr<Kernel> kernel, const std::string& words, const py::list& patches,
        int64_t rows, int64_t grain, unsigned grid, unsigned block, unsigned shared);

  /// Throws ValueError if a patch names none of so many outputs.
  void check_outputs(size_t count) const;

  /// Throws ValueError if a patch asks these values for something that they are not.
  void check_values(const Value* values, int count) const;

  /// Fills in the argument of one call; `words` has room for kMaxWords.
  void write(const Value* values, char* const* outputs, Draw draw, uint64_t* words) const;

  /// Run the kernel; neither needs the GIL. The device's context must be current.
  void run_host(const uint64_t* words, int threads) const;
  void launch_cuda(int device, cuda::Stream stream, uint64_t* words) const;

  bool launches() const { return rows_ > 0; }
  bool on_host() const { return kernel_->on_host(); }
  bool parallel() const { return rows_ > grain_; }

 private:
  std::shared_ptr<Kernel> kernel_;
  std::vector<uint64_t> words_;
  std::vector<Patch> patches_;
  int64_t rows_;
  int64_t grain_;
  unsigned grid_;
  unsigned block_;
  unsigned shared_;
};

}  // namespace fusedops::runtime
