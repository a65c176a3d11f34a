# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Losses whose classes are sharded, against float64 of the whole; logits are never gathered."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from ranks import columns_mesh, compiles_shards, device, line, needs_gloo, randn
from test_sharded_bytes import Received
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import fusedops as fo

pytestmark = [pytest.mark.thorough, pytest.mark.grid(strength=1), needs_gloo]

WHOLE = Replicate()
ROWS = 8


def targets(classes, ignored=-100):
    """Classes of all ranks, and two rows that do not count."""
    labels = (torch.arange(ROWS, device=device()) * 5 + 2) % classes
    labels[3] = labels[6] = ignored
    return labels


def placed(tensor, mesh, to):
    return distribute_tensor(tensor, mesh, to, src_data_rank=None)


def of_rows(placements, dim=1):
    """How numbers of rows lie beside logits."""
    return [WHOLE if one == Shard(dim) else one for one in placements]


def named(result):
    return {"loss": result} if isinstance(result, torch.Tensor) else result._asdict()


def run(call, x, operands, upstream, ungraded=(), **options):
    """Results, and the gradients of x and of the floating operands."""
    leaves = {"x": x, **operands}
    leaves = {
        name: one.detach().requires_grad_()
        for name, one in leaves.items()
        if isinstance(one, torch.Tensor) and one.is_floating_point() and name not in ungraded
    }
    given = {**operands, **{name: leaves[name] for name in operands if name in leaves}}
    found = named(call(leaves["x"] * 1, **given, **options))
    able = {name: one for name, one in found.items() if one.requires_grad}
    torch.autograd.backward([*able.values()], [upstream[name] for name in able])
    return {name: one.detach() for name, one in found.items()}, {
        name: one.grad for name, one in leaves.items()
    }


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(op, x, operands, mesh, placements, spread, *, dim=1, call=None, ungraded=()):
    """A sharded call against float64, as close as roundings of numbers of this size are."""
    wide = {
        k: one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for k, one in operands.items()
    }
    rows = op.unfused(x, **operands, dim=dim)
    upstream = {
        name: randn(*one.shape, dtype=one.dtype, seed=20 + at)
        for at, (name, one) in enumerate(named(rows).items())
    }
    exactly = {name: one.double() for name, one in upstream.items()}
    truth, exact = run(op.unfused, x.double(), wide, exactly, ungraded, dim=dim)

    lie = of_rows(placements, dim)
    dy = {
        name: placed(one, mesh, lie if one.dim() else [WHOLE] * mesh.ndim)
        for name, one in upstream.items()
    }
    given = {
        k: placed(one, mesh, spread[k]) if isinstance(one, torch.Tensor) else one
        for k, one in operands.items()
    }
    sharded = placed(x, mesh, placements)
    with contextlib.nullcontext(Received()) if call else Received() as moved:
        got, found = run(call or op, sharded, given, dy, ungraded, dim=dim)
    assert moved.bytes < 1024, f"{op} moves {moved.bytes} bytes"  # a few numbers of 8 rows
    assert found["x"].placements == tuple(placements)
    reach = torch.finfo(x.dtype).eps * 16
    for what, mine, want in (
        *((name, got[name], truth[name]) for name in truth),
        *((f"gradient of {name}", found[name], exact[name]) for name in exact),
    ):
        mine = whole(mine).double()
        known = want.isfinite()
        torch.testing.assert_close(mine[~known], want[~known], equal_nan=True)
        # The terms are logits, of which some are added, or probabilities times upstream numbers.
        size = want[known].abs().max() + x[x.isfinite()].abs().max()
        error = (mine - want)[known].abs().max()
        assert error <= reach * size, f"{what} of {op} on {placements}: {error} of {size}"


def many_options():
    mesh = line()
    for classes in (37, 5):  # of 4 ranks 37 leave the last 7, and 5 leave it none
        x, b = randn(ROWS, classes) * 3, randn(classes, seed=2)
        x[6] = torch.nan  # a row that does not count
        operands = {"target": targets(classes), "b": b, "cap": torch.tensor([5.0]).to(x)}
        spread = {"target": [WHOLE], "b": [Shard(0)], "cap": [WHOLE]}
        load = [fo.Softcap("cap"), fo.Bias("b")]
        for op in (
            fo.CrossEntropy(load=load),
            fo.CrossEntropy(load=load, reduction="sum", z_loss=0.1, lse=True),
            fo.CrossEntropy(
                load=load,
                reduction="none",
                label_smoothing=0.2,
                z_loss=0.1,
                lse=True,
                log_prob=True,
                entropy=True,
                largest=True,
                correct=True,
                inplace=True,
            ),
        ):
            check(op, x, operands, mesh, [Shard(1)], spread)


