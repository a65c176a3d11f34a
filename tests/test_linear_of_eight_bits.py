# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear of factors of 8 bits: torch's product, scales in the STORE, and what it refuses."""

from types import SimpleNamespace

import pytest
import torch
from cases import randn

import fusedops as fo
from fusedops.product import factors as module
from fusedops.testing import check

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OP = fo.Linear(store=[fo.Scale("sx"), fo.Scale("sw"), fo.Bias("b"), fo.Residual("r")])


def factors(device, shape, outputs, kinds=(E4M3, E4M3)):
    """Factors with a scale a row each, a bias and a residual."""
    x, w = randn(*shape, device=device), randn(outputs, shape[-1], device=device, seed=1)
    ops = [fo.Map(store=[fo.DynamicQuantize(kind)]) for kind in kinds]
    (a, sx), (b, sw) = ops[0](x), ops[1](w)
    bias = randn(outputs, device=device, seed=2)
    residual = randn(*shape[:-1], outputs, device=device, seed=3)
    return a, b, {"sx": sx, "sw": sw[:, 0], "b": bias, "r": residual}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "outputs", "kinds"),
    [
        ((3, 5, 64), 48, (E4M3, E4M3)),
        ((32, 256), 64, (E4M3, E5M2)),
        ((9, 40), 17, (E5M2, E5M2)),
    ],
)
def test_within_the_bound(device, shape, outputs, kinds):
    a, b, given = factors(device, shape, outputs, kinds)
    y = OP(a, b, **given)
    assert y.dtype == torch.bfloat16
    assert y.shape == (*shape[:-1], outputs)
    assert check(OP, a, b, **given).passed


def test_ways_of_one_product(device):
    """Strides, odd sizes, no rows and no functors; the exact product is rounded to bfloat16."""
    a, b, _ = factors(device, (32, 64), 48)
    want = a.double() @ b.double().t()
    sizes = a.double().abs() @ b.double().abs().t()
    op = fo.Linear()
    for x, w, exact in (
        (a, b, want),
        (a[::2], b, want[::2]),
        (a, b[::2], want[:, ::2]),
        (a[:7], b[:5], want[:7, :5]),
        (a[:0], b, want[:0]),
        (a[0], b, want[0]),
    ):
        y = op(x, w)
        assert y.dtype == torch.bfloat16
        assert y.shape == exact.shape
        # Tensor cores keep 13 bits of a partial sum between two additions to float32.
        off = 2.0**-8 * exact.abs() + 2.0**-12 * sizes.max()
        assert ((y.double() - exact).abs() <= off).all()
    x, w = a[:, :50], b[:, :50]
    assert torch.allclose(op(x, w).double(), x.double() @ w.double().t(), rtol=2.0**-7, atol=1.0)


@pytest.mark.thorough
def test_quantised_again(device):
    """A STORE that ends in 8 bits makes the factor of the next product."""
    a, b, given = factors(device, (32, 64), 64)
    op = fo.Linear(
        store=[fo.Scale("sx"), fo.Scale("sw"), fo.GELU(), fo.DynamicQuantize(E4M3, per=32)]
    )
    y, scales = op(a, b, sx=given["sx"], sw=given["sw"])
    plain = fo.Linear(store=op.store[:-1])(
        a, b, sx=given["sx"], sw=given["sw"], dtype=torch.float32
    )
    want, known = fo.Map(store=op.store[-1:])(plain)
    assert torch.equal(y.view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(scales, known)
    assert fo.Linear()(y, b).shape == (32, 64)


def test_gradients_and_refusals(device):
    a, b, given = factors(device, (4, 64), 16)
    bias = given["b"].requires_grad_()
    upstream = randn(4, 16, device=device, dtype=torch.bfloat16, seed=5)
    (found,) = torch.autograd.grad(OP(a, b, **given), bias, upstream)
    assert torch.allclose(found, upstream.float().sum(0), rtol=1e-5, atol=1e-5)
    with pytest.raises(fo.UnsupportedError, match=r"x has 8 bits and wants a gradient.*detach"):
        OP(a.detach().requires_grad_(), b, **given)
    with pytest.raises(TypeError, match="w must be floating point"):
        OP(a.float(), b, **given)
    with pytest.raises(TypeError, match="x must be floating point"):
        fo.Matmul()(a, b.t())
    told = str(OP.explain(a, b, **given))
    assert "in bfloat16" in told
    assert device == "cuda" or "one kernel for both needs sm_90" in told


@pytest.mark.thorough
def test_in_compiled_code(device):
    a, b, given = factors(device, (32, 64), 48)
    compiled = torch.compile(
        lambda x, w, **given: OP(x, w, **given), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(a, b, **given), OP(a, b, **given))


def test_each_stream_has_a_scale_of_its_own(monkeypatch):
    """One that another stream fills may not be there yet."""
    monkeypatch.setattr(module, "_ones", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    found = []
    for stream in (0, 7, 0):
        current = SimpleNamespace(cuda_stream=stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _, one=current: one)
        found.append(module._one(torch.ones(1)))
    assert found[0] is found[2] is not found[1]


@pytest.mark.gpu
def test_a_graph_and_its_scale():
    """A product that is first called in a captured graph leaves no memory of the graph behind."""
    a, b, given = factors("cuda", (32, 64), 48)
    want = OP(a, b, **given)
    module._ones.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = OP(a, b, **given)
    assert not module._ones
    graph.replay()
    assert torch.equal(made, want)
    del graph
    assert torch.equal(OP(a, b, **given), want)
