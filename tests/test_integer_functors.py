# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors of integers and of positions: exact arithmetic, biases and masks made from indices."""

import functools
import pickle

import pytest
import torch
from cases import raises, randn, thorough
from references import check
from test_gradient_variants import backward_of
from test_gradient_variants import check_compiles as check_gradient_compiles
from test_variants import check_compiles, described

import fusedops as fo
from fusedops.functors.definition import Bounds

WIDE = 1 << 60  # beyond the 53 bits of a double, let alone the 24 of a float

#: Each makes int64 of two int64, as torch does, wrapped where they overflow.
ARITHMETIC = {
    "add": lambda q, k: q + k + 3,
    "scaled add": lambda q, k: torch.add(q, k, alpha=3),
    "sub": lambda q, k: q - k - 1,
    "scaled sub": lambda q, k: torch.sub(q, k, alpha=-2),
    "rsub": lambda q, k: 7 - q,
    "mul": lambda q, k: q * k * 5,
    "neg": lambda q, k: -q,
    "abs": lambda q, k: q.abs(),
    "square": lambda q, k: q.square(),
    "floor division": lambda q, k: q // 7 + k // -3,
    "division by -1": lambda q, k: q // 2 // -1,
    "floor rounding": lambda q, k: torch.div(q, 1000, rounding_mode="floor"),
    "remainder": lambda q, k: q % 7 + k % -5,
    "minimum": lambda q, k: torch.minimum(q, k),
    "maximum": lambda q, k: torch.maximum(q, k),
    "clamp": lambda q, k: q.clamp(-5, WIDE),
    "bits": lambda q, k: (q & k) ^ (q | 12) ^ ~k,
    "where": lambda q, k: torch.where(q > k, q, k),
    "a large constant": lambda q, k: torch.where(q > k, q, torch.full_like(q, WIDE + 1)),
    "filled": lambda q, k: q.masked_fill(k > 0, WIDE + 3),
    "sign": lambda q, k: q.sign() * 2,
    "truth": lambda q, k: q + (k > 3),
    "counts": lambda q, k: q + ((k > 3).long() + 2) * 3,
    "in place": lambda q, k: q.clone().mul_(3).add_(k),
}


def low_and_high(number, x):
    """A whole number as two floats that hold all of its bits, apart from each other."""
    return (number % 4096).to(x.dtype) + 0.5 * (number // 2**41).to(x.dtype)


def of_both(x, q, k):
    found = torch.zeros_like(x)
    for place, function in enumerate(ARITHMETIC.values()):
        found = found + low_and_high(function(q, k), x) * (place + 1)
    return found


def ids(*shape, seed=0, most=1 << 62):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most, shape, generator=generator)


@pytest.mark.thorough
def test_arithmetic_is_that_of_int64(device):
    op = fo.Map(load=[fo.functor(integers=["q", "k"])(of_both)("q", "k")])
    x = torch.zeros(6, 40, dtype=torch.float64, device=device)
    q, k = ids(6, 1).to(device), ids(40, seed=1).to(device)
    q[0], q[1], k[3], k[4] = -(1 << 63), (1 << 63) - 1, 0, 5
    # The sum's terms are halves below 2^53: any order of additions gives the same.
    assert torch.equal(op(x, q=q, k=k), of_both(x, q.expand(6, 40), k.expand(6, 40)))


@fo.functor(integers=["queries", "keys"])
def same_id(x, queries, keys):
    return torch.where(queries == keys, x, -torch.inf)


@fo.functor(integers=["queries", "keys"])
def same_segment(x, queries, keys):
    return (queries == keys) & (keys != -1)


