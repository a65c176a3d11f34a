# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear of factors of 8 bits with their scales: by torch's product, or dequantised."""

import pickle

import pytest
import torch
from cases import poisoned, randn

import fusedops as fo
from fusedops.product import factor_scales
from fusedops.testing import check

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAMES = ("sx", "sw")
OP = fo.Linear(scales=NAMES)
LATER = (((36, 512), 256), ((7, 128), 128), ((2, 640), 48))
BY_BLOCK = fo.Map(store=[fo.DynamicQuantize(E4M3, per=128)])


def factors(device, shape, outputs, of="squares", kind=E4M3):
    """Factors, and scales: of rows, of blocks of rows, or those of w of 128 x 128."""
    x, w = randn(*shape, device=device), randn(outputs, shape[-1], device=device, seed=1)
    w *= torch.linspace(0.1, 3, w.numel(), device=device).view(w.shape)
    per = "row" if of == "rows" else 128
    a, sx = fo.Map(store=[fo.DynamicQuantize(kind, per=per)])(x)
    b, sw = fo.Map(store=[fo.DynamicQuantize(E4M3, per=per)])(w)
    if of == "squares":
        sw = torch.stack([rows.amax(0) for rows in sw.split(128)])
        wide = sw.repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, : w.shape[1]]
        b = (w / wide).to(E4M3)
    return a, b, {"sx": sx, "sw": sw}


def exact(a, b, sx, sw):
    """The product in float64, a block of K at a time, and the sum of the sizes of its terms."""
    value, size = 0.0, 0.0
    sx, sw = sx.double(), sw.double()
    if len(sw) != len(b):
        sw = sw.repeat_interleave(128, 0)[: len(b)]
    blocks = -(-a.shape[-1] // 128)
    sx, sw = sx.expand(*sx.shape[:-1], blocks), sw.expand(len(b), blocks)
    for block in range(blocks):
        columns = slice(128 * block, 128 * (block + 1))
        left, right = a[..., columns].double(), b[:, columns].double()
        scale = sx[..., block, None] * sw[:, block]
        value = value + left @ right.t() * scale
        size = size + left.abs() @ right.abs().t() * scale
    return value, size


def assert_near(y, value, size):
    """One rounding to bfloat16, and sums in tensor cores, which keep 13 bits of a partial sum."""
    assert y.dtype == torch.bfloat16
    assert y.shape == value.shape
    off = 2.0**-8 * value.abs() + 2.0**-12 * size
    assert ((y.double() - value).abs() <= off).all()


@pytest.mark.parametrize("of", ["squares", "blocks", "rows"])
@pytest.mark.parametrize(
    ("shape", "outputs"),
    [
        ((3, 5, 300), 200),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in LATER),
    ],
)
def test_by_definition(device, shape, outputs, of):
    a, b, scales = factors(device, shape, outputs, of)
    want = exact(a, b, **scales)
    assert_near(OP(a, b, **scales), *want)
    assert_near(OP.unfused(a, b, **scales), *want)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "layout", "of"), [(E4M3, "rows", "squares"), (E5M2, "columns", "rows")]
)
def test_within_the_bound(device, kind, layout, of):
    a, b, given = factors(device, (12, 384), 128, of, kind)
    if layout == "columns":
        given["sx"] = given["sx"].t().contiguous()
    bias, residual = randn(128, device=device, seed=2), randn(12, 128, device=device, seed=3)
    op = fo.Linear(store=[fo.Bias("b"), fo.GELU(), fo.Residual("r")], scales=NAMES, layout=layout)
    assert check(op, a, b, **given, b=bias, r=residual).passed


