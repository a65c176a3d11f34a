# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Four ranks and their caches: one process of a machine compiles, a cold one joins later."""

import pytest
import torch
import torch.distributed as dist
from cases import randn
from jit.samples import Compiler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import fusedops as fo

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
    ),
]


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
    ranks.stop()  # a process that has loaded a kernel needs no cache
    ranks.run(function, *arguments, environment=of)
    ranks.stop()


def test_one_process_of_a_machine_compiles(ranks, tmp_path):
    compiler = Compiler(tmp_path)
    both = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(compiler.path)}
    everywhere(ranks, trains, 0.5, of=dict.fromkeys(range(4), both))
    kernels = [*(tmp_path / "cache").rglob("*.so")]
    assert len(kernels) >= 2
    assert compiler.compilations == len(kernels)


def test_a_rank_with_an_empty_cache_joins_the_others(ranks, tmp_path):
    for name in ("warm", "cold"):
        (tmp_path / name).mkdir()
    warm, cold = Compiler(tmp_path / "warm"), Compiler(tmp_path / "cold")
    of_warm = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(warm.path)}
    of_cold = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "empty"), "CXX": str(cold.path)}
    everywhere(ranks, trains, 0.5, of=dict.fromkeys(range(4), of_warm))
    before = warm.compilations
    everywhere(ranks, trains, 0.5, of={0: of_warm, 1: of_warm, 2: of_warm, 3: of_cold})
    assert warm.compilations == before
    assert cold.compilations == before


def fails_to_build():
    if dist.get_rank() != 3:
        trains(0.5)
        return
    with pytest.raises(fo.FusedOpsError):
        trains(0.5)
    raise SystemExit(3)


def test_a_rank_that_cannot_build_ends_the_others(ranks, tmp_path):
    """It raises at its own call, before it takes part in a sum; the others see that it is gone."""
    good = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache")}
    bad = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "empty"), "CXX": "/bin/false"}
    with pytest.raises(pytest.fail.Exception) as caught:
        everywhere(ranks, fails_to_build, of={0: good, 1: good, 2: good, 3: bad})
    assert "rank 3: Traceback" in str(caught.value)
    assert "SystemExit: 3" in str(caught.value)
