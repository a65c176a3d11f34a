// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The key of a call, and the table of plans by key.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "plan.h"

namespace fusedops::runtime {

/// A sequence of 64-bit words, on the stack. Every part includes its length, so two different calls
/// never have the same words.
class Key {
 public:
  void add(int64_t word) {
    if (size_ == kCapacity) throw std::length_error("fusedops: too many operands of too high rank");
    words_[size_++] = word;
  }

  /// Adds kind, dtype, rank, alignment, shape and strides; not the device, which all tensors share.
  void add_tensor(const View& view);

  uint64_t hash() const;
  const int64_t* words() const { return words_; }
  int size() const { return size_; }

 private:
  static constexpr int kCapacity = 1024;

  int size_ = 0;
  int64_t words_[kCapacity];
};

/// The plans of one dispatcher. They hold Python objects, so all members need the GIL.
class PlanTable {
 public:
  /// Returns the Python object of the plan and sets `plan`, to null where the object is a function
  /// that is called in its place; returns null where there is none.
  PyObject* find(const Key& key, uint64_t hash, Plan** plan) const;

  /// Keeps a reference to `object`, the Python object of the plan, or a function where `plan` is
  /// null, in place of the one that the key has, if any.
  void insert(const Key& key, uint64_t hash, py::object object, Plan* plan);

  void clear();
  size_t size() const { return entries_.size(); }
  int visit(visitproc visit, void* argument) const;

 private:
  // A bound for programs whose shapes keep changing; making a plan again costs some 50 us.
  static constexpr size_t kMaxPlans = 8192;

  struct Entry {
    bool is(const Key& other) const;

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