def test_options(ranks):
    ranks.run(many_options)


def many_places():
    """Rows and classes on a mesh of two dimensions, classes that are not last, and both on one."""
    mesh = columns_mesh()
    x, b = randn(ROWS, 26) * 3, randn(26, seed=2)
    labels = targets(26)
    cap = torch.tensor([5.0]).to(x)
    op = fo.CrossEntropy(load=[fo.Softcap("cap"), fo.Bias("b")], lse=True, log_prob=True)
    for placements in ([Shard(0), Shard(1)], [Shard(1), Shard(0)], [Shard(1), Shard(1)]):
        rows = of_rows(placements)
        classes = [Shard(0) if one == Shard(1) else WHOLE for one in placements]
        spread = {"target": rows, "b": classes, "cap": [WHOLE, WHOLE]}
        check(op, x, {"target": labels, "b": b, "cap": cap}, mesh, placements, spread)
    images, of_images = randn(2, 13, 4), targets(13).view(2, 4)
    check(
        fo.CrossEntropy(reduction="none"),
        images,
        {"target": of_images},
        mesh,
        [Shard(0), Shard(1)],
        {"target": [Shard(0), WHOLE]},
    )


def masked_classes():
    """Masked targets, ranks without classes in a row, rows without any; lengths of rows."""
    mesh = line()
    x = randn(ROWS, 26) * 3
    mask = randn(ROWS, 26, seed=3) < 0
    mask[0] = True
    mask[1], mask[2] = False, False
    mask[1, :13], mask[2, 13:] = True, True
    labels = targets(26)
    labels[1], labels[2] = 3, 5  # the first is masked, with all that its rank has
    x[4, 11] = -torch.inf
    x[5, 20] = torch.inf
    x[7, 3] = torch.nan
    op = fo.CrossEntropy(load=[fo.Mask("m")], reduction="none", lse=True, entropy=True)
    check(
        op, x, {"target": labels, "m": mask}, mesh, [Shard(1)], {"target": [WHOLE], "m": [Shard(1)]}
    )
    lengths = (torch.arange(ROWS) * 3 + 1).to(x.device)[:, None]
    op = fo.CrossEntropy(load=[fo.Lengths("n")], reduction="none", z_loss=0.01)
    check(
        op, x, {"target": labels, "n": lengths}, mesh, [Shard(1)], {"target": [WHOLE], "n": [WHOLE]}
    )


def other_targets():
    mesh = line()
    labels = targets(26, ignored=7)
    x = randn(ROWS, 26, dtype=torch.bfloat16)
    op = fo.CrossEntropy(ignore_index=7, label_smoothing=0.1)
    check(op, x, {"target": labels}, mesh, [Shard(1)], {"target": [WHOLE]})
    loss = fo.CrossEntropy(reduction="none")(
        placed(randn(0, 26), mesh, [Shard(1)]), target=placed(labels[:0], mesh, [WHOLE])
    )
    assert loss.shape == (0,)


def soft_targets():
    """Weights of classes, sharded as logits are, or one for each row; masked classes have none."""
    mesh = line()
    x, load = randn(ROWS, 26) * 3, [fo.Mask("m")]
    mask = randn(ROWS, 26, seed=3) < 0
    mask[1, :13], mask[2] = True, True
    p = torch.softmax(randn(ROWS, 26, seed=4), -1)
    lacks = torch.where(mask, 0.0, p)
    spread = {"target": [Shard(1)], "m": [Shard(1)]}
    for reduction in ("none", "mean"):
        op = fo.CrossEntropy(
            load, soft=True, reduction=reduction, z_loss=0.01, lse=True, entropy=True
        )
        rows = slice(None) if reduction == "none" else slice(5, None)
        given = {"target": lacks[rows].contiguous(), "m": mask[rows].contiguous()}
        check(op, x[rows].contiguous(), given, mesh, [Shard(1)], spread, ungraded=("target",))
    lacks[4] = p[4]  # some weight is on masked classes
    given = {name: placed(one, mesh, [Shard(1)]) for name, one in (("target", lacks), ("m", mask))}
    infinite = fo.CrossEntropy(load, soft=True, reduction="none")(
        placed(x, mesh, [Shard(1)]), **given
    )
    assert whole(infinite)[4] == torch.inf
    row = {"target": p[0].contiguous()}
    op = fo.CrossEntropy(soft=True, reduction="sum")
    check(op, x, row, mesh, [Shard(1)], {"target": [Shard(0)]}, ungraded=("target",))


