// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The example on threads of a CPU, in float; needs a C++17 compiler and nothing else.
#include <chrono>
#include <memory>
#include <thread>

#include "example.h"

namespace {

class Cpu {
 public:
  fusedops::Threads place() const {
    return {static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};
  }
  bool good(fusedops::Status status) const { return status == fusedops::Status::kSuccess; }

  template <class Wanted>
  bool workspace(const Wanted& wanted, int64_t rows, int64_t cols, size_t* bytes) const {
    return good(fusedops::gradient_workspace<float>(place(), wanted, rows, cols, bytes));
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    auto kept = std::make_shared<std::vector<T>>(values);
    memory_.push_back(kept);
    return kept->data();
  }
  template <class F>
  double seconds(F f) const {
    double best = 1e9;
    for (int i = 0; i < 3; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      f();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::min(best, took.count());
    }
    return best;
  }
  template <class Check>
  double worst(int64_t count, const Check& check) const {
    double worst = 0;
    for (int64_t i = 0; i < count; ++i) worst = std::max(worst, check(i));
    return worst;
  }

 private:
  std::vector<std::shared_ptr<void>> memory_;
};

}  // namespace

int main() {
  Cpu cpu;
  return example<float>(cpu, 2, 100, 500, 1000);
}
