# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rotations: both layouts, tables and sides, in place, partial, and what they refuse."""

import dataclasses
import itertools
from typing import ClassVar

import pytest
import torch
from cases import forced, randn, thorough

import fusedops as fo
from fusedops.functors import Functor, Operand, Role
from fusedops.testing import check

ROTATE = fo.Rotate("cos", "sin")
QK = fo.RMSNorm(store=[fo.Affine("g", None), ROTATE], eps=1e-6)
KINDS = [fo.LayerNorm, fo.RMSNorm, fo.L2Norm]
HALF_ULP = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}


def tables(*shape, dims, full=False, dtype=torch.float32, device="cpu"):
    """Cosines and sines of random angles, one for each pair or for each column."""
    count = dims if full else dims // 2
    angle = 9 * randn(*shape, count, dtype=torch.float64, device=device, seed=3)
    return {"cos": angle.cos().to(dtype), "sin": angle.sin().to(dtype)}


def turned(x, cos, sin, interleaved, dims):
    """The rotation in double, and the sizes of the terms of each element."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    lanes = torch.arange(dims, device=x.device)
    first = lanes % 2 == 0 if interleaved else lanes < dims // 2
    partner = lanes ^ 1 if interleaved else (lanes + dims // 2) % dims
    if cos.shape[-1] != dims:
        pair = lanes // 2 if interleaved else lanes % (dims // 2)
        cos, sin = cos[..., pair], sin[..., pair]
    kept, other = x[..., :dims] * cos, x[..., partner] * sin
    y = torch.where(first, kept - other, kept + other)
    rest = x[..., dims:]
    return torch.cat((y, rest), -1), torch.cat((kept.abs() + other.abs(), rest.abs()), -1)


def turned_back(g, cos, sin, interleaved, dims):
    """The gradient: the same by the angles of the other direction, each of its own output."""
    lanes = torch.arange(dims, device=g.device)
    partner = lanes ^ 1 if interleaved else (lanes + dims // 2) % dims
    back = -sin if sin.shape[-1] != dims else -sin[..., partner]
    return turned(g, cos, back, interleaved, dims)


def bounded(found, true, size, dtype):
    """Each element within the roundings of two products, a sum and the storage type."""
    each = 3 * HALF_ULP[torch.float64 if dtype is torch.float64 else torch.float32] * size
    error = (found.double() - true).abs()
    assert (error <= each * 1.01 + HALF_ULP[dtype] * (true.abs() + each)).all()


#: Columns and dims: whole packs, pairs that a pack cuts, odd rows, two columns.
SIZES = [(64, None), (33, 10), (2, None)]
REST = [pytest.param(*one, marks=pytest.mark.thorough) for one in SIZES[1:]]
MORE = [(128, None), (256, None), (20, None), (200, 64), (37, 16), (1030, None), (2050, None)]


def both_passes(columns, dims, interleaved, full, dtype, device, table=torch.float32):
    """A Map of x against the formula, forward and backward with a random upstream gradient."""
    op = fo.Map(load=[fo.Rotate("cos", "sin", interleaved, dims)])
    turns = columns if dims is None else dims
    given = tables(5, 1, dims=turns, full=full, dtype=table, device=device)
    x = randn(2, 5, 3, columns, dtype=dtype, device=device).requires_grad_()
    upstream = randn(*x.shape, dtype=dtype, device=device, seed=5)
    y = op(x, **given)
    (found,) = torch.autograd.grad(y, x, upstream)
    bounded(y.detach(), *turned(x.detach(), *given.values(), interleaved, turns), dtype)
    back = turned_back(upstream, *given.values(), interleaved, turns)
    bounded(found, *back, dtype)


@pytest.mark.parametrize(("interleaved", "full"), [(False, False), (True, True)])
@pytest.mark.parametrize(("columns", "dims"), [SIZES[0], *REST])
def test_a_map(columns, dims, interleaved, full, device):
    both_passes(columns, dims, interleaved, full, torch.float32, device)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize(("columns", "dims"), SIZES + MORE)
def test_every_map(columns, dims, dtype):
    """With tables of one dtype each; the neighbours in each parameter have the other one.

    So any four of size, dtype, layout, form and dtype of the tables occur together.
    """
    place = (SIZES + MORE).index((columns, dims)) + [*HALF_ULP].index(dtype)
    for interleaved, full in itertools.product((False, True), repeat=2):
        half = (place + interleaved + full) % 2 == 1
        table = torch.bfloat16 if half else torch.float32
        both_passes(columns, dims, interleaved, full, dtype, "cuda", table)


def norm_of(kind, interleaved, dims=None, side="store"):
    """A norm with a rotation on a side, and its operand of a number a column."""
    rotate = fo.Rotate("cos", "sin", interleaved, dims)
    if side == "load":
        return kind(load=[fo.Scale("g"), rotate])
    if kind is fo.L2Norm:
        return kind(load=[fo.Scale("g")], store=[rotate])
    return kind(store=[fo.Affine("g", None), rotate])


@pytest.mark.parametrize("interleaved", [False, *thorough(True)])
def test_a_norm_of_queries(interleaved, device):
    """Against torch in double: values, and gradients of x and of gamma."""
    op = norm_of(fo.RMSNorm, interleaved)
    given = tables(5, 1, dims=64, device=device)
    x, g = randn(2, 5, 3, 64, device=device), randn(64, device=device, seed=1)
    upstream = randn(2, 5, 3, 64, device=device, seed=5)
    leaves = [one.clone().requires_grad_() for one in (x, g)]
    exact = [one.double().requires_grad_() for one in (x, g)]
    y = op(leaves[0], g=leaves[1], **given)
    normed = torch.nn.functional.rms_norm(exact[0], (64,), exact[1], 1e-6)
    want, _ = turned(normed, *given.values(), interleaved, 64)
    found = torch.autograd.grad(y, leaves, upstream)
    true = torch.autograd.grad(want, exact, upstream.double())
    for one, exactly in zip((y, *found), (want, *true), strict=True):
        torch.testing.assert_close(one.double(), exactly, rtol=3e-6, atol=3e-6)
    again = torch.autograd.grad(op(leaves[0], g=leaves[1], **given), leaves, upstream)
    assert all(map(torch.equal, found, again))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["load", "store"])
def test_norms_within_their_bounds(kind, side, device):
    op = norm_of(kind, side == "load", 10, side)
    x, g = randn(3, 4, 33, device=device), randn(33, device=device, seed=1)
    check(op, x, g=g, **tables(4, dims=10, device=device))


OF_NORMS = [*SIZES, *MORE, (20000, None)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["load", "store"])
@pytest.mark.parametrize(("columns", "dims"), OF_NORMS)
def test_every_norm(kind, side, columns, dims):
    """With a layout for each dtype; the neighbours in each parameter have the other one.

    So any four of kind, side, size, dtype and layout occur together.
    """
    turns = columns if dims is None else dims
    turned = (KINDS.index(kind) + OF_NORMS.index((columns, dims)) + (side == "load")) % 2 == 1
    for dtype, interleaved in ((torch.bfloat16, turned), (torch.float32, not turned)):
        x = randn(3, 5, columns, dtype=dtype, device="cuda")
        g = randn(columns, dtype=dtype, device="cuda", seed=1)
        given = tables(5, dims=turns, full=interleaved, device="cuda")
        check(norm_of(kind, interleaved, dims, side), x, g=g, **given)


@pytest.mark.gpu
@pytest.mark.parametrize("interleaved", [False, True])
def test_schedules_have_the_same_bits(interleaved):
    op = norm_of(fo.RMSNorm, interleaved)
    given = tables(5, dims=2050, device="cuda")
    x, g = randn(3, 5, 2050, device="cuda"), randn(2050, device="cuda", seed=1)
    y = op(x, g=g, **given)
    for schedule in ("register", "shared", "streaming"):
        with forced(schedule):
            assert torch.equal(op(x, g=g, **given), y)


@pytest.mark.gpu
def test_a_gpu_has_the_bits_of_a_cpu():
    for (columns, dims), interleaved in itertools.product(SIZES, (False, True)):
        op = fo.Map(load=[fo.Rotate("cos", "sin", interleaved, dims)])
        given = tables(5, dims=columns if dims is None else dims)
        x = randn(3, 5, columns)
        y = op(x.cuda(), **{key: one.cuda() for key, one in given.items()})
        assert torch.equal(op(x, **given), y.cpu())


def test_slices_of_a_projection_in_place(device):
    """Q and k as they lie in a packed product, of which the rest stays as it was."""
    packed = randn(2, 7, 6, 64, dtype=torch.bfloat16, device=device)
    given = tables(7, 1, dims=64, device=device)
    g = randn(64, dtype=torch.bfloat16, device=device, seed=1)
    before = packed.clone()
    for part in (slice(0, 3), slice(3, 4)):
        x = packed[:, :, part]
        want = QK(x, g=g, **given)
        assert QK(x, g=g, **given, out=x) is x
        assert torch.equal(x, want)
        assert torch.equal(want, QK(before[:, :, part].contiguous(), g=g, **given))
    assert torch.equal(packed[:, :, 4:], before[:, :, 4:])
    with pytest.raises(ValueError, match="out must overlap neither"):
        QK(packed[:, :, :3], g=g, **given, out=packed[:, :, 1:4])


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [64, 96, 200, 1000, 1024])
def test_every_row_is_read_before_it_is_written(columns):
    """Rows of several threads and warps, many of them, several times."""
    given = tables(16, 1, dims=columns, device="cuda")
    for op, dtype in itertools.product(
        (fo.Map([ROTATE]), QK), (torch.bfloat16, torch.float32, torch.float64)
    ):
        more = {} if op is not QK else {"g": randn(columns, device="cuda", seed=1)}
        if dtype is torch.float64 and columns > 512:  # two blocks may have such a row
            x = randn(4, 16, 8, columns, dtype=dtype, device="cuda")
            with pytest.raises(fo.UnsupportedError, match="up to 512 columns of float64"):
                op(x, **given, **more, out=x)
            continue
        for seed in range(3):
            x = randn(64, 16, 8, columns, dtype=dtype, device="cuda", seed=seed)
            want = op(x, **given, **more)
            op(x, **given, **more, out=x)
            assert torch.equal(x, want)


def test_nan_and_inf_stay_in_their_pairs(device):
    x = torch.ones(1, 8, device=device)
    x[0, 1], x[0, 7] = torch.nan, torch.inf
    y = fo.Map(load=[ROTATE])(x, **tables(dims=8, device=device))
    assert y.isfinite().tolist() == [[True, False, True, False, True, False, True, False]]


def test_no_rows_and_other_dimensions(device):
    op = fo.Map(load=[ROTATE])
    given = tables(dims=8, device=device)
    assert op(torch.ones(0, 8, device=device), **given).shape == (0, 8)
    x = randn(8, 5, device=device)
    columns = {key: one[:, None] for key, one in given.items()}
    assert torch.equal(op(x, **columns, dim=0), op(x.T, **given).T)


X = torch.ones(2, 5, 3, 8)
GIVEN = tables(5, 1, dims=8)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fo.Rotate("cos", "sin", dims=3), "dims must be an even number of columns above 0"),
        (lambda: fo.Map([ROTATE])(X[..., :7], **GIVEN), "needs rows of an even number .*dims="),
        (
            lambda: fo.Map([fo.Rotate("cos", "sin", dims=10)])(X, **GIVEN),
            "needs rows of 10 columns at least, got 8",
        ),
        (lambda: fo.Map([ROTATE])(X, **tables(5, dims=8)), r"does not broadcast.*cos\[:, None\]"),
        (lambda: fo.Map([ROTATE])(X, **tables(5, 1, dims=6)), "must have 4 columns, one for each"),
        (
            lambda: fo.Map([ROTATE])(X, cos=GIVEN["cos"], sin=tables(dims=8, full=True)["sin"]),
            "as many columns as each other, got 4 and 8",
        ),
        (
            lambda: fo.LayerNorm(store=[ROTATE])(X, **GIVEN, dim=(2, 3)),
            "pairs the columns of one dimension",
        ),
        (lambda: fo.Softmax(load=[ROTATE]), "Softmax: .* it reads a partner column"),
        (lambda: fo.Linear(store=[ROTATE]), "Linear: .* it reads a partner column"),
        (lambda: fo.GroupNorm(2, store=[ROTATE]), "GroupNorm: .* it reads a partner column"),
        (lambda: fo.Map(load=[ROTATE, ROTATE]), "a declaration has one"),
        (lambda: fo.RMSNorm(load=[ROTATE], store=[fo.Rotate("c", "s")]), "a declaration has one"),
        (lambda: fo.Map(load=[fo.Save("z"), ROTATE]), "Save.* cannot stand beside Rotate"),
        (lambda: fo.RMSNorm(load=[fo.Mask("m")], store=[ROTATE]), "Mask.* cannot stand beside"),
        (lambda: fo.RMSNorm(store=[fo.Tap("z"), ROTATE]), "Tap.* cannot stand beside Rotate"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_refusals_of_other_kinds():
    with pytest.raises(TypeError, match="dims must be an even number of columns"):
        fo.Rotate("cos", "sin", dims=2.0)
    with pytest.raises(TypeError, match="operand 'sin' must be a floating-point tensor"):
        fo.Map([ROTATE])(X, cos=GIVEN["cos"], sin=1.0)
    leaf = GIVEN["cos"].clone().requires_grad_()
    with pytest.raises(fo.UnsupportedError, match=r"cos of Rotate.* requires grad.* detach\(\) it"):
        fo.Map([ROTATE])(X, cos=leaf, sin=GIVEN["sin"])
    long = torch.ones(1, 2000)
    with pytest.raises(fo.UnsupportedError, match=r"out=, which may be x, .* got 2000"):
        fo.Map([ROTATE])(long, **tables(dims=2000), out=torch.empty(1, 2000))


@dataclasses.dataclass(frozen=True)
class Paired(Functor):
    """``s * x * partner`` for the halves of a row of 12 columns, a functor of one's own."""

    s: str
    pairs: ClassVar[bool] = True
    headers: ClassVar[tuple[str, ...]] = ("row/view.cuh",)
    definition: ClassVar[str] = """
namespace fusedops {
template <class Factor>
struct Paired {
  Factor s;
  static constexpr bool kPairs = true, kNeighbours = false;
  static constexpr int kPairWidth = 2;
  FUSEDOPS_HD int64_t partner(int64_t col) const { return (col + 6) % 12; }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void paired(Compute (&v)[N], const Compute (&partner)[N], const Row& row,
                          int64_t col) const {
    const auto factor = s.template fetch<N, Compute>(row, col);
    for (int i = 0; i < N; ++i) v[i] *= factor[i] * partner[i];
  }
  template <int N, class Compute, class Row, class Sink>
  FUSEDOPS_HD void paired_backward(Compute (&g)[N], const Compute (&of_partner)[N],
                                   const Compute (&in)[N], const Compute (&partner)[N],
                                   const Row& row, int64_t col, Sink& sink) const {
    const auto factor = s.template fetch<N, Compute>(row, col);
    const auto other = s.template fetch<N, Compute>(row, this->partner(col));
    Compute of_factor[N];
    for (int i = 0; i < N; ++i) {
      of_factor[i] = g[i] * in[i] * partner[i];
      g[i] = (g[i] * factor[i] + of_partner[i] * other[i]) * partner[i];
    }
    sink.template add<0>(of_factor, row, col);
  }
};
}
"""

    def operands(self):
        return (Operand(self.s, Role.VALUE),)

    def apply(self, x, chain):
        return x * chain.value(self.s) * x.roll(6, -1)

    def emit(self, writer):
        return f"Paired<{writer.operand(self.s)}>"


