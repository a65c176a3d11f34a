# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""GroupNorm and InstanceNorm: against torch's in double, and in every way that ops are used."""

import copy
import itertools
import math
import pickle
import re
import subprocess
import sys

import pytest
import torch
from cases import randn, thorough
from exported import Call, Library
from torch.nn import functional

import fusedops as fo
from fusedops.declare import text as spelling
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.prebuild.build_all import variants
from fusedops.prebuild.recording import Signature, of_call
from fusedops.testing import check

AFFINE = [fo.Affine("gamma", "beta")]

#: Shapes of x, and numbers of groups.
SHAPES = {
    "images": ((3, 12, 4, 8), 3),
    "odd sizes": ((2, 15, 5, 7), 5),
    "parts of packs": ((2, 12, 2, 6), 2),
    "one channel a group": ((2, 6, 3, 5), 6),
    "one group": ((3, 7, 4, 4), 1),
    "one pixel": ((3, 8, 1, 1), 2),
    "no pixels' dimensions": ((4, 24), 4),
    "sequences": ((2, 6, 37), 2),
    "volumes": ((2, 4, 3, 4, 5), 2),
    "one sample": ((1, 8, 6, 6), 4),
    "one channel": ((3, 1, 4, 5), 1),
    "long rows": ((1, 6, 96, 60), 2),
}


def case_of(name, device, dtype=torch.float32):
    shape, groups = SHAPES[name]
    x = randn(*shape, dtype=dtype, device=device)
    gamma, beta = (randn(shape[1], dtype=dtype, device=device, seed=i) for i in (1, 2))
    return groups, x, gamma, beta


def with_gradients(call, x, gamma, beta):
    """The result and the gradients of x, gamma and beta, of a random upstream gradient."""
    leaves = [one.detach().requires_grad_() for one in (x, gamma, beta)]
    y = call(*leaves)
    upstream = randn(*y.shape, dtype=y.dtype, device=y.device, seed=3)
    return [y.detach(), *torch.autograd.grad(y, leaves, upstream)]


def group_norm(groups, **options):
    op = fo.GroupNorm(groups, store=AFFINE, **options)
    return op, lambda x, gamma, beta: op(x, gamma=gamma, beta=beta)


def assert_close_in_double(found, wanted, x, size=1.0):
    """Equal but for the roundings of sums over x's elements, of the largest element's size.

    `size` is that of numbers which cancel.
    """
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        largest = max(other.abs().max().item(), size)
        bound = 64 * 2.0**-53 * (math.log2(x.numel()) + 1) * largest
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


@pytest.mark.parametrize("name", SHAPES)
def test_as_torch_in_double(name, device):
    groups, x, gamma, beta = case_of(name, device, torch.float64)
    _, call = group_norm(groups)
    found = with_gradients(call, x, gamma, beta)
    wanted = with_gradients(
        lambda *given: functional.group_norm(given[0], groups, *given[1:]), x, gamma, beta
    )
    assert_close_in_double(found, wanted, x)


@pytest.mark.parametrize("name", [name for name in SHAPES if len(SHAPES[name][0]) > 2])
def test_instance_norm_as_torch_in_double(name, device):
    _, x, gamma, beta = case_of(name, device, torch.float64)
    op = fo.InstanceNorm(store=AFFINE)
    found = with_gradients(lambda x, g, b: op(x, gamma=g, beta=b), x, gamma, beta)

    def instance_norm(x, g, b):  # torch's refuses a single pixel
        return functional.group_norm(x, x.shape[1], g, b)

    # A row of one pixel has no deviation: what cancels in its dx is as large as 1 / sqrt(eps).
    size = 1e-5**-0.5 if name == "one pixel" else 1.0
    assert_close_in_double(found, with_gradients(instance_norm, x, gamma, beta), x, size)
    if name != "one pixel":
        wanted = functional.instance_norm(x, weight=gamma, bias=beta)
        assert_close_in_double(found[:1], [wanted], x)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16), torch.bfloat16])
