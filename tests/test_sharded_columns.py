# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops on distributed tensors whose columns are sharded and stay so: exact, and differentiable."""

import pytest
import torch
from ranks import columns_mesh, compiles_shards, needs_gloo, randn
from test_sharded import WHOLE, along, named, run
from torch.distributed.tensor import Shard, distribute_tensor

import fusedops as fo
from fusedops.declare.operator import RowParts, WholeRow

pytestmark = [pytest.mark.thorough, pytest.mark.grid(strength=1), needs_gloo]

MESHES = ((Shard(0), Shard(2)), (Shard(2), Shard(1)), (WHOLE, Shard(2)))


def sharded_on(mesh):
    """Those of MESHES in which several ranks have columns."""
    return [to for to in MESHES if mesh.size(to.index(Shard(2))) > 1]


def softmax_columns():
    mesh = columns_mesh()
    x = randn(4, 6, 21, seed=1) * 3
    mask = randn(4, 1, 21, seed=2) < 0.3
    mask[1] = True  # no column of these rows is left
    mask[2, :, 11:] = True  # nor of these on the second rank
    bias, gate = randn(6, 21, seed=3), randn(21, seed=4)
    load = [fo.Scale("s"), fo.Bias("b"), fo.Mask("m")]
    for op, given in [
        (
            fo.Softmax(load=load, store=[fo.Scale("g")], lse=True),
            {"s": 0.5, "b": bias, "m": mask, "g": gate},
        ),
        (fo.LogSoftmax(load=[fo.Bias("b")]), {"b": bias}),
    ]:
        for placements in sharded_on(mesh):
            check_columns(op, x, given, mesh, placements)


def index_columns():
    """Masks and biases made from indices, of queries and keys that both are sharded."""
    mesh = columns_mesh()
    x = randn(4, 6, 21, seed=1) * 3
    slopes = randn(4, 1, 1, seed=2)
    lengths = torch.tensor([21, 11, 3, 0]).to(x.device)[:, None, None]  # of ranks' 11 and 10
    for op, given in [
        (fo.Softmax(load=[fo.Scale("s"), fo.Causal()], lse=True), {"s": 0.5}),
        (
            fo.Softmax(load=[fo.Alibi("a"), fo.Causal(align="bottom-right", offset=-2)]),
            {"a": slopes},
        ),
        (
            fo.Softmax(load=[fo.Window(3, 2, align="bottom-right")], store=[fo.Scale("s")]),
            {"s": 2.0},
        ),
        (fo.Softmax(load=[fo.Window(None, 8), fo.Lengths("n")], lse=True), {"n": lengths}),
        (fo.Softmax(load=[fo.Lengths("n")]), {"n": 12}),
        (fo.LogSoftmax(load=[fo.Alibi("a", offset=4)], lse=True), {"a": slopes}),
    ]:
        for placements in sharded_on(mesh):
            check_columns(op, x, given, mesh, placements)


def norm_columns():
    mesh = columns_mesh()
    x = randn(4, 6, 33, seed=1) + 100  # a mean far from zero
    given = {
        "r": randn(4, 6, 33, seed=2),
        "b": randn(33, seed=3),
        "gamma": randn(33, seed=4),
        "beta": randn(33, seed=5),
    }
    residual = [fo.Bias("b"), fo.Residual("r", save="stream")]
    affine = [fo.Affine("gamma", "beta")]
    for op in (
        fo.LayerNorm(load=residual, store=affine, stats=True),
        fo.RMSNorm(store=[fo.Affine("gamma", None)]),
        fo.L2Norm(load=[fo.Bias("b")], stats=True),
    ):
        for placements in sharded_on(mesh):
            check_columns(op, x, {k: given[k] for k in op.slots}, mesh, placements)


@fo.functor(integers=["kind"])
def softened(v, a, kind):
    return torch.where(kind == 1, a * torch.tanh(v / a), v)


@fo.functor(integers=["kind"])
def masked(v, kind):
    return kind != 2


class Sized(fo.RowOp):
    """An operator that is not the library's: a norm without a mean, of C++ that is there."""

    header = "op/norm.cuh"
    gradient_header = "op/norm_gradient.cuh"
    kept = 1
    numbers = ("eps",)
    row_parts = RowParts(1, "each row's mean square")

    def __init__(self, load=(), store=(), *, eps=1e-5):
        super().__init__(load, store, eps=eps)

    def part_numbers(self, value):
        return value.square().mean(-1, keepdim=True)

    def of_parts(self, here, parts, columns):
        shares = [count / sum(columns) for count in columns]
        square = sum(one * share for one, share in zip(parts.unbind(-2), shares, strict=True))
        return WholeRow(scale=torch.rsqrt(square + self.constants["eps"]))

    def reference(self, value):
        square = value.square().mean(-1, keepdim=True)
        return value * torch.rsqrt(square + self.constants["eps"]), {}

    def cpp(self, compute):
        return f"RmsNorm<{compute}>"

    def gradient_cpp(self, compute):
        return f"RmsNormGradient<{compute}>"


