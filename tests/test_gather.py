# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Biases looked up in a table: T5's by bucket, Swin's by relative position, and their gradients."""

import ctypes
import math

import cpptest
import pytest
import torch
from cases import exhaustive, randn, thorough
from references import check
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import check_compiles, described

import fusedops as fo
from fusedops.run.table_gradients import BLOCK, sorted_sums

#: How far a gradient that is a sum may be off: roundings of the sum of its terms' sizes.
ROUNDINGS = 8


def gradients(function, tensors, upstream):
    leaves = [one.detach().clone().requires_grad_() for one in tensors]
    y = function(*leaves)
    return y.detach(), torch.autograd.grad(y, leaves, upstream.to(y.dtype))


def compare(fused, eager, tensors, upstream, size, sizes):
    """The values and all gradients of a call, held to float64 eager code.

    Args:
        fused: A function of the tensors.
        eager: The same in torch, called in float64 and in the compute type.
        tensors: x first.
        upstream: The gradient of y.
        size: Of the numbers that are added up for each element of x's gradient.
        sizes: For each tensor after x the sums of the sizes of its gradient's terms.
    """
    y, got = gradients(fused, tensors, upstream)
    exact, want = gradients(eager, [one.double() for one in tensors], upstream)
    near, chain = gradients(eager, [one.to(one.float().dtype) for one in tensors], upstream)
    if tensors[0].dtype is torch.float64:
        torch.testing.assert_close(y, exact, rtol=1e-12, atol=0)
        torch.testing.assert_close(got[0], want[0], rtol=1e-10, atol=1e-14)
    else:
        check(y, exact, near)
        check(got[0], want[0], chain[0], what="dx", peak=[size])
    for mine, theirs, terms in zip(got[1:], want[1:], sizes, strict=True):
        assert mine.dtype == tensors[1].dtype
        compute = torch.promote_types(torch.float32, mine.dtype)
        allowed = ROUNDINGS * torch.finfo(compute).eps * terms
        allowed = allowed + theirs.abs() * torch.finfo(mine.dtype).eps
        assert ((mine.double() - theirs).abs() <= allowed).all()
    return got


def buckets(queries, keys, count=32, most=128):
    """T5's bucket of each query and key, in both directions, as its paper and code have it."""
    distance = torch.arange(keys) - torch.arange(queries)[:, None]
    half = count // 2
    late = (distance > 0).long() * half
    distance = distance.abs()
    near = half // 2
    far = near + (
        torch.log(distance.clamp(min=1).float() / near) / math.log(most / near) * (half - near)
    ).long().clamp(max=half - near - 1)
    return late + torch.where(distance < near, distance, far)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype", [torch.float32, *thorough(torch.float64, torch.bfloat16)], ids=str
)
def test_attention_of_t5(dtype, device):
    heads, queries, keys = 4, 40, 56
    op = fo.Softmax(load=[fo.Gather("table", "buckets"), fo.Mask("padding")])
    x = randn(3, heads, queries, keys, dtype=dtype, device=device)
    table = randn(32, heads, dtype=dtype, device=device, seed=1)
    index = buckets(queries, keys).to(device)
    padding = (torch.arange(keys) >= torch.tensor([56, 40, 9])[:, None])[:, None, None].to(device)
    upstream = randn(*x.shape, device=device, seed=2).to(dtype)

    def fused(x, table):
        return op(x, table=table, buckets=index, padding=padding)

    def eager(x, table):
        scores = x + table[index].permute(2, 0, 1)
        return torch.softmax(scores.masked_fill(padding, -torch.inf), -1)

    # A softmax's gradient is at most twice the largest of its row's upstream.
    size = 2 * upstream.double().abs().amax(-1, keepdim=True) * eager(x.double(), table.double())
    terms = torch.zeros(32, heads, dtype=torch.float64, device=device)
    terms.index_put_((index,), size.sum(0).permute(1, 2, 0), accumulate=True)
    got = compare(fused, eager, (x, table), upstream, size, [terms])
    for _ in range(2):  # the same bits in every run
        assert torch.equal(gradients(fused, (x, table), upstream)[1][1], got[1])


def swin_index(window):
    """Swin's relative position of each pair of a window's tokens."""
    at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij"))
    apart = at.flatten(1)[:, :, None] - at.flatten(1)[:, None] + window - 1
    return apart[0] * (2 * window - 1) + apart[1]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float64, torch.float16)], ids=str)