@pytest.mark.parametrize("name", ["images", "odd sizes", "parts of packs", "one group"])
def test_is_a_layer_norm_over_views(name, dtype, device):
    """The same bits, forward, in training and backward; `check` holds these to the bound."""
    groups, x, gamma, beta = case_of(name, device, dtype)
    n, c, *spatial = x.shape
    parts = (groups, c // groups, *[1] * len(spatial))
    inner = fo.LayerNorm(store=AFFINE)
    dims = tuple(range(2, x.dim() + 1))

    def viewed(x, gamma, beta):
        seen = x.view(n, groups, c // groups, *spatial)
        return inner(seen, gamma=gamma.view(parts), beta=beta.view(parts), dim=dims).view(x.shape)

    _, call = group_norm(groups)
    with torch.no_grad():
        for _ in range(2):  # planned, and from the plan
            assert torch.equal(call(x, gamma, beta), viewed(x, gamma, beta))
    found, wanted = (with_gradients(one, x, gamma, beta) for one in (call, viewed))
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["odd sizes", *thorough(*SHAPES)])
def test_check(name, device):
    groups, x, gamma, beta = case_of(name, device)
    report = check(fo.GroupNorm(groups, store=AFFINE), x, gamma=gamma, beta=beta)
    assert report.declaration.startswith("GroupNorm(")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["group", *thorough("instance")])
