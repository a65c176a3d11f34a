# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the emulator says it finds, it finds: each fault in a kernel of a few lines."""

import ctypes
import os
import platform
from types import SimpleNamespace

import emulate
import pytest
import torch

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="threads are switched by x86-64 code"
)

THREADS, SHARED = 64, 256
#: The faults of one library, since what takes long is to start the compiler; by their number.
KERNEL = """
struct Arguments {
  float* out;
  int fault;
};
extern "C" __global__ void fusedops_kernel(const Arguments a) {
  extern __shared__ __align__(16) char shared_row[];
  __shared__ float values[64];
  const unsigned i = threadIdx.x;
  values[i] = i;
  if (a.fault != 1) __syncthreads();
  a.out[i] = values[63 - i];
  if (a.fault == 2 && i > 0) __syncwarp();
  if (a.fault == 2 && i == 0) __syncthreads();
  if (a.fault == 3) __syncwarp(0xfffffffeu);
  if (a.fault == 4 && i < 16) a.out[i] = __shfl_xor_sync(0xffffu, float(i), 16);
  if (a.fault == 5) *reinterpret_cast<uint4*>(a.out + 1) = uint4{0, 0, 0, 0};
  if (a.fault == 6) reinterpret_cast<volatile char*>(shared_row)[256] = 1;
  if (a.fault == 7) static_cast<volatile float*>(values)[64 + a.fault] = 1;
  if (a.fault == 8) a.out[i] = reinterpret_cast<float*>(shared_row)[i];
}
"""
FOUND = {
    2: "some threads wait at a barrier",
    3: "a lane is not in the mask",
    4: "a shuffle from a lane",
    5: "not aligned",
    6: "behind the shared memory",
    7: "behind the shared variables",
}


def launch(fault, order):
    """The numbers that the kernel writes, and what the machine reports."""
    tile = SimpleNamespace(threads_per_block=THREADS, cpp="")
    built = emulate.shared_object(SimpleNamespace(source=KERNEL, tile=tile, name="faulty"))
    kernel = ctypes.CDLL(os.fspath(built)).fusedops_rows
    out = torch.full((THREADS + 8,), torch.inf)
    words = (ctypes.c_int64 * 2)(out.data_ptr(), fault)
    machine = emulate.machine()
    machine.machine_set_order(emulate.ORDERS.index(order), 1)
    kernel(words, ctypes.c_int64(0), ctypes.c_int64(1 | SHARED << 32))
    return out[:THREADS], machine.machine_take_failure().decode()


@pytest.mark.parametrize("order", emulate.ORDERS)
def test_a_right_kernel_has_its_values(order):
    out, failure = launch(0, order)
    assert not failure
    assert out.tolist() == list(range(63, -1, -1))


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("fault", [1, 8], ids=["no barrier", "never written"])
def test_shared_memory_that_nothing_has_set_is_no_number(fault, order):
    out, failure = launch(fault, order)
    assert not failure
    assert out.isnan().any()


@pytest.mark.parametrize("order", emulate.ORDERS)
@pytest.mark.parametrize("fault", FOUND, ids=FOUND.values())
def test_it_is_reported(fault, order):
    assert FOUND[fault] in launch(fault, order)[1]
