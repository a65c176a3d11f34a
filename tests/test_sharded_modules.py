# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of `fusedops.nn` under torch's plans of tensor and sequence parallelism."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import compiles_shards, device, line, needs_gloo, randn
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import fusedops as fo

pytestmark = [pytest.mark.thorough, pytest.mark.grid(strength=1), needs_gloo]

EXAMPLES = str(Path(__file__).parent.parent / "examples")


class Norms(nn.Module):
    """Every norm of fusedops.nn, on one stream."""

    def __init__(self):
        super().__init__()
        self.layer = fo.nn.LayerNorm(16)
        self.rms = fo.nn.RMSNorm(16, 1e-6)
        self.add_layer = fo.nn.ResidualLayerNorm(16, p=0.3, return_stream=True)
        self.add_rms = fo.nn.ResidualRMSNorm(16, 1e-6, p=0.2)

    def forward(self, x, residual):
        y, stream = self.add_layer(self.rms(self.layer(x)), residual=residual)
        return self.add_rms(y, residual=stream)


def model():
    torch.manual_seed(3)
    module = Norms().to(device(), torch.float64)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def sequence_parallel(compiled):
    mesh = line()
    x, residual, dy = randn(3, 2, 10, 16, dtype=torch.float64).unbind()
    torch.manual_seed(5)
    alone = model()
    torch.manual_seed(7)
    want = alone(x, residual)
    want.backward(dy)
    plan = {name: SequenceParallel() for name in ("layer", "rms", "add_layer", "add_rms")}
    module = parallelize_module(model(), mesh, plan)
    if compiled:
        module = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.manual_seed(7 + dist.get_rank())
    x, residual, dy = (distribute_tensor(one, mesh, [Shard(1)]) for one in (x, residual, dy))
    got = module(x, residual)
    assert isinstance(got, DTensor)
    assert got.placements == (Shard(1),)  # nothing was gathered
    torch.testing.assert_close(got.full_tensor(), want, rtol=0, atol=0)
    got.backward(dy)
    for (name, mine), known in zip(module.named_parameters(), alone.parameters(), strict=True):
        # Sums of 20 rows in another order.
        bound = 2 * 20 * torch.finfo(torch.float64).eps * known.grad.abs().sum()
        off = (mine.grad.full_tensor() - known.grad).abs().max()
        assert off <= bound, f"gradient of {name}: off by {off}"


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(False, id="eager"),
        pytest.param(True, id="compiled", marks=compiles_shards),
    ],
)
def test_sequence_parallel(ranks, compiled):
    ranks.run(sequence_parallel, compiled)


def sharded_heads():
    """Scores and the bias of their heads sharded; slopes and a mask that all ranks have."""
    mesh = line()
    scores, dy = randn(2, 2, 4, 6, 6, dtype=torch.float64).unbind()
    bias = randn(4, 6, 6, dtype=torch.float64, seed=1)
    lengths = torch.tensor([[6], [4]], device=device())
    mask = (torch.arange(6, device=device()) < lengths)[:, None, None, :]
    softmax = fo.nn.AttentionSoftmax(scale=0.5, causal=True, p=0.4)
    leaves = [one.clone().requires_grad_() for one in (scores, bias)]
    torch.manual_seed(2)
    want = softmax(leaves[0], bias=leaves[1], mask=mask)
    want.backward(dy)
    spread = [
        distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_(),
        distribute_tensor(bias, mesh, [Shard(0)]).requires_grad_(),
    ]
    everywhere = DTensor.from_local(mask, mesh, [Replicate()])
    torch.manual_seed(2)
    got = softmax(spread[0], bias=spread[1], mask=everywhere)
    got.backward(distribute_tensor(dy, mesh, [Shard(1)]))
    assert torch.equal(got.full_tensor(), want)
    for mine, known in zip(spread, leaves, strict=True):
        assert mine.grad.placements == mine.placements
        assert torch.equal(mine.grad.full_tensor(), known.grad)


def test_sharded_heads(ranks):
    ranks.run(sharded_heads)


def the_example():
    sys.path.insert(0, EXAMPLES)
    import sharded_transformer

    found = sharded_transformer.main(steps=8)
    first, *others = found.values()
    assert len(others) == dist.get_world_size() // 2
    assert first[-1] < first[0]
    alone = losses_of_one_process(sharded_transformer, 8)
    # Rounding of float32 in sums of another order, carried on through eight steps.
    torch.testing.assert_close(first, alone, rtol=1e-4, atol=0)
    for losses in others:
        torch.testing.assert_close(losses, first[4:], rtol=1e-4, atol=0)


def losses_of_one_process(example, steps):
    torch.manual_seed(0)
    module = example.Model().to(device())
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        tokens, wanted = (part.to(device()) for part in example.batch(step))
        loss = nn.functional.cross_entropy(module(tokens).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_example_resumes_on_another_mesh(ranks):
    ranks.run(the_example)


def keys_on_several_ranks():
    sys.path.insert(0, EXAMPLES)
    import context_parallel

    # A float32 sum of up to 37 terms of size one and less, in another order, after a softmax.
    assert context_parallel.compare() <= 37 * torch.finfo(torch.float32).eps
    mesh = line()
    query, key, _ = context_parallel.spread([randn(2, 5, 16), *randn(2, 2, 36, 16).unbind()], mesh)
    probabilities = context_parallel.softmax(query @ key.mT, scale=0.25)
    assert probabilities.placements == (Shard(2),)  # no scores were gathered


def test_keys_on_several_ranks(ranks):
    ranks.run(keys_on_several_ranks)
