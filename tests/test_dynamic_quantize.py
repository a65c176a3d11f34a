# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""DynamicQuantize: scales that a call finds, y of 8 bits by these, and what each refuses."""

import dataclasses
import pickle

import pytest
import torch
from cases import poisoned, randn, thorough, thorough_points
from cpptest import place
from exported import Library
from test_float8 import KINDS, nearest
from test_quantize import codes, same
from test_variants import check_compiles, described

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.functors import BLOCK_LAYOUTS, Stream
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan import forward
from fusedops.testing import check

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
E2M1 = torch.float4_e2m1fn_x2

#: Keywords of each kind of scale.
SCALES = {"nearest": {}, "powers": {"powers_of_two": True}, "e8m0": {"scale_dtype": E8M0}}


def expected(value, kind, per, scale="nearest"):
    """Codes and scales of a value of float32 or float64, by its definition; scales as doubles."""
    value = value.detach().cpu().contiguous()
    columns, most = value.shape[-1], torch.finfo(kind).max
    size = columns if per == "row" else per
    y, scales = torch.empty(value.shape, dtype=torch.uint8), []
    for first in range(0, columns, size):
        block = value[..., first : first + size]
        amax = block.float().abs().amax(-1, keepdim=True)
        bad, zero = ~amax.isfinite(), amax == 0
        if scale == "e8m0":
            exponent = torch.frexp(amax.double())[1] - 1 - (8 if kind == E4M3 else 15)
            found = torch.ldexp(torch.ones_like(amax).double(), exponent.clamp(min=-127))
        else:
            found = (amax / most).clamp(min=2.0**-126).double()
            if scale == "powers":
                mantissa, exponent = torch.frexp(found)
                exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
                found = torch.ldexp(torch.ones_like(found), exponent)
        found = found.masked_fill(zero, 1).masked_fill(bad, torch.nan)
        inverse = (1 / found).float().to(value.dtype)
        y[..., first : first + size] = nearest(block * inverse, kind)
        scales.append(found)
    return y, torch.cat(scales, -1)


