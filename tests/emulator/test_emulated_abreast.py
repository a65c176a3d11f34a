# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels whose threads have several rows at a time, run on the CPU (row/abreast.cuh)."""

import platform
import shutil

import pytest
import torch
from cases import randn, same_bits
from emulate import emulated

import fusedops as fo
from fusedops import testing
from fusedops.schedule.launch import LaunchConfig

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="threads are switched by x86-64 code, and kernels built by g++",
)


@pytest.mark.parametrize(
    ("interleaved", "columns", "dtype"),
    [
        (False, 64, torch.bfloat16),
        pytest.param(True, 32, torch.float32, marks=pytest.mark.thorough),
        pytest.param(True, 8, torch.float16, marks=pytest.mark.thorough),
    ],
)
def test_rows_abreast(interleaved, columns, dtype):
    """Heads that share a rotation have the bits that they have one by one, also in place."""
    rotate = fo.Rotate("cos", "sin", interleaved)
    angle = 9 * randn(23, 1, columns // 2)
    operands = {"cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype)}
    packed, upstream = (randn(2, 23, heads, columns, dtype=dtype) for heads in (10, 8))
    rows = {"rows_per_block": 16, "persistent": True, "persistent_threads_per_sm": 128}
    for op in (fo.Map(load=[rotate]), fo.RMSNorm(store=[fo.Affine("g", None), rotate])):
        more = {"g": randn(columns, dtype=dtype, seed=1)} if op.reduces else {}
        found = []
        for count, order in ((1, "ascending"), (2, "random")):
            launch = LaunchConfig(**rows, abreast=count)
            leaves = [packed[:, :, 1:9].clone().requires_grad_()]
            leaves += [one.clone().requires_grad_() for one in more.values()]
            given = dict(zip(more, leaves[1:], strict=True))
            with emulated("sm_90", order), testing.force_launch(forward=launch, backward=launch):
                y = op(leaves[0], **operands, **given)
                found.append((y.detach(), *torch.autograd.grad(y, leaves, upstream)))
                within = packed.clone()
                op(within[:, :, 1:9], **operands, **more, out=within[:, :, 1:9])
                if more:
                    again = op(leaves[0].detach(), **operands, **given)
                    alone = torch.autograd.grad(again, leaves[1:], upstream)
                    assert all(map(same_bits, alone, found[-1][2:])), "without the gradient of x"
            assert same_bits(within[:, :, 1:9], y.detach())
            assert same_bits(within[:, :, ::9], packed[:, :, ::9])
        assert all(map(same_bits, found[0][:2], found[1][:2]))
        for one, other in zip(found[0][2:], found[1][2:], strict=True):  # added up in another order
            torch.testing.assert_close(one, other)


def test_the_largest_value_of_rows_abreast_is_one_of_theirs():
    """Functors run once more, to issue the reads of operands, without values."""
    amax = fo.Quantize("s", torch.float8_e4m3fn, amax="amax")
    op = fo.Map(load=[fo.Rotate("cos", "sin"), fo.Bias("b")], store=[amax])
    x = randn(2, 5, 8, 64) - 8
    operands = {"cos": torch.ones(5, 1, 32), "sin": torch.zeros(5, 1, 32), "s": 1.0}
    operands["b"] = torch.full((64,), 8.0)
    for count in (1, 2):
        launch = LaunchConfig(rows_per_block=4, abreast=count)
        with emulated("sm_90", "ascending"), testing.force_launch(forward=launch):
            assert torch.equal(op(x, **operands).amax, (x + 8).abs().amax())
