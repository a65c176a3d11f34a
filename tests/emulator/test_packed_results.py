# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 4 bits in rows that begin at any byte, as C++ dispatches may have them."""

import ctypes
import os
import platform
from types import SimpleNamespace

import emulate
import pytest
import torch

KERNEL = """
#include <fusedops/core/float4.cuh>
#include <fusedops/row/operand.cuh>
using namespace fusedops;
struct Arguments {
  float4_e2m1x2* y;
  int64_t pitch;
};
extern "C" __global__ void fusedops_kernel(const Arguments a) {
  const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, -6};
  direct(a.y, a.pitch).write(values, RowOf<Access::kNarrow>(1), 0);
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="threads are switched by x86-64 code")
def test_rows_of_any_number_of_bytes():
    tile = SimpleNamespace(threads_per_block=1, cpp="")
    built = emulate.shared_object(SimpleNamespace(source=KERNEL, tile=tile, name="packed"))
    machine, y = emulate.machine(), torch.zeros(34, dtype=torch.uint8)
    kernel = ctypes.CDLL(os.fspath(built)).fusedops_rows
    kernel((ctypes.c_int64 * 2)(y.data_ptr(), 17), ctypes.c_int64(0), ctypes.c_int64(1))
    assert not machine.machine_take_failure().decode()
    assert y.nonzero().flatten().tolist() == [17, 18, 19, 20]
    assert y[17:21].tolist() == [0x10, 0x32, 0x54, 0xF6]
