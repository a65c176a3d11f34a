# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "fusedops" inside torch.compile: dynamic shapes, autocast, Inductor, dropout."""

import functools

import pytest
import torch
from captured import assert_near, compiled, listed, trained
from cases import exhaustive, randn
from references import check
from torch import nn
from torch._dynamo import pgo
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional

from fusedops.graph.backend import fusedops
from fusedops.graph.rewrite import rewrite


def block(x, residual, gamma, mask):
    """What every pattern has: a saved sum, a norm, a masked softmax of any length."""
    total = x + residual
    normed = functional.layer_norm(total, x.shape[-1:], gamma)
    scores = (normed @ normed.mT) / 4
    return functional.softmax(scores + mask, -1) @ total, total


def inputs(batch, length, dtype=torch.float32, columns=16):
    x = randn(batch, length, columns, dtype=dtype)
    return (
        x,
        randn(*x.shape, dtype=dtype, seed=1),
        randn(columns, dtype=dtype, seed=2),
        randn(batch, 1, length, dtype=dtype, seed=3),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("inner", ["aot_eager", *exhaustive("inductor")])
def test_dynamic_shapes_compile_no_more_often(inner):
    """Batch and length vary: as many graphs as the inner backend alone makes."""
    shapes = [(2, 5), (3, 7), (4, 9), (5, 11), (1, 12), (7, 12)]
    counter = CompileCounterWithBackend(inner)
    pgo.reset_code_state()  # Torch remembers which sizes varied; each of the two is to find out.
    alone = torch.compile(block, backend=counter)
    for shape in shapes:
        alone(*inputs(*shape))
    torch._dynamo.reset()
    pgo.reset_code_state()
    graphs = []
    backend = functools.partial(fusedops, options={"inner": inner}, report=graphs.append)
    fused = torch.compile(block, backend=backend)
    for shape in shapes:
        given = [t.double() for t in inputs(*shape)]
        assert_near(listed(fused(*given)), listed(block(*given)))
    assert all([one.op is not None for one in found] == [True, True] for found in graphs)
    assert len(graphs) <= counter.frame_count < len(shapes)


def test_autocast():
    """Dtypes are what torch's own ops give under autocast, and nothing is rounded more often."""
    x, residual, gamma, mask = inputs(2, 6)
    linear = nn.Linear(16, 16)

    def program(x, residual, gamma, mask):
        return block(linear(x), residual, gamma, mask)

    fused, found = compiled(program)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = fused(x, residual, gamma, mask), program(x, residual, gamma, mask)
    assert [type(one.op).__name__ for one in found] == ["LayerNorm", "Softmax"]
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2**-7, atol=2**-6)


@pytest.mark.thorough
def test_inductor_makes_the_rest():
    given = inputs(2, 6)
    fused, found = compiled(block, "inductor")
    got, wanted = trained(fused, given), trained(block, given)
    truth = trained(block, [t.double() for t in given])
    assert [one.op is not None for one in found] == [True, True]
    for one, true, chain in zip(got[0], truth[0], wanted[0], strict=True):
        check(one, true, chain)
    assert_near(got[1], wanted[1], 2.0**-16)


@pytest.mark.thorough
def test_dropout_follows_the_generator():
    """A seed repeats a step; the next step draws anew; the backward pass has the same mask."""

    def program(x):
        return functional.dropout(torch.softmax(x * 2, -1), 0.5)

    fused, found = compiled(program)
    x = randn(4, 40)
    (y,), (dx,) = trained(fused, [x])
    assert (found[0].drops, found[0].nodes) == (True, ("mul", "softmax", "dropout"))
    assert repr(found[0].op.store) == "(Dropout(p='p'),)"
    (again,), (same,) = trained(fused, [x])
    assert torch.equal(y, again)
    assert torch.equal(dx, same)
    assert not torch.equal(y, fused(x))
    kept = (y != 0).double() * 2
    upstream = randn(*y.shape, seed=90).double() * kept
    leaf = x.double().requires_grad_()
    torch.softmax(leaf * 2, -1).backward(upstream)
    torch.testing.assert_close(dx.double(), leaf.grad, rtol=1e-5, atol=1e-6)


def test_options_reach_the_inner_backend():
    with pytest.raises(Exception, match="no_such_option"):
        torch.compile(
            lambda x: torch.softmax(x * 2, -1),
            backend="fusedops",
            options={"no_such_option": 1},
        )(randn(2, 3))


@pytest.mark.parametrize(
    ("call", "columns", "fused"),
    [
        (lambda x, r, n: torch.softmax(x, -1), 2048, False),
        (lambda x, r, n: torch.softmax(x, -1), 4096, True),
        (lambda x, r, n: torch.softmax(x + r, -1), 32, True),
        (lambda x, r, n: functional.layer_norm(x + r, (n,)), 128, False),
        (lambda x, r, n: functional.layer_norm(x + r, (n,)), 256, True),
        (lambda x, r, n: functional.layer_norm(functional.dropout(x) + r, (n,)), 128, True),
        (lambda x, r, n: functional.layer_norm(functional.dropout(x, 0.0) + r, (n,)), 8, False),
    ],
)
def test_what_a_gpu_is_given(call, columns, fused):
    """What was measured there decides: no GPU is needed to see it."""
    with FakeTensorMode():
        given = torch.empty(2, 4, columns, device="cuda"), torch.empty(2, 4, columns, device="cuda")

    def reads(x, r):
        return call(x, r, columns)

    graph = torch.fx.Tracer().trace(reads)
    module = torch.fx.GraphModule({}, graph)
    FakeTensorProp(module, mode=given[0].fake_mode).propagate_dont_convert_inputs(*given)
    (found,) = rewrite(module)
    assert (found.op is not None) == fused, found.why


@pytest.mark.gpu
def test_on_a_gpu():
    """The same through Inductor; a plain softmax of long rows is fused there, of short ones not."""
    given = [t.cuda() for t in inputs(2, 6, columns=256)]
    fused, found = compiled(block, "inductor")
    got, wanted = trained(fused, given), trained(block, given)
    assert [one.op is not None for one in found] == [True, True]
    assert_near(got[0], wanted[0], 2.0**-16)
    assert_near(got[1], wanted[1], 2.0**-14)
    for columns, wins in ((1024, False), (8192, True)):
        torch._dynamo.reset()
        softmax, found = compiled(lambda x: torch.softmax(x, -1), "eager")
        x = randn(4, columns, device="cuda")
        check(softmax(x).cpu(), torch.softmax(x.double(), -1).cpu(), torch.softmax(x, -1).cpu())
        assert [one.op is not None for one in found] == [wins]
