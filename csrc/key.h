// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The key under which a plan is found again, and the table of plans.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "plan.h"

namespace fusedops::runtime {

/// A string of 64-bit words, on the stack. Every part says how long it is, so two different calls
/// never have the same words.
class Key {
 public:
  void add(int64_t word) {
    if (size_ == kCapacity) throw std::length_error("fusedops: too many operands of too high rank");
    words_[size_++] = word;
  }

  /// Kind, dtype, rank, alignment, shape, strides; not the device, which all tensors share.
  void add_tensor(const View& view);

  uint64_t hash() const;
  const int64_t* words() const { return words_; }
  int size() const { return size_; }

 private:
  static constexpr int kCapacity = 1024;

  int size_ = 0;
  int64_t words_[kCapacity];
};

/// The plans of one dispatcher. They keep Python objects: use with the GIL.
class PlanTable {
 public:
  /// The Python object of the plan and, in `plan`, the plan; null where there is none.
  PyObject* find(const Key& key, uint64_t hash, Plan** plan) const;

  /// Keeps a reference to `object`, which is the plan's.
  void insert(const Key& key, uint64_t hash, py::object object, Plan* plan);

  void clear();
  size_t size() const { return entries_.size(); }
  int visit(visitproc visit, void* argument) const;

 private:
  // Shapes may go on changing for ever; a plan costs some 50 us to make again.
  static constexpr size_t kMaxPlans = 8192;

  struct Entry {
    std::vector<int64_t> key;
    py::object object;
    Plan* plan;
  };
  struct Identity {
    size_t operator()(uint64_t hash) const { return hash; }
  };

  std::unordered_multimap<uint64_t, Entry, Identity> entries_;
};

}  // namespace fusedops::runtime
