# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules that use fused ops, norms and products, under DDP and FSDP2: on CPUs and on GPUs."""

import pytest
import torch
import torch.distributed as dist
from products import gelu
from ranks import compiles_shards, device, line, needs_gloo, randn
from torch import nn
from two_gpus import TWO_GPUS

import fusedops as fo

pytestmark = needs_gloo


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


class Products(nn.Module):
    """A layer that is declared, and the modules of one and of a feed-forward block."""

    OP = fo.Linear(store=[fo.Bias("b"), gelu(), fo.Dropout("p"), fo.Residual("r")])

    def __init__(self, p):
        super().__init__()
        self.p = p
        self.weight, self.bias = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))
        self.layer = fo.nn.Linear(8, 12, activation=gelu(), p=p)
        self.block = fo.nn.MLP(12, 20, 8, activation=gelu(), p=p, p_hidden=p)

    def forward(self, x):
        y = self.OP(x, self.weight, b=self.bias, p=self.p, r=x)
        return self.block(self.layer(y), x)

    def unfused(self, x):
        y = self.OP.unfused(x, self.weight, b=self.bias, p=self.p, r=x)
        return self.block.unfused(self.layer.unfused(y), x)


def products(p):
    torch.manual_seed(0)
    return Products(p).to(device(), torch.float64)


def outcome(call, rank):
    """The output for a rank's batch and its gradient; parameters' gradients are added to theirs."""
    torch.manual_seed(30 + rank)  # what its dropouts draw
    x = randn(5, 8, dtype=torch.float64, seed=10 + rank).requires_grad_()
    y = call(x)
    y.backward(randn(5, 8, dtype=torch.float64, seed=20 + rank))
    return y.detach(), x.grad


def near(got, want, what):
    """In double the only freedom is the order of the sums."""
    torch.testing.assert_close(
        got, want, rtol=1e-11, atol=1e-12, msg=lambda text: f"{what}: {text}"
    )


def data_parallel_products(module):
    return nn.parallel.DistributedDataParallel(module)


def fully_sharded_products(module):
    from torch.distributed.fsdp import fully_shard

    for one in (module.layer, module.block, module):
        fully_shard(one, mesh=line())
    return module


def each_product(way, compiled):
    """Outputs and all gradients; one process runs the chains of torch calls for all batches."""
    torch._dynamo.reset()
    rank, world = dist.get_rank(), dist.get_world_size()
    for p in (0.3,) if compiled else (0.0, 0.3):
        alone = products(p)
        wanted = [outcome(alone.unfused, one) for one in range(world)]
        module = products(p)
        call = way(module)
        if compiled:
            call = torch.compile(call, backend="aot_eager")
        for got, want, what in zip(outcome(call, rank), wanted[rank], ("y", "dx"), strict=True):
            near(got, want, f"{what} with p = {p}")
        for (name, mine), known in zip(module.named_parameters(), alone.parameters(), strict=True):
            got = mine.grad.full_tensor() if way is fully_sharded_products else mine.grad
            near(got, known.grad / world, f"gradient of {name} with p = {p}")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "ranks", [("gloo", 2), TWO_GPUS], indirect=True, scope="session", ids="{0[0]}-{0[1]}".format
)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("way", [data_parallel_products, fully_sharded_products])
def test_products(ranks, way, compiled):
    ranks.run(each_product, way, compiled)


def product_of_distributed_tensors(compiled):
    """Rows stay where they lie, of four ranks two, two, two and none; masks are one process's."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch._dynamo.reset()
    op, rows = Products.OP, Shard(0)
    call = torch.compile(op, backend="aot_eager", fullgraph=True) if compiled else op
    shapes = {"x": (6, 8), "w": (12, 8), "b": (12,), "r": (6, 12), "dy": (6, 12)}
    whole = {
        name: randn(*shape, dtype=torch.float64, seed=at)
        for at, (name, shape) in enumerate(shapes.items())
    }
    spread = {
        name: distribute_tensor(one, line(), [rows if shapes[name][0] == 6 else Replicate()])
        for name, one in whole.items()
    }
    found = []
    for function, tensors in ((op.unfused, whole), (call, spread)):
        given = {name: one.detach().requires_grad_() for name, one in tensors.items()}
        x, w, b, r, dy = given.values()
        y = function(x, w, b=b, r=r, p=0.3, generator=(3, 8))
        y.backward(dy.detach())
        del given["dy"]
        found.append({"y": y.detach()} | {name: one.grad for name, one in given.items()})
    want, got = found
    assert got["y"].placements == (rows,)
    for name, known in want.items():
        near(got[name].full_tensor(), known, name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(False, id="eager"),
        pytest.param(True, id="compiled", marks=compiles_shards),
    ],
)
def test_product_of_distributed_tensors(ranks, compiled):
    ranks.run(product_of_distributed_tensors, compiled)