def test_window_attention_of_swin(dtype, device):
    """49 columns, a shifted window's mask added, and the scale in the same kernel."""
    batch, windows, heads, tokens = 2, 4, 3, 49
    op = fo.Softmax(load=[fo.Scale("scale"), fo.Gather("table", "index"), fo.Bias("shifted")])
    x = randn(batch, windows, heads, tokens, tokens, dtype=dtype, device=device)
    table = randn(13 * 13, heads, dtype=dtype, device=device, seed=1)
    index = swin_index(7).to(device)
    part = randn(windows, 1, tokens, device=device, seed=3) > 0
    shifted = torch.where(part[..., None] == part[..., None, :], 0.0, -100.0).to(dtype)
    upstream = randn(*x.shape, device=device, seed=2).to(dtype)

    def fused(x, table):
        return op(x, scale=0.5, table=table, index=index, shifted=shifted)

    def eager(x, table):
        bias = table[index.view(-1)].view(tokens, tokens, -1).permute(2, 0, 1)
        return torch.softmax(x * 0.5 + bias + shifted, -1)

    size = 2 * upstream.double().abs().amax(-1, keepdim=True) * eager(x.double(), table.double())
    terms = torch.zeros(169, heads, dtype=torch.float64, device=device)
    terms.index_put_((index,), size.sum((0, 1)).permute(1, 2, 0), accumulate=True)
    compare(fused, eager, (x, table), upstream, size, [terms])


#: How the index and the table may lie: the shape of the index, of the table, and dim.
PLACES = {
    "one a query and key": ((5, 8), (6, 3), -3),
    "one a key": ((8,), (6, 3), 1),
    "of each batch": ((2, 1, 5, 8), (6, 3), -3),
    "of each head": ((3, 5, 8), (6, 3), -3),
    "one number an entry": ((5, 8), (6, 1), -3),
    "one number, of each head": ((3, 5, 1), (6, 1), -3),
    "a table of one dimension": ((2, 1, 1, 8), (6,), None),
    "along the batch": ((3, 1, 8), (6, 2), 0),
    "along the queries": ((5, 8), (6, 5), -2),
    "a single index": ((), (6, 3), -3),
}


def looked_up(table, index, shape, dim):
    """The bias of x's shape, by torch's own indexing."""
    index = index.long().expand(shape)
    if dim is None:
        return table[index]
    place = torch.arange(shape[dim], device=index.device)
    place = place.view([-1 if at == dim % len(shape) else 1 for at in range(len(shape))])
    return table[index, place % table.shape[1]]


@pytest.mark.thorough
@pytest.mark.parametrize("place", PLACES)
def test_where_index_and_table_lie(place, device):
    of_index, of_table, dim = PLACES[place]
    op = fo.Softmax(load=[fo.Gather("t", "i", dim=dim)], store=[fo.Bias("b")])
    x = randn(2, 3, 5, 8, dtype=torch.float64, device=device)
    table = randn(*of_table, dtype=torch.float64, device=device, seed=1)
    generator = torch.Generator().manual_seed(5)
    index = torch.randint(0, 6, of_index, generator=generator).to(torch.int32).to(device)
    bias = randn(8, dtype=torch.float64, device=device, seed=3)
    upstream = randn(*x.shape, dtype=torch.float64, device=device, seed=2)

    def fused(x, table, bias):
        return op(x, t=table, i=index, b=bias)

    def eager(x, table, bias):
        return torch.softmax(x + looked_up(table, index, x.shape, dim), -1) + bias

    for function in (fused, lambda x, table, bias: op.unfused(x, t=table, i=index, b=bias)):
        y, got = gradients(function, (x, table, bias), upstream)
        want_y, want = gradients(eager, (x, table, bias), upstream)
        torch.testing.assert_close(y, want_y, rtol=1e-12, atol=1e-14)
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_tables_and_indices_of_any_strides(device):
    """A table that is a view of a larger one, transposed; and both used by two functors."""
    op = fo.Map(load=[fo.Gather("t", "i"), fo.Scale("s"), fo.Gather("t", "j")])
    x = randn(3, 5, 8, dtype=torch.float64, device=device)
    large = randn(3, 20, dtype=torch.float64, device=device, seed=1)
    generator = torch.Generator().manual_seed(5)
    i = torch.randint(0, 6, (8, 5), generator=generator).to(device).t()
    j = torch.randint(0, 6, (8,), generator=generator).to(torch.uint8).to(device)
    upstream = randn(*x.shape, dtype=torch.float64, device=device, seed=2)

    def of(function):
        def called(x, large):
            return function(x, large[:, 3:15:2].t())

        return called

    def eager(x, table):
        first = x + looked_up(table, i, x.shape, -3)
        return first * 0.5 + looked_up(table, j, x.shape, -3)

    y, got = gradients(of(lambda x, t: op(x, t=t, i=i, j=j, s=0.5)), (x, large), upstream)
    want_y, want = gradients(of(eager), (x, large), upstream)
    torch.testing.assert_close(y, want_y, rtol=1e-14, atol=0)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("shared", [(4, 1, 300, 1), (300, 1), (1, 3, 1, 1)])
