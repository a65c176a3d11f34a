# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules that use fused ops under DDP and FSDP2: two processes on CPUs, by gloo."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
from cases import randn
from torch import multiprocessing, nn

import fusedops as fo

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
)

WORLD = 2


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
    return nn.Sequential(Block(), Block())


def batch(rank):
    return randn(3, 6, 8, seed=10 + rank), randn(3, 6, 8, seed=20 + rank)


def train(module, x, dy, parameters, scale=1.0, steps=3):
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        module(x).backward(dy * scale)
        optimizer.step()


def wanted():
    """One process with both batches: what two with one each come to."""
    alone = model()
    x, dy = (torch.cat(pair) for pair in zip(*map(batch, range(WORLD)), strict=True))
    train(alone, x, dy, alone.parameters, 1 / WORLD)
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
        fully_shard(block, mesh=mesh())
    fully_shard(module, mesh=mesh())
    train(module, *batch(rank), module.parameters)
    return {name: value.full_tensor() for name, value in module.state_dict().items()}


def mesh():
    return dist.device_mesh.init_device_mesh("cpu", (WORLD,))


def a_plain_operand_beside_a_distributed_tensor_names_the_cure(rank):
    from torch.distributed.tensor import Shard, distribute_tensor

    x, bias = distribute_tensor(randn(4, 8), mesh(), [Shard(0)]), randn(8)
    op = fo.Softmax(load=[fo.Bias("bias")])
    with pytest.raises(fo.UnsupportedError, match=r"bias.*distribute_tensor"):
        op(x, bias=bias)
    local = op(x.to_local(), bias=bias)
    torch.testing.assert_close(local, torch.softmax(randn(4, 8) + bias, -1).chunk(WORLD)[rank])


WAYS = (data_parallel, data_parallel_compiled, fully_sharded)


def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    want = wanted()
    for way in WAYS:
        got = way(rank)
        assert got.keys() == want.keys()
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, msg=lambda m, w=way: f"{w.__name__}: {m}")
            assert not torch.equal(value, model().state_dict()[name]), f"{name} has not moved"
    a_plain_operand_beside_a_distributed_tensor_names_the_cure(rank)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.thorough
def test_two_processes():
    """Each trains on its half, to the parameters that one process gets from both halves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, args=(port,), nprocs=WORLD)
