# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of norms whose blocks take rows in turns and have them brought ahead, on a GPU."""

import pytest
import torch
from cases import (
    OPERATORS,
    Chain,
    declare,
    gradients_of,
    parameters,
    randn,
    same_bits,
    upstream_of,
    verify_gradients,
)

from fusedops import testing
from fusedops.schedule.launch import LaunchConfig

pytestmark = pytest.mark.gpu

#: Slices of neighbouring rows, read from global memory.
PLAIN = LaunchConfig(persistent=True, persistent_threads_per_sm=512, sum_storage="shared")


def given(op, rows, columns, dtype, of_parameters):
    chain = OPERATORS[op]
    x = 3 * randn(rows, columns, dtype=dtype, device="cuda")
    operands = parameters(chain, columns, of_parameters, "cuda")
    return chain, x, operands, upstream_of(chain, x, operands)


@pytest.mark.parametrize("of_parameters", [None, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [265, 1000])
@pytest.mark.parametrize("columns", [4096, 8192, 16384])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_gradients_are_right_and_repeat(op, columns, rows, dtype, of_parameters):
    """Within the bound; dx has the bits of any other launch, and all have those of a second run."""
    chain, x, operands, upstream = given(op, rows, columns, dtype, of_parameters or dtype)
    verify_gradients(chain, x, operands)
    fused = declare(chain)
    first, second = (gradients_of(fused, x, operands, upstream)[1] for _ in range(2))
    assert all(same_bits(first[name], second[name]) for name in first)
    with testing.force_launch(backward=PLAIN):
        other = gradients_of(fused, x, operands, upstream)[1]
    assert same_bits(first["x"], other["x"])


@pytest.mark.parametrize("columns", [4096, 16384])
def test_nan_and_inf_stay_in_their_rows(columns):
    chain, x, operands, upstream = given("layer_norm", 700, columns, torch.float16, torch.float16)
    clean = gradients_of(declare(chain), x, operands, upstream)[1]["x"]
    x[3, 5], x[699, -1] = torch.nan, torch.inf
    found = gradients_of(declare(chain), x, operands, upstream)[1]["x"]
    assert found[[3, 699]].isnan().all()
    rest = [row for row in range(700) if row not in (3, 699)]
    assert same_bits(found[rest], clean[rest])


@pytest.mark.parametrize("apart", ["strided", "misaligned"])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_rows_that_bulk_copies_cannot_bring(op, apart):
    chain, x, operands, _ = given(op, 600, 8200, torch.bfloat16, torch.bfloat16)
    operands = {name: one[:8192].contiguous() for name, one in operands.items()}
    verify_gradients(chain, x[:, :8192] if apart == "strided" else x[:, 3:8195], operands)


STREAM = {
    op: Chain(op, (("residual", "r", 1.0, "z"),), OPERATORS[op].store, eps=OPERATORS[op].eps)
    for op in ("rms_norm", "layer_norm")
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [265, 1000])
@pytest.mark.parametrize("columns", [4096, 8192, 16384])
@pytest.mark.parametrize("op", STREAM)
def test_the_gradient_of_a_stream(op, columns, rows, dtype):
    """It is read after the reduction of its row; dx has the bits of a launch without a ring."""
    chain = STREAM[op]
    x, r = (randn(rows, columns, dtype=dtype, device="cuda", seed=seed) for seed in (1, 2))
    operands = {"r": r, **parameters(chain, columns, dtype, "cuda")}
    verify_gradients(chain, x, operands)
    upstream = upstream_of(chain, x, operands)
    first, second = (gradients_of(declare(chain), x, operands, upstream)[1] for _ in range(2))
    assert all(same_bits(first[name], second[name]) for name in first)
    with testing.force_launch(backward=PLAIN):
        other = gradients_of(declare(chain), x, operands, upstream)[1]
    assert same_bits(first["x"], other["x"])
    assert first["r"].data_ptr() == first["x"].data_ptr()


@pytest.mark.parametrize("columns", [1024, 4096, 8192, 12288, 16384, 32768])
@pytest.mark.parametrize("op", STREAM)
def test_the_gradient_of_x_alone(op, columns):
    """Blocks do not stay where no sum is wanted; dx has the bits that it has beside sums."""
    chain, x, operands, upstream = given(op, 600, columns, torch.float16, torch.float16)
    alone = gradients_of(declare(chain), x, operands, upstream, wanted=["x"])[1]
    every = gradients_of(declare(chain), x, operands, upstream)[1]
    assert same_bits(alone["x"], every["x"])
    verify_gradients(chain, x, operands, upstream, wanted=["x"])


@pytest.mark.parametrize("sums", ["registers", "shared"])
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("columns", [4097, 12289, 30522, 50257])
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_rows_that_begin_anywhere(op, columns, leaves, sums):
    """Bulk copies bring the aligned words that hold a row; dx has the bits of any other launch."""
    chain, x, operands, upstream = given(op, 1000, columns, torch.bfloat16, torch.bfloat16)
    plain = gradients_of(declare(chain), x, operands, upstream)[1]["x"]
    ahead = LaunchConfig(
        persistent=True,
        persistent_threads_per_sm=256,
        min_threads_per_sm=256,
        sum_storage=sums,
        interleaved=True,
        ring_stages=2,
        smem_staged=leaves,
    )
    with testing.force_launch(backward=ahead):
        verify_gradients(chain, x, operands)
        assert same_bits(gradients_of(declare(chain), x, operands, upstream)[1]["x"], plain)
