# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops under torch.autocast: they keep the dtypes that they are given, compiled or not."""

import pytest
import torch
from cases import ADD_NORM, declare, named, randn, same_bits, thorough
from test_forward import add_norm_case
from torch.utils._python_dispatch import TorchDispatchMode

import fusedops as fo

LOWER = [torch.bfloat16, torch.float16]


def compiled(op):
    torch._dynamo.reset()
    return torch.compile(op, backend="aot_eager", fullgraph=True)


def as_mode(op):
    """Through torch's dispatcher, where autocast would act."""

    def call(*args, **operands):
        with Passing():
            return op(*args, **operands)

    return call


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


WAYS = {"eager": lambda op: op, "dispatched": as_mode, "compiled": compiled}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(*LOWER)], ids=str)
@pytest.mark.parametrize("lower", [LOWER[0], *thorough(*LOWER[1:])], ids=str)
def test_dtypes_are_kept(lower, dtype, way, device):
    """An x of any dtype, a residual in float32: all is as without autocast, gradients too."""
    chain = ADD_NORM
    x, operands = add_norm_case(torch.float32, device)
    x = x.to(dtype)
    results = []
    for autocast in (False, True):
        leaf, gamma = (t.clone().requires_grad_() for t in (x, operands["gamma"]))
        torch.manual_seed(1)
        with torch.autocast(device, dtype=lower, enabled=autocast):
            outputs = named(WAYS[way](declare(chain))(leaf, **{**operands, "gamma": gamma}))
        assert outputs["y"].dtype == dtype
        assert outputs["stream"].dtype == torch.float32
        upstream = [randn(*y.shape, dtype=y.dtype, device=device) for y in outputs.values()]
        gradients = torch.autograd.grad([*outputs.values()], [leaf, gamma], upstream)
        assert [g.dtype for g in gradients] == [dtype, torch.float32]
        results.append([*(y.detach() for y in outputs.values()), *gradients])
    assert all(same_bits(*pair) for pair in zip(*results, strict=True))


def test_among_layers_that_autocast_acts_on(device):
    """A linear layer gives x in the lower dtype, and the parameters stay in float32."""
    norm = fo.nn.ResidualLayerNorm(8, device=device, return_stream=True)
    dense = torch.nn.Linear(8, 8, device=device)
    residual = randn(4, 8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        product = dense(residual)
        y, stream = norm(product, residual)
    assert product.dtype == y.dtype == torch.bfloat16
    assert stream.dtype == torch.float32
    want = norm(product.detach(), residual)
    assert same_bits(y.detach(), want.y.detach())
    y.float().square().mean().backward()
    assert dense.weight.grad.dtype == norm.weight.grad.dtype == torch.float32
    assert dense.weight.grad.any()


def test_a_gradient_scaler(device):
    """A step with a scaled loss is the step without; one that overflows is left out."""
    x = randn(16, 8, device=device)
    weights = []
    for scaled in (False, True):
        torch.manual_seed(0)
        norm = fo.nn.ResidualLayerNorm(8, device=device)
        optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, enabled=scaled)
        for factor in (1.0, torch.inf) if scaled else (1.0,):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = norm(x, x).square().mul(norm.weight + 1).mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if scaled:
            assert scaler.get_scale() == 2.0**9
        weights.append(norm.weight.detach().clone())
    torch.testing.assert_close(*weights)
    assert not torch.equal(weights[0], torch.ones_like(weights[0]))
