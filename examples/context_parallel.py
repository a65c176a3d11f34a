# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Context parallelism: causal attention to keys and values that live on several ranks.

    torchrun --nproc-per-node 4 examples/context_parallel.py

Each rank has the scores of all queries to its own keys. A softmax over sharded columns gathers the
logarithm of each row's sum (lse) of every rank, not the scores, and the product with the sharded
values is a sum over ranks. So per head and query one number a rank is gathered, and one output is
summed up. The mask counts the keys of all ranks.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import fusedops as fo

# The last query sees all keys, the one before it all but one.
softmax = fo.Softmax(load=[fo.Scale("scale"), fo.Causal(align="bottom-right")])


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of tensors (heads, tokens, channels), keys and values sharded by token or not."""
    return softmax(query @ key.mT, scale=query.shape[-1] ** -0.5) @ value


def spread(tensors: list[Tensor], mesh: DeviceMesh) -> list[Tensor]:
    """The query on every rank, keys and values cut along their tokens."""
    placements = ([Replicate()], [Shard(1)], [Shard(1)])
    return [
        distribute_tensor(one, mesh, to).requires_grad_()
        for one, to in zip(tensors, placements, strict=True)
    ]


def compare() -> float:
    """How far outputs and gradients are from those of one process, of numbers near one."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(0)
    *tensors, upstream = (
        torch.randn(2, tokens, 16, generator=generator).to(device) for tokens in (5, 37, 37, 5)
    )
    alone = [one.clone().requires_grad_() for one in tensors]
    want = attend(*alone)
    want.backward(upstream)
    shards = spread(tensors, mesh)
    got = attend(*shards)
    got.backward(distribute_tensor(upstream, mesh))
    pairs = [
        (got, want),
        *((one.grad, other.grad) for one, other in zip(shards, alone, strict=True)),
    ]
    return max((one.full_tensor() - other).abs().max().item() for one, other in pairs)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    difference = compare()
    if dist.get_rank() == 0:
        print(f"{difference:.1e} from one process")
    dist.destroy_process_group()
