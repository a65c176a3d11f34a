# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantize with a gradient: y is what the 8 bits stand for, and dy that of the value."""

import pytest
import torch
from cases import poisoned, randn, thorough
from exported import Call, Library

import fusedops as fo
from fusedops.testing import check

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def quantize(kind=E4M3, per="row", **options):
    return fo.DynamicQuantize(kind, per=per, **options)


def through(kind=E4M3, per="row", **options):
    return quantize(kind, per, gradient="straight_through", **options)


def awkward(rows, columns, dtype):
    """Rows of usual values, of zeros, of the least numbers, and with what is not finite."""
    x = randn(rows, columns, seed=columns)
    x[1] = 0
    x[2] *= 1e-37
    x[3, columns - 1] = torch.nan
    x[4, 0] = torch.inf
    x[5] = 448 * 2.0 ** (torch.arange(columns) % 9 - 4)
    return x.to(dtype)


CASES = [
    (E4M3, "row", False, torch.float32, 130),
    (E5M2, 64, True, torch.float32, 130),
    *thorough(
        (E5M2, "row", True, torch.bfloat16, 1024),
        (E5M2, 16, False, torch.float64, 130),
        (E4M3, "row", False, torch.float64, 1),
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_value(device, case):
    """The 8 bits times their scale, rounded once to y's dtype, and the same scales, to the bit."""
    kind, per, powers, dtype, columns = case
    x = awkward(7, columns, dtype).to(device)
    eight, scales = fo.Map(store=[quantize(kind, per, powers_of_two=powers)])(x)
    op = fo.Map(store=[through(kind, per, powers_of_two=powers)])
    size = columns if per == "row" else per
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    want = eight.to(wide) * scales.to(wide).repeat_interleave(size, -1)[:, :columns]
    for y, found in (op(x), op.unfused(x)):
        assert y.dtype == dtype
        assert torch.equal(y.nan_to_num(7), want.to(dtype).nan_to_num(7))
        assert torch.equal(y.isnan(), want.isnan())
        assert torch.equal(found.nan_to_num(7), scales.nan_to_num(7))


def differentiated(op, given, upstream):
    """The gradients of all tensors of a call."""
    leaves = {key: one.detach().requires_grad_() for key, one in given.items()}
    result = op(leaves["x"], **{key: one for key, one in leaves.items() if key != "x"})
    outputs = [getattr(result, key) for key in upstream] if len(op.outputs) > 1 else [result]
    return torch.autograd.grad(outputs, [*leaves.values()], [*upstream.values()])


@pytest.mark.parametrize("per", ["row", *thorough(128)])
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.bfloat16)], ids=str)
def test_gradients_are_those_without_it(device, per, dtype):
    """Of y and of the saved stream, with odd columns and upstream gradients at random.

    On a CPU to the bit; on a GPU the forward passes may add up squares in another order.
    """
    close = {"rtol": 0, "atol": 0} if device == "cpu" else {}
    given = {
        "x": randn(5, 299, device=device, dtype=dtype),
        "r": randn(5, 299, device=device, dtype=dtype, seed=1),
        "g": randn(299, device=device, dtype=dtype, seed=2),
    }
    upstream = {
        "y": randn(5, 299, device=device, dtype=dtype, seed=3),
        "s": randn(5, 299, device=device, dtype=dtype, seed=4),
    }
    ops = [
        fo.RMSNorm(load=[fo.Residual("r", save="s")], store=[fo.Affine("g", None), *last])
        for last in ([], [through(per=per)])
    ]
    want, found = (differentiated(op, given, upstream) for op in ops)
    torch.testing.assert_close(found, want, **close)
    alone = [differentiated(op, given, {"y": upstream["y"]}) for op in ops]
    torch.testing.assert_close(*alone, **close)
    result = ops[1](given["x"].requires_grad_(), r=given["r"], g=given["g"])
    assert result.y.requires_grad
    assert not result.scales.requires_grad


