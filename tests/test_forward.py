# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of every op against float64: sizes, dtypes, schedules, layouts and hard numbers."""

import itertools

import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    FLOATS,
    HALVES,
    LAYER_NORM,
    OPERATORS,
    RMS_NORM,
    SOFTMAX,
    compare,
    declare,
    forced,
    named,
    parameters,
    poisoned,
    randn,
    row_counts,
    thorough,
    upstream_of,
    verify,
)
from references import Chain, check, evaluate

#: Around every power of two where a schedule may change, and what real models use.
COLUMNS = [
    *(1, 2, 3, 7, 31, 32, 33, 127, 128, 129, 255, 768, 1000, 1023, 1024, 1025, 2048, 4095, 4096),
    *(4097, 8192, 12288, 12289, 16384, 32768, 50257, 65536, 131072, 262144),
]

#: The most columns that a schedule holds in 16 bits or float; streaming holds any.
# Columns that a schedule can hold; shared memory is that of an H100 or H200 (227 KB a block).
HELD = {"host": 65536, "register": 16384, "shared": 50257, "cluster": 1 << 19}
HELD["streaming"] = 1 << 30
#: The fewest that a cluster shares.
SHARED_BY_BLOCKS = 16385


def operator_case(op, columns, rows, dtype, device):
    chain = OPERATORS[op]
    x = randn(rows, columns, dtype=dtype, device=device, seed=columns)
    return chain, x * 3, parameters(chain, columns, dtype, device)


def check_all_row_counts(op, dtype, columns, device, schedule=None, limit=1 << 26):
    """The most rows against the reference; fewer rows must give the same bits."""
    most, *fewer = row_counts(columns, device, limit)
    chain, x, operands = operator_case(op, columns, most, dtype, device)
    out, intact = poisoned(x.shape, dtype, device)
    with forced(schedule):
        assert declare(chain)(x, **operands, out=out) is out
        parts = [declare(chain)(x[:rows], **operands) for rows in fewer]
    compare(chain, x, operands, {"y": out})
    assert intact(), "wrote outside of the output"
    for part in parts:
        assert torch.equal(part, out[: len(part)])


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_every_size(op, dtype, columns, device):
    check_all_row_counts(op, dtype, columns, device)


@pytest.mark.parametrize("columns", [33, 1024, 50257])
@pytest.mark.parametrize("op", OPERATORS)
def test_bfloat16(op, columns, device):
    check_all_row_counts(op, torch.bfloat16, columns, device)


@pytest.mark.gpu
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("schedule", ["register", "shared", "cluster", "streaming"])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_schedule(op, schedule, columns):
    """One dtype for each size, so that each schedule meets all of them."""
    dtype = FLOATS[COLUMNS.index(columns) % len(FLOATS)]
    # RMSNorm of 16 bits alone shares whole tiles of that length between two blocks (SCALED_VALUES).
    two_blocks = op == "rms_norm" and dtype.itemsize == 2 and columns in (12288, 16384)
    held = 12287 if schedule == "register" and two_blocks else HELD[schedule]
    shared_by_blocks = 12288 if two_blocks else SHARED_BY_BLOCKS
    if columns > held or (schedule == "cluster" and columns < shared_by_blocks):
        with pytest.raises(ValueError, match=str(columns)):
            check_all_row_counts(op, dtype, columns, "cuda", schedule)
        return
    check_all_row_counts(op, dtype, columns, "cuda", schedule, limit=1 << 23)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [1, 33, 1024, 4097, 16384, 50257, 65537])
@pytest.mark.parametrize("schedule", ["host", "streaming"])
@pytest.mark.parametrize("op", OPERATORS)
def test_the_schedules_of_the_cpu(op, schedule, columns):
    if columns > HELD[schedule]:
        with pytest.raises(ValueError, match=str(columns)):
            check_all_row_counts(op, torch.float32, columns, "cpu", schedule)
        return
    check_all_row_counts(op, torch.float32, columns, "cpu", schedule)