def test_beside_gradients_of_other_rows(shared, heads, device):
    """A block works on rows that share one operand; those that share an entry are then elsewhere.

    The gradient of the table comes in x's shape from the kernel.
    """
    x = randn(4, 3, 300, 8, dtype=torch.float64, device=device, seed=1)
    scale = randn(*shared, dtype=torch.float64, device=device, seed=2)
    table = randn(6, heads, dtype=torch.float64, device=device, seed=3)
    index = torch.arange(2400, device=device).view(300, 8) * 7 % 6
    upstream = randn(*x.shape, dtype=torch.float64, device=device, seed=4)
    op = fo.RMSNorm(load=[fo.Gather("table", "index"), fo.Scale("scale")], eps=1e-5)

    def run(function):
        return gradients(
            lambda x, table, scale: function(x, table=table, index=index, scale=scale),
            (x, table, scale),
            upstream,
        )

    for got, wanted in zip(run(op)[1], run(op.unfused)[1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-11)


def test_an_index_outside_of_the_table_is_nan(device):
    op = fo.Map(load=[fo.Gather("t", "i", dim=None)])
    x = torch.zeros(2, 6, device=device)
    table = torch.arange(4.0, device=device).requires_grad_()
    index = torch.tensor([0, 3, 4, -1, 1 << 40, -(1 << 62)], device=device)
    want = torch.tensor([0.0, 3.0, *[torch.nan] * 4], device=device).expand(2, 6)
    y = op(x, t=table, i=index)
    torch.testing.assert_close(y, want, equal_nan=True)
    torch.testing.assert_close(op.unfused(x, t=table, i=index), want, equal_nan=True)
    (gradient,) = torch.autograd.grad(y, table, torch.ones_like(x))
    assert gradient.tolist() == [2.0, 0.0, 0.0, 2.0]  # what is outside belongs to no entry


@pytest.mark.parametrize("length", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK**2 + 5])
def test_sums_over_equal_indices(length, device):
    """Integers, whose sums are exact in any order; entries without an index, and outside ones."""
    generator = torch.Generator().manual_seed(length)
    each = torch.randint(-9, 9, (3, length), generator=generator).double()
    index = torch.randint(-2, 7, (length,), generator=generator)
    index[: length // 2] = 1  # one entry that is far longer than the others
    want = torch.zeros(3, 6, dtype=torch.float64)
    for entry in range(6):
        want[:, entry] = each[:, index == entry].sum(1)
    assert torch.equal(sorted_sums(each.to(device), index.to(device), 6).cpu(), want)


def test_sums_in_float_are_sums_of_blocks(device):
    """A sum of n terms is certain to log2(n) roundings of the sum of their sizes."""
    each = randn(2, 200_000, device=device).abs()
    index = torch.arange(200_000, device=device) % 3
    want = torch.stack([each.double()[:, index == one].sum(1) for one in range(3)], 1)
    got = sorted_sums(each, index, 3)
    most = torch.finfo(torch.float32).eps * math.log2(200_000) / 2
    assert ((got.double() - want).abs() <= most * want).all()


def test_empty_calls(device):
    op = fo.Softmax(load=[fo.Gather("t", "i")])
    table = randn(4, 3, device=device).requires_grad_()
    for shape, of_index in (((0, 3, 5, 8), (5, 8)), ((2, 3, 0, 8), (0, 8))):
        index = torch.zeros(of_index, dtype=torch.int64, device=device)
        y = op(torch.zeros(shape, device=device), t=table, i=index)
        assert y.shape == shape
        assert torch.equal(torch.autograd.grad(y.sum(), table)[0], torch.zeros_like(table))


def test_optional_tables(device):
    op = fo.Softmax(load=[fo.Gather("t", "i", optional=True)])
    x = randn(2, 3, 4, 5, device=device)
    assert torch.equal(op(x), fo.Softmax()(x))
    assert torch.equal(op(x, t=None, i=None), fo.Softmax()(x))


def test_explain_says_how_a_table_is_summed():
    op = fo.Softmax(load=[fo.Gather("t", "i")])
    table = randn(4, 3).requires_grad_()
    said = str(op.explain(randn(2, 3, 5, 8), t=table, i=torch.zeros(5, 8, dtype=torch.int64)))
    assert "t         float32 (4, 3): looked up by an index" in said
    assert "t: then summed over equal indices by torch, sorted" in said


def test_what_is_refused():
    op = fo.Softmax(load=[fo.Gather("t", "i")])
    x, index = torch.zeros(2, 3, 5, 8), torch.zeros(5, 8, dtype=torch.int64)
    for table, said in {
        torch.zeros(4): r"'t' must have shape \(entries, 3\).*got \(4,\); name the dimension",
        torch.zeros(4, 5): r"'t' must have shape \(entries, 3\).*\(entries, 1\), got \(4, 5\)",
        torch.zeros(0, 3): r"got \(0, 3\); give it an entry at least",
    }.items():
        with pytest.raises(ValueError, match=said):
            op(x, t=table, i=index)
    with pytest.raises(TypeError, match=r"'t' must be a floating-point tensor, got torch.int64"):
        op(x, t=index, i=index)
    with pytest.raises(TypeError, match=r"'t' must be a floating-point tensor, got float"):
        op(x, t=0.5, i=index)
    with pytest.raises(TypeError, match=r"'i' must be a tensor of integers, got torch.float32"):
        op(x, t=torch.zeros(4, 3), i=index.float())
    with pytest.raises(ValueError, match=r"'i' of shape \(5, 7\) does not broadcast"):
        op(x, t=torch.zeros(4, 3), i=index[:, :7])
    with pytest.raises(ValueError, match=r"each index along dimension -3.*Gather\(dim"):
        op(x, t=torch.zeros(4, 3), i=index, dim=1)
    with pytest.raises(ValueError, match=r"position\(-3\).*2 dimensions|-3.*has 2 dimensions"):
        op(x[0, 0], t=torch.zeros(4, 3), i=index)
    with pytest.raises(TypeError, match=r"Gather: dim must be an int.*got 'heads'"):
        fo.Gather("t", "i", dim="heads")
    with pytest.raises(ValueError, match=r"'t' stands for two dimensions of x, -3 and -2"):
        fo.Softmax(load=[fo.Gather("t", "i"), fo.Gather("t", "j", dim=-2)])
    with pytest.raises(ValueError, match=r"GroupNorm: .*look up a table"):
        fo.GroupNorm(2, store=[fo.Gather("t", "i", dim=None)])


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = fo.Softmax(load=[fo.Gather("table", "index"), fo.Causal()])

    def forward(self, x, table, index):
        return self.op(x, table=table, index=index)


@pytest.mark.thorough
def test_in_torch_compile_and_export(device):
    model = Attention()
    table = randn(9, 3, device=device, seed=1).requires_grad_()
    index = (torch.arange(8, device=device) + torch.arange(5, device=device)[:, None]) % 9
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=None)
    for batch in (2, 4, 7):
        x = randn(batch, 3, 5, 8, device=device, seed=batch).requires_grad_()
        upstream = randn(*x.shape, device=device, seed=9)
        got, want = (
            gradients(one, (x, table), upstream)
            for one in (
                lambda x, table: compiled(x, table, index),
                lambda x, table: model(x, table, index),
            )
        )
        assert torch.equal(got[0], want[0])
        for mine, theirs in zip(got[1], want[1], strict=True):
            assert torch.equal(mine, theirs)
    arguments = (x.detach(), table.detach(), index)
    shapes = {"x": {0: torch.export.Dim("b")}, "table": None, "index": None}
    program = torch.export.export(model, arguments, dynamic_shapes=shapes)
    assert torch.equal(program.module()(*arguments), model(*arguments))


