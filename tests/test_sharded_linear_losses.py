# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product and its loss with w sharded over classes, against float64; no rank has whole logits."""

import contextlib

import pytest
import torch
from ranks import columns_mesh, compiles_shards, device, line, needs_gloo, randn
from test_sharded_bytes import Received
from test_sharded_classes import ROWS, WHOLE, named, of_rows, placed, targets, whole
from torch.distributed.tensor import Partial, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    parallelize_module,
)

import fusedops as fo

pytestmark = [pytest.mark.thorough, pytest.mark.grid(strength=1), needs_gloo]


def step(call, leaves, upstream, most=None, **given):
    """Results of a call, and the gradients of what it got; it moves so many bytes at most."""
    leaves = {name: one.detach().requires_grad_() for name, one in leaves.items()}
    x, w, *_ = leaves.values()
    operands = {name: one for name, one in leaves.items() if name not in ("x", "w")}
    with Received() if most else contextlib.nullcontext() as moved:
        found = named(call(x, w, **operands, **given))
        able = [name for name in found if name not in ("largest", "correct")]
        assert not any(one.requires_grad for name, one in found.items() if name not in able)
        torch.autograd.backward([found[k] for k in able], [upstream[k] for k in able])
    assert not most or moved.bytes < most
    return {name: one.detach() for name, one in found.items()}, {
        name: one.grad for name, one in leaves.items()
    }


def check(op, of_x, of_w, classes):
    """A sharded call against float64."""
    mesh = columns_mesh()
    leaves = {
        "x": randn(ROWS, 64),
        "w": randn(classes, 64, seed=2) / 4,
        "b": randn(classes, seed=3),
    }
    leaves = {k: one for k, one in leaves.items() if k != "b" or k in op.slots}
    given = {"target": targets(classes), **({"cap": 5.0} if "cap" in op.slots else {})}
    lie = [Shard(1) if one == Shard(0) else other for one, other in zip(of_w, of_x, strict=True)]
    rows = of_rows(lie)
    wide = {name: one.double() for name, one in leaves.items()}
    x, w, *others = wide.values()
    results = named(op.unfused(x, w, **dict(zip(["b"], others, strict=False)), **given))
    dy = {name: randn(*one.shape, seed=9) for name, one in results.items()}
    truth = step(op.unfused, wide, {name: one.double() for name, one in dy.items()}, **given)
    spread = {"x": of_x, "w": of_w, "b": of_w}
    got = step(
        op,
        {name: placed(one, mesh, spread[name]) for name, one in leaves.items()},
        {k: placed(one, mesh, rows if one.dim() else [WHOLE] * mesh.ndim) for k, one in dy.items()},
        most=2048,  # of 8 rows
        **{**given, "target": placed(given["target"], mesh, rows)},
    )
    for name, other in (("x", of_w), ("w", of_x)):  # terms of sums over ranks
        pairs = zip(spread[name], other, strict=True)
        lies = [Partial() if one == Shard(0) else mine for mine, one in pairs]
        assert [*got[1][name].placements] == lies
    for mine, want in zip(got, truth, strict=True):
        for name, exact in want.items():
            # Logits of a few units, of which some are added; sums of products of that size.
            size = 2 * exact.abs().max() + (8 if mine is got[0] else 0)
            # A gradient of x sums a product for each class, and of w one for each row.
            terms = {"x": classes, "w": ROWS}.get(name, 1) if mine is got[1] else 1
            error = (whole(mine[name]).double() - exact).abs().max()
            bound = (16 + terms**0.5) * torch.finfo(torch.float32).eps * size
            assert error <= bound, f"{name}: {error} of {size}"


def linear_losses():
    load = (fo.Softcap("cap"), fo.Bias("b"))
    every = {"lse": True, "log_prob": True, "entropy": True, "z_loss": 0.01}
    every |= {"largest": True, "correct": True}
    by_rows = fo.LinearCrossEntropy(load, reduction="none", **every)
    check(by_rows, [WHOLE, WHOLE], [WHOLE, Shard(0)], 4500)  # of two ranks each has two blocks
    check(by_rows, [Shard(0), WHOLE], [WHOLE, Shard(0)], 4500)
    check(by_rows, [WHOLE, WHOLE], [Shard(0), Shard(0)], 501)
    check(by_rows, [Shard(0), WHOLE], [WHOLE, WHOLE], 501)
    smoothed = fo.LinearCrossEntropy(load, label_smoothing=0.1)
    check(smoothed, [WHOLE, WHOLE], [WHOLE, Shard(0)], 101)
    kept = fo.LinearCrossEntropy(load, memory=ROWS * 4500 * 4)  # each rank keeps its logits
    check(kept, [WHOLE, WHOLE], [WHOLE, Shard(0)], 4500)
    check(kept, [Shard(0), WHOLE], [WHOLE, WHOLE], 4500)
    # Some ranks have no class.
    check(fo.LinearCrossEntropy(reduction="sum"), [WHOLE, WHOLE], [Shard(0), Shard(0)], 3)