def test_with_functors_on_both_sides(kind, device):
    """Operands of every broadcast, a saved stream, dropout, statistics."""
    chains = {
        "load": [fo.Bias("bias"), fo.Dropout("p"), fo.Residual("residual", save="stream")],
        "store": [fo.Affine("gamma", "beta"), fo.Scale("each")],
    }
    op = fo.GroupNorm(2, **chains) if kind == "group" else fo.InstanceNorm(**chains)
    x = randn(2, 6, 5, 4, device=device)
    operands = {
        "bias": randn(6, 1, 1, device=device, seed=1),
        "residual": randn(2, 6, 5, 4, device=device, seed=2),
        "gamma": randn(2, 6, 1, 1, device=device, seed=3),  # a number for each sample and channel
        "beta": randn(6, device=device, seed=4),
        "each": randn(5, 4, device=device, seed=5),
    }
    check(op, x, p=0.3, **operands)
    leaves = {name: value.requires_grad_() for name, value in {"x": x, **operands}.items()}
    results = []
    for call in (op, op.unfused):
        y, stream = call(leaves["x"], p=0.3, generator=(7, 4), **operands)
        assert y.shape == stream.shape == x.shape
        upstream = [randn(*x.shape, device=device, seed=i) for i in (8, 9)]
        grads = torch.autograd.grad([y, stream], list(leaves.values()), upstream)
        results.append([y.detach(), stream.detach(), *grads])
    for one, other in zip(*results, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


def test_the_dropout_mask(device):
    op = fo.GroupNorm(3, store=[fo.Dropout("p")])
    x = randn(2, 6, 5, 4, device=device)
    y = op(x, p=0.5, generator=(11, 0))
    kept = op.dropout_mask(x.shape, 11, 0, 0.5).to(device)
    assert torch.equal(y != 0, kept)
    assert torch.equal(y != 0, op.unfused(x, p=0.5, generator=(11, 0)) != 0)
    with pytest.raises(TypeError, match="GroupNorm: dim is no option"):
        op.dropout_mask(x.shape, 11, 0, 0.5, dim=1)


def test_statistics(device):
    groups, x, gamma, beta = case_of("odd sizes", device, torch.float64)
    op, _ = group_norm(groups, stats=True)
    y, mean, rstd = op(x, gamma=gamma, beta=beta)
    n, c = x.shape[:2]
    wanted = torch.native_group_norm(x, gamma, beta, n, c, x[0, 0].numel(), groups, 1e-5)
    assert_close_in_double([y, mean, rstd], wanted, x)
    assert y.shape == x.shape
    assert type(op(x, gamma=gamma, beta=beta)) is fo.NormResult
    assert fo.InstanceNorm(stats=True)(x).mean.shape == (n, c)


LAYOUTS = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every second channel": lambda x: torch.stack([x, x], 2).flatten(1, 2)[:, ::2],
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every second sample": lambda x: torch.stack([x, x], 1).flatten(0, 1)[::2],
    "misaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["group", "instance"])
def test_every_layout(kind, layout, device):
    """The same bits, and a result that is dense in the order of the dimensions."""
    groups, x, gamma, beta = case_of("images", device)
    op = fo.GroupNorm(groups, store=AFFINE) if kind == "group" else fo.InstanceNorm(store=AFFINE)
    laid = LAYOUTS[layout](x)
    assert torch.equal(laid, x)
    found, wanted = (
        with_gradients(lambda *given: op(given[0], gamma=given[1], beta=given[2]), one, gamma, beta)
        for one in (laid, x)
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert found[0].is_contiguous()
    copied = kind == "group" and layout in ("channels_last", "every second channel", "transposed")
    copied = copied or (kind == "instance" and layout == "transposed")
    assert bool(op.explain(laid, gamma=gamma, beta=beta).copies) == copied


@pytest.mark.parametrize("shape", [(0, 6, 4, 5), (2, 6, 0, 5), (0, 6, 0, 5), (2, 0, 4, 5), (0, 6)])
def test_nothing(shape, device):
    x = torch.empty(shape, device=device)
    gamma, beta = (randn(shape[1], device=device, seed=i) for i in (1, 2))
    for op in (
        fo.GroupNorm(3, store=AFFINE, stats=True),
        fo.InstanceNorm(store=AFFINE, stats=True),
    ):
        if x.dim() == 2 and isinstance(op, fo.InstanceNorm):
            continue
        rows = (shape[0], 3 if isinstance(op, fo.GroupNorm) else shape[1])
        leaves = [one.clone().requires_grad_() for one in (x, gamma, beta)]
        for given in ((x, gamma, beta), leaves):
            y, mean, rstd = op(given[0], gamma=given[1], beta=given[2])
            assert y.shape == shape
            assert mean.shape == rstd.shape == rows
        found = torch.autograd.grad(y.sum(), leaves)
        assert [one.shape for one in found] == [one.shape for one in leaves]
        assert not any(one.any() for one in found)


@pytest.mark.parametrize("name", ["images", "odd sizes"])
def test_out_is_written_whole_and_nothing_else(name, device):
    groups, x, gamma, beta = case_of(name, device)
    op, _ = group_norm(groups, stats=True)
    wanted = op(x, gamma=gamma, beta=beta)
    for wide in (x.numel() + 64, 4 * x.numel()):
        room = torch.full((wide,), math.nan, device=device)
        y = room[32 : 32 + x.numel()].view(x.shape)
        if wide > 2 * x.numel():  # channels apart
            y = room[: 2 * x.numel()].view(x.shape[0], -1, 2, *x.shape[2:])[:, :, 0]
        outs = (y, *(torch.full((x.shape[0], groups), math.nan, device=device) for _ in range(2)))
        for _ in range(2):
            got = op(x, gamma=gamma, beta=beta, out=outs)
            assert all(one is other for one, other in zip(got, outs, strict=True))
            for one, other in zip(outs, wanted, strict=True):
                assert torch.equal(one, other)
        assert room.isnan().sum() == room.numel() - x.numel()


BAD = {
    "groups": (lambda op, x, v: op(x[:, :10], gamma=v, beta=v), ValueError, "10 channels.*=4"),
    "dimensions": (lambda op, x, v: op(v, gamma=v, beta=v), ValueError, r"\(12,\).*x\[None\]"),
    "a tensor": (lambda op, x, v: op(3, gamma=v, beta=v), TypeError, "x must be a torch.Tensor"),
    "dtype": (lambda op, x, v: op(x.int(), gamma=v, beta=v), TypeError, "floating point"),
    "gamma": (
        lambda op, x, v: op(x, gamma=v[:5], beta=v),
        ValueError,
        r"'gamma'.*12.*\(5,\).*\(12,\)",
    ),
    "beta": (
        lambda op, x, v: op(x, gamma=v, beta=v.view(3, 4, 1)),
        ValueError,
        r"'beta' of shape \(3, 4, 1\) does not broadcast against x of shape \(3, 12, 5, 7\)",
    ),
    "one more": (
        lambda op, x, v: op(x, gamma=x[None], beta=v),
        ValueError,
        "'gamma'.*no dimension",
    ),
    "kind": (lambda op, x, v: op(x, gamma=v.int(), beta=v), TypeError, "'gamma'.*float"),
    "missing": (lambda op, x, v: op(x, gamma=v), TypeError, "'beta' is missing"),
    "unknown": (lambda op, x, v: op(x, gamma=v, beta=v, bias=v), TypeError, "'bias'"),
    "dim": (lambda op, x, v: op(x, gamma=v, beta=v, dim=1), TypeError, "dim is no option"),
    "shape": (
        lambda op, x, v: op(x, gamma=v, beta=v, normalized_shape=(7,)),
        TypeError,
        "normalized_shape is no option",
    ),
    "out": (
        lambda op, x, v: op(x, gamma=v, beta=v, out=x[:1]),
        ValueError,
        r"out for 'y' must have shape \(3, 12, 5, 7\), got \(1, 12, 5, 7\)",
    ),
    "overlap": (lambda op, x, v: op(x, gamma=v, beta=v, out=x), ValueError, "out must overlap"),
    "sparse": (
        lambda op, x, v: op(x.to_sparse(), gamma=v, beta=v),
        fo.UnsupportedError,
        "to_dense",
    ),
    "vmap": (
        lambda op, x, v: torch.func.vmap(lambda x: op(x, gamma=v, beta=v))(x[None]),
        fo.UnsupportedError,
        "torch.func",
    ),
}


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "training"])
@pytest.mark.parametrize("name", BAD)
def test_errors_of_calls(name, grad, device):
    call, kind, words = BAD[name]
    if grad and name in ("out", "overlap"):
        kind, words = (fo.UnsupportedError, "out= does not go with gradients")
    op = fo.GroupNorm(4, store=AFFINE)
    x, v = randn(3, 12, 5, 7, device=device), randn(12, device=device)
    if grad and name not in ("dtype", "sparse"):
        v.requires_grad_()
    with pytest.raises(kind, match=f"^GroupNorm: (?s:.*){words}"):
        call(op, x, v)
    if name not in ("out", "overlap", "sparse", "vmap"):
        op.unfused(x, gamma=v, beta=v)
        unfused = type("Unfused", (), {"__call__": lambda _, *a, **k: op.unfused(*a, **k)})()
        with pytest.raises(kind, match=f"^GroupNorm: (?s:.*){words}"):
            call(unfused, x, v)


