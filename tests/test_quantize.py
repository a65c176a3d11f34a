# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Quantize: one rounding to 8 bits, the largest magnitude before it, and what has a gradient."""

import pickle

import pytest
import torch
from cases import randn, thorough
from test_float8 import KINDS, awkward, nearest

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan import forward
from fusedops.testing import check

E4M3 = torch.float8_e4m3fn


def codes(tensor):
    return tensor.view(torch.uint8).cpu()


def same(got, want):
    """Whether codes of 8 bits are the same; NaN has a sign that nobody set."""
    nan = (want & 0x7F) == 0x7F
    return torch.equal(got[~nan], want[~nan]) and bool(((got[nan] & 0x7F) == 0x7F).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_rounding(device, kind, dtype):
    """Of the exact product by a power of two; the chain of torch calls rounds once too."""
    values = awkward(kind, dtype)
    x = values[: len(values) // 8 * 8].view(-1, 8)
    op = fo.Map(store=[fo.Quantize("scale", kind, amax="amax")])
    want = nearest(x, kind)
    for result in (op(x.to(device) / 4, scale=4.0), op.unfused(x.to(device) / 4, scale=4.0)):
        # What is subnormal in float loses bits in the division, far below the smallest of 8 bits.
        assert result.y.dtype == kind
        assert same(codes(result.y), want)
        assert result.amax.isnan()
        assert result.amax.dtype == torch.float32
        assert result.amax.shape == ()


@pytest.mark.parametrize("cols", [8, 1025, 5000])
def test_the_largest_magnitude(device, cols):
    """Before the scale, of all elements, to the bit; NaN if there is one; out= is cleared."""
    op = fo.LayerNorm(store=[fo.Quantize("scale", E4M3, amax="amax")])
    plain = fo.LayerNorm()
    x = randn(7, cols, device=device)
    scale = torch.tensor([200.0], device=device)
    want = plain(x)
    first = op(x, scale=scale)
    assert torch.equal(first.amax, want.abs().amax())
    assert torch.equal(codes(first.y), nearest((want * scale).cpu(), E4M3))
    joined = torch.full((), 1e9, device=device)  # out= is written, and not joined to
    again = op(x, scale=scale, out=(None, joined))
    assert again.amax is joined
    assert torch.equal(joined, first.amax)
    x[3, 5] = torch.nan
    assert op(x, scale=scale).amax.isnan()
    assert op(x[:0], scale=scale).amax == 0


@pytest.mark.gpu
def test_many_blocks_and_a_graph():
    """Blocks that join at once agree with torch; a captured graph begins anew at each replay."""
    op = fo.RMSNorm(store=[fo.Quantize("scale", E4M3, amax="amax")])
    x = randn(4096, 1024, device="cuda")
    want = fo.RMSNorm()(x).abs().amax()
    for _ in range(3):
        assert torch.equal(op(x, scale=16.0).amax, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = op(x, scale=16.0)
    graph.replay()
    assert torch.equal(made.amax, want)
    x.mul_(0).add_(1)  # every element is then about 1, less than before
    graph.replay()
    assert torch.equal(made.amax, fo.RMSNorm()(x).abs().amax())


def test_within_the_bound(device):
    """Values and the gradients that are left, against double; a stream, a tap, numbers a row."""
    x, r = randn(3, 5, 40, device=device), randn(5, 40, device=device)
    scale = torch.rand(5, 1, device=device) * 50
    op = fo.RMSNorm(
        load=[fo.Residual("r", save="stream")],
        store=[fo.Affine("g", None), fo.Tap("t"), fo.Quantize("scale", E4M3, amax="amax")],
    )
    assert check(op, x, r=r, g=randn(40, device=device), scale=scale).passed
    linear = fo.Linear(store=[fo.Bias("b"), fo.Quantize("scale", E4M3, amax="amax")])
    w, b = randn(16, 40, device=device), randn(16, device=device)
    assert check(linear, r, w, b=b, scale=2.0).passed


@pytest.mark.thorough
def test_gradients_of_what_is_beside_it(device):
    """Stream and tap have the gradients that they have without it; y and amax have none."""
    load, store = [fo.Residual("r", save="stream")], [fo.Affine("g", None), fo.Tap("t")]
    op = fo.RMSNorm(load=load, store=[*store, fo.Quantize("scale", E4M3, amax="amax")])
    plain = fo.RMSNorm(load=load, store=store)
    leaves = [randn(5, 40, device=device, seed=k).requires_grad_() for k in range(2)]
    leaves.append(randn(40, device=device, seed=2).requires_grad_())
    x, r, g = leaves
    result, known = op(x, r=r, g=g, scale=3.0), plain(x, r=r, g=g)
    assert not result.y.requires_grad
    assert not result.amax.requires_grad
    for names in (["stream"], ["t"], ["stream", "t"]):
        upstream = [randn(5, 40, device=device, seed=9 + k) for k in range(len(names))]
        got, want = (
            torch.autograd.grad(
                [getattr(made, name) for name in names],
                leaves,
                upstream,
                retain_graph=True,
                materialize_grads=True,
            )
            for made in (result, known)
        )
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)


def test_a_gradient_of_y_is_refused(device):
    x = randn(2, 8, device=device).requires_grad_()
    op = fo.RMSNorm(store=[fo.Quantize("scale", E4M3)])
    with pytest.raises(fo.UnsupportedError, match=r"8 bits, which has no gradient.*no_grad.*Tap"):
        op(x, scale=1.0)
    assert op(x.detach(), scale=1.0).dtype == E4M3
    tapped = fo.RMSNorm(store=[fo.Tap("t"), fo.Quantize("scale", E4M3)])
    scale = torch.ones(1, device=device, requires_grad=True)
    with pytest.raises(fo.UnsupportedError, match=r"scale of Quantize.*detach"):
        tapped(x, scale=scale)
    assert "no gradient" in str(tapped.explain(x, scale=scale))
    assert tapped(x, scale=scale.detach()).t.requires_grad


@pytest.mark.thorough
def test_in_compiled_code(device):
    x = randn(5, 40, device=device)
    op = fo.LayerNorm(
        load=[fo.Residual("r", save="stream")], store=[fo.Quantize("scale", E4M3, amax="amax")]
    )
    compiled = torch.compile(lambda x: op(x, r=x, scale=8.0), fullgraph=True, backend="aot_eager")
    want, got = op(x, r=x, scale=8.0), compiled(x)
    assert torch.equal(codes(got.y), codes(want.y))
    assert torch.equal(got.amax, want.amax)
    x.requires_grad_()
    got, upstream = compiled(x), randn(5, 40, device=device, seed=3)
    assert not got.y.requires_grad
    (found,) = torch.autograd.grad(got.stream, x, upstream)
    assert torch.equal(found, 2 * upstream)
    assert torch.compile(lambda x: op(x[:0], r=x[:0], scale=8.0).amax, backend="aot_eager")(x) == 0


REFUSED = {
    "in load": (lambda: fo.Map(load=[fo.Quantize("s", E4M3)]), ValueError, "last in store"),
    "not last": (
        lambda: fo.Softmax(store=[fo.Quantize("s", E4M3), fo.Scale("t")]),
        ValueError,
        r"must be the last.*write store=\[Scale",
    ),
    "another dtype": (lambda: fo.Quantize("s", torch.int8), TypeError, "float8_e4m3fn or"),
    "dtype of the call": (
        lambda: fo.Map(store=[fo.Quantize("s", E4M3)])(torch.ones(2), s=1.0, dtype=torch.half),
        TypeError,
        "leave dtype= out",
    ),
    "one name for two": (lambda: fo.Quantize("s", E4M3, amax="s"), ValueError, "use two names"),
    "a name that is taken": (
        lambda: fo.Softmax(store=[fo.Scale("a"), fo.Quantize("s", E4M3, amax="a")]),
        ValueError,
        "'a' is taken",
    ),
    "under masks": (
        lambda: fo.RMSNorm(load=[fo.Lengths("n")], store=[fo.Quantize("s", E4M3, amax="a")]),
        ValueError,
        "leave amax out",
    ),
    "before a product": (
        lambda: fo.MLP(hidden=[fo.Quantize("s", E4M3)]),
        ValueError,
        "before a product",
    ),
    "a backward export": (
        lambda: fo.export(
            fo.RMSNorm(load=[fo.Save("v")], store=[fo.Quantize("s", E4M3)]),
            torch.ones(2, 8),
            s=1.0,
            name="norm",
            arch="cpu",
        ),
        fo.UnsupportedError,
        "backward=False",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_it_is_a_value():
    op = fo.Map(store=[fo.Quantize("s", E4M3, amax="a")])
    assert pickle.loads(pickle.dumps(op)) == op
    assert op != fo.Map(store=[fo.Quantize("s", torch.float8_e5m2, amax="a")])
    x = torch.ones(2, 8)
    told = str(op.explain(x, s=2.0))
    assert "float8_e4m3fn (2, 8)" in told
    assert "float32 (): one value" in told


@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_80", "sm_100", "sm_120")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_compiles_without_spills(arch, dtype):
    """For one row a block in registers, and a y whose packs are narrower in bytes than x's."""
    op = fo.RMSNorm(store=[fo.Affine("g", None), fo.Quantize("scale", E4M3, amax="amax")])
    given = {"g": torch.empty(4096, dtype=dtype), "scale": torch.empty(1)}
    bound = bind(op, torch.empty(8, 4096, dtype=dtype), given, {})
    variant = forward.describe(bound, Target.named(arch)).variant
    assert "View<float8_e4m3, 1, Column::kContiguous" in variant.source
    _, log = compile_cuda(variant.source, arch, ["--ptxas-options=-v"])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log
