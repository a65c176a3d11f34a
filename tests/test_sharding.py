# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What an op does with distributed tensors, seen from one rank of four that talks to nobody.

Nothing that comes from other ranks is looked at here: test_sharded.py runs several processes.
"""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from cases import randn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import fusedops as fo
from fusedops.distributed import exchange
from fusedops.torch_ops.calls import OpCall

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")

SHAPE = (6, 4, 5, 16)


@fo.functor
def softened(v, a):
    return a * torch.tanh(v / a)


@fo.functor
def by_column(v):
    return v + fo.position(-1).to(v.dtype)


class Elsewhere(fo.RMSNorm):
    """An operator of somebody else's module, which computes what its base does."""


class Twice(fo.RMSNorm):
    """One whose calls do something else."""

    def __call__(self, x, /, **arguments):
        return super().__call__(x, **arguments) * 2


ATTENTION = fo.Softmax(
    load=[fo.Bias("bias"), fo.Causal()], store=[fo.Dropout("p"), fo.Dropout("q", shared=-1)]
)


@pytest.fixture
def mesh():
    """Rank 3 of a mesh of two by two."""
    dist.init_process_group("fake", rank=3, world_size=4, store=fake_pg.FakeStore())
    yield init_device_mesh("cpu", (2, 2))
    dist.destroy_process_group()


