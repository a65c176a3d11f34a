// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A stage of a plan: one launch, and the words of its argument that each call changes
// (relocations).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "tensor.h"

namespace fusedops::runtime {

/// One value of a call, as the gate read it. Slot 0 is x, slot i the i-th operand.
struct Value {
  enum Kind : uint8_t { kAbsent, kTensor, kReal, kInteger };
  Kind kind;        // kAbsent also for a tensor that is only described
  View view;        // kTensor
  double real;      // kReal, kInteger
  int64_t integer;  // kInteger
};

/// Writes one 8-byte word of the kernel's argument at each call. `source` is a slot, the number of
/// an output (kOutput), unused (kSeed, kDraw), or a number to add (kOffset). The words in place of a
/// tensor map are those of cuda::Matrix, in that order, from the number of rows on.
struct Patch {
  enum Kind : int {
    kPointer,      // the address of the slot's data
    kOutput,       // the address of the output's data
    kFloat32,      // the slot's number; the upper half of the word is not changed
    kFloat64,      //
    kInt64,        //
    kThreshold,    // round(p * 65536) in 1..65535, 65536 for p = 1 (32 bits), p the slot's number
    kKeepScale32,  // 65536 / (65536 - threshold), 0 for p = 1
    kKeepScale64,  //
    kSeed,         // the seed of the draw
    kOffset,       // the offset of the draw, plus `source`, the number of the dropout
    kDraw,         // the address of a draw that lies in memory
    kTensorMap,    // sixteen words: the tensor map of the slot's matrix, which the words describe
    kKinds,
  };
  uint32_t word;
  Kind kind;
  int64_t source;
};

/// Seed and offset of the random numbers of one call, or their address, from which the kernel reads
/// them when it runs. Where the host can read that address, the numbers are set as well.
struct Draw {
  /// Offsets, with the slot added, are below this: a counter has 48 bits for them.
  static constexpr uint64_t kOffsets = uint64_t{1} << 48;

  uint64_t seed = 0;
  uint64_t offset = 0;
  const char* memory = nullptr;
};

class Stage {
 public:
  /// The limit of a kernel's arguments that every device and driver supports: 4096 bytes.
  static constexpr size_t kMaxWords = 4096 / sizeof(uint64_t);

  /// Throws ValueError where the arguments are inconsistent.
  Stage(std::shared_ptr<Kernel> kernel, const std::string& words, const py::list& patches,
        int64_t rows, int64_t grain, unsigned grid, unsigned block, unsigned shared);

  /// Throws ValueError if a patch names an output that is not among `count`.
  void check_outputs(size_t count) const;

  /// Throws ValueError if a value does not have the kind that a patch needs.
  void check_values(const Value* values, int count) const;

  /// Writes the argument of one call to `words`, of kMaxWords elements.
  void write(const Value* values, char* const* outputs, Draw draw, uint64_t* words) const;

  /// Run the kernel, without need of the GIL. The device's context must be current.
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
