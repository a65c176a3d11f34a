# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients of functors in C++, alone and composed: drives tests/cpp/backward.cpp.

Each chain there has a torch function here, and autograd says what its gradients are.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from cpptest import build, normal, same_bits
from philox import keep_mask, keep_scale


@pytest.fixture(scope="module")
def backward(tmp_path_factory):
    return build("backward", tmp_path_factory.mktemp("backward"))


class Problem(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("side", ctypes.c_char_p),
        ("x", ctypes.c_void_p),
        ("upstream", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("dx", ctypes.c_void_p),
        ("operand", ctypes.c_void_p * 4),
        ("flags", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("gradient", (ctypes.c_void_p * 2) * 6),
    )


ROWS, WIDTH = 5, 64 + 2 * 8 + 3


class Given:
    """What every chain may use: four operands of x's shape, flags, lengths and dropout's mask."""

    def __init__(self):
        self.operands = [normal(ROWS, WIDTH, dtype=torch.float64, seed=10 + i) for i in range(4)]
        self.flags = normal(ROWS, WIDTH, seed=20) > 0.5
        self.lengths = torch.tensor([WIDTH, 1, 0, 40, 70])
        self.column = torch.arange(WIDTH).expand(ROWS, WIDTH)
        self.factor = keep_mask((ROWS, WIDTH), 11, 3, 0.25).double() * keep_scale(0.25)

    def scale(self, x, i):
        return x * self.operands[i]

    def bias(self, x, i):
        return x + self.operands[i]

    def residual(self, x, i):
        return x + 0.5 * self.operands[i]

    def affine(self, x, i, j):
        return x * self.operands[i] + self.operands[j]

    def dropout(self, x):
        return x * self.factor

    def cast(self, x):
        return x.float().double()

    def mask(self, x):
        return x.masked_fill(self.flags, -torch.inf)

    def keep(self, x):
        return x.masked_fill(~self.flags, -torch.inf)

    def causal(self, x):
        return x.masked_fill(self.column > torch.arange(ROWS)[:, None] + 2, -torch.inf)

    def window(self, x):
        position = torch.arange(ROWS)[:, None]
        outside = (self.column < position - 2) | (self.column >= position + 60)
        return x.masked_fill(outside, -torch.inf)

    def alibi(self, x, i):
        return x - self.operands[i] * (torch.arange(ROWS)[:, None] + 40 - self.column).abs()

    def to_length(self, x):
        return x.masked_fill(self.column >= self.lengths[:, None], -torch.inf)


@dataclass(frozen=True)
class Case:
    """A chain of backward.cpp: its torch function, and where its operands' gradients arrive.

    Attributes:
        places: (functor, operand within it) of operands 0, 1, ... of `Given`.
        masks: It masks, so it may only stand in a LOAD.
    """

    name: str
    torch: Callable
    places: tuple = ()
    masks: bool = False


def _then(*steps):
    """The steps one after another: (method, operand numbers...)."""

    def chain(given, x):
        for method, *numbers in steps:
            x = getattr(given, method)(x, *numbers)
        return x

    return chain


SINGLE = [
    Case("scale", _then(("scale", 0)), ((0, 0),)),
    Case("bias", _then(("bias", 0)), ((0, 0),)),
    Case("mask", _then(("mask",)), masks=True),
    Case("keep", _then(("keep",)), masks=True),
    Case("causal", _then(("causal",)), masks=True),
    Case("window", _then(("window",)), masks=True),
    Case("lengths", _then(("to_length",)), masks=True),
    Case("alibi", _then(("alibi", 0)), ((0, 0),)),
    Case("dropout", _then(("dropout",))),
    Case("residual", _then(("residual", 0)), ((0, 0),)),
    Case("saved", _then(("residual", 0)), ((0, 0),)),
    Case("gamma", _then(("scale", 0)), ((0, 0),)),
    Case("beta", _then(("bias", 0)), ((0, 1),)),
    Case("affine", _then(("affine", 0, 1)), ((0, 0), (0, 1))),
    Case("cast", _then(("cast",))),
]

# Masks come last, wherever they were declared.
CHAINS = [
    Case(
        "attention",
        _then(("scale", 0), ("bias", 1), ("dropout",), ("mask",)),
        ((0, 0), (1, 0)),
        masks=True,
    ),
    Case(
        "add_norm",
        _then(("bias", 0), ("dropout",), ("residual", 1), ("affine", 2, 3)),
        ((0, 0), (2, 0), (3, 0), (3, 1)),
    ),
    Case(
        "written",
        _then(("affine", 0, 1), ("dropout",), ("scale", 2), ("cast",)),
        ((0, 0), (0, 1), (2, 0)),
    ),
    Case(
        "twice",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("residual", 3)),
        ((0, 0), (1, 0), (2, 0), (3, 0)),
    ),
    Case(
        "indices",
        _then(("scale", 0), ("bias", 1), ("causal",), ("to_length",)),
        ((1, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "positions",
        _then(("scale", 0), ("alibi", 1), ("scale", 2), ("window",)),
        ((0, 0), (2, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_first",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((1, 0), (2, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_within",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((0, 0), (2, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_last",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((0, 0), (1, 0), (2, 0)),
        masks=True,
    ),
]


def run_backward(library, case, side, given, x, upstream, stream=None):
    """The chain's result, the gradient of x, and those of all operands by (functor, operand)."""
    y, dx = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    stream = torch.full_like(x, torch.nan) if stream is None else stream
    gradients = torch.zeros(6, 2, ROWS, WIDTH, dtype=torch.float64)
    problem = Problem(ROWS, WIDTH, side.encode())
    for field, tensor in {
        "x": x,
        "upstream": upstream,
        "y": y,
        "dx": dx,
        "flags": given.flags,
        "lengths": given.lengths,
        "stream": stream,
    }.items():
        setattr(problem, field, tensor.data_ptr())
    for i, operand in enumerate(given.operands):
        problem.operand[i] = operand.data_ptr()
    for functor in range(6):
        for operand in range(2):
            problem.gradient[functor][operand] = gradients[functor][operand].data_ptr()
    library.run.restype = ctypes.c_bool
    assert library.run(case.name.encode(), ctypes.byref(problem)), f"no chain {case.name}"
    return y, dx, gradients


def _sides(case):
    # A mask has no gradient of its own: the chain clears the gradients of masked elements.
    sides = ["alone"] if case in SINGLE and not case.masks else []
    # A saved stream, too, belongs to a LOAD.
    return (
        [*sides, "load"]
        if case.masks or case.name in ("saved", "add_norm")
        else [*sides, "load", "store"]
    )


#: A handful of roundings, in the same order on both sides.
close = partial(torch.testing.assert_close, rtol=2e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("case", "side"),
    [
        pytest.param(case, side, id=f"{case.name}-{side}")
        for case in SINGLE + CHAINS
        for side in _sides(case)
    ],
)
def test_gradients_are_autograds(backward, case, side):
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    before = upstream.clone(), x.clone()
    y, dx, gradients = run_backward(backward, case, side, given, x, upstream)
    assert same_bits(upstream, before[0])
    assert same_bits(x, before[1])

    used = given.operands[: len(case.places)]
    leaves = [value.requires_grad_() for value in (x, *used)]
    want = case.torch(given, x)
    grads = torch.autograd.grad(want, leaves, upstream)
    close(y, want.detach())
    close(dx, grads[0])
    for (functor, operand), grad in zip(case.places, grads[1:], strict=True):
        close(gradients[functor, operand], grad, msg=lambda text, f=functor: f"functor {f}: {text}")
    # A residual also gives the gradient of its alpha, a number here: none of the leaves.
    for functor in set(range(6)) - {functor for functor, _ in case.places}:
        assert not gradients[functor, 0].any(), "a gradient for an operand that is not there"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "inf"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CHAINS if case.masks]
)
def test_nothing_under_a_mask_leaks_into_a_gradient(backward, case, bad):
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    clean = run_backward(backward, case, "load", given, x, upstream)
    masked = clean[0] == -torch.inf
    for tensor in (x, upstream, *given.operands):
        tensor[masked] = bad
    got = run_backward(backward, case, "load", given, x, upstream)
    for tensor, want in zip(got, clean, strict=True):
        assert same_bits(tensor, want)
    assert (got[1][masked] == 0).all()


def test_recomputation_reads_the_stream_and_does_not_write_it(backward):
    """As a second visit does: what was saved stands for its makings."""
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    case = next(case for case in CHAINS if case.name == "add_norm")
    stream = normal(ROWS, WIDTH, dtype=torch.float64, seed=3)
    before = stream.clone()
    _, _, gradients = run_backward(backward, case, "again", given, x, upstream, stream)
    assert same_bits(stream, before)
    assert same_bits(gradients[3, 0], upstream * stream)  # of gamma, which comes after the stream
