# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops on distributed tensors (DTensor): processes compute what one computes, on CPUs and on GPUs.

Results that belong to an element or to a row have the same bits. A gradient that is a sum over rows
is one in another order, and within the bound of that.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from cases import declare
from ranks import device, line, needs_gloo, randn, rows_mesh
from references import Chain
from test_gradients import EPS, LOAD, SHAPE, STORE, TURNS, Making
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

import fusedops as fo
from fusedops.distributed.columns import sharded_columns
from fusedops.torch_ops.calls import OpCall

pytestmark = [pytest.mark.thorough, pytest.mark.grid(strength=1), needs_gloo]

WHOLE = Replicate()
DRAW = (123, 7)


def named(result):
    return {"y": result} if isinstance(result, torch.Tensor) else result._asdict()


def along(shape, placements, rank):
    """The placements of an operand beside an x: sharded where it has the dimension."""
    found = []
    for one in placements:
        at = one.dim - (rank - len(shape)) if isinstance(one, Shard) else -1
        found.append(Shard(at) if at >= 0 and shape[at] != 1 else WHOLE)
    return found


def run(call, x, operands, upstream, options):
    """The outputs, and the gradients of x and of the operands that have one."""
    leaves = {
        name: t.detach().requires_grad_()
        for name, t in {"x": x, **operands}.items()
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    }
    given = {name: leaves.get(name, value) for name, value in operands.items()}
    outputs = named(call(leaves["x"], **given, **options))
    able = {name: y for name, y in outputs.items() if y.requires_grad}
    torch.autograd.backward(list(able.values()), [upstream[name] for name in able])
    return outputs, {name: leaf.grad for name, leaf in leaves.items()}