def attention_case(dtype, device, shape=(2, 4, 33, 129)):
    batch, heads, queries, keys = shape
    lengths = torch.linspace(1, keys, batch, device=device).long()
    return randn(*shape, dtype=dtype, device=device) * 4, {
        "scale": 0.125,
        "pair_bias": randn(1, heads, queries, keys, dtype=dtype, device=device, seed=1),
        "padding": (torch.arange(keys, device=device) >= lengths[:, None])[:, None, None, :],
        "p": 0.1,
    }


def add_norm_case(dtype, device, rows=37, columns=200):
    x, residual = (randn(rows, columns, dtype=dtype, device=device, seed=i) for i in range(2))
    vectors = {
        name: randn(columns, dtype=dtype, device=device, seed=2 + i)
        for i, name in enumerate(("bias", "gamma", "beta"))
    }
    return x, {"residual": residual, "p": 0.1, **vectors}


FLAGSHIPS = {"attention": (ATTENTION, attention_case), "add_norm": (ADD_NORM, add_norm_case)}


def flagship_case(name, dtype, device):
    """A chain with its input, operands and upstream gradients."""
    chain, make = FLAGSHIPS[name]
    x, operands = make(dtype, device)
    return chain, x, operands, upstream_of(chain, x, operands)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_attention_softmax(dtype, device):
    verify(ATTENTION, *attention_case(dtype, device))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_residual_layer_norm(dtype, device):
    verify(ADD_NORM, *add_norm_case(dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(*HALVES, torch.float64)], ids=str)
def test_flagships_on_every_schedule(dtype, scheduled):
    device, schedule = scheduled
    for keys in (31, 1000, 4096):
        x, operands = attention_case(dtype, device, (2, 3, 5, keys))
        verify(ATTENTION, x, operands, schedule=schedule)
        x, operands = add_norm_case(dtype, device, columns=keys)
        verify(ADD_NORM, x, operands, schedule=schedule)


@pytest.mark.parametrize(
    "types",
    [
        ("bfloat16", "float32", "float32", "float32"),  # a float stream beside half activations
        ("float32", "float16", "bfloat16", "float16"),
        ("float16", "float64", "float32", "bfloat16"),
        ("float64", "float32", "float16", "float32"),
    ],
    ids="-".join,
)
def test_each_operand_has_its_own_dtype(types, device):
    x_type, residual, vector, out = (getattr(torch, name) for name in types)
    x, operands = add_norm_case(x_type, device, columns=130)
    operands["residual"] = operands["residual"].to(residual)
    for name in ("bias", "gamma"):
        operands[name] = operands[name].to(vector)
    got = verify(ADD_NORM, x, operands, dtype=out)
    assert got["stream"].dtype == residual, "a saved stream has its operand's dtype"


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_stats(op, device):
    chain = Chain(op, (("bias", "b"),), eps=1e-3, stats=True)
    verify(chain, randn(3, 5, 77, device=device), {"b": randn(77, device=device)})


@pytest.mark.thorough
@pytest.mark.parametrize("save", [None, "stream"])
def test_alpha_may_be_an_operand(save, device):
    chain = Chain("rms_norm", (("residual", "r", "a", save),), eps=1e-6)
    x, r = (randn(3, 50, device=device, seed=i) for i in range(2))
    for alpha in (0.5, torch.tensor(-2.0, device=device), randn(3, 1, device=device)):
        verify(chain, x, {"r": r, "a": alpha})


def test_every_elementwise_functor_on_either_side(device):
    steps = (
        *(("scale", "{}s"), ("bias", "{}b"), ("dropout", "{}p")),
        *(("residual", "{}r", -0.5, None), ("affine", "{}g", "{}e")),
    )
    sides = [
        (word, *(a.format(side) if isinstance(a, str) else a for a in rest))
        for side in ("l", "s")
        for word, *rest in steps
    ]
    chain = Chain("layer_norm", tuple(sides[:5]), tuple(sides[5:]), eps=1e-5)
    operands = {}
    for i, side in enumerate("ls"):
        operands |= {
            f"{side}s": torch.tensor(1.5, device=device),  # read on the device
            f"{side}b": randn(5, 1, device=device, seed=i),
            f"{side}p": 0.25 + 0.25 * i,
            f"{side}r": randn(4, 5, 65, device=device, seed=10 + i),
            f"{side}g": randn(65, device=device, seed=20 + i),
            f"{side}e": randn(4, 1, 1, device=device, seed=30 + i),
        }
    verify(chain, randn(4, 5, 65, device=device, seed=9), operands)