@pytest.mark.parametrize("kind", [fo.Map, pytest.param(fo.LayerNorm, marks=pytest.mark.thorough)])
def test_a_functor_of_ones_own(kind, device):
    """Its gradient reads both values, and its operand, before and behind it functors, has one."""
    chain = [fo.Bias("b"), Paired("s"), fo.Scale("t")]
    op = kind(load=chain) if kind is fo.Map else kind(store=chain)
    x, s = randn(3, 4, 12, device=device), randn(12, device=device, seed=1)
    given = {"b": randn(12, device=device, seed=2), "s": s, "t": randn(4, 1, device=device)}
    leaves = [one.requires_grad_() for one in (x, *given.values())]
    exact = [one.detach().double().requires_grad_() for one in leaves]
    y = op(x, **given)
    want = op.unfused(exact[0], **dict(zip(given, exact[1:], strict=True)))
    upstream = randn(3, 4, 12, device=device, seed=5)
    found = torch.autograd.grad(y, leaves, upstream)
    true = torch.autograd.grad(want, exact, upstream.double())
    for one, exactly in zip((y, *found), (want, *true), strict=True):
        torch.testing.assert_close(one.double(), exactly, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_tap_behind_a_rotation(device):
    """The rotated value before a scale; its gradient joins at both columns of a pair."""
    op = fo.RMSNorm(store=[ROTATE, fo.Tap("turned"), fo.Scale("s")])
    x = randn(4, 16, device=device).requires_grad_()
    given = tables(4, dims=16, device=device)
    y, tap = op(x, s=2.0, **given)
    ups = randn(2, 4, 16, device=device, seed=5)
    (found,) = torch.autograd.grad([y, tap], x, [*ups])
    result = op.unfused(x, s=2.0, **given)
    (want,) = torch.autograd.grad([*result], x, [*ups])
    torch.testing.assert_close(found, want)
    assert torch.equal(tap * 2, y)
