// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "items.h"

namespace fusedops::runtime {
namespace {

template <class T>
void store(uint64_t* word, T value) {
  static_assert(sizeof(T) <= sizeof(*word));
  std::memcpy(word, &value, sizeof(T));
}

// Ties round to even, as in Python's round().
uint32_t threshold(double p) {
  if (p >= 1) return 65536;
  return static_cast<uint32_t>(std::clamp(std::nearbyint(p * 65536), 1.0, 65535.0));
}

double keep_scale(double p) {
  const uint32_t t = threshold(p);
  return t == 65536 ? 0.0 : 65536.0 / (65536 - t);
}

bool needs_tensor(Patch::Kind kind) { return kind == Patch::kPointer || kind == Patch::kTensorMap; }

void store_tensor_map(const Value& value, uint64_t* words) {
  cuda::Matrices matrices{data_of(value.view),
                          words[0],
                          words[1],
                          words[2],
                          words[3],
                          static_cast<int>(words[4]),
                          static_cast<int>(words[5]),
                          {}};
  for (int i = 0; i < matrices.batch_dims; ++i) {
    matrices.batch[i] = {words[6 + 2 * i], words[7 + 2 * i]};
  }
  const cuda::TensorMap map = cuda::encode(matrices);
  std::memcpy(words, map.words, sizeof(map.words));
}

bool needs_number(Patch::Kind kind) {
  return kind >= Patch::kFloat32 && kind <= Patch::kKeepScale64 && kind != Patch::kInt64;
}

[[noreturn]] void throw_out_of_range(uint32_t word, int kind, int64_t source) {
  throw py::value_error("Plan: patch (" + std::to_string(word) + ", " + std::to_string(kind) +
                        ", " + std::to_string(source) + ") is out of range");
}

}  // namespace

Stage::Stage(std::shared_ptr<Kernel> kernel, const std::string& words, const py::list& patches,
             int64_t rows, int64_t grain, unsigned grid, unsigned block, unsigned shared)
    : kernel_(std::move(kernel)),
      words_(words.size() / sizeof(uint64_t)),
      rows_(rows),
      grain_(grain),
      grid_(grid),
      block_(block),
      shared_(shared) {
  if (words.size() % sizeof(uint64_t) || words_.size() > kMaxWords) {
    throw py::value_error("Plan: words must be whole words of 8 bytes, at most 4096 bytes, got " +
                          std::to_string(words.size()) + " bytes");
  }
  std::memcpy(words_.data(), words.data(), words.size());
  if (rows < 0) throw py::value_error("Plan: rows must not be negative");
  if (rows > 0) {
    if (!kernel_) throw py::value_error("Plan: kernel must not be None where there are rows");
    if (kernel_->on_host() && grain < 1) throw py::value_error("Plan: grain must be positive");
    if (!kernel_->on_host() && (grid < 1 || block < 1)) {
      throw py::value_error("Plan: grid and block must be positive");
    }
  }
  for (const py::handle item : patches) {
    const Items patch(item);
    const int64_t at = patch.number(0), source = patch.number(2);
    const auto word = static_cast<uint32_t>(at);
    const int kind = static_cast<int>(patch.number(1));
    if (at < 0 || static_cast<size_t>(at) >= words_.size() || kind < 0 || kind >= Patch::kKinds ||
        source < 0) {
      throw_out_of_range(word, kind, source);
    }
    if (kind == Patch::kTensorMap && (word + cuda::TensorMap::kWords > words_.size() ||
                                      words_[word + 5] > cuda::Matrices::kMostBatchDims)) {
      throw_out_of_range(word, kind, source);
    }
    patches_.push_back({word, static_cast<Patch::Kind>(kind), source});
  }
}

void Stage::check_outputs(size_t count) const {
  for (const Patch& patch : patches_) {
    if (patch.kind == Patch::kOutput && patch.source >= static_cast<int64_t>(count)) {
      throw_out_of_range(patch.word, patch.kind, patch.source);
    }
  }
}

void Stage::check_values(const Value* values, int count) const {
  for (const Patch& patch : patches_) {
    if (patch.kind == Patch::kOutput) continue;
    if (patch.kind >= Patch::kSeed && patch.kind <= Patch::kDraw) continue;
    const Value::Kind kind = patch.source < count ? values[patch.source].kind : Value::kAbsent;
    const bool number = kind == Value::kReal || kind == Value::kInteger;
    if ((needs_tensor(patch.kind) && kind != Value::kTensor) ||
        (needs_number(patch.kind) && !number) ||
        (patch.kind == Patch::kInt64 && kind != Value::kInteger)) {
      throw py::value_error("Plan: a patch of kind " + std::to_string(patch.kind) +
                            " does not fit the value in slot " + std::to_string(patch.source));
    }
  }
}

void Stage::write(const Value* values, char* const* outputs, Draw draw, uint64_t* words) const {
  std::memcpy(words, words_.data(), words_.size() * sizeof(uint64_t));
  for (const Patch& patch : patches_) {
    uint64_t* word = words + patch.word;
    const auto value = [&]() -> const Value& { return values[patch.source]; };
    switch (patch.kind) {
      case Patch::kPointer:
        store(word, data_of(value().view));
        break;
      case Patch::kOutput:
        store(word, outputs[patch.source]);
        break;
      case Patch::kFloat32:
        store(word, static_cast<float>(value().real));
        break;
      case Patch::kFloat64:
        store(word, value().real);
        break;
      case Patch::kInt64:
        store(word, value().integer);
        break;
      case Patch::kThreshold:
        store(word, threshold(value().real));
        break;
      case Patch::kKeepScale32:
        store(word, static_cast<float>(keep_scale(value().real)));
        break;
      case Patch::kKeepScale64:
        store(word, keep_scale(value().real));
        break;
      case Patch::kSeed:
        store(word, draw.seed);
        break;
      case Patch::kOffset:
        store(word, draw.offset + static_cast<uint64_t>(patch.source));
        break;
      case Patch::kDraw:
        store(word, draw.memory);
        break;
      case Patch::kTensorMap:
        store_tensor_map(value(), word);
        break;
      case Patch::kKinds:
        break;
    }
  }
}

void Stage::run_host(const uint64_t* words, int threads) const {
  run_rows(kernel_->host(), words, rows_, grain_, threads);
}

void Stage::launch_cuda(int device, cuda::Stream stream, uint64_t* words) const {
  kernel_->prepare(device, shared_);
  kernel_->launch(stream, grid_, block_, shared_, words);
}

}  // namespace fusedops::runtime
