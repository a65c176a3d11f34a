# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules that use fused ops under DDP and FSDP2: processes on CPUs and on GPUs."""

import pytest
import torch
import torch.distributed as dist
from ranks import device, line, randn
from torch import nn

import fusedops as fo

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(8, 8)
        self.norm = fo.nn.ResidualLayerNorm(8, return_stream=True)
        self.softmax = fo.nn.AttentionSoftmax(scale=0.3, causal=True)
        self.add_norm = fo.nn.ResidualRMSNorm(8, 1e-6)
        self.out_norm = fo.nn.RMSNorm(8, 1e-6)

    def forward(self, x):
        y, stream = self.norm(self.dense(x), x, input_bias=self.dense.bias)
        return self.out_norm(self.add_norm(self.softmax(y @ y.mT) @ stream, stream))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).to(device())


def batch(rank):
    return randn(3, 6, 8, seed=10 + rank), randn(3, 6, 8, seed=20 + rank)


def train(module, x, dy, parameters, scale=1.0, steps=3):
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(x).backward(dy * scale)
        optimizer.step()


def wanted():
    """One process with all batches: what several with one each come to."""
    alone, world = model(), dist.get_world_size()
    x, dy = (torch.cat(pair) for pair in zip(*map(batch, range(world)), strict=True))
    train(alone, x, dy, alone.parameters, 1 / world)
    return alone.state_dict()


def data_parallel(rank):
    module = nn.parallel.DistributedDataParallel(model())
    train(module, *batch(rank), module.parameters)
    return module.module.state_dict()


def data_parallel_compiled(rank):
    module = nn.parallel.DistributedDataParallel(model())
    compiled = torch.compile(module, backend="aot_eager")
    train(compiled, *batch(rank), module.parameters)
    return module.module.state_dict()


def fully_sharded(rank):
    from torch.distributed.fsdp import fully_shard

    module = model()
    for block in module:
        fully_shard(block, mesh=line())
    fully_shard(module, mesh=line())
    train(module, *batch(rank), module.parameters)
    return {name: value.full_tensor() for name, value in module.state_dict().items()}


def a_plain_operand_beside_a_distributed_tensor_names_the_cure(rank):
    from torch.distributed.tensor import Shard, distribute_tensor

    x, bias = distribute_tensor(randn(4, 8), line(), [Shard(0)]), randn(8)
    op = fo.Softmax(load=[fo.Bias("bias")])
    with pytest.raises(fo.UnsupportedError, match=r"bias.*distribute_tensor"):
        op(x, bias=bias)
    local = op(x.to_local(), bias=bias)
    torch.testing.assert_close(
        local, torch.softmax(randn(4, 8) + bias, -1).chunk(dist.get_world_size())[rank]
    )


WAYS = (data_parallel, data_parallel_compiled, fully_sharded)


def each_way():
    rank, want = dist.get_rank(), wanted()
    for way in WAYS:
        got = way(rank)
        assert got.keys() == want.keys()
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, msg=lambda m, w=way: f"{w.__name__}: {m}")
            assert not torch.equal(value, model().state_dict()[name]), f"{name} has not moved"
    a_plain_operand_beside_a_distributed_tensor_names_the_cure(rank)


@pytest.mark.thorough
def test_each_way(ranks):
    """Ranks train on a part each, to the parameters that one process gets from all of it."""
    ranks.run(each_way)