def shard(tensor, mesh, *placements):
    """The part of a tensor that rank 3, the last in each dimension of the mesh, has of it."""
    here = tensor
    for one in placements:
        if isinstance(one, Shard):
            here = here.chunk(2, one.dim)[1]
    return DTensor.from_local(
        here.contiguous(),
        mesh,
        placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


@pytest.mark.thorough
@pytest.mark.parametrize("dims", [(0, 1), (2, 0), (2, 2), (0, 0)])
def test_a_shard_has_the_bits_of_the_whole(mesh, dims):
    x, dy, bias = randn(*SHAPE), randn(*SHAPE, seed=1), randn(5, 16, seed=2)
    given = {"p": 0.3, "q": 0.2, "generator": (7, 1)}
    leaf = x.clone().requires_grad_()
    want = ATTENTION(leaf, bias=bias, **given)
    want.backward(dy)
    to = [Shard(dim) for dim in dims]
    of_bias = [Shard(0) if dim == 2 else Replicate() for dim in dims]
    mine = shard(x, mesh, *to).requires_grad_()
    of_columns = shard(bias, mesh, *of_bias).requires_grad_()
    got = ATTENTION(mine, bias=of_columns, **given)
    got.backward(shard(dy, mesh, *to))
    assert list(got.placements) == to
    assert torch.equal(got.to_local(), shard(want.detach(), mesh, *to).to_local())
    assert torch.equal(mine.grad.to_local(), shard(leaf.grad, mesh, *to).to_local())
    # A sum over samples and heads is one over the samples and heads that are here.
    wanted = [Shard(0) if dim == 2 else Partial() for dim in dims]
    assert list(of_columns.grad.placements) == wanted
    assert of_columns.grad.shape == bias.shape


def test_what_moves_least_is_taken(mesh):
    op = fo.LayerNorm(load=[fo.Residual("r")])
    everywhere = shard(randn(*SHAPE), mesh, Replicate(), Replicate())
    halves = shard(randn(*SHAPE, seed=1), mesh, Replicate(), Shard(1))
    # A tensor that all ranks have is cut for nothing.
    assert op(everywhere, r=halves).placements == (Replicate(), Shard(1))
    assert op.explain(everywhere, r=halves).redistributed == (
        "x from (Replicate, Replicate) to (Replicate, Shard(1)): 0 bytes to each rank",
    )


def test_explain_counts_bytes(mesh):
    op = fo.LayerNorm(load=[fo.Dropout("p")])
    x = shard(randn(8, 6, 64), mesh, Shard(0), Shard(2))
    told = op.explain(x, p=0.5)
    assert told.redistributed == (
        "x from (Shard(0), Shard(2)) to (Shard(0), Replicate): 3072 bytes to each rank",
    )
    assert told.rows == 24
    assert "redistributed" in str(told)
    parts = DTensor.from_local(randn(8, 64), mesh, [Partial(), Replicate()], run_check=False)
    assert op.explain(parts, p=0.0).redistributed == (
        "x from (Partial, Replicate) to (Replicate, Replicate): 2048 bytes to each rank",
    )


def test_a_plain_operand_is_refused(mesh):
    with pytest.raises(fo.UnsupportedError, match=r"operand 'bias'.*distribute_tensor"):
        fo.Softmax(load=[fo.Bias("bias")])(
            shard(randn(4, 8), mesh, Shard(0), Replicate()), bias=randn(8)
        )


def test_a_distributed_tensor_takes_no_part_of(mesh):
    x = shard(randn(4, 8), mesh, Shard(0), Replicate())
    with pytest.raises(fo.UnsupportedError, match="part_of= is for plain tensors"):
        fo.Softmax()(x, part_of=((8, 8), (4, 0)))


def collectives(call):
    """How often each collective runs, by its name, in a call whose kernels ranks have agreed on."""
    from torch.distributed.tensor.debug import CommDebugMode

    call()
    with CommDebugMode() as mode:
        result = call()
    counts = {str(k).rpartition(".")[2]: n for k, n in mode.get_comm_counts().items()}
    return counts, result


@pytest.mark.thorough
def test_what_moves_is_what_the_page_says(mesh):
    """The table of docs/how-to/many-gpus.md: collectives of each way, forward and backward."""
    x = randn(8, 6, 64)
    norm, dropped = fo.LayerNorm(), fo.LayerNorm(load=[fo.Dropout("p")])
    rows = shard(x, mesh, Shard(0), Shard(1))
    assert collectives(lambda: norm(rows))[0] == {}
    columns = shard(x, mesh, Shard(0), Shard(2)).requires_grad_()
    for op in (norm, fo.RMSNorm(), fo.L2Norm(), fo.Softmax(lse=True), fo.LogSoftmax()):
        counts, made = collectives(lambda op=op: op(columns))
        assert counts == {"all_gather_into_tensor": 1}, op
        y = made if isinstance(made, torch.Tensor) else made.y
        back = collectives(lambda y=y: y.backward(y.detach(), retain_graph=True))[0]
        assert back == {"reduce_scatter_tensor": 1}, op
    counts, _ = collectives(lambda: dropped(columns, p=0.5, generator=(1, 2)))
    assert counts == {"all_gather_into_tensor": 1}
    told = norm.explain(columns).redistributed[0]
    # Half of eight times six rows, two numbers of four bytes from the one other rank.
    assert "mean and variance alone is gathered, 192 bytes to each rank" in told
    parts = DTensor.from_local(randn(8, 64), mesh, [Partial(), Replicate()], run_check=False)
    whole = [Replicate(), Replicate()]
    once, _ = collectives(lambda: parts.redistribute(placements=whole))  # as torch counts it
    assert once.keys() == {"all_reduce"}
    assert collectives(lambda: norm(parts))[0] == once
    causal = fo.Softmax(load=[fo.Causal()])  # which has no operand
    with torch.no_grad():
        assert collectives(lambda: causal(columns))[0] == {"all_gather_into_tensor": 1}
        assert causal(columns).placements == (Shard(0), Shard(2))
        # Where queries are all there are, a shard of them must be gathered.
        lengths = fo.LogSoftmax(load=[fo.Lengths("n")])
        assert lengths(columns, n=9).placements == (Shard(0), Replicate())


def test_numbers_of_double_are_counted_as_such(mesh):
    """Eight columns on two ranks: four of them are as much as the two numbers of a LayerNorm."""
    norm, softmax = fo.LayerNorm(), fo.Softmax()
    for dtype in (torch.float32, torch.float64):
        number = torch.empty((), dtype=dtype).element_size()
        x = shard(randn(6, 8, dtype=dtype), mesh, Replicate(), Shard(1))
        (told,) = norm.explain(x).redistributed
        assert f"{6 * 2 * number} bytes to each rank" in told
        short = shard(randn(6, 4, dtype=dtype), mesh, Replicate(), Shard(1))
        (told,) = norm.explain(short).redistributed
        assert told.startswith("x from"), "as much either way"
        assert "columns stay sharded" in softmax.explain(short).redistributed[0]
    half = shard(randn(6, 8).half(), mesh, Replicate(), Shard(1))
    assert "stay sharded" not in norm.explain(half).redistributed[0]  # four of two bytes each
    assert "stay sharded" in softmax.explain(half).redistributed[0]
    # A result in double has its numbers in double: 8 bytes of each row, as four columns of half.
    assert "stay sharded" not in softmax.explain(half, dtype=torch.float64).redistributed[0]


def test_classes_of_ones_own_say_whether_columns_stay_sharded(mesh):
    """What their traits say decides, not whose they are."""
    x = shard(randn(8, 6, 64), mesh, Shard(0), Shard(2))
    cubed = fo.cpp_functor("cubed", forward="v * v * v", derivative="Compute(3) * v * v * g")
    for op, given in [
        (fo.Softmax(load=[softened("a")], store=[cubed()]), {"a": 2.0}),
        (fo.LayerNorm(load=[cubed(), fo.Save("kept"), fo.Cast(torch.float16)]), {}),
        (Elsewhere(store=[softened("a")]), {"a": 2.0}),
    ]:
        (told,) = op.explain(x, **given).redistributed
        assert told.startswith("columns stay sharded"), op
    for op in (
        fo.Softmax(load=[by_column()]),
        fo.LayerNorm(store=[by_column()]),
        fo.Softmax(store=[fo.Tap("kept")]),
        Twice(),
    ):
        (told,) = op.explain(x).redistributed
        assert told.startswith("x from"), op


def test_explain_tells_which_operands_of_sharded_columns_move(mesh):
    x = shard(randn(8, 6, 64), mesh, Shard(0), Shard(2))
    bias = shard(randn(8, 1, 64), mesh, Replicate(), Shard(0))
    op = fo.Softmax(load=[fo.Bias("b")])
    first, other = op.explain(x, b=bias).redistributed
    assert "columns stay sharded" in first
    # From half of the samples to half of the columns of half of the samples: a quarter is new.
    assert other == "b from (Replicate, Shard(0)) to (Shard(0), Shard(2)): 256 bytes to each rank"


def test_another_order_of_shards_is_refused(mesh):
    """Where a shard lies follows from the order in which the dimensions of the mesh have cut it."""
    spec = pytest.importorskip("torch.distributed.tensor._dtensor_spec")
    if not hasattr(spec, "ShardOrderEntry"):
        pytest.skip("torch without an order of shards")
    x = shard(randn(8, 16), mesh, Shard(0), Shard(0))
    turned = (spec.ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    x._spec = spec.DTensorSpec(
        mesh,
        x.placements,
        tensor_meta=x._spec.tensor_meta,
        shard_order=turned,
        use_strided_shard_as_shard_order=False,
    )
    op = fo.Softmax(store=[fo.Dropout("p")])
    for call in (op, op.explain):
        with pytest.raises(fo.UnsupportedError, match=r"Softmax: x .*order.*redistribute"):
            call(x, p=0.5, generator=(1, 0))


@pytest.mark.parametrize(
    ("operand", "grad", "drawn", "exchanged"),
    [
        ([Shard(0), Shard(1)], True, False, False),  # all lie alike: each rank alone
        ([Shard(0), Replicate()], False, False, True),  # r is cut, which may move something
        ([Partial(), Shard(1)], False, False, True),
        ([Shard(0), Shard(1)], False, True, True),  # the draw is shared
    ],
)
def test_a_compiled_call_is_agreed_on_if_ranks_exchange_anything(
    mesh, operand, grad, drawn, exchanged
):
    op = fo.LayerNorm(load=[fo.Residual("r")], store=[fo.Affine("g", None)])
    x = shard(randn(8, 6, 16), mesh, Shard(0), Shard(1))
    r = DTensor.from_local(randn(4, 3, 16), mesh, operand, run_check=False).requires_grad_(grad)
    gamma = shard(randn(16), mesh, Replicate(), Replicate())
    call = OpCall(op, op.text, x, {"r": r, "g": gamma}, {}, (2,), x.dtype)
    assert exchange.is_exchanged(call, drawn) is exchanged
    gamma.requires_grad_()  # whose gradient is a sum over all ranks
    assert exchange.is_exchanged(call, drawn)
    with torch.no_grad():
        assert exchange.is_exchanged(call, drawn) is exchanged
    columns = shard(randn(8, 6, 16), mesh, Shard(0), Shard(2))
    bare = fo.LayerNorm()
    call = OpCall(bare, bare.text, columns, {}, {}, (2,), columns.dtype)
    assert exchange.is_exchanged(call, False)


COMPILED_FIRST = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
import fusedops as fo

dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = init_device_mesh("cpu", (2,))
x = DTensor.from_local(torch.randn(3, 8), mesh, [Shard(0)], run_check=False).requires_grad_()
r = DTensor.from_local(torch.randn(3, 8), mesh, [Shard(0)], run_check=False)
op = fo.LayerNorm(load=[fo.Residual("r")])
y = torch.compile(op, fullgraph=True, backend="aot_eager")(x, r=r)
y.backward(y.detach())
assert y.placements == x.grad.placements == (Shard(0),)
"""


@pytest.mark.thorough
def test_the_first_call_may_be_a_compiled_one(tmp_path):
    """A strategy is registered as Dynamo traces, not by what Dynamo traced."""
    command = [sys.executable, "-c", COMPILED_FIRST]
    subprocess.run(command, check=True, timeout=240, cwd=tmp_path)