def own_columns():
    """Functors and an operator of one's own, which say what ranks have to know of them."""
    mesh = columns_mesh()
    x = randn(4, 6, 33, seed=1)
    gate, gamma = randn(33, seed=2).abs() + 1, randn(33, seed=3)
    for op, given in [
        (
            fo.Softmax(load=[softened("a", "k"), masked("m")], store=[fo.Scale("g")], lse=True),
            {"a": gate, "k": 1, "m": randn(6, 33, seed=4).long(), "g": gamma},
        ),
        (
            fo.LayerNorm(load=[fo.Save("kept"), softened("a", "k")], store=[softened(0.5, "k")]),
            {"a": gate, "k": torch.arange(33).to(x.device) % 2},
        ),
        (
            Sized(load=[softened(2.0, "k")], store=[fo.Affine("gamma", None)]),
            {"gamma": gamma, "k": 1},
        ),
    ]:
        for placements in sharded_on(mesh):
            check_columns(op, x, {k: given[k] for k in op.slots}, mesh, placements)


def channels():
    """A GroupNorm of channels alone is a LayerNorm of columns, under a name of its own."""
    mesh = columns_mesh()
    x, gamma = randn(6, 33, seed=1), randn(33, seed=2)
    op = fo.GroupNorm(1, store=[fo.Affine("gamma", None)])
    sharded = WHOLE, Shard(1)
    got = op(
        distribute_tensor(x, mesh, sharded),
        gamma=distribute_tensor(gamma, mesh, (WHOLE, Shard(0))),
    )
    assert got.placements == sharded  # nothing was gathered
    torch.testing.assert_close(got.full_tensor(), op(x, gamma=gamma))


def check_columns(op, x, given, mesh, placements, call=None):
    """Against float64, with as much slack as the fused op of one process has, and twice that."""
    wide = {
        k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        for k, v in given.items()
    }
    upstream = {
        name: randn(*y.shape, seed=5 + at)
        for at, (name, y) in enumerate(named(op(x, **given)).items())
    }
    exactly = {name: one.double() for name, one in upstream.items()}
    truth, exact = run(op.unfused, x.double(), wide, exactly, {})
    alone, known = run(op, x, given, upstream, {})
    spread = {
        k: distribute_tensor(v, mesh, along(v.shape, placements, x.dim()), src_data_rank=None)
        if torch.is_tensor(v)
        else v
        for k, v in given.items()
    }
    at = distribute_tensor(x, mesh, placements)
    last = Shard(x.dim() - 1)
    of_rows = tuple(WHOLE if one == last else one for one in placements)
    lies = {name: placements if y.dim() == x.dim() else of_rows for name, y in upstream.items()}
    dy = {name: distribute_tensor(one, mesh, lies[name]) for name, one in upstream.items()}
    got, found = run(call or op, at, spread, dy, {})
    for name, one in got.items():
        assert one.placements == lies[name], f"{name} of {op}"  # nothing was gathered
    told = op.explain(at, **spread).redistributed
    assert "columns stay sharded" in told[0]
    for name, one in (*got.items(), *(("gradient of " + k, v) for k, v in found.items())):
        mine = one.full_tensor()
        key = name.removeprefix("gradient of ")
        want, single = (exact[key], known[key]) if key != name else (truth[key], alone[key])
        # A few more roundings of each number, by the numbers of its row: eps of the largest term.
        known_here = want.isfinite()
        assert torch.equal(mine.isfinite(), known_here), f"{name} of {op}"
        largest = want[known_here].abs().max()
        if key == "a" and key != name:  # the gradient of slopes: a sum of distances times that of x
            largest = sum(x.shape[-2:]) * exact["x"].abs().sum((1, 2)).max()
        unit = torch.finfo(x.dtype).eps * largest
        slack = 4 * (single - want)[known_here].abs().max() + 8 * unit
        error = (mine - want)[known_here].abs().max()
        assert error <= slack, f"{name} of {op} on {placements}: {error} > {slack}"


def compiled_columns():
    torch._dynamo.reset()  # sizes are those of no other test's, as in test_sharded.py
    mesh = columns_mesh()
    x, gamma = randn(4, 6, 33, seed=1), randn(33, seed=4)
    for op, given in [
        (fo.Softmax(load=[fo.Scale("s")], lse=True), {"s": 0.5}),
        (fo.Softmax(load=[fo.Lengths("n"), fo.Window(4, 2), fo.Scale("s")]), {"n": 30, "s": 0.5}),
        (fo.LayerNorm(store=[fo.Affine("gamma", None)]), {"gamma": gamma}),
        (Sized(load=[softened("s", "k")]), {"s": 2.0, "k": 1}),
    ]:
        compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
        check_columns(op, x, given, mesh, MESHES[0], call=compiled)


@pytest.mark.parametrize(
    "columns",
    [
        softmax_columns,
        index_columns,
        norm_columns,
        own_columns,
        channels,
        pytest.param(compiled_columns, marks=compiles_shards),
    ],
)
def test_columns_stay_sharded(ranks, columns):
    ranks.run(columns)
