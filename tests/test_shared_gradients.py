# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operands whose gradient is that of x or of y: one tensor is the gradient of both."""

import pytest
import torch
from cases import Chain, declare, gradients_of, randn, same_bits, upstream_of, verify_gradients

import fusedops as fo

ROWS, COLUMNS = 6, 40
STREAM = Chain("rms_norm", (("residual", "r", 1.0, "s"),), (("affine", "gamma", "beta"),), eps=1e-6)
TWO = Chain(
    "layer_norm",
    (("bias", "b"), ("residual", "r", 1.0, None), ("residual", "q", 1.0, None)),
    (("affine", "gamma", "beta"), ("residual", "z", 1.0, None)),
    eps=1e-5,
)
MAP = Chain("map", (("scale", "b"), ("residual", "r", 1.0, None)))
SAVED = Chain("map", (("scale", "b"), ("residual", "r", 1.0, "s")))
AFTER_SAVED = Chain(
    "rms_norm", (("residual", "r", 1.0, "s"), ("residual", "q", 1.0, None)), eps=1e-6
)
ALL_SAVED = Chain("map", (("residual", "r", 1.0, None), ("residual", "q", 1.0, "s")))
SCALED = Chain("rms_norm", (("residual", "r", 0.5, None),), eps=1e-6)
AFTER = Chain("softmax", (("scale", "b"), ("residual", "r", 1.0, None)))

#: A declaration, and which of its operands have the gradient of which tensor.
CASES = {
    "a stream": (STREAM, {"r": "x"}),
    "two, and one after the reduction": (TWO, {"r": "x", "q": "x", "z": "y"}),
    "after all else": (MAP, {"r": "y"}),
    "after all else, and saved": (SAVED, {}),
    "after what is saved": (AFTER_SAVED, {"r": "x"}),
    "nothing but what is saved": (ALL_SAVED, {"r": "x", "q": "x"}),
    "with a factor": (SCALED, {}),
    "after a factor": (AFTER, {}),
}


def given(chain, device, dtype=torch.float32, rows=ROWS):
    """X and operands: those of one letter but b have x's shape."""
    names = declare(chain).slots
    full = {"r", "q", "z"}
    shapes = {name: (rows, COLUMNS) if name in full else (COLUMNS,) for name in names}
    x = randn(rows, COLUMNS, dtype=dtype, device=device)
    operands = {
        n: randn(*s, dtype=dtype, device=device, seed=i)
        for i, (n, s) in enumerate(shapes.items(), 1)
    }
    return x, operands


def shared(gradients, upstream):
    """The gradients that are the tensor of x's, or that of y's, by name."""
    found = {}
    for name, gradient in gradients.items():
        for whose, other in (("x", gradients["x"]), ("y", upstream["y"])):
            if name != "x" and gradient.data_ptr() == other.data_ptr():
                found[name] = whose
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_one_tensor_is_the_gradient_of_both(name, dtype, device):
    chain, wanted = CASES[name]
    x, operands = given(chain, device, dtype)
    verify_gradients(chain, x, operands)
    upstream = upstream_of(chain, x, operands)
    for _ in range(2):  # the second call hits a plan
        found = gradients_of(declare(chain), x, operands, upstream)[1]
        assert shared(found, upstream) == wanted


@pytest.mark.parametrize("unlike", ["shape", "dtype", "gradient"])
def test_an_operand_that_is_not_like_x_has_a_gradient_of_its_own(unlike, device):
    """Also right after a call, of the same declaration, whose operand is."""
    op = declare(STREAM)
    for change in (False, True, False):
        x, operands = given(STREAM, device)
        wanted = ["x", "r", "gamma", "beta"]
        if change and unlike == "shape":
            operands["r"] = operands["r"][0]
        elif change and unlike == "dtype":
            operands["r"] = operands["r"].double()
        elif change:
            wanted.remove("x")
        upstream = upstream_of(STREAM, x, operands)
        verify_gradients(STREAM, x, operands, upstream, wanted=wanted)
        found = gradients_of(op, x, operands, upstream, wanted=wanted)[1]
        for name in wanted:
            assert found[name].shape == {"x": x, **operands}[name].shape
        assert not change or "x" not in wanted or not shared(found, upstream)


def test_gradients_that_are_kept_are_two_tensors(device):
    x, operands = given(STREAM, device)
    leaves = {name: one.requires_grad_() for name, one in {"x": x, **operands}.items()}
    result = declare(STREAM)(leaves["x"], **{name: leaves[name] for name in operands})
    torch.autograd.backward([result.y, result.s], [torch.ones_like(x), torch.ones_like(x)])
    before = leaves["r"].grad.clone()
    assert same_bits(leaves["x"].grad, before)
    leaves["x"].grad.zero_()
    assert same_bits(leaves["r"].grad, before)


@pytest.mark.parametrize("name", ["a stream", "two, and one after the reduction", "after all else"])
def test_compiled(name):
    """The operator of torch returns no tensor twice, and none that it was given."""
    chain, _ = CASES[name]
    x, operands = given(chain, "cpu")
    upstream = upstream_of(chain, x, operands)
    op = declare(chain)
    compiled = torch.compile(lambda x, **rest: op(x, **rest), backend="aot_eager", fullgraph=True)
    want = gradients_of(op, x, operands, upstream)[1]
    got = gradients_of(lambda x, generator, **rest: compiled(x, **rest), x, operands, upstream)[1]
    assert all(same_bits(want[name], got[name]) for name in want)


class Doubled(fo.Residual):
    """A residual that does more than to add."""


class SavedTwice(fo.Save):
    """Likewise."""


def test_a_derived_class_may_do_more():
    ops = [fo.Map([fo.GELU(), Doubled("r")]), fo.RMSNorm([Doubled("q"), fo.Residual("r")])]
    ops += [fo.RMSNorm([SavedTwice("s"), fo.Residual("r")])]
    assert not any(op.sharing_gradients for op in ops)
    assert fo.RMSNorm([fo.Bias("b"), fo.Residual("r")]).sharing_gradients == {"r": "x"}


def test_a_gradient_that_nothing_makes_is_made():
    """Of an operand alone whose gradient is that of y: it is no view of what the caller gave."""
    op = fo.Map([fo.GELU(), fo.Residual("r")])
    x, r = randn(2, 8), randn(2, 8, seed=1).requires_grad_()
    dy = randn(2, 8, seed=2)
    (found,) = torch.autograd.grad(op(x, r=r), r, dy)
    assert same_bits(found, dy)