@pytest.mark.thorough
@pytest.mark.parametrize("functor", [same_id, same_segment])
def test_large_ids_are_told_apart(functor, device):
    """Neighbours beyond 2^53 are one number in floating point."""
    op = fo.Softmax(load=[functor("q", "k")])
    keys = (torch.arange(24, device=device) // 6) + WIDE
    queries = keys[::3, None].clone()
    x = randn(8, 24, device=device)
    want = torch.softmax(x.double().masked_fill(queries != keys, -torch.inf), -1)
    near = torch.softmax(x.masked_fill(queries != keys, -torch.inf), -1)
    check(op(x, q=queries, k=keys), want, near)
    # A number for an integer, and one beyond what a float holds.
    row = op(x, q=WIDE + 2, k=keys)
    check(row, torch.softmax(x.double().masked_fill(keys != WIDE + 2, -torch.inf), -1), row)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64],
    ids=str,
)
def test_every_dtype_of_integers(dtype, device):
    op = fo.Softmax(load=[same_id("q", "k")])
    keys = torch.tensor([0, 1, 1, 0, 1], device=device).to(dtype)
    x = randn(2, 5, device=device)
    want = torch.softmax(x.double().masked_fill(keys != 1, -torch.inf), -1)
    near = torch.softmax(x.masked_fill(keys != 1, -torch.inf), -1)
    check(op(x, q=torch.ones(2, 1, dtype=torch.int64, device=device), k=keys), want, near)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
@pytest.mark.parametrize("call", ["__call__", "unfused", "explain", "compiled"])
def test_integers_for_a_parameter_that_was_not_declared_so(dtype, call):
    """The cure is another declaration, since a float does not tell large integers apart."""

    def even(x, a, ids, b):
        return torch.where(ids == 1, a + x, b * x)

    op = fo.Map(load=[fo.functor(even)("one", "many", "one")])
    function = torch.compile(op, backend="eager") if call == "compiled" else getattr(op, call)
    x, many = randn(2, 4), torch.ones(4, dtype=dtype)
    cure = "'@fusedops.functor(integers=['ids'])'"
    with raises(
        (TypeError, RuntimeError), "'many' must be", f"got {dtype}", "many.to(x.dtype)", cure
    ):
        function(x, one=2.0, many=many)
    again = fo.functor(integers=["ids"])(even)  # the cure
    got = fo.Map(load=[again("one", "many", "one")]).unfused(x, one=2.0, many=many)
    torch.testing.assert_close(got, x + 2.0)


def test_nothing_of_integers_is_said_where_they_cannot_be():
    whole = torch.ones(4, dtype=torch.int64)
    plus = fo.cpp_functor("plus", forward="v + a", operands=["a"])
    for functor in (fo.Bias("a"), plus("a")):
        with pytest.raises(TypeError, match=r"for example with a\.to\(x\.dtype\)$"):
            fo.Map(load=[functor])(randn(2, 4), a=whole)


@fo.functor
def places(x):
    first, second, last = fo.position(0), fo.position(-2), fo.position(-1)
    return x + (100 * first + 10 * second + last).to(x.dtype) * 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 4, 5), -1), ((3, 4, 5), 0), ((3, 4, 5), 1), ((1, 1, 5), -1)], ids=str
)
def test_positions_are_those_of_x(shape, dim, device):
    x = torch.zeros(shape, dtype=torch.float64, device=device)
    grid = torch.meshgrid(*map(torch.arange, shape), indexing="ij")
    want = (100 * grid[0] + 10 * grid[1] + grid[2]).to(x) * 0.5
    op = fo.Map(load=[places()])
    assert torch.equal(op(x, dim=dim), want)
    turned = torch.zeros(shape[::-1], dtype=torch.float64, device=device).permute(2, 1, 0)
    assert torch.equal(op(turned, dim=dim), want)
    assert torch.equal(op.unfused(x, dim=dim), want)


def test_positions_along_several_reduced_dimensions(device):
    op = fo.LayerNorm(load=[places()], store=[places()])
    x = randn(4, 3, 5, dtype=torch.float64, device=device)
    grid = torch.meshgrid(*map(torch.arange, x.shape), indexing="ij")
    bias = (100 * grid[0] + 10 * grid[1] + grid[2]).to(x) * 0.5
    want = torch.nn.functional.layer_norm(x + bias, x.shape[1:]) + bias
    torch.testing.assert_close(op(x, dim=(1, 2)), want, rtol=1e-9, atol=1e-9)
    with pytest.raises(fo.UnsupportedError, match=r"places\(\).*movedim the reduced dimensions"):
        op(x, dim=(0, 2))


@fo.functor
def kerple(x, r1, r2):
    """KERPLE's logarithmic bias, of Chi and others (2022)."""
    distance = (fo.position(-2) - fo.position(-1)).abs().to(x.dtype)
    return x - r1 * torch.log1p(r2 * distance)


