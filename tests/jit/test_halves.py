# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Conversions of halves by the CPU (core/halves.cuh) have the bits of those of core/dtype.cuh."""

import ctypes
import subprocess

import pytest
import torch

from fusedops.generate.target import Target
from fusedops.jit import env, host

LEVELS = ("x86-64-v3", "x86-64-v4")  # ascending

SOURCE = """\
#include <fusedops/core/halves.cuh>
using namespace fusedops;
constexpr int N = 32;
static_assert(detail::are_halves<const half, float, N>(), "this level has such instructions");
extern "C" void both(const uint16_t* halves, const float* floats, int64_t count, uint32_t* up,
                     uint32_t* up_alone, uint16_t* down, uint16_t* down_alone) {
  for (int64_t at = 0; at < count; at += N) {
    float values[N], numbers[N];
    floats_of_halves(reinterpret_cast<const half*>(halves) + at, values);
    __builtin_memcpy(up + at, values, sizeof(values));
    for (int i = 0; i < N; ++i) {
      const float one = convert<float>(bit_cast<half>(halves[at + i]));
      __builtin_memcpy(up_alone + at + i, &one, sizeof(one));
      numbers[i] = floats[at + i];
      down_alone[at + i] = convert<half>(numbers[i]).bits;
    }
    halves_of_floats(numbers, reinterpret_cast<half*>(down) + at);
  }
}
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_conversion_by_the_cpu_has_the_same_bits(level, tmp_path):
    """All halves; floats of all exponents beside every rounding there is. A NaN stays one."""
    here = Target.named("cpu").arch
    if here not in LEVELS or LEVELS.index(here) < LEVELS.index(level):
        pytest.skip("this CPU has no such instructions")
    if "clang" in host.find_compiler()[0]:
        pytest.skip("a compiler that vectorizes these conversions by itself")
    (tmp_path / "halves.cpp").write_text(SOURCE)
    options = [*host.flags(level), "-O1", "-Wall", "-Werror", "-fvisibility=default"]
    command = [
        *host.find_compiler(),
        *options,
        f"-I{env.include_dir()}",
        "halves.cpp",
        "-o",
        "a.so",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    halves = torch.arange(1 << 16).repeat(16)
    # The upper bits of a float, and lower ones at and beside the middle of two halves.
    lower = torch.tensor([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x2FFF, 0x3000, 0x3001])
    lower = torch.cat(
        [lower, torch.randint(1 << 16, (6,), generator=torch.Generator().manual_seed(0))]
    )
    floats = ((torch.arange(1 << 16)[None] << 16) + lower[:, None]).flatten()
    numbers = floats.to(torch.int32).view(torch.float32)
    count = len(floats)
    given = halves.to(torch.int16)
    up, up_alone = (torch.zeros(count, dtype=torch.int32) for _ in range(2))
    down, down_alone = (torch.zeros(count, dtype=torch.int16) for _ in range(2))
    tensors = [given, numbers, up, up_alone, down, down_alone]
    at = [ctypes.c_void_p(one.data_ptr()) for one in tensors]
    ctypes.CDLL(str(tmp_path / "a.so")).both(*at[:2], ctypes.c_int64(count), *at[2:])
    for found, alone, kind in ((up, up_alone, torch.float32), (down, down_alone, torch.float16)):
        nan = alone.view(kind).isnan()
        assert torch.equal(found.view(kind).isnan(), nan)
        assert torch.equal(found[~nan], alone[~nan])
    by_torch = given.view(torch.float16).float()
    assert torch.equal(up.view(torch.float32).nan_to_num(7), by_torch.nan_to_num(7))
    want = numbers.half()
    assert torch.equal(down[~want.isnan()], want[~want.isnan()].view(torch.int16))