def test_linear(ranks):
    ranks.run(linear_losses)


def linear_refused():
    """Factors that would have to move are refused, and so is a plain one; `explain` says bytes."""
    mesh = line()
    op, labels = fo.LinearCrossEntropy(), placed(targets(26), mesh, [WHOLE])
    x, w = randn(ROWS, 8), randn(26, 8, seed=2)
    for of_x, of_w in (([Shard(0)], [Shard(0)]), ([Shard(1)], [Shard(1)]), ([WHOLE], [Shard(1)])):
        with pytest.raises(fo.UnsupportedError, match="over dimension 0 x is"):
            op(placed(x, mesh, of_x), placed(w, mesh, of_w), target=labels)
    with pytest.raises(fo.UnsupportedError, match="'x' is a plain tensor"):
        op(x, placed(w, mesh, [Shard(0)]), target=labels)
    told = op.explain(placed(x, mesh, [WHOLE]), placed(w, mesh, [Shard(0)]), target=labels)
    assert f"{ROWS * 2 * 4 * (mesh.size() - 1)} bytes to each rank" in told.notes[-1]
    classes = 4500 * mesh.size()
    w = placed(randn(classes, 8, seed=2).requires_grad_(), mesh, [Shard(0)])
    for bytes_of, way in ((ROWS * 4500 * 4, "one block"), (ROWS * 4500 * 4 - 1, "blocks of")):
        op = fo.LinearCrossEntropy(memory=bytes_of)
        told = op.explain(placed(x, mesh, [WHOLE]), w, target=placed(targets(26), mesh, [WHOLE]))
        assert way in told.implementation


def test_linear_refused(ranks):
    ranks.run(linear_refused)


def linear_compiled():
    torch._dynamo.reset()
    mesh = line()
    op = fo.LinearCrossEntropy(load=[fo.Softcap("cap")], label_smoothing=0.1)
    call = torch.compile(op, fullgraph=True, backend="aot_eager")
    labels = placed(targets(4500), mesh, [WHOLE])
    results = []
    for run_it in (op, call):
        x = placed(randn(ROWS, 64), mesh, [WHOLE]).requires_grad_()
        w = placed(randn(4500, 64, seed=2), mesh, [Shard(0)]).requires_grad_()
        loss = run_it(x, w, target=labels, cap=5.0)
        loss.backward()
        results.append([whole(one) for one in (loss.detach(), x.grad, w.grad)])
    for mine, want in zip(*results, strict=True):
        assert torch.equal(mine, want)


@compiles_shards
@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [("gloo", 2)], indirect=True, ids=["gloo-2"], scope="session")
def test_linear_compiled(ranks):
    ranks.run(linear_compiled)


def modules():
    """`fo.nn.LinearCrossEntropyLoss` by the plan of docs/how-to/many-gpus.md."""
    mesh = line()
    torch.manual_seed(0)
    loss = fo.nn.LinearCrossEntropyLoss(16, 101, bias=True, softcap=5.0).to(device())
    x, labels = randn(4, 8, 16), targets(101).expand(4, ROWS).contiguous()
    alone = x.clone().requires_grad_()
    wanted = loss(alone, labels)
    wanted.backward()
    gradients = [one.grad for one in loss.parameters()]
    loss.zero_grad()
    to = PrepareModuleInput(input_layouts=(Shard(1), WHOLE), desired_input_layouts=(WHOLE, WHOLE))
    parallelize_module(loss, mesh, {"": to, "linear": ColwiseParallel()})
    part = placed(x, mesh, [Shard(1)]).to_local().requires_grad_()
    found = loss(part, labels)
    found.backward()
    torch.testing.assert_close(whole(found), wanted)
    torch.testing.assert_close(part.grad, placed(alone.grad, mesh, [Shard(1)]).to_local())
    for mine, want in zip(loss.parameters(), gradients, strict=True):
        assert mine.grad.placements == (Shard(0),)
        torch.testing.assert_close(whole(mine.grad), want)


def test_modules(ranks):
    ranks.run(modules)
