# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Four ranks and their caches: one process of a machine compiles, a cold one joins later."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import exhaustive, randn
from jit.samples import Compiler
from ranks import needs_gloo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import fusedops as fo
from fusedops.distributed import ready

pytestmark = [pytest.mark.thorough, needs_gloo]


def trains(scale):
    """A forward and a backward pass with a sum over all ranks after each."""
    op = fo.Softmax(load=[fo.Scale("s"), fo.Bias("b")])
    mesh = init_device_mesh("cpu", (4,))
    x = distribute_tensor(randn(8, 12), mesh, [Shard(0)]).requires_grad_()
    bias = distribute_tensor(randn(12, seed=1), mesh).requires_grad_()
    y = op(x, s=scale, b=bias)
    dist.all_reduce(y.detach().to_local().clone())
    y.backward(distribute_tensor(randn(8, 12, seed=2), mesh, [Shard(0)]))
    want = torch.softmax(randn(8, 12) * scale + randn(12, seed=1), -1)
    torch.testing.assert_close(y.full_tensor(), want)
    assert bias.grad.full_tensor().shape == (12,)


def everywhere(ranks, function, *arguments, of):
    """Run with the variables of the environment `of` each rank, by its number."""
    ranks.close()  # a process that has loaded a kernel needs no cache
    ranks.run(function, *arguments, environment=of)
    ranks.close()


def test_one_process_of_a_machine_compiles(four_ranks, tmp_path):
    compiler = Compiler(tmp_path)
    both = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(compiler.path)}
    everywhere(four_ranks, trains, 0.5, of=dict.fromkeys(range(4), both))
    kernels = [*(tmp_path / "cache").rglob("*.so")]
    assert len(kernels) >= 2
    assert compiler.compilations == len(kernels)


def test_a_rank_with_an_empty_cache_joins_the_others(four_ranks, tmp_path):
    for name in ("warm", "cold"):
        (tmp_path / name).mkdir()
    warm, cold = Compiler(tmp_path / "warm"), Compiler(tmp_path / "cold")
    of_warm = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(warm.path)}
    of_cold = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "empty"), "CXX": str(cold.path)}
    everywhere(four_ranks, trains, 0.5, of=dict.fromkeys(range(4), of_warm))
    before = warm.compilations
    everywhere(four_ranks, trains, 0.5, of={0: of_warm, 1: of_warm, 2: of_warm, 3: of_cold})
    assert warm.compilations == before
    assert cold.compilations == before


def exchanges(way, compiled):
    """A forward and a backward pass; the result against one process's."""
    mesh = init_device_mesh("cpu", (4,))
    whole, dy = randn(8, 32), randn(8, 32, seed=2)
    gamma = distribute_tensor(randn(32, seed=1), mesh).requires_grad_()
    to = {"rows": [Shard(0)], "partial": [Partial()]}.get(way, [Shard(1)])
    if way == "partial":
        x = DTensor.from_local(whole / 4, mesh, to).requires_grad_()
    else:
        x = distribute_tensor(whole, mesh, to).requires_grad_()
    load = [fo.Dropout("p")] if way == "gathered" else []
    op = fo.LayerNorm(load=load, store=[fo.Affine("gamma", None)])
    given = {"p": 0.3, "generator": (3, 4)} if load else {}
    call = torch.compile(op, fullgraph=True, backend="aot_eager") if compiled else op
    y = call(x, gamma=gamma, **given)
    y.backward(distribute_tensor(dy, mesh, y.placements))
    leaf = whole.clone().requires_grad_()
    want = op(leaf, gamma=randn(32, seed=1), **given)
    want.backward(dy)
    torch.testing.assert_close(y.full_tensor(), want)
    if way != "partial":
        torch.testing.assert_close(x.grad.full_tensor(), leaf.grad)


WAYS = ("columns", "gathered", "partial", "rows")


def all_ways(ways, compiled):
    for way in ways:
        exchanges(way, compiled)


in_both_ways = pytest.mark.parametrize(
    "compiled", [False, *exhaustive(True)], ids=["eager", "compiled"]
)

#: Four ranks trace a compiled call for seconds, so each of the two tests has half of the ways.
WAITED_FOR, REFUSED = {False: WAYS, True: WAYS[:2]}, {False: WAYS, True: WAYS[2:]}


@pytest.fixture(scope="module")
def warm(four_ranks, tmp_path_factory):
    """The environment of a rank whose cache has the kernels; a compiled call has the same ones."""
    of_warm = {"FUSEDOPS_CACHE_DIR": str(tmp_path_factory.mktemp("warm"))}
    everywhere(four_ranks, all_ways, WAYS, False, of=dict.fromkeys(range(4), of_warm))
    return of_warm


@in_both_ways
def test_a_cold_rank_keeps_none_waiting(four_ranks, warm, tmp_path, compiled):
    """Whatever is exchanged: the others wait for its build, and results are the same."""
    cold = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "empty")}
    of = {0: warm, 1: warm, 2: warm, 3: cold}
    everywhere(four_ranks, all_ways, WAITED_FOR[compiled], compiled, of=of)


def all_raise(ways, compiled):
    """Every rank raises where one cannot build, at the call, and the group is usable after that."""
    for way in ways:
        with pytest.raises(fo.FusedOpsError) as caught:
            exchanges(way, compiled)
        said = str(caught.value)
        if dist.get_rank() != 3:
            assert "rank 3 could not build its kernels" in said, said
            assert said.startswith(("LayerNorm: ", "Map: "))
        else:
            assert "could not build" not in said
        dist.barrier()


@in_both_ways
def test_all_ranks_raise_where_one_cannot_build(four_ranks, warm, tmp_path, compiled):
    bad = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "empty"), "CXX": "/bin/false"}
    of = {0: warm, 1: warm, 2: warm, 3: bad}
    everywhere(four_ranks, all_raise, REFUSED[compiled], compiled, of=of)


def builds_before_it_waits(cache):
    """Losses whose classes are sharded have all kernels, forward and backward, when ranks agree."""
    mesh, seen, agree = init_device_mesh("cpu", (4,)), [], ready._agree

    def kernels():
        dist.barrier()
        count = len([*Path(cache).rglob("*.so")])
        dist.barrier()
        return count

    def agreed(*arguments):
        seen.append(kernels())
        agree(*arguments)

    ready._agree = agreed
    target = distribute_tensor(torch.arange(8), mesh, [Replicate()])
    load = [fo.Softcap("cap"), fo.Bias("b")]
    for classes in (17000, 500):  # several blocks a rank, and one
        x = distribute_tensor(randn(8, 64), mesh, [Replicate()]).requires_grad_()
        w = distribute_tensor(randn(classes, 64), mesh, [Shard(0)]).requires_grad_()
        b = distribute_tensor(randn(classes), mesh, [Shard(0)]).requires_grad_()
        fo.LinearCrossEntropy(load)(x, w, target=target, cap=5.0, b=b).backward()
        assert kernels() == seen[-1]
        logits = distribute_tensor(randn(8, classes), mesh, [Shard(1)]).requires_grad_()
        fo.CrossEntropy(load, label_smoothing=0.1)(logits, target=target, cap=5.0, b=b).backward()
        assert kernels() == seen[-1]
    assert len(seen) == 4
    assert seen[-1] > 0
    ready._agree = agree


@pytest.mark.exhaustive
def test_losses_of_classes_build_before_they_wait(four_ranks, tmp_path):
    of = {rank: {"FUSEDOPS_CACHE_DIR": str(tmp_path)} for rank in range(4)}
    everywhere(four_ranks, builds_before_it_waits, str(tmp_path), of=of)
