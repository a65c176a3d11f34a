// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA's bfloat16 for a host compiler, as far as kernels use it: see cuda_fp16.h.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof(word));
    const uint32_t to_even = 0x7fffu + (word >> 16 & 1u);
    bits = static_cast<uint16_t>(x != x ? 0x7fffu : (word + to_even) >> 16);
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &word, sizeof(x));
    return x;
  }
};
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }

struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
