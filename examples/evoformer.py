# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The triangle attentions of an Evoformer block of AlphaFold 2, and the transition after them.

Four declarations say all that stands around the matrix products (supplement of the paper,
algorithms 13 to 15): the scores with their pair bias and mask, the sigmoid gate, and the row-wise
dropout, which is one draw for a whole column of the pair representation, with residual and next
norm. The attention around the ending node is that around the starting node of the transposed pair,
a view; so is its column-wise dropout.

`python examples/evoformer.py` compares the block with the same of torch's own calls, in float64.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops as fo

P = 0.25

NORM = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
WEIGHTS = fo.Softmax(load=[fo.Scale("scale"), fo.Bias("pair_bias"), fo.Mask("mask", keep=True)])
GATED = fo.Map(load=[fo.Gate("gate", "sigmoid")])
ADD_NORM = fo.LayerNorm(
    load=[fo.Bias("bias"), fo.Dropout("p", shared=-3), fo.Residual("pair", save="pair_out")],
    store=[fo.Affine("gamma", "beta")],
)


class TriangleAttention(nn.Module):
    """Each row of the pair attends within itself; a triangle's third edge biases its scores."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.scale, self.heads = (dim // heads) ** -0.5, heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.pair_bias = nn.Linear(dim, heads, bias=False)
        self.gate, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, y: Tensor, mask: Tensor) -> Tensor:
        """From a normalised pair (batch, i, j, dim), without the bias of the last layer."""
        query, key, value = self.split(y)
        weights = WEIGHTS(
            query @ key.mT,
            scale=self.scale,
            pair_bias=self.pair_bias(y).permute(0, 3, 1, 2)[:, None],
            mask=mask[:, :, None, None, :],
        )
        attended = (weights @ value).transpose(2, 3).flatten(3)
        return functional.linear(GATED(attended, gate=self.gate(y)), self.out.weight)

    def unfused(self, y: Tensor, mask: Tensor) -> Tensor:
        """The same in torch's own calls."""
        query, key, value = self.split(y)
        bias = self.pair_bias(y).permute(0, 3, 1, 2)[:, None]
        scores = query @ key.mT * self.scale + bias
        weights = scores.masked_fill(~mask[:, :, None, None, :], -torch.inf).softmax(-1)
        attended = (weights @ value).transpose(2, 3).flatten(3)
        return functional.linear(attended * self.gate(y).sigmoid(), self.out.weight)

    def split(self, y: Tensor) -> list[Tensor]:
        """Queries, keys and values (batch, i, head, j, dim / heads)."""
        chunks = self.qkv(y).chunk(3, -1)
        return [each.unflatten(-1, (self.heads, -1)).transpose(2, 3) for each in chunks]


class PairBlock(nn.Module):
    """Triangle attention around the starting and the ending node, and a transition."""

    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.starting, self.ending = (TriangleAttention(dim, heads) for _ in range(2))
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, pair: Tensor, mask: Tensor, generators: Any = (None, None)) -> Tensor:
        """The new pair (batch, i, j, dim); mask (batch, i, j): True takes part."""
        y = NORM(pair, **affine(self.norms[0]))
        y, pair = self.add(self.starting(y, mask), pair, self.starting, 1, generators[0])
        turned = self.ending(y.transpose(1, 2), mask.mT)
        y, turned = self.add(turned, pair.transpose(1, 2), self.ending, 2, generators[1])
        return (turned + self.down(functional.relu(self.up(y)))).transpose(1, 2)

    def add(self, update: Tensor, pair: Tensor, of: Any, norm: int, generator: Any) -> Any:
        """What the next layer gets, normalised, and the pair with the update."""
        p = P if self.training else 0.0
        return ADD_NORM(
            update,
            bias=of.out.bias,
            p=p,
            pair=pair,
            generator=generator,
            **affine(self.norms[norm]),
        )

    def unfused(self, pair: Tensor, mask: Tensor, kept: Any = (None, None)) -> Tensor:
        """The same in torch's own calls; `kept` are the elements that the dropouts keep."""
        kept = [1.0 if each is None else each / (1 - P) for each in kept]
        update = self.starting.unfused(self.norms[0](pair), mask)
        pair = pair + (update + self.starting.out.bias) * kept[0]
        turned = pair.transpose(1, 2)
        update = self.ending.unfused(self.norms[1](turned), mask.mT)
        turned = turned + (update + self.ending.out.bias) * kept[1]
        y = self.norms[2](turned)
        return (turned + self.down(functional.relu(self.up(y)))).transpose(1, 2)


def affine(norm: Any) -> dict[str, Tensor]:
    return {"gamma": norm.weight, "beta": norm.bias}


def gradients(block: nn.Module, y: Tensor, pair: Tensor) -> dict[str, Tensor]:
    """y, and the gradients of the pair and all parameters, under a gradient of y from a seed."""
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(y.shape, generator=generator).to(y)
    leaves = {"pair": pair, **dict(block.named_parameters())}
    found = torch.autograd.grad(y, list(leaves.values()), upstream)
    return {"y": y.detach()} | {f"d {name}": each for name, each in zip(leaves, found, strict=True)}


def compare(device: str = "cpu", nodes: int = 7) -> dict[str, tuple[float, float]]:
    """Largest errors against float64, of the fused block and of torch's calls, by tensor."""
    torch.manual_seed(0)
    block = PairBlock().to(device)
    pair = torch.randn(2, nodes, nodes, 16).to(device)
    mask = (torch.rand(2, nodes, nodes) < 0.8).to(device)
    mask[:, :, 0] = mask[:, 0] = True  # No query of either attention is without keys.
    draws = [(3, 0), (4, 0)]
    kept = [ADD_NORM.dropout_mask(tuple(pair.shape), *each, P).to(device) for each in draws]
    first = pair.clone().requires_grad_()
    fused = gradients(block, block(first, mask, draws), first)
    plain = gradients(block, block.unfused(first, mask, kept), first)
    block, first = block.double(), pair.double().requires_grad_()
    truth = gradients(block, block.unfused(first, mask, kept), first)

    def apart(found: dict[str, Tensor], name: str) -> float:
        return float((found[name] - truth[name]).abs().max() / truth[name].abs().max())

    return {name: (apart(fused, name), apart(plain, name)) for name in truth}


if __name__ == "__main__":
    for name, (fused, plain) in compare().items():
        print(f"{name:24} fused {fused:.1e}, torch {plain:.1e} of the largest from float64")