@pytest.mark.thorough
@pytest.mark.parametrize("chain", [LAYER_NORM, RMS_NORM], ids=lambda chain: chain.op)
@pytest.mark.parametrize("affine", [("gamma", "beta"), ("gamma", None), (None, "beta")])
def test_either_half_of_affine(chain, affine, device):
    chain = Chain(chain.op, store=(("affine", *affine),), eps=1e-5)
    verify(chain, randn(3, 40, device=device), parameters(chain, 40, device=device))


def test_a_cast_rounds_and_the_chain_goes_on(device):
    """At the head of LOAD and the tail of STORE, where nothing blurs what is rounded."""
    chain = Chain(
        "softmax",
        load=(("cast", torch.bfloat16), ("scale", "s")),
        store=(("scale", "t"), ("cast", torch.float16)),
    )
    x = randn(7, 100, device=device) * 3
    got = declare(chain)(x, s=1.0, t=64.0)
    assert torch.equal(got, got.half().float())
    ref = evaluate(chain, x, {"s": 1.0, "t": 64.0}, torch.float64)["y"]
    uncast = Chain("softmax", load=chain.load, store=chain.store[:1])
    truth, near = (
        evaluate(uncast, x, {"s": 1.0, "t": 64.0}, t)["y"] for t in (torch.float64, torch.float32)
    )
    check(got.half(), truth, near)
    assert (got.double() - ref).abs().max() > 0 or torch.equal(got.double(), ref)
    assert not torch.equal(got, declare(SOFTMAX)(x) * 64), "the cast in LOAD shows"


PATTERNS = list(itertools.product([False, True], repeat=5))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: "".join("-b"[b] for b in p))
def test_every_broadcast_of_rank_five(pattern, device):
    """A dimension of the bias is broadcast where the pattern says so, one of the mask elsewhere."""
    shape = (2, 3, 2, 5, 9)
    bias_shape = [1 if broadcast else size for broadcast, size in zip(pattern, shape, strict=True)]
    mask_shape = [size if broadcast else 1 for broadcast, size in zip(pattern, shape, strict=True)]
    generator = torch.Generator().manual_seed(5)
    mask = (torch.rand(mask_shape, generator=generator) < 0.3).to(device)
    chain = Chain("softmax", (("bias", "b"), ("mask", "m")))
    operands = {"b": randn(*bias_shape, device=device), "m": mask}
    verify(chain, randn(*shape, device=device, seed=2), operands)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_operands_of_lower_rank(rank, device):
    chain = Chain("softmax", (("bias", "b"), ("mask", "m")))
    shape = (2, 3, 8)
    b = randn(*shape[3 - rank :], device=device)
    verify(chain, randn(*shape, device=device, seed=2), {"b": b, "m": b > 1})