def same_bits(got, want, what):
    torch.testing.assert_close(
        got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def summed_bound(op, x, operands, upstream, options, name):
    """How far two orders of the sum over rows may be apart: n u sum |terms| each (Higham, 4.4)."""
    value = operands[name]
    if name in op.tables:
        # What is added where the table is looked up: the gradient of the sum that it is a part of.
        _, terms = run(op.unfused, x, operands, upstream, options)
        size = terms["x"].abs().sum() + upstream["y"].abs().sum()
        return 2 * x.numel() * torch.finfo(x.dtype).eps * size
    # What has one number a row is summed in each row first, in one order wherever the row lies.
    roles = {operand.name: operand.role for operand in op.operands}
    wide = (*x.shape[:-1], 1) if roles[name] is fo.functors.Role.ROW else x.shape
    full = {**operands, name: value.expand(wide)}
    _, terms = run(op.unfused, x, full, upstream, options)
    size = terms[name].abs().sum_to_size(value.shape)
    return 2 * x.numel() * torch.finfo(x.dtype).eps * size


def has_its_order(operand, x, gradient):
    """Whether a gradient is no sum over rows, or one in the same order as that of one process.

    A CPU adds up rows in their order. How a GPU does depends on how many there are.
    """
    summed = any(isinstance(one, Partial) for one in gradient.placements)
    return not summed and (device() == "cpu" or operand.shape[:-1] == x.shape[:-1])


def compare(op, x, operands, options, mesh, placements, *, call=None, replicated=False):
    """A sharded call against the same call of one process."""
    rank = x.dim()
    options = {"generator": DRAW, **options}
    plain = op(x, **operands, **options)
    upstream = {
        name: randn(*y.shape, dtype=y.dtype, seed=50 + at)
        for at, (name, y) in enumerate(named(plain).items())
    }
    want, gradients = run(op, x, operands, upstream, options)

    tables = op.tables

    def spread(name, tensor):
        if not isinstance(tensor, torch.Tensor):
            return tensor
        whole = replicated or name in tables
        to = [WHOLE] * mesh.ndim if whole else along(tensor.shape, placements, rank)
        return distribute_tensor(tensor, mesh, to, src_data_rank=None)  # gloo has no bool

    dim = options.get("dim", -1) % rank

    def like(y):
        if y.dim() == rank:
            return distribute_tensor(y, mesh, placements, src_data_rank=None)
        to = [
            WHOLE
            if not isinstance(one, Shard) or one.dim == dim
            else Shard(one.dim - (one.dim > dim))
            for one in placements
        ]
        return distribute_tensor(y, mesh, to, src_data_rank=None)

    sharded = distribute_tensor(x, mesh, placements, src_data_rank=None)
    given = {name: spread(name, value) for name, value in operands.items()}
    if sharded_columns(OpCall(op, op.text, sharded, given, {}, (dim,), x.dtype)) is not None:
        return None  # another order of the additions, which has a test of its own
    got, found = run(
        call or op,
        sharded,
        given,
        {name: like(one) for name, one in upstream.items()},
        options,
    )
    for name, one in want.items():
        assert isinstance(got[name], DTensor)
        same_bits(got[name].full_tensor(), one, f"{name} of {op} on {placements}")
    for name, one in gradients.items():
        full = found[name].full_tensor()
        if name == "x" or has_its_order(operands[name], x, found[name]):
            same_bits(full, one, f"gradient of {name} of {op} on {placements}")
        else:
            bound = summed_bound(op, x, operands, upstream, options, name)
            off = (full - one).abs() > bound  # false of a NaN, which both have
            assert not off.any(), f"gradient of {name} of {op}"
            assert torch.equal(full.isnan(), one.isnan()), f"gradient of {name} of {op}"
    return got, found


PLACEMENTS = [
    (Shard(0), Shard(1)),
    (Shard(2), Shard(2)),
    (Shard(1), WHOLE),
    (Shard(3), Shard(2)),
    (WHOLE, Shard(2)),
]


def of_16_bits(value):
    return isinstance(value, torch.Tensor) and value.dtype is torch.int16


def each_functor(op, words):
    mesh = rows_mesh()
    for at, (load_word, store_word) in enumerate(words):
        making = Making(device())
        load = (making.step(load_word),)
        store = (making.step(store_word),) if store_word else ()
        chain = Chain(op, load, store, eps=EPS[op])
        x, operands = randn(*SHAPE, dtype=torch.float64, seed=9), making.operands
        if device() != "cpu":  # NCCL moves no integers of 16 bits
            short = [name for name, one in operands.items() if of_16_bits(one)]
            operands = {**operands, **{name: operands[name].int() for name in short}}
        for turn in (0, 2):
            placements = PLACEMENTS[(at + turn) % len(PLACEMENTS)]
            compare(declare(chain), x, operands, {}, mesh, placements, replicated=turn == 2)


#: Each takes 20 s on two GPUs whose machine is busy.
PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("op", LOAD)
def test_each_functor(ranks, op, part):
    """On GPUs in each op, else in the one that it is in where no rank has a part.

    That has built the kernels, and how operands are spread does not depend on the op. In parts,
    each of which ends well before its limit.
    """
    if ranks.backend == "nccl":
        words = [*zip(LOAD[op][part::PARTS], itertools.cycle([None, *STORE]), strict=False)]
    else:
        words = [(load, store) for its, load, store in TURNS if its == op][part::PARTS]
    ranks.run(each_functor, op, words)


ATTENTION = fo.Softmax(
    load=[
        fo.Scale("scale"),
        fo.Bias("bias"),
        fo.Alibi("slopes", align="bottom-right"),
        fo.Causal(align="bottom-right"),
    ],
    store=[fo.Dropout("p"), fo.Dropout("q", shared=(1,))],
    lse=True,
    sink="sink",
)
NORM = fo.LayerNorm(
    load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", save="stream")],
    store=[fo.Affine("gamma", "beta")],
    stats=True,
)


def attention_operands(dtype=torch.float64):
    return {
        "scale": 0.5,
        "p": 0.3,
        "q": 0.2,
        "bias": randn(3, 5, 8, dtype=dtype, seed=1),
        "slopes": randn(3, 1, 1, dtype=dtype, seed=2),
        "sink": randn(3, 1, 1, dtype=dtype, seed=3),
    }


def norm_operands(shape, dtype=torch.float64):
    return {
        "p": 0.3,
        "b": randn(shape[-1], dtype=dtype, seed=1),
        "r": randn(*shape, dtype=dtype, seed=2),
        "gamma": randn(shape[-1], dtype=dtype, seed=3),
        "beta": randn(shape[-1], dtype=dtype, seed=4),
    }


def flagships(compiled):
    mesh = rows_mesh()
    flat = line()
    x = randn(*SHAPE, dtype=torch.float64)
    attention, norm = ATTENTION, NORM
    if compiled:
        # What another test has compiled makes sizes dynamic here, at which AOTAutograd of torch
        # 2.13 breaks off: https://github.com/pytorch/pytorch/issues/185296
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 64
        attention, norm = (
            torch.compile(one, fullgraph=True, backend="aot_eager") for one in (ATTENTION, NORM)
        )
    for placements in PLACEMENTS[: 2 if compiled else None]:
        given = attention_operands(), {}, mesh, placements
        got, _ = compare(ATTENTION, x, *given, call=attention)
        wanted = [WHOLE if one == Shard(3) else one for one in placements]
        assert list(got["y"].placements) == wanted
        compare(NORM, x, norm_operands(SHAPE), {}, mesh, placements, call=norm)
    # Five queries: of four ranks two have two, one has one and one none; of two, three and two.
    compare(ATTENTION, x, attention_operands(), {}, flat, (Shard(2),), call=attention)
    compare(NORM, x, norm_operands(SHAPE), {}, flat, (Shard(0),), call=norm)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_flagships(ranks, compiled):
    ranks.run(flagships, compiled)


def other_ops():
    mesh = rows_mesh()
    x = randn(*SHAPE, dtype=torch.float64)
    for at, op in enumerate(
        [
            fo.L2Norm(),
            fo.Map(load=[fo.Affine("gamma", "beta"), fo.Dropout("p")]),
            fo.RMSNorm(store=[fo.Affine("gamma", None)], stats=True),
            fo.LogSoftmax(load=[fo.Scale("scale")], lse=True),
        ]
    ):
        given = {"gamma": randn(8, dtype=torch.float64, seed=1), "p": 0.25, "scale": 0.5}
        given["beta"] = given["gamma"] + 1
        compare(op, x, {k: given[k] for k in op.slots}, {}, mesh, PLACEMENTS[at])
    compare(fo.Softmax(store=[fo.Dropout("p")]), x, {"p": 0.4}, {"dim": 1}, mesh, PLACEMENTS[0])


def test_other_ops(ranks):
    ranks.run(other_ops)


def norms_of_several_dimensions():
    mesh = rows_mesh()
    x, gamma = randn(4, 6, 5, 3, dtype=torch.float64), randn(6, dtype=torch.float64, seed=1)
    for op, options in [
        (fo.LayerNorm(load=[fo.Dropout("p")], store=[fo.Scale("s")]), {"dim": (1, 3)}),
        (fo.GroupNorm(2, store=[fo.Affine("gamma", None), fo.Dropout("p")]), {}),
    ]:
        given = {"p": 0.4, "s": 2.0, "gamma": gamma}
        given = {name: given[name] for name in op.slots}
        alone = x.clone().requires_grad_()
        want = op(alone, **given, **options, generator=DRAW)
        want.backward(x)
        for placements in ((Shard(0), WHOLE), (Shard(0), Shard(0)), (WHOLE, WHOLE)):
            spread = distribute_tensor(x, mesh, placements).requires_grad_()
            if "gamma" in given:
                given["gamma"] = distribute_tensor(gamma, mesh, [WHOLE, WHOLE])
            got = op(spread, **given, **options, generator=DRAW)
            got.backward(distribute_tensor(x, mesh, placements))
            same_bits(got.full_tensor(), want, f"{op} on {placements}")
            same_bits(spread.grad.full_tensor(), alone.grad, f"{op} on {placements}")


def test_norms_of_several_dimensions(ranks):
    ranks.run(norms_of_several_dimensions)


def draws_of_the_first_rank():
    mesh = rows_mesh()
    x = randn(*SHAPE, dtype=torch.float64)
    op = fo.Softmax(store=[fo.Dropout("p")])
    for placements in PLACEMENTS:
        torch.manual_seed(11)
        want = op(x, p=0.5)
        torch.manual_seed(11 + dist.get_rank())
        got = op(distribute_tensor(x, mesh, placements), p=0.5)
        assert torch.equal(got.full_tensor(), want)
        again = op(distribute_tensor(x, mesh, placements), p=0.5)
        assert not torch.equal(again.full_tensor(), want)


def test_ranks_with_other_seeds_draw_what_the_first_draws(ranks):
    ranks.run(draws_of_the_first_rank)


def partial_sums():
    mesh = line()
    x = randn(6, 8, dtype=torch.float64, seed=dist.get_rank())
    parts = DTensor.from_local(x, mesh, [Partial()]).requires_grad_()
    whole = parts.detach().full_tensor()
    op = fo.LayerNorm(load=[fo.Dropout("p")])
    y = op(parts, p=0.3, generator=DRAW)
    same_bits(y.full_tensor(), op(whole, p=0.3, generator=DRAW), "of partial sums")


def test_partial_sums_are_reduced_first(ranks):
    ranks.run(partial_sums)


def explained():
    mesh = rows_mesh()
    x = distribute_tensor(randn(8, 6, 64), mesh, [Shard(0), Shard(2)])
    bias = distribute_tensor(randn(6, 64), mesh, [WHOLE, Shard(1)])
    op = fo.Softmax(load=[fo.Bias("bias"), fo.Causal()], store=[fo.Dropout("p")])
    told = op.explain(x, bias=bias, p=0.5)
    # Each rank has half of the columns of four of eight samples, and gets the other half.
    assert told.redistributed == (
        "x from (Shard(0), Shard(2)) to (Shard(0), Replicate): 3072 bytes to each rank",
        "bias from (Replicate, Shard(1)) to (Replicate, Replicate): 768 bytes to each rank",
    )
    assert told.rows == 24
    assert "redistributed" in str(told)
    rows = distribute_tensor(randn(8, 6, 64), mesh, [Shard(0), Shard(1)])
    assert op.explain(rows, bias=bias, p=0.5).redistributed[0].startswith("bias")
    with torch.no_grad():
        assert op.explain(rows, bias=bias, p=0.0).outputs["y"].shape == (4, 3, 64)
    assert op(x, bias=bias, p=0.5).placements == (Shard(0), WHOLE)


def test_explain_says_what_moves(four_ranks):
    four_ranks.run(explained)


@fo.functor
def by_position(v):
    return v + 0.25 * fo.position(-2).to(v.dtype) - 0.5 * fo.position(-3).to(v.dtype)


def positions():
    """What reads coordinates stays whole along them, also where a dropout says where x lies."""
    op = fo.Softmax(load=[by_position()], store=[fo.Dropout("p")])
    x = randn(*SHAPE, dtype=torch.float64, seed=9)
    mesh = rows_mesh()
    for placements in PLACEMENTS[:3]:
        compare(op, x, {"p": 0.3}, {}, mesh, placements)


def test_positions(ranks):
    ranks.run(positions)