def partial_logits():
    """Logits that are still sums over another dimension of the mesh."""
    mesh = columns_mesh()
    x = randn(ROWS, 26)
    labels = placed(targets(26), mesh, [WHOLE, WHOLE])
    sums = placed(x, mesh, [WHOLE, Shard(1)]).to_local() / mesh.size(0)
    logits = DTensor.from_local(sums, mesh, [Partial(), Shard(1)], shape=x.shape, stride=(26, 1))
    loss = fo.CrossEntropy()(logits, target=labels).full_tensor()
    torch.testing.assert_close(loss, fo.CrossEntropy()(x, target=targets(26)))


def refused():
    """What cannot be computed on sharded classes is refused by name, and never gathered."""
    mesh = line()
    x = placed(randn(ROWS, 26), mesh, [Shard(1)])
    target = placed(targets(26), mesh, [WHOLE])
    mask = placed(randn(ROWS, 26) < 0, mesh, [Shard(1)])
    share = placed(torch.softmax(randn(ROWS, 26), -1), mesh, [Shard(1)])
    plain = "'target' is a plain tensor"
    for op, operands, said in (
        (
            fo.CrossEntropy(soft=True, label_smoothing=0.1),
            {"target": share},
            "label smoothing of a soft target",
        ),
        (
            fo.CrossEntropy(load=[fo.Mask("m")], label_smoothing=0.1),
            {"target": target, "m": mask},
            "label smoothing over the classes that masks leave",
        ),
        (fo.CrossEntropy(load=[fo.Dropout("p")]), {"target": target, "p": 0.5}, "Dropout"),
        (fo.CrossEntropy(load=[fo.Save("s")]), {"target": target}, "a saved stream"),
        (fo.CrossEntropy(), {"target": targets(26)}, plain),
    ):
        for call in (op, op.explain):
            with pytest.raises(fo.UnsupportedError, match=said):
                call(x, **operands)


def explained():
    mesh = line()
    x = placed(randn(ROWS, 26), mesh, [Shard(1)])
    target = placed(targets(26), mesh, [WHOLE])
    (told,) = fo.CrossEntropy(entropy=True).explain(x, target=target).redistributed
    count = ROWS * 3 * 4 * (dist.get_world_size() - 1)
    assert f"its entropy alone is gathered, {count} bytes to each rank" in told


@pytest.mark.parametrize(
    "function",
    [many_places, masked_classes, other_targets, soft_targets, partial_logits, refused, explained],
    ids=lambda one: one.__name__,
)
def test_classes(ranks, function):
    ranks.run(function)


def compiled():
    torch._dynamo.reset()
    mesh = columns_mesh()
    x, b = randn(ROWS, 26) * 3, randn(26, seed=2)
    op = fo.CrossEntropy(load=[fo.Softcap("cap"), fo.Bias("b")], lse=True)
    call = torch.compile(op, fullgraph=True, backend="aot_eager")
    placements = [Shard(0), Shard(1)]
    spread = {"target": [Shard(0), WHOLE], "b": [WHOLE, Shard(0)], "cap": [WHOLE, WHOLE]}
    operands = {"target": targets(26), "b": b, "cap": torch.tensor([5.0]).to(x)}
    check(op, x, operands, mesh, placements, spread, call=call)


@compiles_shards
@pytest.mark.parametrize("ranks", [("gloo", 2)], indirect=True, ids=["gloo-2"], scope="session")
def test_compiled(ranks):
    ranks.run(compiled)