@pytest.mark.parametrize(
    ("declare", "kind", "words"),
    [
        (lambda: fo.GroupNorm(0), ValueError, "num_groups must be at least 1, got 0"),
        (lambda: fo.GroupNorm(2.5), TypeError, "num_groups must be an int, got 2.5"),
        (lambda: fo.GroupNorm("4"), TypeError, "num_groups must be an int, got '4'"),
        (lambda: fo.GroupNorm(2, groups=3), TypeError, "did you mean 'num_groups'"),
        (lambda: fo.GroupNorm(2, eps=-1.0), ValueError, "eps must be a finite number"),
        (lambda: fo.GroupNorm(2, stats=3), TypeError, "stats must be True or False"),
        (
            lambda: fo.GroupNorm(2, load=[fo.Mask("m")]),
            ValueError,
            "cannot stand here, where columns count",
        ),
        (lambda: fo.GroupNorm(2, store=[fo.Affine]), TypeError, "must hold functors"),
    ],
)
def test_errors_of_declarations(declare, kind, words):
    with pytest.raises(kind, match=f"^GroupNorm: .*{words}"):
        declare()


def test_an_instance_has_pixels():
    with pytest.raises(ValueError, match=r"^InstanceNorm: x must have shape \(N, C.*got \(3, 4\)"):
        fo.InstanceNorm()(torch.zeros(3, 4))