def kerple_eager(x, r1, r2):
    queries, keys = x.shape[-2:]
    distance = (torch.arange(queries)[:, None] - torch.arange(keys)).abs().to(x)
    scores = x - r1 * torch.log1p(r2 * distance)
    late = torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu(1)
    return torch.softmax(scores.masked_fill(late, -torch.inf), -1)


def gradients(function, tensors, upstream):
    leaves = [one.detach().clone().requires_grad_() for one in tensors]
    return torch.autograd.grad(function(*leaves), leaves, upstream.to(leaves[0].dtype))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_bias_of_distances_with_parameters(dtype, device):
    op = fo.Softmax(load=[kerple("r1", "r2"), fo.Causal()])
    x = randn(2, 3, 9, 20, dtype=dtype, device=device)
    r1, r2 = (randn(3, 1, 1, dtype=dtype, device=device, seed=s).abs() + 0.1 for s in (1, 2))
    upstream = randn(*x.shape, dtype=torch.float64, device=device, seed=3)

    def fused(x, r1, r2):
        return op(x, r1=r1, r2=r2)

    tensors = (x, r1, r2)
    exact = [one.double() for one in tensors]
    if dtype is torch.float32:
        check(fused(*tensors), kerple_eager(*exact), kerple_eager(*tensors))
    else:
        torch.testing.assert_close(fused(*tensors), kerple_eager(*exact), rtol=1e-12, atol=0)
    got, want, near = (
        gradients(function, given, upstream.to(given[0].dtype).double())
        for function, given in ((fused, tensors), (kerple_eager, exact), (kerple_eager, tensors))
    )
    if dtype is torch.float32:
        check(got[0], want[0], near[0], what="dx")
    else:
        torch.testing.assert_close(got[0], want[0], rtol=1e-10, atol=1e-14)
    # A sum over 2 * 9 * 20 terms, which may cancel: the terms' sizes bound its error.
    eps = torch.finfo(dtype).eps
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        largest = upstream.abs().sum((0, 2, 3), keepdim=True)[0] * 4
        assert (mine.double() - theirs).abs().le(8 * eps * largest).all()


@fo.functor(integers=["prefix"])
def prefix_lm(x, prefix):
    query, key = fo.position(-2), fo.position(-1)
    return (key <= query) | (key < prefix)


@fo.functor(integers=["a", "b"])
def packed_window(x, a, b):
    query, key = fo.position(-2), fo.position(-1)
    return (a == b) & ((query - key).abs() < 3) & ~(key > query)


def prefix_kept(queries, keys, prefix):
    query, key = torch.arange(queries)[:, None], torch.arange(keys)
    return (key <= query) | (key < prefix)


@pytest.mark.thorough
def test_masks_from_indices_and_integers(device):
    """A prefix of each sequence, then causal; values and gradients, with NaN under the mask."""
    op = fo.Softmax(load=[prefix_lm("prefix"), fo.Scale("scale")])
    x = randn(3, 2, 12, 16, dtype=torch.float64, device=device)
    prefix = torch.tensor([0, 5, 16], device=device)[:, None, None, None]
    kept = torch.stack([prefix_kept(12, 16, n) for n in (0, 5, 16)])[:, None].to(device)
    x = torch.where(kept, x, torch.nan)
    scale = torch.tensor(0.7, dtype=torch.float64, device=device)
    upstream = randn(*x.shape, dtype=torch.float64, device=device, seed=1)

    def eager(x, scale):
        safe = torch.where(kept, x, 0.0)
        return torch.softmax((safe * scale).masked_fill(~kept, -torch.inf), -1)

    def fused(x, scale):
        return op(x, scale=scale, prefix=prefix)

    torch.testing.assert_close(fused(x, scale), eager(x, scale), rtol=1e-12, atol=0)
    torch.testing.assert_close(
        op.unfused(x, scale=scale, prefix=prefix), eager(x, scale), rtol=1e-12, atol=0
    )
    got, want = (gradients(one, (x, scale), upstream) for one in (fused, eager))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-14)
    number = op(x[:, :, :, :], scale=scale, prefix=16)  # nothing is masked then
    assert number.isnan().any(-1).any()


