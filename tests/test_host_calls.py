# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Python functions of the package that a call runs whose kind is known, counted and not timed.

A row op that needs no gradient runs none: the C++ runtime finds its plan. A product runs a few
where torch's product and a kernel after it run the call, as on a CPU.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import fusedops as fo

PACKAGE = str(Path(fo.__file__).parent)


@fo.functor
def gelu(v):
    return functional.gelu(v, approximate="tanh")


def calls_of(call):
    """The package's Python functions that run in a call, after it has been made before."""
    for _ in range(3):
        call()
    names = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            names.append(f"{frame.f_code.co_filename[len(PACKAGE) :]}:{frame.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return names


X, W = torch.randn(6, 16), torch.randn(8, 16)
W1, W2 = torch.randn(32, 16), torch.randn(8, 32)
B, B1, R = torch.randn(8), torch.randn(32), torch.randn(6, 8)
GAMMA, BETA = torch.ones(16), torch.zeros(16)
LINEAR = fo.Linear(store=[fo.Bias("b"), gelu(), fo.Residual("r")])
MATMUL = fo.Matmul(store=[fo.Scale("s"), fo.Residual("r")])
MLP = fo.MLP(hidden=[fo.Bias("b1"), gelu()], store=[fo.Bias("b"), fo.Residual("r")])
NORM = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])

FORWARD = {
    "LayerNorm": (lambda: NORM(X, gamma=GAMMA, beta=BETA), 0),
    "Linear": (lambda: LINEAR(X, W, b=B, r=R), 4),
    "Matmul": (lambda: MATMUL(X, W.mT, s=0.5, r=R), 4),
    "MLP": (lambda: MLP(X, W1, W2, b1=B1, b=B, r=R), 8),
}
MODULES = {
    "Linear": (fo.nn.Linear(16, 8, activation=gelu()), 8),
    "MLP": (fo.nn.MLP(16, 32, 8, activation=gelu()), 16),
}
STEPS = {
    "LayerNorm": (lambda x, gamma, beta: NORM(x, gamma=gamma, beta=beta), (X, GAMMA, BETA), 11),
    "Linear": (lambda x, w, b, r: LINEAR(x, w, b=b, r=r), (X, W, B, R), 16),
    "MLP": (
        lambda x, w1, w2, b1, b, r: MLP(x, w1, w2, b1=b1, b=b, r=r),
        (X, W1, W2, B1, B, R),
        45,
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_a_call_without_gradients(name):
    call, most = FORWARD[name]
    assert len(names := calls_of(call)) <= most, names


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name):
    module, most = MODULES[name]
    with torch.no_grad():
        assert len(names := calls_of(lambda: module(X))) <= most, names


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_training(name):
    call, tensors, most = STEPS[name]
    leaves = [one.clone().requires_grad_() for one in tensors]

    def step():
        y = call(*leaves)
        torch.autograd.backward(y, torch.ones_like(y))

    assert len(names := calls_of(step)) <= most, names