def test_ways_of_one_product(device):
    """Scales in columns, strides, odd rows, one row, no rows; y in a given tensor."""
    a, b, given = factors(device, (36, 256), 128)
    sx, sw = given["sx"], given["sw"]
    wide = torch.full((36, 512), 1.0, device=device).to(E4M3)
    wide[:, ::2] = a
    columns = fo.Linear(scales=NAMES, layout="columns")
    want = OP(a, b, **given)
    assert torch.equal(columns(a, b, sx=sx.t().contiguous(), sw=sw), want)
    assert torch.equal(columns(a, b, sx=sx.t(), sw=sw), want)
    rows = factors(device, (36, 256), 128, "rows")
    turned = rows[2]["sx"].t().contiguous()
    assert torch.equal(columns(*rows[:2], sx=turned, sw=rows[2]["sw"]), OP(*rows[:2], **rows[2]))
    every = sw.repeat_interleave(128, 0)
    assert_near(OP(a, b, sx=sx, sw=every), *exact(a, b, **given))
    for x, of_x in (
        (wide[:, ::2], sx),
        (a[::3], sx[::3]),
        (a[:7], sx[:7]),
        (a[5], sx[5]),
        (a[:0], sx[:0]),
        (a.view(2, 18, 256), sx.view(2, 18, 2)),
    ):
        assert_near(OP(x, b, sx=of_x, sw=sw), *exact(x, b, of_x, sw))
    made, intact = poisoned((36, 128), torch.bfloat16, device)
    assert OP(a, b, **given, out=made) is made
    assert torch.equal(made, want)
    assert intact()


def test_what_is_not_finite(device):
    """A scale of NaN, which a block with Inf or NaN gets, makes a row of NaN, and no other one."""
    x = randn(8, 256, device=device)
    x[2, 200] = torch.inf
    a, sx = BY_BLOCK(x)
    b, sw = BY_BLOCK(randn(128, 256, device=device, seed=1))
    y = OP(a, b, sx=sx, sw=sw)
    assert y[2].isnan().all()
    assert y[torch.arange(8) != 2].isfinite().all()


@pytest.mark.thorough
def test_one_product_makes_the_factor_of_the_next(device):
    a, b, given = factors(device, (32, 256), 384)
    _, d, further = factors(device, (32, 384), 128)
    first = fo.Linear(
        store=[fo.GELU(), fo.DynamicQuantize(E4M3, per=128, layout="columns")], scales=NAMES
    )
    second = fo.Linear(scales=NAMES, layout="columns")
    h, scales = first(a, b, **given)
    plain = fo.Linear(store=[fo.GELU()], scales=NAMES)(a, b, **given, dtype=torch.float32)
    want, known = BY_BLOCK(plain)
    assert torch.equal(h.view(torch.uint8), want.view(torch.uint8))
    assert torch.equal(scales.t(), known)
    y = second(h, d, sx=scales, sw=further["sw"])
    assert_near(y, *exact(h, d, known, further["sw"]))


def test_gradients_and_reports(device):
    """Operands of the STORE have theirs; factors and scales have none."""
    a, b, given = factors(device, (4, 256), 16)
    op = fo.Linear(store=[fo.Bias("b"), fo.SiLU()], scales=NAMES)
    bias = randn(16, device=device, seed=2).requires_grad_()
    upstream = randn(4, 16, device=device, dtype=torch.bfloat16, seed=5)
    (found,) = torch.autograd.grad(op(a, b, **given, b=bias), bias, upstream)
    z = OP(a, b, **given).float() + bias
    (want,) = torch.autograd.grad(torch.nn.functional.silu(z), bias, upstream.float())
    assert torch.allclose(found, want, rtol=1e-4, atol=1e-4)
    told = op.explain(a, b, **given, b=bias)
    assert "scales" not in str(fo.Linear().explain(a, b))
    assert "sx and sw" in str(told)
    assert {"sx", "sw"} <= {bar.name for bar in told.fused}
    assert told.bytes == sum(bar.bytes for bar in told.fused)


def test_it_is_a_value():
    op = fo.Linear(store=[fo.SiLU()], scales=NAMES, layout="columns")
    assert pickle.loads(pickle.dumps(op)) == op
    assert repr(op) == "Linear(store=[SiLU()], scales=('sx', 'sw'), layout='columns')"
    assert op != fo.Linear(store=[fo.SiLU()], scales=NAMES)
    assert op != fo.Linear(store=[fo.SiLU()])
    assert repr(fo.Linear()) == "Linear()"


@pytest.mark.thorough
def test_in_compiled_code(device):
    a, b, given = factors(device, (36, 256), 128)
    op = fo.Linear(store=[fo.Bias("b"), fo.GELU()], scales=NAMES)
    given["b"] = randn(128, device=device, seed=2)
    compiled = torch.compile(
        lambda x, w, **given: op(x, w, **given), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(a, b, **given), op(a, b, **given))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert torch.equal(op(a, b, **given), op(a, b, **given))


