// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fusedops::runtime {

#if defined(__x86_64__)
namespace {

enum Register { kEax, kEbx, kEcx, kEdx };

// The register state that the operating system must save for the instructions to be usable.
enum State : uint32_t { kNone = 0, kYmm = 0x6, kZmm = 0xe6 };

struct Feature {
  const char* name;
  uint32_t leaf;
  uint32_t subleaf;
  Register where;
  int bit;
  State state;
};

// The instruction sets by which jit/levels.py chooses a level, in the names of /proc/cpuinfo (abm
// is lzcnt). Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix D.
constexpr Feature kFeatures[] = {
    {"fma", 1, 0, kEcx, 12, kYmm},      {"movbe", 1, 0, kEcx, 22, kNone},
    {"f16c", 1, 0, kEcx, 29, kYmm},     {"bmi1", 7, 0, kEbx, 3, kNone},
    {"avx2", 7, 0, kEbx, 5, kYmm},      {"bmi2", 7, 0, kEbx, 8, kNone},
    {"avx512f", 7, 0, kEbx, 16, kZmm},  {"avx512dq", 7, 0, kEbx, 17, kZmm},
    {"avx512cd", 7, 0, kEbx, 28, kZmm}, {"avx512bw", 7, 0, kEbx, 30, kZmm},
    {"avx512vl", 7, 0, kEbx, 31, kZmm}, {"abm", 0x80000001, 0, kEcx, 5, kNone},
};

uint32_t saved_state() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  if (!(c >> 27 & 1)) return 0;
  // xgetbv is written as bytes: its intrinsic needs a compiler flag for the whole file.
  uint32_t low = 0, high = 0;
  asm volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
  const uint32_t state = saved_state();
  for (const Feature& feature : kFeatures) {
    uint32_t words[4] = {};
    const bool known = __get_cpuid_count(feature.leaf, feature.subleaf, &words[kEax], &words[kEbx],
                                         &words[kEcx], &words[kEdx]);
    const bool usable = (state & feature.state) == feature.state;
    if (known && usable && (words[feature.where] >> feature.bit & 1)) found.push_back(feature.name);
  }
  return found;
}

#elif defined(__aarch64__)

std::vector<std::string> cpu_features() { return {"asimd"}; }

#else

std::vector<std::string> cpu_features() { return {}; }

#endif

}  // namespace fusedops::runtime