OPS = {
    "softmax": (fo.Softmax(store=[through()]), {}),
    "rms": (fo.RMSNorm(store=[fo.Affine("g", None), through(per=16)]), {"g": (70,)}),
    "product": (fo.Linear(store=[fo.Bias("b"), fo.SiLU(), through()]), {"b": (64,)}),
    "gate": (fo.Map(load=[fo.Gate("h", "silu")], store=[through()]), {"h": (4, 70)}),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param("rms", marks=pytest.mark.thorough)]
    + [pytest.param(name, marks=pytest.mark.exhaustive) for name in ("softmax", "gate", "product")],
)
def test_within_the_bound(device, name):
    op, shapes = OPS[name]
    given = {key: randn(*shape, device=device, seed=1) for key, shape in shapes.items()}
    factors = [randn(4, 70, device=device)]
    if name == "product":
        factors.append(randn(64, 70, device=device, seed=2))
    assert check(op, *factors, **given).passed


@pytest.mark.thorough
def test_exported(tmp_path):
    op = fo.RMSNorm(store=[fo.Affine("g", None), through(per=16)])
    x, g = randn(9, 104), randn(104, seed=1)
    header = fo.export(op, x, g=g, name="norm", arch="cpu")
    Call(op, x, {"g": g}).check(Library(tmp_path, header), "norm")


def test_odd_calls(device):
    """No rows, a given y, another dtype, strides, and an x that wants no gradient."""
    op = fo.Map(store=[through(per=16)])
    x = randn(6, 64, device=device)
    y, intact = poisoned((6, 64), torch.float32, device)
    made = op(x, out=(y, None))
    assert made.y is y
    assert intact()
    assert not made.y.requires_grad
    for other in (x[::2], x[:, ::2], x[:, 1:50], x[0]):
        assert torch.equal(op(other).y, op(other.contiguous()).y)
    wide = x.bfloat16().requires_grad_()
    half = op(wide, dtype=torch.float32).y
    assert half.dtype == torch.float32
    upstream = randn(6, 64, device=device, seed=1)
    (found,) = torch.autograd.grad(half, wide, upstream)
    assert torch.equal(found, upstream.bfloat16())
    none = x[:0].requires_grad_()
    assert op(none).y.shape == (0, 64)
    x[0, 3], x[1, 20] = torch.inf, torch.nan
    for call in (op, op.unfused):  # the gradient is dy of every element
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(call(leaf).y, leaf, upstream)
        assert torch.equal(found, upstream)


@pytest.mark.thorough
def test_in_compiled_code(device):
    op = fo.RMSNorm(store=[fo.Affine("g", None), through(per=64)])
    given = {"x": randn(5, 200, device=device), "g": randn(200, device=device, seed=1)}
    upstream = {"y": randn(5, 200, device=device, seed=2)}

    def compiled(x, g):
        return torch.compile(lambda x, g: op(x, g=g), fullgraph=True, backend="aot_eager")(x, g)

    compiled.outputs = op.outputs
    want = differentiated(op, given, upstream)
    leaves = {key: one.detach().requires_grad_() for key, one in given.items()}
    found = torch.autograd.grad(compiled(**leaves).y, [*leaves.values()], [upstream["y"]])
    for one, other in zip(found, want, strict=True):
        assert torch.equal(one, other)


REFUSED = {
    "another word": (lambda: through().__class__(E4M3, gradient="identity"), "'straight_through'"),
    "exponents": (lambda: through(per=32, scale_dtype=torch.float8_e8m0fnu), "nothing saturates"),
    "4 bits": (lambda: through(torch.float4_e2m1fn_x2), "nothing saturates"),
    "before a product": (lambda: fo.MLP(hidden=[through()]), "before a product"),
    "not last": (lambda: fo.Softmax(store=[through(), fo.Scale("t")]), "must be the last"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_its_text():
    """A declaration that does not use it keeps its text."""
    assert "gradient" not in repr(quantize())
    assert eval(repr(through(per=16)), {"torch": torch, "DynamicQuantize": fo.DynamicQuantize})