@pytest.mark.thorough
def test_check_knows_tables(device):
    op = fo.Softmax(load=[fo.Gather("table", "index")])
    table = randn(9, 4, device=device, seed=1)
    index = torch.randint(0, 9, (6, 10), generator=torch.Generator().manual_seed(0)).to(device)
    fo.testing.check(op, randn(3, 4, 6, 10, device=device), table=table, index=index)


@pytest.mark.gpu
def test_a_captured_graph_runs_again():
    op = fo.Softmax(load=[fo.Gather("table", "index")])
    x = randn(2, 4, 16, 32, device="cuda").requires_grad_()
    table = randn(9, 4, device="cuda", seed=1).requires_grad_()
    index = torch.randint(0, 9, (16, 32), device="cuda")
    upstream = randn(*x.shape, device="cuda", seed=2)

    def run():
        return torch.autograd.grad(op(x, table=table, index=index), (x, table), upstream)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        index.copy_(torch.randint(0, 9, (16, 32), device="cuda"))
    graph.replay()
    for mine, theirs in zip(captured, run(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.gpu
def test_no_atomics_are_needed():
    """Torch's deterministic mode refuses what adds by atomics, and warns of nothing here."""
    op = fo.Softmax(load=[fo.Gather("table", "index")])
    x = randn(2, 4, 64, 64, device="cuda").requires_grad_()
    table = randn(32, 4, device="cuda", seed=1).requires_grad_()
    index = buckets(64, 64).cuda()
    upstream = randn(*x.shape, device="cuda", seed=2)
    torch.use_deterministic_algorithms(True)
    try:
        results = [
            torch.autograd.grad(op(x, table=table, index=index), table, upstream)[0]
            for _ in range(3)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, results[0]) for one in results)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_120"), *exhaustive("sm_80", "sm_100")])
def test_they_compile_for_a_gpu(arch):
    op = fo.Softmax(load=[fo.Scale("s"), fo.Gather("t", "i")])
    x = torch.empty(4, 8, 64, 1024, dtype=torch.float16, device="meta")
    operands = {
        "s": 0.5,
        "t": torch.empty(32, 8, dtype=torch.float16, device="meta"),
        "i": torch.empty(64, 1024, dtype=torch.int64, device="meta"),
    }
    check_compiles(described(op, x, operands, arch))
    check_gradient_compiles(backward_of(op, x, operands, arch))


def test_an_export_has_the_lookup_and_no_gradient_of_the_table(tmp_path):
    op = fo.Softmax(load=[fo.Gather("table", "index")])
    x = torch.empty(2, 4, 16, 32, device="meta")
    given = {
        "table": torch.empty(9, 4, device="meta"),
        "index": torch.empty(16, 32, dtype=torch.int32, device="meta"),
    }
    with pytest.raises(fo.UnsupportedError, match=r"of table, which is looked up by an index"):
        fo.export(op, x, **given, name="looked", arch="cpu", path=tmp_path / "a.h")
    header = fo.export(
        op, x, **given, name="looked", arch="cpu", path=tmp_path / "b.h", backward=["x"]
    )
    assert header.parameters["looked_forward"] == ("x", "table", "index", "y", "kept")


WORD = """
#include <fusedops/functors.cuh>

extern "C" void look_up(const float* table, const int64_t* index, float* v) {
  using namespace fusedops;
  const auto functor = gather(per_row(table), 3, 2, per_column(index));
  float values[4] = {};
  functor(values, RowIndex<1>{1, {1}}, int64_t(0));
  for (int i = 0; i < 4; ++i) v[i] = values[i];
}
"""


def test_the_word_of_cpp_projects(tmp_path):
    (tmp_path / "word.cpp").write_text(WORD)
    cpptest.compile_host(tmp_path / "word.cpp", tmp_path / "word.so")
    table, index = torch.arange(6.0).view(3, 2), torch.tensor([0, 2, 3, -1])
    values = torch.zeros(4)
    library = ctypes.CDLL(str(tmp_path / "word.so"))
    library.look_up(*(ctypes.c_void_p(one.data_ptr()) for one in (table, index, values)))
    want = torch.tensor([1.0, 5.0, torch.nan, torch.nan])  # the second number of each entry
    torch.testing.assert_close(values, want, equal_nan=True)
