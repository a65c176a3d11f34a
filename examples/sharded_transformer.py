# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A small transformer on a mesh of data x tensor: sharded heads, norms on a sharded sequence.

    torchrun --nproc-per-node 4 examples/sharded_transformer.py

trains on 2 x 2 processes, saves a checkpoint, and goes on from it on 1 x 4 and on 4 x 1: the losses
are the same but for rounding. Of two processes the meshes are 2 x 1 and 1 x 2. By NCCL if each
process has a GPU, else by gloo on CPUs. Data parallelism is FSDP's (`fully_shard`); tensor
parallelism cuts the linear layers by heads and by hidden units (`ColwiseParallel`,
`RowwiseParallel`) and leaves the residual stream, with the norms on it, sharded along the sequence
(`SequenceParallel`). The head's logits stay sharded over words: the loss gathers two numbers of
each token in place of a logit for each word.
"""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

import fusedops as fo

cross_entropy = fo.CrossEntropy()


class Sizes(NamedTuple):
    """Of a model and of a batch, over all processes."""

    words: int = 32
    dim: int = 32
    heads: int = 4
    tokens: int = 16
    blocks: int = 2
    batch: int = 8


SMALL = Sizes()


class Attention(nn.Module):
    """Causal attention with a bias for each pair of tokens, which every head learns."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        dim, tokens = sizes.dim, sizes.tokens
        self.head_dim = dim // sizes.heads
        self.query, self.key, self.value = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.bias = nn.Parameter(torch.zeros(sizes.heads, tokens, tokens))
        self.softmax = fo.nn.AttentionSoftmax(scale=self.head_dim**-0.5, causal=True)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        # The heads of this rank, as plain tensors: a matrix product of each.
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.mT
        if isinstance(self.bias, DTensor):  # then heads are sharded, of the bias and of the scores
            scores = DTensor.from_local(scores, self.bias.device_mesh, [Shard(1)])
        probabilities = self.softmax(scores, bias=self.bias)
        if isinstance(probabilities, DTensor):
            probabilities = probabilities.to_local()
        return self.out((probabilities @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Each norm adds what the block before it made to the stream, and returns the stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        dim = sizes.dim
        self.attention_norm = fo.nn.ResidualRMSNorm(dim, 1e-6, return_stream=True)
        self.attention = Attention(sizes)
        self.mlp_norm = fo.nn.ResidualRMSNorm(dim, 1e-6, return_stream=True)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        # By keyword: the hook of SequenceParallel passes on the first positional argument alone.
        y, stream = self.attention_norm(x, residual=stream)
        y, stream = self.mlp_norm(self.attention(y), residual=stream)
        return self.down(functional.gelu(self.up(y))), stream


class Model(nn.Module):
    def __init__(self, sizes: Sizes = SMALL) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.words, sizes.dim)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.blocks))
        self.norm = fo.nn.LayerNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, sizes.words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        stream = torch.zeros_like(x)
        for block in self.blocks:
            x, stream = block(x, stream)
        return self.head(self.norm(x + stream))


def parallelize(model: Model, mesh: DeviceMesh) -> Model:
    """Shard the parameters over the mesh, whose dimensions are data and tensor.

    A dimension of one process is left out, so that nothing is copied for it.
    """
    if mesh["tensor"].size() > 1:
        _cut_heads_and_sequence(model, mesh["tensor"])
    if mesh["data"].size() > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
    return model


def _cut_heads_and_sequence(model: Model, mesh: DeviceMesh) -> None:
    to_sequence = {"output_layouts": Shard(1), "use_local_output": False}
    parallelize_module(
        model,
        mesh,
        {
            "words": RowwiseParallel(input_layouts=Replicate(), **to_sequence),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        },
    )
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "attention_norm": SequenceParallel(),
                "attention": PrepareModuleInput(
                    input_layouts=Shard(1), desired_input_layouts=Replicate()
                ),
                "attention.query": ColwiseParallel(),
                "attention.key": ColwiseParallel(),
                "attention.value": ColwiseParallel(),
                "attention.out": RowwiseParallel(**to_sequence),
                "mlp_norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(**to_sequence),
            },
        )
        bias = block.attention.bias
        block.attention.bias = nn.Parameter(distribute_tensor(bias, mesh, [Shard(0)]))


def loss_of(logits: Tensor, wanted: Tensor) -> Tensor:
    """The mean loss of this process's tokens; logits may be sharded over words."""
    if isinstance(logits, DTensor):
        mesh = logits.device_mesh
        wanted = DTensor.from_local(wanted, mesh, [Replicate()], run_check=False)
    loss = cross_entropy(logits, target=wanted)
    return loss.to_local() if isinstance(loss, DTensor) else loss


def batch(step: int, sizes: Sizes = SMALL) -> tuple[Tensor, Tensor]:
    """Tokens of sequences that count up by one or by two, and the token after each."""
    generator = torch.Generator().manual_seed(step)
    first = torch.randint(sizes.words, (sizes.batch, 1), generator=generator)
    by = torch.randint(1, 3, (sizes.batch, 1), generator=generator)
    tokens = (first + by * torch.arange(sizes.tokens + 1)) % sizes.words
    return tokens[:, :-1], tokens[:, 1:]


def train(shape: tuple[int, int], steps: range, folder: str, resume: bool) -> list[float]:
    """Train on a mesh of this shape; start from the checkpoint in a folder or leave one there.

    Returns:
        The loss of each step, over the whole batch.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(device, shape, mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    model = parallelize(Model().to(device), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if resume:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoints.load(state, checkpoint_id=folder)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    here = mesh["data"].get_local_rank()
    losses = []
    for step in steps:
        tokens, wanted = (part.chunk(shape[0])[here].to(device) for part in batch(step))
        loss = loss_of(model(tokens), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole, group=mesh["data"].get_group())
        losses.append(whole.item() / shape[0])
        if not resume and step == steps[len(steps) // 2 - 1]:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            checkpoints.save(
                {"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder
            )
    return losses


def main(steps: int = 12) -> dict[str, list[float]]:
    """The losses on some meshes: the first trains from the start, the others from its middle."""
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)
    world, half = dist.get_world_size(), range(steps // 2, steps)
    first = 2, world // 2
    found = {"{} x {}".format(*first): train(first, range(steps), folders[0], resume=False)}
    for shape in ((1, world), (world, 1)):
        if shape == first:
            continue
        found["{} x {}".format(*shape)] = train(shape, half, folders[0], resume=True)
    return found


if __name__ == "__main__":
    on_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpus else "gloo")
    for name, losses in main().items():
        if dist.get_rank() == 0:
            print(name, " ".join(f"{loss:.5f}" for loss in losses))
    dist.destroy_process_group()
