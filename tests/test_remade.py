# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the backward pass makes anew has the bits that the forward pass had.

With one row, a gamma and an upstream gradient of ones, the gradient of gamma is the result as
the backward pass made it, and y is the result as the forward pass did. Softmax is left out: its
forward pass multiplies each part of a row by a factor of its own.
"""

import pytest
import torch
from cases import NORMS, declare, gradients_of, randn
from references import Chain

COLUMNS = [1, 33, 1024, 4097, 20000]

LOADS = {
    "scale": (("scale", "s"),),
    "bias": (("bias", "b"),),
    "scale, bias": (("scale", "s"), ("bias", "b")),
    "residual": (("residual", "r", "s", None),),
    "scale, residual": (("scale", "s"), ("residual", "r", -0.7, None)),
    "saved": (("scale", "s"), ("residual", "r", -0.7, "stream")),
    "affine": (("affine", "b", "r"),),
    "affine, scale": (("affine", "b", None), ("scale", "s")),
    "dropout": (("scale", "s"), ("dropout", "p")),
    "dropout, bias": (("dropout", "p"), ("bias", "b")),
    "alibi": (("scale", "s"), ("alibi", "t", "top-left", 0)),
}

ROWS = {
    "random": lambda columns: randn(columns),
    "one": lambda columns: torch.ones(columns),
    "three": lambda columns: torch.full((columns,), 3.0),
    "ten thousand": lambda columns: torch.full((columns,), 1e4),
    "far from zero": lambda columns: randn(columns) + 1e4,
}


def operands_of(load, columns, dtype, device):
    """Values whose products are rounded: none is a power of two."""
    makes = {
        "s": lambda: 0.1,
        "t": lambda: 0.3,
        "p": lambda: 0.3,
        "b": lambda: torch.full((columns,), 1.3, dtype=dtype, device=device),
        "r": lambda: torch.full((1, columns), 0.7, dtype=dtype, device=device),
    }
    names = {name for _, *rest in load for name in rest if name in makes}
    return {name: makes[name]() for name in sorted(names)}


def cases():
    """All on a GPU, whose compiler contracts across functors; on a CPU a few."""
    for op in (*NORMS, "log_softmax"):
        for load in LOADS:
            if load != "alibi" or op not in NORMS:
                yield pytest.param(op, load, "cuda", marks=pytest.mark.gpu, id=f"cuda-{op}-{load}")
    for load in ("scale", "residual", "dropout, bias"):
        yield pytest.param("layer_norm", load, "cpu", marks=pytest.mark.thorough, id=f"cpu-{load}")


@pytest.mark.parametrize(("op", "load", "device"), list(cases()))
def test_the_result(op, load, device):
    eps = 1e-5 if op in NORMS else 0.0
    chain = Chain(op, LOADS[load], (("affine", "gamma", None),), eps=eps)
    # Double has instructions of its own.
    for dtype, columns in [*((torch.float32, n) for n in COLUMNS), (torch.float64, 1024)]:
        gamma = torch.ones(columns, dtype=dtype, device=device)
        operands = operands_of(LOADS[load], columns, dtype, device) | {"gamma": gamma}
        for name, make in ROWS.items():
            x = make(columns).to(dtype).to(device)[None]
            ones = {"y": torch.ones_like(x)}
            outputs, got = gradients_of(declare(chain), x, operands, ones, wanted=["gamma"])
            wrong = (outputs["y"][0] != got["gamma"]).sum()
            assert not wrong, f"{wrong} of {columns} columns of {name}"


@pytest.mark.thorough
@pytest.mark.parametrize("value", [1.0, 3.0, 1e4])
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_constant_row_has_no_deviations(value, columns, device):
    """Under a scale that rounds: a product that is contracted with the mean leaves its rounding."""
    chain = Chain("layer_norm", (("scale", "s"),), (("affine", "gamma", None),), eps=1e-5)
    x = torch.full((4, columns), value, device=device)
    operands = {"s": 0.1, "gamma": torch.ones(columns, device=device)}
    upstream = {"y": randn(4, columns, device=device)}
    outputs, got = gradients_of(declare(chain), x, operands, upstream, wanted=["x", "gamma"])
    # The mean is a value and a low part, exact to about 2^-44 of itself.
    tiny = value * 0.1 * 2.0**-40 / 1e-5**0.5
    assert outputs["y"].abs().max() <= tiny
    assert got["gamma"].abs().max() <= 4 * 4 * tiny
