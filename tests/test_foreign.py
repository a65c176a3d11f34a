# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""LOADs and STOREs written for OneFlow's published contract run in our dispatchers as they are."""

import pytest
import torch
from cases import compare, compare_gradients, poisoned, randn, thorough
from cpptest import FOLDER, compiler, find_nvcc, place, run
from references import Chain

from fusedops.jit import env

OPERATORS = [
    Chain("softmax"),
    Chain("log_softmax"),
    Chain("layer_norm", eps=1e-5),
    Chain("rms_norm", eps=1e-6),
]
KINDS = [
    "direct",
    "direct as stored",
    "broadcast scale mask",
    "elementwise scale mask",
    "tril scale",
    "bias scale mask",
    "skip add",
    "DirectLoad",
]
SHAPES = [(7, 1), (5, 2), (6, 31), (3, 32), (9, 100), (4, 1024), (3, 1030), (3, 4096), (2, 65536)]


def half(*shape, seed, device):
    return randn(*shape, seed=seed, device=device, dtype=torch.float16)


def loaded(kind, x, other, mask, fill, scale):
    """What a LOAD gives, in float as it computes."""
    rows, cols = x.shape
    v = x.float()
    if kind == "broadcast scale mask":
        return torch.where(mask[torch.arange(rows, device=x.device) // 3], v * scale, fill)
    if kind == "elementwise scale mask":
        return torch.where(mask, v * scale, fill)
    if kind == "tril scale":
        kept = torch.ones(rows, cols, device=x.device).tril(1).bool()
        return torch.where(kept, v * scale, fill)
    if kind == "bias scale mask":
        return torch.where(mask, (v + other[0].float()) * scale, fill)
    if kind == "skip add":
        return v + scale * other.float()
    return v


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chain", [*OPERATORS[:1], *thorough(*OPERATORS[1:])], ids=lambda chain: chain.op
)
def test_loads(device, chain, kind, shape):
    if device == "cpu" and kind not in ("direct as stored", "tril scale") and chain.op != "softmax":
        pytest.skip("on a CPU every LOAD and every operator once")
    number = OPERATORS.index(chain)
    flags = [f"-DFOREIGN_OPERATOR={number}"]
    # All in one library only where all are run by one compiler that is quick: nvcc takes a minute
    # for them, which every worker would wait for.
    if device == "cuda" or number:
        flags.append(f"-DFOREIGN_KIND={KINDS.index(kind)}")
    library = place("foreign_loads", device, *flags)
    x, other = (half(*shape, seed=seed, device=device) for seed in (1, 2))
    mask = randn(*shape, device=device, seed=3) > -0.5
    fill = -torch.inf if number < 2 else 0.25
    y, intact = poisoned(shape, torch.float16, device)
    status = library.foreign_load(KINDS.index(kind), x, other, mask, y, float(fill), 0.5, *shape)
    assert status == 0
    v = loaded(kind, x, other, mask, fill, 0.5)
    compare(chain, v, {}, {"y": y}, dtype=torch.float16)
    assert intact()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_affine_store(device, shape):
    library = place("foreign_stores", device)
    rows, cols = shape
    x = half(*shape, seed=1, device=device)
    gamma, beta = (half(cols, seed=seed, device=device) for seed in (2, 3))
    y, intact = poisoned(shape, torch.float16, device)
    mean, rstd = (torch.full((rows,), torch.nan, device=device) for _ in "mr")
    assert library.foreign_affine(x, gamma, beta, y, mean, rstd, *shape) == 0
    chain = Chain("layer_norm", store=(("affine", "g", "b"),), eps=1e-5, stats=True)
    got = {"y": y, "mean": mean, "rstd": rstd}
    compare(chain, x, {"g": gamma, "b": beta}, got)
    assert intact()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", [chain.op for chain in OPERATORS])
def test_gradients(device, op, shape):
    library = place("foreign_stores", device)
    rows, cols = shape
    dy = half(*shape, seed=2, device=device)
    gamma = half(cols, seed=3, device=device)
    dx, intact = poisoned(shape, torch.float16, device)
    if op.endswith("norm"):
        x = half(*shape, seed=1, device=device)
        v = x.double()
        mean = v.mean(-1) if op == "layer_norm" else torch.zeros(rows, device=device)
        square = v.var(-1, correction=0) if op == "layer_norm" else v.square().mean(-1)
        rstd = (square + (1e-5 if op == "layer_norm" else 1e-6)).rsqrt().float()
        of_row = (mean.float(), rstd) if op == "layer_norm" else (rstd,)
        function = getattr(library, f"foreign_{op}_gradient")
        assert function(x, dy, gamma, *of_row, dx, *shape) == 0
        beta = torch.zeros_like(gamma) if op == "layer_norm" else None
        eps = 1e-5 if op == "layer_norm" else 1e-6
        chain = Chain(op, store=(("affine", "g", "b" if beta is not None else None),), eps=eps)
        operands = {"g": gamma} | ({} if beta is None else {"b": beta})
        if cols == 1:  # x - mean is zero, and the rounding of mean and rstd is all there is
            assert dx.isfinite().all()
            return
        y = torch.zeros_like(x)
        compare_gradients(chain, x, operands, {"y": dy}, {"y": y}, {"x": dx})
        assert intact()
        return
    # The result as it was stored is what counts: its gradient by the formula, in double.
    y = half(*shape, seed=1, device=device).softmax(-1)
    y = y.log().clamp(min=-20) if op == "log_softmax" else y
    assert getattr(library, f"foreign_{op}_gradient")(y, dy, dx, *shape) == 0
    of_y, of_dy = y.double(), dy.double()
    if op == "softmax":
        kept = torch.ones(shape, device=device).tril(1)
        truth = of_y * (of_dy - (of_y * of_dy).sum(-1, keepdim=True)) * 0.5 * kept
        size = of_y * (of_dy.abs() + (of_y * of_dy).abs().sum(-1, keepdim=True))
    else:
        total = of_dy.sum(-1, keepdim=True)
        truth = of_dy - of_y.exp() * total
        size = of_dy.abs() + of_y.exp() * of_dy.abs().sum(-1, keepdim=True)
    allowed = truth.abs() * 2**-11 + 2**-25 + size * 2**-19
    assert ((dx.double() - truth).abs() <= allowed).all()
    assert intact()


def test_what_a_plain_load_says_of_itself():
    rows, cols = 2, 70000  # rows of up to 65536 columns are held, and read once
    x, r = (randn(rows, cols, seed=seed) for seed in (1, 2))
    total = x + r
    y = torch.full_like(x, torch.nan)
    loaded = torch.zeros(1, dtype=torch.int64)
    assert place("foreign_stores", "cpu").foreign_twice(x, r, y, loaded, rows, cols) == 0
    assert torch.equal(x, total)  # added once, although the row was read twice
    compare(Chain("rms_norm", eps=1e-6), total, {}, {"y": y})
    assert rows * 32 < loaded.item() <= rows * 2 * 64  # ten columns of each, in both readings


SHAPES_OF_STRUCTS = FOLDER / "foreign_shapes.cuh"


def test_each_shape_compiles_on_a_host():
    flags = ("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror")
    run([compiler(), *flags, f"-I{env.include_dir()}", "-x", "c++", SHAPES_OF_STRUCTS])


@pytest.mark.thorough
def test_each_shape_compiles_with_nvcc(tmp_path):
    """Without a warning, although a member's virtual destructor is for the host alone."""
    flags = ("-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx", "-Xcicc", "-O0")
    include = f"-I{env.include_dir()}"
    run([find_nvcc(), *flags, include, "-x", "cu", SHAPES_OF_STRUCTS, "-o", tmp_path / "out.ptx"])