def called(op=OP, kind=E4M3, of_w=None, **changed):
    """A call of ones, with what is changed of it."""
    given = {"sx": torch.ones(4, 2), "sw": torch.ones(2, 2), **changed}
    given = {key: one for key, one in given.items() if one is not None}
    return lambda: op(torch.ones(4, 256).to(kind), torch.ones(130, 256).to(of_w or kind), **given)


def declared(*functors, **options):
    return lambda: fo.Linear(store=functors, **options)


REFUSED = {
    "columns": (
        called(sx=torch.ones(2, 4)),
        ValueError,
        r"sx must have shape \(4, 1\) or \(4, 2\).*layout='columns'",
    ),
    "rows": (
        called(fo.Linear(scales=NAMES, layout="columns")),
        ValueError,
        r"sx must have shape \(1, 4\) or \(2, 4\).*layout='rows'",
    ),
    "of w": (called(sw=torch.ones(2, 3)), ValueError, r"sw must have .* \(2, 2\) or \(130, 2\)"),
    "of rows and blocks": (
        called(sx=torch.ones(4, 1)),
        ValueError,
        r"sw must have shape \(130, 1\).*row of w, as sx has one",
    ),
    "of blocks and rows": (called(sw=torch.ones(130, 1)), ValueError, r"sw must have shape \(2, 2"),
    "of halves": (called(kind=torch.half), TypeError, "x must be float8, as scales"),
    "x of halves": (called(kind=torch.half, of_w=E4M3), TypeError, "x must be float8, as scales"),
    "w of halves": (called(of_w=torch.half), TypeError, "w must be float8, as scales"),
    "a number": (called(sw=1.0), TypeError, "sw must be"),
    "a dtype": (called(sx=torch.ones(4, 2).double()), TypeError, "sx must be a tensor of"),
    "missing": (called(sw=None), TypeError, "'sw' is missing"),
    "no operand": (called(sz=1.0), TypeError, "unknown operand 'sz'"),
    "a device": (called(sx=torch.ones(4, 2, device="meta")), ValueError, "sx must be on x's dev"),
    "a gradient": (
        called(sw=torch.ones(2, 2, requires_grad=True)),
        fo.UnsupportedError,
        r"call sw\.detach\(\)",
    ),
    "one name": (declared(scales=("a",)), TypeError, "names two operands"),
    "one name twice": (declared(scales=("a", "a")), ValueError, "differ from one another"),
    "a factor": (declared(scales=("x", "a")), ValueError, "from x and w"),
    "no name": (declared(scales=("a b", "a")), ValueError, "usable as a keyword"),
    "taken": (declared(fo.Bias("a"), scales=("a", "b")), ValueError, "than 'a'"),
    "no layout": (declared(scales=("a", "b"), layout="tiles"), ValueError, "'rows', 'col"),
    "a layout alone": (declared(layout="columns"), ValueError, "leave layout out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("of", ["squares", "blocks", "rows"])
@pytest.mark.parametrize(
    ("shape", "outputs"), [((64, 512), 256), ((6, 384), 144), ((1, 128), 256), ((36, 528), 192)]
)
def test_torch_multiplies_with_them(monkeypatch, shape, outputs, of):
    """The product by torch and that of dequantised factors, with any rows and blocks."""
    capability = torch.cuda.get_device_capability()
    if capability < (8, 9) or (of != "rows" and capability != (9, 0)):
        pytest.skip("torch has no such product here")
    a, b, given = factors("cuda", shape, outputs, of)
    assert OP.scales.by_torch(a, b, *map(given.get, NAMES))
    want = exact(a, b, **given)
    assert_near(OP(a, b, **given), *want)
    monkeypatch.setattr(factor_scales, "torch_scales", lambda x, w, of_rows: False)
    assert_near(OP(a, b, **given), *want)


@pytest.mark.gpu
@pytest.mark.parametrize("of", ["squares", "blocks", "rows"])
def test_one_row_of_several(of):
    """Its scales begin at no multiple of 16 bytes."""
    a, b, given = factors("cuda", (6, 384), 144, of)
    for row in (slice(3, 4), slice(1, 4)):
        own = {"sx": given["sx"][row], "sw": given["sw"]}
        assert_near(OP(a[row], b, **own), *exact(a[row], b, **own))


@pytest.mark.gpu
def test_in_a_graph():
    a, b, given = factors("cuda", (64, 384), 256)
    op = fo.Linear(store=[fo.SiLU()], scales=NAMES)
    want = op(a, b, **given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = op(a, b, **given)
    graph.replay()
    assert torch.equal(made, want)