def awkward(rows, columns, dtype=torch.float32):
    """Rows of usual values, of zeros, of the ends of the range, and with blocks that break."""
    x = randn(rows, columns, dtype=dtype, seed=rows + columns)
    x[1 % rows] = 0
    x[2 % rows] *= 1e-38
    x[3 % rows, : columns // 2] = -3.3e38 if dtype != torch.float16 else -6e4
    x[4 % rows, columns - 1] = torch.inf
    x[5 % rows, columns // 3] = torch.nan
    x[6 % rows] = 448 * 2.0 ** (torch.arange(columns) % 9 - 4).to(dtype)
    x[7 % rows, columns // 2 :] = 0
    return x


def agree(result, value, kind, per, scale="nearest", first=False):
    want, scales = expected(value, kind, per, scale)
    found = result.scales.double().cpu()
    assert same(codes(result.y), want)
    assert torch.equal(
        (found.movedim(0, -1) if first else found).nan_to_num(-1), scales.nan_to_num(-1)
    )


@pytest.mark.parametrize("columns", [1, 130, 1024, *thorough(5, 40, 1001, 5000)])
@pytest.mark.parametrize(
    ("per", "scale"), [("row", "nearest"), (128, "powers"), (32, "e8m0"), (16, "nearest")]
)
def test_by_definition(device, columns, per, scale):
    """To the bit, with zeros, subnormals, the largest floats, Inf and NaN."""
    op = fo.Map(store=[fo.DynamicQuantize(E4M3, per=per, **SCALES[scale])])
    x = awkward(8, columns)
    result = op(x.to(device))
    assert result.scales.shape == (8, 1 if per == "row" else -(-columns // per))
    agree(result, x, E4M3, per, scale)
    agree(op.unfused(x.to(device)), x, E4M3, per, scale)
    zero = result.scales[1].float()
    assert torch.equal(zero, torch.ones_like(zero))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=str)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("per", ["row", 64])
def test_every_kind(device, dtype, kind, scale, per):
    op = fo.Map(store=[fo.DynamicQuantize(kind, per=per, layout="columns", **SCALES[scale])])
    x = awkward(8, 264, dtype)
    value = x if dtype == torch.float64 else x.float()
    agree(op(x.to(device)), value, kind, per, scale, first=True)
    agree(op.unfused(x.to(device)), value, kind, per, scale, first=True)


OPS = {
    "rms": lambda store: fo.RMSNorm(
        load=[fo.Residual("r", save="stream")], store=[fo.Affine("g", None), *store]
    ),
    "layer": lambda store: fo.LayerNorm(store=[fo.Affine("g", "b"), *store]),
    "softmax": lambda store: fo.Softmax(load=[fo.Lengths("n")], store=store),
    "gate": lambda store: fo.Map(load=[fo.Gate("h", "silu")], store=store),
}


def given_to(name, x):
    columns, device = x.shape[-1], x.device
    every = {
        "r": randn(*x.shape, seed=1, device=device),
        "h": randn(*x.shape, seed=2, device=device),
        "g": randn(columns, seed=3, device=device),
        "b": randn(columns, seed=4, device=device),
        "n": columns - columns // 4,
    }
    return {key: every[key] for key in OPS[name]([]).slots}


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("columns", "per"),
    [
        (1000, "row"),
        (1000, 128),
        *thorough_points((17000, "row"), (70001, "row"), (70001, 128)),
    ],
)
def test_of_what_the_store_makes(device, name, columns, per):
    """A Tap before it has the value of which y and scales are, to the bit."""
    op = OPS[name]([fo.Tap("v"), fo.DynamicQuantize(E4M3, per=per)])
    x = randn(9, columns, device=device)
    result = op(x, **given_to(name, x))
    agree(result, result.v, E4M3, per)


@pytest.mark.parametrize(
    ("name", "per"), [("gate", 32), *thorough_points(("rms", "row"), ("softmax", 32))]
)
def test_within_the_bound(device, name, per):
    op = OPS[name]([fo.DynamicQuantize(E4M3, per=per)])
    x = randn(3, 5, 72, device=device)
    assert check(op, x, **given_to(name, x)).passed


def verify_means(device, columns, per):
    """Rows by their mean in deviations, and such as squares of values say nothing of."""
    means = torch.tensor([0, 0.5, 0.99, 1.01, 3, 40, 0, 0]).unsqueeze(1)
    x = (randn(8, columns, seed=columns).double() + means).bfloat16()
    x[5, 1:] = x[5, 0]  # one element deviates
    x[5, -1] += 1
    x[6] = 1e30  # whose squares overflow, and deviations are zero
    x[7] *= 1e-25
    op = fo.LayerNorm(store=[fo.DynamicQuantize(E4M3, per=per)])
    result = op(x.to(device))
    others = op(x[:2].repeat(16, 1).to(device))
    assert torch.equal(others.scales[:2], result.scales[:2]), "bits depend on neighbouring rows"
    true = torch.nn.functional.layer_norm(x.double(), (columns,))
    size = columns if per == "row" else per
    blocks = torch.nn.functional.pad(true, (0, -columns % size)).unflatten(-1, (-1, size))
    amax = blocks.abs().amax(-1)
    wanted = torch.where(amax == 0, 1, amax / 448)
    # Sums of 64 values a lane and of lanes, whose roundings cancel at worst half of the digits that
    # the mean takes, and one rounding of the mean.
    off = (result.scales.cpu().double() - wanted).abs()
    assert (off <= 2.0**-20 * wanted + 2.0**-23 / 448).all(), (off / wanted).amax(-1)


@pytest.mark.parametrize(
    ("columns", "per"), [(1024, "row"), *thorough_points((1001, 16), (8192, 128))]
)
def test_means_and_deviations(device, columns, per):
    verify_means(device, columns, per)


def test_odd_tensors(device):
    """Other rows and columns of one form, strides, a misaligned x, out=, no rows, other dims."""
    op = fo.Map(store=[fo.DynamicQuantize(E4M3, per=16)])
    wide = randn(6, 64, device=device)
    for x in (wide[:, :48], wide[:5, 1:48], wide[::2], wide.t(), wide[:, ::2], wide[0], wide[:1]):
        agree(op(x), x, E4M3, 16)
    three = randn(2, 3, 40, device=device)
    result = op(three)
    assert result.scales.shape == (2, 3, 3)
    agree(result, three, E4M3, 16)
    y, y_intact = poisoned((6, 64), E4M3, device)
    scales, intact = poisoned((6, 4), torch.float32, device)
    made = op(wide, out=(y, scales))
    assert made.scales is scales
    assert intact()
    assert y_intact()
    agree(made, wide, E4M3, 16)
    none = op(wide[:0])
    assert none.y.shape == (0, 64)
    assert none.scales.shape == (0, 4)
    turned = fo.Map(store=[fo.DynamicQuantize(E4M3)])(wide, dim=0)
    assert turned.scales.shape == (64, 1)
    want, of_rows = expected(wide.t(), E4M3, "row")
    assert same(codes(turned.y).t(), want)
    assert torch.equal(turned.scales.double().cpu(), of_rows)
    norm = fo.RMSNorm(store=[fo.Tap("v"), fo.DynamicQuantize(E4M3, per=32)])
    both = norm(three, dim=(1, 2))
    assert both.scales.shape == (2, 4)
    want, of_blocks = expected(both.v.flatten(1), E4M3, 32)
    assert same(codes(both.y).flatten(1), want)
    assert torch.equal(both.scales.double().cpu(), of_blocks)


@pytest.mark.parametrize("shape", [(5, 50, 130), *thorough((3, 40), (130, 1000))])
def test_tiles(device, shape):
    """The number of row r and block b by its place, and zeros where no row or block is."""
    ops = [
        fo.Map(store=[fo.DynamicQuantize(E4M3, per=16, scale_dtype=E8M0, layout=layout)])
        for layout in ("rows", "tiles")
    ]
    x = randn(*shape, device=device)
    rows = ops[0](x).scales.view(torch.uint8).flatten(0, -2).cpu()
    across = -(-rows.shape[1] // 4)
    want = torch.zeros(-(-len(rows) // 128) * across * 512, dtype=torch.uint8)
    for r, row in enumerate(rows):
        b = torch.arange(len(row))
        tile = r // 128 * across + b // 4
        want[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + b % 4] = row
    for made in (ops[1](x), ops[1].unfused(x)):
        found = made.scales.view(torch.uint8).cpu()
        assert torch.equal(found[want > 0], want[want > 0])
        assert found.shape == want.shape
    assert torch.equal(ops[1](x).scales.view(torch.uint8).cpu(), want)


FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def nearest_of_four_bits(values):
    """The codes of the nearest numbers of 4 bits, ties to even, saturated; NaN is 7."""
    size = values.double().abs().clamp(max=6)
    above = torch.searchsorted(FOUR_BITS, size).clamp(1, 7)
    low, high = FOUR_BITS[above - 1], FOUR_BITS[above]
    up = (2 * size > low + high) | ((2 * size == low + high) & (above % 2 == 0))
    code = torch.where(up, above, above - 1) + 8 * torch.signbit(values)
    return torch.where(values.isnan(), 7, code).to(torch.uint8)


def unpacked(y):
    """The codes of a y of 4 bits."""
    both = y.view(torch.uint8).cpu()
    return torch.stack([both & 15, both >> 4], -1).flatten(-2)


@pytest.mark.parametrize(
    "dtype", [torch.float32, *thorough(torch.float64, torch.bfloat16)], ids=str
)
def test_four_bits(device, dtype):
    """Every number, the middles and their neighbours, by a scale of 1; two columns a byte."""
    middle = (FOUR_BITS[1:] + FOUR_BITS[:-1]) / 2
    exact = torch.cat([FOUR_BITS, middle]).to(dtype)
    beside = [torch.nextafter(exact, torch.tensor(end, dtype=dtype)) for end in (0.0, 6.0)]
    x = torch.cat([exact, *beside, 1.5 * randn(19, dtype=dtype)]).clamp(-6, 6)
    x = torch.cat([x, -x]).view(8, 16)
    x[:, 0] = 6
    op = fo.Map(store=[fo.DynamicQuantize(E2M1)])
    for result in (op(x.to(device)), op.unfused(x.to(device))):
        assert result.y.dtype == E2M1
        assert result.y.shape == (8, 8)
        assert torch.equal(unpacked(result.y), nearest_of_four_bits(x))
        assert torch.equal(result.scales.cpu(), torch.ones(8, 1))


@pytest.mark.parametrize("shape", [(9, 80), *thorough((2, 70, 1024), (3, 20000))])
@pytest.mark.parametrize("layout", ["rows", *thorough("tiles")])
def test_block_scales_of_eight_bits(device, shape, layout):
    """NVFP4: scales of float8_e4m3fn under one of the tensor, in a norm and in a Map."""
    x = randn(*shape, device=device) * 3
    x[0, :32] = 0
    x[..., 1, 16:32] *= 1e-4
    x[..., 2, 5] = torch.nan
    options = {"per": 16, "scale_dtype": E4M3, "tensor_scale": "t", "layout": layout}
    last = [fo.Tap("v"), fo.DynamicQuantize(E2M1, **options)]
    for op in (fo.Map(store=last), fo.RMSNorm(store=last)):
        factor = torch.tensor([7.0 / (6 * 448)], device=device)
        result = op(x, t=factor)
        value = result.v.cpu().unflatten(-1, (-1, 16))
        amax = value.abs().amax(-1)
        wanted = (amax / torch.full_like(amax, 6) / factor.cpu()).clamp(max=448)
        scale = wanted.to(E4M3).float().clamp(min=2.0**-9)
        scale = scale.masked_fill(amax == 0, 1).masked_fill(amax.isnan(), torch.nan)
        inverse = (1 / (scale * factor.cpu())).masked_fill(amax == 0, 1)
        codes_ = nearest_of_four_bits(value * inverse[..., None])
        assert torch.equal(unpacked(result.y), codes_.flatten(-2))
        assert result.scales.dtype == E4M3
        if layout == "rows":
            assert same(codes(result.scales), scale.to(E4M3).view(torch.uint8))
            other = op.unfused(x, t=factor)
            assert other.y.shape == result.y.shape
        else:
            assert result.scales.dim() == 1
    assert op(x[:0], t=1.0).y.shape == (0, *shape[1:-1], shape[-1] // 2)


def test_gradients(device):
    """Y and scales have none; what is beside them has its own."""
    x = randn(5, 40, device=device).requires_grad_()
    op = fo.RMSNorm(store=[fo.DynamicQuantize(E4M3)])
    with pytest.raises(
        fo.UnsupportedError, match=r"8 bits, which has no .*no_grad.*Tap.*straight_t"
    ):
        op(x)
    tapped = fo.RMSNorm(store=[fo.Tap("t"), fo.DynamicQuantize(E4M3)])
    result, upstream = tapped(x), randn(5, 40, device=device, seed=1)
    assert not result.y.requires_grad
    assert not result.scales.requires_grad
    (found,) = torch.autograd.grad(result.t, x, upstream)
    (want,) = torch.autograd.grad(fo.RMSNorm()(x), x, upstream)
    torch.testing.assert_close(found, want)  # by another tile, so with other last bits


@pytest.mark.thorough
@pytest.mark.parametrize("layout", BLOCK_LAYOUTS)
def test_in_compiled_code(device, layout):
    op = fo.LayerNorm(store=[fo.DynamicQuantize(E4M3, per=32, layout=layout)])
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager", dynamic=True)
    for rows, columns in ((5, 40), (7, 96), (0, 40)):
        x = randn(rows, columns, device=device)
        want, got = op(x), compiled(x)
        assert got.scales.shape == want.scales.shape
        assert torch.equal(codes(got.y), codes(want.y))
        assert torch.equal(got.scales, want.scales)


@dataclasses.dataclass(frozen=True)
class Largest(fo.Functor):
    """v by the largest magnitude of each block of 32 columns, or of the row, which is an output."""

    whole: bool = False
    headers = ("functor/dynamic_quantize.cuh",)
    differentiable = False
    definition = """
namespace fusedops {
template <class Out, int kColumns>
struct Largest {
  Out out;
  static constexpr int kBlock = kColumns;
  template <int N, class Compute>
  FUSEDOPS_HD uint32_t measure(const Compute (&v)[N]) const {
    return fusedops::magnitude(v);
  }
  struct Found {  // three words, which no access has
    float by, instead;
    uint32_t divides;
  };
  template <class Row>
  FUSEDOPS_HD Found of_block(const Row&, uint32_t largest) const {
    const float by = fusedops::bit_cast<float>(largest);
    return {by, 0, by > 0};
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void operator()(Compute (&v)[N], const Row&, int64_t, Found found) const {
    for (int i = 0; i < N; ++i) v[i] = found.divides ? v[i] / found.by : found.instead;
  }
  template <class Row>
  FUSEDOPS_HD void keep(const Row& row, int64_t block, uint32_t largest) const {
    const float one[1] = {fusedops::bit_cast<float>(largest)};
    out.write(one, row, block);
  }
};
}  // namespace fusedops
"""

    @property
    def block(self):
        return 0 if self.whole else 32

    @property
    def of_blocks(self):
        return Stream("largest", None, torch.float32)

    def apply(self, x, chain):
        size = x.shape[-1] if self.whole else 32
        by = torch.cat([one.abs().amax(-1, keepdim=True) for one in x.split(size, -1)], -1)
        chain.keep_blocks("largest", by)
        by = by.repeat_interleave(size, -1)[..., : x.shape[-1]]
        return torch.where(by > 0, x / by, 0)

    def emit(self, writer):
        return f"Largest<{writer.of_blocks('largest', 'rows')}, {self.block}>"


@pytest.mark.parametrize("whole", [False, *thorough(True)])
def test_a_functor_of_ones_own(device, whole):
    """A trait of the STORE: y of x's dtype, in a norm and in a Map."""
    x = randn(5, 100, device=device)
    for kind in (fo.Map, fo.LayerNorm):
        op = kind(store=[Largest(whole)])
        y, largest = op(x)
        want, known = op.unfused(x)
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(largest, known)
        assert y.abs().amax() == 1
        assert not whole or check(op, x).passed


@pytest.mark.thorough
def test_a_functor_of_ones_own_compiles():
    x = torch.empty(5, 1024, dtype=torch.float16, device="meta")
    check_compiles(described(fo.Map(store=[Largest()]), x, {}, "sm_90"))


@pytest.mark.thorough
@pytest.mark.parametrize("layout", BLOCK_LAYOUTS)
def test_exported(tmp_path, layout):
    """The header for a CPU gives what the op gives, to the bit."""
    op = fo.RMSNorm(store=[fo.Affine("g", None), fo.DynamicQuantize(E4M3, per=16, layout=layout)])
    x, g = randn(9, 104), randn(104, seed=1)
    header = fo.export(op, x, g=g, name="norm", arch="cpu", backward=False)
    library, want = Library(tmp_path, header), op(x, g=g)
    y, scales = torch.empty(9, 104, dtype=E4M3), torch.zeros(want.scales.shape)
    values = {"x": x, "g": g, "y": y, "scales": scales, "rows": 9}
    assert library.call("norm_forward", values) == 0
    assert torch.equal(codes(y), codes(want.y))
    assert torch.equal(scales, want.scales)


def quantize(*arguments, **options):
    return lambda: fo.DynamicQuantize(*arguments, **options)


REFUSED = {
    "in load": (lambda: fo.Map(load=[fo.DynamicQuantize(E4M3)]), ValueError, "last in store"),
    "not last": (
        lambda: fo.Softmax(store=[fo.DynamicQuantize(E4M3), fo.Scale("t")]),
        ValueError,
        "must be the last",
    ),
    "another dtype": (quantize(torch.int8), TypeError, "float8_e4m3fn or"),
    "another block": (quantize(E4M3, per=48), ValueError, "16, 32, 64, 128"),
    "another scale": (quantize(E4M3, scale_dtype=torch.half), TypeError, "float32 or"),
    "scales of a product": (quantize(E4M3, scale_dtype=E4M3), TypeError, "float32 or"),
    "a factor of floats": (quantize(E4M3, tensor_scale="t"), ValueError, "leave tensor_scale out"),
    "odd pairs": (
        lambda: fo.Map(store=[fo.DynamicQuantize(E2M1)])(torch.ones(2, 40)),
        ValueError,
        "multiple of 16 columns",
    ),
    "pairs of a product": (
        lambda: fo.Linear(store=[fo.DynamicQuantize(E2M1)]),
        ValueError,
        "call a Map with it",
    ),
    "check of pairs": (
        lambda: check(fo.Map(store=[fo.DynamicQuantize(E2M1)]), torch.ones(2, 32)),
        fo.UnsupportedError,
        "compares no y of 4 bits",
    ),
    "another layout": (quantize(E4M3, layout="rowwise"), ValueError, "'rows', 'columns', 'tiles'"),
    "powers twice": (
        quantize(E4M3, scale_dtype=E8M0, powers_of_two=True),
        ValueError,
        "leave powers_of_two out",
    ),
    "a name that is taken": (
        lambda: fo.Softmax(store=[fo.Scale("a"), fo.DynamicQuantize(E4M3, scales="a")]),
        ValueError,
        "'a' is taken",
    ),
    "another shape": (
        lambda: fo.Map(store=[fo.DynamicQuantize(E4M3)])(
            torch.ones(2, 8), out=(None, torch.ones(2))
        ),
        ValueError,
        r"'scales' must have shape \(2, 1\)",
    ),
    "strides": (
        lambda: fo.Map(store=[fo.DynamicQuantize(E4M3, per=16)])(
            torch.ones(2, 32), out=(None, torch.ones(2, 2).t())
        ),
        ValueError,
        "must be contiguous",
    ),
    "an address": (
        lambda: fo.Map(store=[fo.DynamicQuantize(E2M1, per=16)])(
            torch.ones(2, 32), out=(torch.empty(33, dtype=E2M1)[1:].view(2, 16), None)
        ),
        ValueError,
        "multiple of 4 bytes",
    ),
    "before a product": (
        lambda: fo.MLP(hidden=[fo.DynamicQuantize(E4M3)]),
        ValueError,
        "before a product",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        call()


def test_it_is_a_value():
    op = fo.Map(store=[fo.DynamicQuantize(E4M3, per=16)])
    assert pickle.loads(pickle.dumps(op)) == op
    assert op != fo.Map(store=[fo.DynamicQuantize(E4M3, per=32)])
    told = str(op.explain(torch.ones(2, 40)))
    assert "float8_e4m3fn (2, 40)" in told
    assert "float32 (2, 3): one value a block" in told


@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_80", "sm_100", "sm_120")])
@pytest.mark.parametrize(
    ("beta", "columns", "per"),
    [
        (False, 4096, 128),
        *thorough_points(
            (False, 16384, 128), (False, 32768, "row"), (True, 1024, 16), (True, 4096, "row")
        ),
        *thorough_points((True, 8192, 128), (True, 16384, 32)),
    ],
)
def test_compiles_without_spills(arch, beta, columns, per):
    """A LayerNorm, which has a beta, or an RMSNorm."""
    given = {key: torch.empty(columns, dtype=torch.bfloat16) for key in ("gb" if beta else "g")}
    store = [fo.Affine("g", "b" if beta else None), fo.DynamicQuantize(E4M3, per=per)]
    op = fo.LayerNorm(store=store) if beta else fo.RMSNorm(store=store)
    bound = bind(op, torch.empty(8, columns, dtype=torch.bfloat16), given, {})
    variant = forward.describe(bound, Target.named(arch)).variant
    assert "View<float8_e4m3, 1, Column::kContiguous" in variant.source
    _, log = compile_cuda(variant.source, arch, ["--ptxas-options=-v"])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log, log


@pytest.mark.parametrize(
    ("store", "short"),
    [
        ([fo.DynamicQuantize(E4M3)], True),
        ([fo.Tap("v"), fo.DynamicQuantize(E4M3)], False),
        ([fo.DynamicQuantize(E4M3, gradient="straight_through")], False),
        ([fo.Quantize("s", E4M3)], True),
        ([fo.Quantize("s", E4M3, amax="amax")], False),
        ([], False),
    ],
)
def test_functions_of_few_instructions(store, short):
    """In kernels that write nothing that would show the difference."""
    op = fo.Map(load=[fo.Gate("h", "silu")], store=store)
    x = torch.empty(8, 64)
    bound = bind(op, x, {key: 1.0 if key == "s" else x for key in op.slots}, {})
    source = forward.describe(bound, Target.named("sm_90")).variant.source
    assert source.startswith("#define FUSEDOPS_ROUNDED_ARGUMENTS") is short


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [40, 1025, 5000, 30000])
def test_from_cpp(device, columns):
    library, rows = place("float8", device), 5
    x = randn(rows, columns, device=device)
    scales = torch.full((rows, -(-columns // 128)), torch.nan, device=device)
    of_rows, y = torch.full((rows,), torch.nan, device=device), torch.full_like(x, torch.nan)
    made = [torch.zeros(rows, columns, dtype=torch.uint8, device=device) for _ in range(2)]
    assert library.dynamic_norm(KINDS.index(E4M3), x, scales, of_rows, y, *made, rows, columns) == 0
    for per, codes_, found in ((128, made[0], scales), ("row", made[1], of_rows[:, None])):
        want, known = expected(y, E4M3, per)
        assert torch.equal(codes_.cpu(), want)
        assert torch.equal(found.double().cpu(), known)


@pytest.mark.gpu
@pytest.mark.parametrize("per", ["row", 128])
def test_torch_multiplies_by_it(per):
    """Products of y and the scales by torch are products of what they stand for."""
    if per == 128 and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("torch multiplies with scales of 1x128 on sm_90")
    op = fo.Map(
        store=[fo.DynamicQuantize(E4M3, per=per, layout="columns" if per == 128 else "rows")]
    )
    x = randn(256, 512, device="cuda", dtype=torch.bfloat16)
    w = randn(128, 512, device="cuda", dtype=torch.bfloat16, seed=1)
    w[5] = 0
    (a, of_a), (b, of_b) = op(x), op(w)
    first, second = (of_a, of_b.t()) if per == "row" else (of_a.t(), of_b)
    got = torch._scaled_mm(a, b.t(), scale_a=first, scale_b=second, out_dtype=torch.bfloat16)

    def spread(scales):
        rows = scales if per == "row" else scales.t()
        return rows.double().repeat_interleave(512 if per == "row" else 128, -1)

    read_a, read_b = a.double() * spread(of_a), b.double() * spread(of_b)
    want = read_a @ read_b.t()
    # One rounding to bfloat16, and sums in tensor cores, which keep 13 bits of a partial sum.
    off = 2.0**-8 * want.abs() + 2.0**-12 * (read_a.abs() @ read_b.abs().t())
    assert ((got.double() - want).abs() <= off).all()
    # Half a step: of three bits of mantissa, or of the numbers below the least normal one.
    sizes = [x.double().abs(), w.double().abs()]
    steps = [
        2.0**-4 * size + 2.0**-10 * spread(scales)
        for size, scales in zip(sizes, (of_a, of_b), strict=True)
    ]
    off += steps[0] @ sizes[1].t() + sizes[0] @ steps[1].t() + steps[0] @ steps[1].t()
    assert ((got.double() - x.double() @ w.double().t()).abs() <= off).all()