OPS = [
    fo.GroupNorm(4, store=AFFINE),
    fo.GroupNorm(num_groups=2, load=[fo.Bias("b")], eps=0.0, stats=True),
    fo.InstanceNorm(store=[fo.Affine("w")], stats=True),
    fo.InstanceNorm(),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.text)
def test_declarations_are_values(op):
    for again in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op), spelling._read(op.text)):
        assert again == op
        assert hash(again) == hash(op)
        assert repr(again) == repr(op) == op.text
        assert again.slots == op.slots
    assert op != fo.LayerNorm(op.load, op.store)
    assert op.rows.name == type(op).__name__
    assert op.rows.text.startswith("LayerNorm(")


class TestExplain:
    def test_nothing_is_copied(self):
        groups, x, gamma, beta = case_of("odd sizes", "cpu")
        op, _ = group_norm(groups)
        told = op.explain(x, gamma=gamma, beta=beta)
        assert told.op is op
        assert not told.copies
        assert told.rows == 10
        assert told.columns == 105
        assert "one value for each 35 neighbouring columns" in told.operands["gamma"].lies
        assert str(told).startswith("GroupNorm on cpu")
        assert "viewed as (2, 5, 3, 5, 7)" in str(told)
        assert told.bytes == 4 * (2 * x.numel() + 2 * 15)

    def test_gradients(self):
        groups, x, gamma, beta = case_of("odd sizes", "cpu")
        op, _ = group_norm(groups)
        told = op.explain(x, gamma=gamma.requires_grad_(), beta=beta.requires_grad_())
        assert re.search(r"gamma: each row leaves 3 sums .* \(120 bytes in all\)", told.backward)

    def test_only_x_is_copied(self):
        groups, x, gamma, beta = case_of("images", "cpu")
        op, _ = group_norm(groups)
        told = op.explain(LAYOUTS["channels_last"](x), gamma=gamma, beta=beta)
        assert told.copies == ("'x' to (3, 3, 4, 4, 8), dense",)


