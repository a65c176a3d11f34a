// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "key.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace fusedops::runtime {
namespace {

// The logarithm of the alignment in bytes, which is at most 16: the widest access of a kernel.
int alignment(const char* data) { return __builtin_ctzll(reinterpret_cast<uintptr_t>(data) | 16); }

}  // namespace

void Key::add_tensor(const View& view) {
  add(Value::kTensor | alignment(data_of(view)) << 8 | view.ndim << 16 |
      static_cast<int64_t>(view.dtype.code) << 32 | static_cast<int64_t>(view.dtype.bits) << 40 |
      static_cast<int64_t>(view.dtype.lanes) << 48);
  for (int d = 0; d < view.ndim; ++d) add(view.shape[d]);
  for (int d = 0; d < view.ndim; ++d) add(view.strides[d]);
}

uint64_t Key::hash() const {
  // Multiplies and folds each word; the constant is 2^64 / golden ratio.
  uint64_t hash = static_cast<uint64_t>(size_);
  for (int i = 0; i < size_; ++i) {
    hash = (hash ^ static_cast<uint64_t>(words_[i])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

bool PlanTable::Entry::is(const Key& other) const {
  return static_cast<int>(key.size()) == other.size() &&
         std::equal(key.begin(), key.end(), other.words());
}

PyObject* PlanTable::find(const Key& key, uint64_t hash, Plan** plan) const {
  const auto [first, last] = entries_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Entry& entry = it->second;
    if (!entry.is(key)) continue;
    *plan = entry.plan;
    return entry.object.ptr();
  }
  return nullptr;
}

void PlanTable::insert(const Key& key, uint64_t hash, py::object object, Plan* plan) {
  const auto [first, last] = entries_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    Entry& entry = it->second;
    if (!entry.is(key)) continue;
    entry.plan = plan;
    std::swap(entry.object, object);  // the former one goes when the table is whole again
    return;
  }
  if (entries_.size() >= kMaxPlans) clear();
  entries_.emplace(hash, Entry{{key.words(), key.words() + key.size()}, std::move(object), plan});
}

void PlanTable::clear() {
  // The table is emptied first: destroying a plan can run Python code that calls this again.
  decltype(entries_) dropped;
  dropped.swap(entries_);
}

int PlanTable::visit(visitproc visit, void* argument) const {
  for (const auto& item : entries_) {
    if (const int stop = visit(item.second.object.ptr(), argument)) return stop;
  }
  return 0;
}

}  // namespace fusedops::runtime