BIASED = Chain("softmax", (("bias", "b"),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("columns", [64, 65])
def test_misaligned_bases(dtype, columns, device):
    """Every operand one element off, each row at another alignment where columns are odd."""
    rows = 9
    x, b = (
        randn(rows * columns + 1, dtype=dtype, device=device, seed=i)[1:].view(rows, columns)
        for i in range(2)
    )
    verify(BIASED, x, {"b": b})
    out, intact = poisoned((rows * columns + 1,), dtype, device)
    shifted = out[1:].view(rows, columns)
    declare(BIASED)(x, b=b, out=shifted)
    compare(BIASED, x, {"b": b}, {"y": shifted})
    assert intact()
    assert out[0].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("pad", [1, 8])
def test_rows_with_gaps(dtype, pad, device):
    wide, bias = (randn(6, 4, 64 + pad, dtype=dtype, device=device, seed=i) for i in range(2))
    x, b = wide[::2, :, :64], bias[::2, 1:2, pad:]
    verify(BIASED, x, {"b": b})
    out = torch.full((3, 4, 64 + pad), torch.nan, dtype=dtype, device=device)
    declare(BIASED)(x, b=b, out=out[..., :64])
    compare(BIASED, x, {"b": b}, {"y": out[..., :64]})
    assert out[..., 64:].isnan().all(), "wrote between the rows"


LAYOUTS = {
    "transposed rows": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda t: t[:1].expand_as(t),
    "columns apart": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every other column": lambda t: torch.stack([t, t], -1)[..., 0],
    "reversed dimensions": lambda t: t.permute(2, 1, 0).contiguous().permute(2, 1, 0),
    "one element": lambda t: t[:1, :1, :1].expand_as(t),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["x", "b"])
def test_layouts(layout, which, device):
    tensors = {"x": randn(4, 6, 24, device=device), "b": randn(4, 6, 24, device=device, seed=1)}
    tensors[which] = LAYOUTS[layout](tensors[which])
    verify(BIASED, tensors["x"], {"b": tensors["b"]})


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 6])
def test_ranks_of_x(rank, device):
    x = randn(*(2, 1, 3, 2, 1, 40)[-rank:], device=device)
    verify(LAYER_NORM, x, parameters(LAYER_NORM, 40, device=device))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,), (2, 0, 8), (0, 0)])
@pytest.mark.parametrize("op", OPERATORS)
def test_nothing_to_do(op, shape, device):
    chain = OPERATORS[op]
    y = declare(chain)(
        torch.empty(shape, device=device), **parameters(chain, shape[-1], device=device)
    )
    assert y.shape == shape
    assert y.device.type == device


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPERATORS)
def test_more_than_four_billion_elements(op):
    """2^32 elements and a row more, on sampled rows: offsets need 64 bits."""
    rows, columns = 65537, 65536
    chain = OPERATORS[op]
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    operands = parameters(chain, columns, torch.float16, "cuda")
    x = torch.empty(rows, columns, dtype=torch.float16, device="cuda").normal_()
    y = declare(chain)(x, **operands)
    sample = torch.tensor([0, 1, 32767, 32768, 65535, 65536], device="cuda")
    compare(chain, x[sample], operands, {"y": y[sample]})


@pytest.mark.gpu
def test_more_than_four_billion_elements_of_an_operand():
    """A transposed residual of 2^32 elements and more: row strides need 64 bits as well."""
    rows, columns = 65537, 65536
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    x = randn(1, columns, dtype=torch.float16, device="cuda").expand(rows, columns)
    bias = torch.empty(rows, columns, dtype=torch.float16, device="cuda").normal_()
    y = declare(BIASED)(x, b=bias)
    sample = torch.tensor([0, 1, 32768, 65535, 65536], device="cuda")
    compare(BIASED, x[sample], {"b": bias[sample]}, {"y": y[sample]})


@pytest.mark.gpu
def test_the_current_stream_is_used():
    """A result that is read on the stream of the call, with no synchronisation in between."""
    chain, x, operands = operator_case("layer_norm", 1024, 4096, torch.float16, "cuda")
    wanted = declare(chain)(x, **operands)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = torch.zeros_like(x).copy_(x)
        got = declare(chain)(late, **operands).clone()
    stream.synchronize()
    assert torch.equal(got, wanted)


def test_named_results(device):
    """One output is a tensor; more are a named tuple in the order y, saved, mean, rstd."""
    x, operands = add_norm_case(torch.float32, device)
    chain = Chain(ADD_NORM.op, ADD_NORM.load, ADD_NORM.store, eps=1e-5, stats=True)
    result = declare(chain)(x, **operands)
    assert isinstance(result, tuple)
    assert result._fields == ("y", "stream", "mean", "rstd")
    assert isinstance(declare(SOFTMAX)(x), torch.Tensor)
    assert named(result)["y"] is result.y