class TestTraced:
    @pytest.mark.thorough
    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    def test_compiled(self, layout, device):
        _, call = group_norm(3)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
        for batch in (3, 5, 1):
            x = randn(batch, 12, 4, 8, device=device)
            x = LAYOUTS["channels_last"](x) if layout == "channels_last" else x
            gamma, beta = (randn(12, device=device, seed=i) for i in (1, 2))
            found, wanted = (with_gradients(one, x, gamma, beta) for one in (compiled, call))
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other)

    def test_several_outputs(self, device):
        op = fo.InstanceNorm(load=[fo.Residual("r", save="z")], stats=True)
        compiled = torch.compile(lambda x, r: op(x, r=r), fullgraph=True, backend="aot_eager")
        x, r = randn(2, 6, 5, 4, device=device), randn(2, 6, 5, 4, device=device, seed=1)
        found, wanted = compiled(x, r), op(x, r=r)
        assert type(found) is type(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)

    def test_errors(self):
        compiled = torch.compile(group_norm(4)[1], fullgraph=True, backend="aot_eager")
        with pytest.raises(Exception, match=r"GroupNorm: .*gamma.*12 channels"):
            compiled(torch.zeros(3, 12, 5), torch.zeros(5), torch.zeros(12))

    @pytest.mark.thorough
    def test_a_saved_program(self, tmp_path):
        """Runs in a process that has never seen the declaration."""

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight, self.bias = (torch.nn.Parameter(randn(12, seed=i)) for i in (1, 2))

            def forward(self, x):
                return group_norm(3)[1](x, self.weight, self.bias)

        block, x = Block().eval(), randn(3, 12, 4, 8)
        shapes = {"x": {0: torch.export.Dim("batch")}}
        program = torch.export.export(block, (x,), dynamic_shapes=shapes)
        torch.export.save(program, tmp_path / "program.pt2")
        torch.save((x[:2], block(x[:2]).detach()), tmp_path / "io.pt")
        code = (
            "import sys, torch, fusedops\n"
            "program = torch.export.load(sys.argv[1] + '/program.pt2').module()\n"
            "x, want = torch.load(sys.argv[1] + '/io.pt')\n"
            "print(torch.equal(program(x), want))\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "True", done.stderr


def test_what_is_built_ahead_is_what_runs(monkeypatch):
    """As `fusedops build` does from an op and operands: all kernels of both passes."""
    groups, x, gamma, beta = case_of("odd sizes", "cpu")
    op, call = group_norm(groups)
    line = str(of_call(op.bind(x, {"gamma": gamma, "beta": beta})))
    built = {one.key for one in variants([Signature.parse(line)], Target.named("cpu"))}
    asked = set()
    before = Variant.kernel
    # One that other tests have left loaded could serve a call in place of its own.
    monkeypatch.setattr("fusedops.generate.variant._kernels", {})
    monkeypatch.setattr(Variant, "kernel", lambda one: [asked.add(one.key), before(one)][1])
    call(x, gamma, beta)
    with_gradients(call, x, gamma, beta)
    assert asked == built


class TestExported:
    @pytest.mark.thorough
    @pytest.mark.parametrize("groups", [1, 3])
    def test_a_header(self, groups, tmp_path):
        """Forward and backward, to the bit; any number of samples where there is one group."""
        op, _ = group_norm(groups)
        x, gamma, beta = randn(5, 12, 4, 7), randn(12, seed=1), randn(12, seed=2)
        header = fo.export(op, x, name="norm", gamma=gamma, beta=beta)
        assert ("rows" in header.parameters["norm_forward"]) == (groups == 1)
        library = Library(tmp_path, header)
        for batch in (5, 9, 2) if groups == 1 else (5,):
            rows, seen, given = op.over_rows(randn(batch, 12, 4, 7), {"gamma": gamma, "beta": beta})
            dim = given.pop("dim")
            Call(rows, seen, given, dim=dim).check(library, "norm")

    @pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
    def test_for_a_gpu(self, arch):
        x = torch.empty(8, 320, 64, 64, dtype=torch.float16, device="meta")
        v = torch.empty(320, device="meta")
        header = fo.export(fo.GroupNorm(32, store=AFFINE), x, arch=arch, gamma=v, beta=v)
        assert header.name == "group_norm"
        assert "PiecesOf<" in header.text

    def test_copies_are_refused(self):
        x = torch.empty(8, 32, 4, 4, device="meta").to(memory_format=torch.channels_last)
        with pytest.raises(
            fo.UnsupportedError, match=r"GroupNorm over dimensions .* runs on copies"
        ):
            fo.export(fo.GroupNorm(4), x, arch="cpu")


def test_calls_from_a_plan_agree(device):
    """The C++ path, with other values, pointers, outputs given and not."""
    groups, x, gamma, beta = case_of("images", device)
    op, _ = group_norm(groups)
    for seed, given in itertools.product(range(3), (False, True)):
        x = randn(*x.shape, device=device, seed=seed)
        out = {"out": torch.full_like(x, math.nan)} if given else {}
        y = op(x, gamma=gamma, beta=beta, **out)
        assert torch.equal(y, fo.GroupNorm(groups, store=AFFINE)(x, gamma=gamma, beta=beta))
    assert op.launches >= 6