def test_a_mask_of_ids_and_a_window(device):
    op = fo.Softmax(load=[packed_window("q", "k")])
    x = randn(20, 20, device=device)
    segment = (torch.arange(20, device=device) // 7) + WIDE
    query, key = (torch.arange(20, device=device)[s] for s in ((slice(None), None), slice(None)))
    kept = (segment[:, None] == segment) & (query - key < 3) & (key <= query)
    want = torch.softmax(x.double().masked_fill(~kept, -torch.inf), -1)
    check(
        op(x, q=segment[:, None], k=segment),
        want,
        torch.softmax(x.masked_fill(~kept, -torch.inf), -1),
    )


class Whole:
    """What bounds are written with, in Python."""

    kMost = (1 << 63) - 1  # noqa: N815 (the name in C++)
    add = staticmethod(lambda a, b: a + b)
    sub = staticmethod(lambda a, b: a - b)
    mul = staticmethod(lambda a, b: a * b)
    neg = staticmethod(lambda a: -a)
    abs = staticmethod(abs)
    minimum = staticmethod(min)
    maximum = staticmethod(max)
    floor_divide = staticmethod(lambda a, b: a // b)
    after = staticmethod(lambda a: a + 1)


def range_of(functor, column, **numbers):
    """The range of columns that the C++ of a mask says, of numbers of the row."""
    (bounds,) = [one for one in functor._made.program.bounds if one.column == column]

    def number(text):
        for one in ("whole::", "int64_t"):
            text = text.replace(one, {"whole::": "whole."}.get(one, "int"))
        while "detail::" in text:  # (known ? text : otherwise), of what is all known
            head, _, rest = text.partition("(detail::")
            rest = rest.partition(" ? ")[2]
            depth, at = 0, 0
            while depth or rest[at : at + 3] != " : ":
                depth += {"(": 1, ")": -1}.get(rest[at], 0)
                at += 1
            kept, rest = rest[:at], rest[at + 3 :]
            depth = at = 0
            while depth or rest[at] != ")":
                depth += {"(": 1, ")": -1}.get(rest[at], 0)
                at += 1
            text = f"{head}({kept}){rest[at + 1 :]}"
        return eval(text, {"whole": Whole, "int": int, **numbers})

    return number(bounds.begin), number(bounds.end)


#: Masks of a query q, a key k and a number of the row n, and whether the range is the tightest.
BOUNDED = {
    "causal": (lambda q, k, n: k <= q, True),
    "mirrored": (lambda q, k, n: q >= k, True),
    "strict": (lambda q, k, n: q > k, True),
    "a window": (lambda q, k, n: (q - k).abs() < 3, True),
    "a window to the right": (lambda q, k, n: (k - q).abs() <= 2, True),
    "a window of two": (lambda q, k, n: (k > q - 3) & (k - q < 2), True),
    "a width of the row": (lambda q, k, n: abs(q - k) <= 2, True),
    "a length": (lambda q, k, n: k < n, True),
    "a prefix": (lambda q, k, n: (k <= q) | (k < n), True),
    "not later": (lambda q, k, n: ~(k > q + 1), True),
    "De Morgan": (lambda q, k, n: ~((k > q) | (k < q - 4)), True),
    "one": (lambda q, k, n: k == q - 1, True),
    "blocks": (lambda q, k, n: k <= q // 3 * 3 + 2, True),
    "negative": (lambda q, k, n: -k >= -q, True),
    "from the end": (lambda q, k, n: 9 - k > q, True),
    "chosen": (lambda q, k, n: k <= torch.minimum(q, n), True),
    "dilated": (lambda q, k, n: (k <= q) & ((q - k) % 2 == 0), False),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BOUNDED)
def test_the_range_of_a_mask_holds_what_it_keeps(name):
    function, tight = BOUNDED[name]

    @fo.functor(integers=["n"])
    def mask(x, n):
        return function(fo.position(-2), fo.position(-1), n)

    declared = mask("n")
    program = declared._made.program
    assert declared.masks
    assert declared.bounds
    columns = dict(zip(declared.positions, program.positions, strict=True))
    keys = torch.arange(12)
    for query in range(10):
        for length in (0, 1, 5, 12):
            numbers = {columns.get(-2, "_"): query, "a0": length}
            begin, end = range_of(declared, columns[-1], **numbers)
            kept = function(torch.tensor(query), keys, torch.tensor(length)).nonzero().flatten()
            if len(kept):
                first, last = kept[0].item(), kept[-1].item()
                assert begin <= first
                assert last < end
                if tight:
                    assert (max(begin, 0), min(end, 12)) == (first, last + 1)
            elif tight:
                assert max(begin, 0) >= min(end, 12)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, n: (q - k) % 2 == 0,
        lambda q, k, n: k != q,
        lambda q, k, n: (k <= q) | ((q + k) % 3 == 0),
        lambda q, k, n: k + n < q,  # which may wrap, for an n of any 64 bits
        lambda q, k, n: 2 * k <= q,
    ],
)
def test_masks_without_a_range_say_so(function):
    @fo.functor(integers=["n"])
    def mask(x, n):
        return function(fo.position(-2), fo.position(-1), n)

    op = fo.Softmax(load=[mask("n")])
    x = torch.zeros(4, 8)
    said = str(op.explain(x, n=3))
    assert "no range of columns follows from mask('n'): all columns are loaded" in said
    assert "are not loaded" in str(fo.Softmax(load=[prefix_lm("n")]).explain(x, n=3))
    kept = function(torch.arange(4)[:, None], torch.arange(8), torch.tensor(3))
    want = torch.softmax(x.masked_fill(~kept, -torch.inf), -1).nan_to_num(0.0)
    torch.testing.assert_close(op(x, n=3), want)


def test_a_range_that_an_operand_of_columns_gives_is_not_taken(device):
    """`n` has another number for each column here: no range of the row follows from it."""
    op = fo.Softmax(load=[prefix_lm("n")])
    x = randn(4, 10, device=device)
    n = torch.tensor([0, 9, 0, 9, 0, 9, 0, 9, 0, 9], device=device)
    kept = prefix_kept(4, 10, n.cpu()).to(device)
    want = torch.softmax(x.double().masked_fill(~kept, -torch.inf), -1)
    check(op(x, n=n), want, torch.softmax(x.masked_fill(~kept, -torch.inf), -1))


@pytest.mark.thorough
def test_they_are_declarations_like_any_other():
    op = fo.Softmax(load=[prefix_lm("n"), kerple("r1", "r2")])
    again = pickle.loads(pickle.dumps(op))
    assert again == op
    assert repr(again.load[0]) == "prefix_lm('n')"
    assert [one.role for one in op.operands] == [
        fo.functors.Role.INTEGER,
        *[fo.functors.Role.VALUE] * 2,
    ]
    x = randn(2, 6, 9)
    arguments = {"n": torch.tensor([[[2]], [[4]]]), "r1": 0.5, "r2": torch.tensor(1.5)}
    fo.testing.check(op, x, **arguments)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.op = fo.Softmax(load=[kerple("r1", "r2"), prefix_lm("n"), same_id("q", "k")])

    def forward(self, x, r1, n, ids):
        return self.op(x, r1=r1, r2=1.0, n=n, q=ids[:, None], k=7)


@pytest.mark.thorough
def test_in_torch_compile_and_export(device):
    model, x = Model(), randn(3, 5, 8, device=device).requires_grad_()
    r1 = torch.full((3, 1, 1), 0.5, device=device).requires_grad_()
    n = torch.tensor([[[1]], [[3]], [[8]]], device=device)
    seven = torch.full((5,), 7, dtype=torch.int16, device=device)
    want = model(x, r1, n, seven)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    got = compiled(x, r1, n, seven)
    assert torch.equal(got, want)
    upstream = randn(*x.shape, device=device, seed=2)
    grads = (torch.autograd.grad(y, (x, r1), upstream) for y in (got, want))
    for mine, theirs in zip(*grads, strict=True):
        assert torch.equal(mine, theirs)
    arguments = (x.detach(), r1.detach(), n, seven)
    program = torch.export.export(model, arguments)
    assert torch.equal(program.module()(*arguments), want)


def test_what_is_refused():
    for function, said in {
        lambda x, n: x * (fo.position(-1) * 0.5): r"torch's default dtype; convert.*x.dtype",
        lambda x, n: x * torch.log(n): r"aten.log.*default dtype",
        lambda x, n: x * (n < 0.5): r"write it in int64|default dtype",
        lambda x, n: x * (n // fo.position(-1)): r"divides by what may be 0",
        lambda x, n: x * n.int(): r"makes torch.int32 of whole numbers",
    }.items():
        with pytest.raises(fo.UnsupportedError, match=said):
            fo.functor(integers=["n"])(function)("n")
    with pytest.raises(fo.UnsupportedError, match=r"position: it stands in a function"):
        fo.position(-1)
    with pytest.raises(TypeError, match=r"position: dim must be an int.*'q'"):
        fo.functor(lambda x: x + fo.position("q"))()
    with pytest.raises(TypeError, match=r"integers must list parameters.*\['n'\], got \['m'\]"):
        fo.functor(integers=["m"])(lambda x, n: x)
    with pytest.raises(TypeError, match=r"prefix is an integer, got 0.5; give an int"):
        prefix_lm(0.5)
    with pytest.raises(ValueError, match=r"'a' is named twice, as an integer"):
        fo.functor(integers=["n"])(lambda x, n, b: x + b * n)("a", "a")
    op = fo.Softmax(load=[prefix_lm("n")])
    with pytest.raises(
        TypeError, match=r"'n' must be a tensor of integers or bools, or an int, got"
    ):
        op(torch.zeros(2, 3), n=torch.zeros(2, 1))
    with pytest.raises(TypeError, match=r"operand 'n' must be .*an int, got 0.5"):
        op(torch.zeros(2, 3), n=0.5)
    with pytest.raises(ValueError, match=r"reads position\(-2\), but x has 1 dimension;"):
        op(torch.zeros(3), n=1)
    with pytest.raises(ValueError, match=r"GroupNorm: .*cannot stand here"):
        fo.GroupNorm(2, load=[prefix_lm("n")])
    with pytest.raises(ValueError, match=r"GroupNorm: places\(\) cannot"):
        fo.GroupNorm(2, store=[places()])


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_80", "sm_100", "sm_120")])
def test_they_compile_for_a_gpu(arch):
    op = fo.Softmax(load=[kerple("r1", "r2"), prefix_lm("n"), packed_window("q", "k")])
    x = torch.empty(2, 4, 64, 256, dtype=torch.float16, device="meta")

    def whole(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype, device="meta")

    operands = {
        "r1": torch.empty(4, 1, 1, device="meta"),
        "r2": torch.empty(4, 1, 1, device="meta"),
        "n": whole(2, 1, 1, 1, dtype=torch.bool),
        "q": whole(2, 1, 64, 1, dtype=torch.int8),
        "k": whole(2, 1, 1, 256, dtype=torch.int16),
    }
    check_compiles(described(op, x, operands, arch))
    check_gradient_compiles(backward_of(op, x, operands, arch))


def test_columns_out_of_the_range_are_not_loaded(monkeypatch):
    """With a range that is too narrow the others are missing: so it decides what is loaded.

    A GPU reads masked packs beside the range in their place, and relies on the mask.
    """
    monkeypatch.setattr(
        "fusedops.functors.trace.bounds_of",
        lambda value, trees, operands, positions: (Bounds(positions[0], "0", "int64_t(64)"),),
    )
    op = fo.Softmax(load=[fo.functor(lambda x: fo.position(-1) >= 0)()])
    y = op(torch.zeros(3, 4096))
    torch.testing.assert_close(y[:, :64].sum(-1), torch.ones(3))
    assert not y[:, 2048:].any()


def of_place(placed):
    return fo.functor(lambda x: x + placed().to(x.dtype))


def test_an_export_of_positions_is_for_its_rows(tmp_path):
    """Another number of rows would have other coordinates; along the columns it would not."""
    x = torch.empty(6, 32, device="meta")
    for dim, rows in ((-2, ()), (-1, ("rows",))):
        placed = functools.partial(fo.position, dim)
        op = fo.Softmax(load=[of_place(placed)()])
        path = tmp_path / f"of{-dim}.h"
        header = fo.export(op, x, name="placed", arch="cpu", path=path)
        assert header.parameters["placed_forward"] == (*rows, "x", "y", "kept")
