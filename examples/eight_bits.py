# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A Llama-like block for inference whose four products read 8 bits, beside the same in bfloat16.

Each product reads what one kernel made: the norms add the residual, normalise, find a scale for
each row and write 8 bits; the gate of the MLP does so as well, and so does a kernel after the
attention. Weights are quantised once, with a scale for each row. Between products all is bfloat16.

`python examples/eight_bits.py` prints errors, bytes of weights, and times: small on a CPU, 16384
tokens of 4096 columns on a GPU.
"""

import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops as fo

EPS = 1e-6
QUANTISED = fo.DynamicQuantize(torch.float8_e4m3fn)

ADD = fo.Residual("residual", save="stream")
NORM = fo.RMSNorm(load=[ADD], store=[fo.Affine("gamma", None)], eps=EPS)
NORM_8 = fo.RMSNorm(load=[ADD], store=[fo.Affine("gamma", None), QUANTISED], eps=EPS)
GATED = fo.Map(load=[fo.Gate("gate", "silu")])
GATED_8 = fo.Map(load=[fo.Gate("gate", "silu")], store=[QUANTISED])
QUANTISE = fo.Map(store=[QUANTISED])
PRODUCT_8 = fo.Linear(scales=("x_scales", "w_scales"))


class Block(nn.Module):
    """A pre-norm block; the stream goes through the norms, each of which adds what came before."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.gammas = nn.ParameterList(torch.ones(dim) for _ in range(2))
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """From (batch, tokens, dim) and the stream to what is added next, and the stream."""
        y, stream = NORM(x, residual=stream, gamma=self.gammas[0])
        attended = attention(self.qkv(y), self.heads)
        y, stream = NORM(self.out(attended), residual=stream, gamma=self.gammas[1])
        gate, up = self.gate_up(y).chunk(2, -1)
        return self.down(GATED(up, gate=gate)), stream


class EightBits(nn.Module):
    """The same block with weights of 8 bits."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.heads, self.gammas = block.heads, block.gammas
        self.qkv, self.out = Product(block.qkv), Product(block.out)
        self.gate_up, self.down = Product(block.gate_up), Product(block.down)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """As `Block.forward`."""
        y, stream, scales = NORM_8(x, residual=stream, gamma=self.gammas[0])
        attended = attention(self.qkv(y, scales), self.heads)
        out = self.out(*QUANTISE(attended))
        y, stream, scales = NORM_8(out, residual=stream, gamma=self.gammas[1])
        gate, up = self.gate_up(y, scales).chunk(2, -1)
        return self.down(*GATED_8(up, gate=gate)), stream


class Product(nn.Module):
    """The product with a layer's weight in 8 bits."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight, scales = QUANTISE(layer.weight.detach())
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor, scales: Tensor) -> Tensor:
        """The product with an x of 8 bits and its scales, in bfloat16."""
        y: Tensor = PRODUCT_8(x, self.weight, x_scales=scales, w_scales=self.scales)
        return y


def attention(qkv: Tensor, heads: int) -> Tensor:
    """Causal attention of queries, keys and values that lie beside one another."""
    query, key, value = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in qkv.chunk(3, -1))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended.transpose(1, 2).flatten(2)


class Report(NamedTuple):
    """Of one block: its error against the block in float32, and what it takes.

    Attributes:
        error: How far what it adds to the stream is off, as a share of that, in norms.
        weights: The bytes of the weights of the products.
        seconds: Of one call.
    """

    error: float
    weights: int
    seconds: float


@torch.no_grad()
def compare(device: str, tokens: int, dim: int, heads: int, hidden: int) -> dict[str, Report]:
    """Both blocks on the same numbers, in sequences of at most 4096 tokens."""
    torch.manual_seed(0)
    block = Block(dim, heads, hidden).to(device)
    length = min(tokens, 4096)
    given = torch.randn(2, tokens // length, length, dim, device=device).bfloat16().unbind()
    first = [one[:1].float() for one in given]  # of one sequence, whose numbers fit in float32
    want = sum(block(*first)) - sum(first)
    block.bfloat16()
    reports = {}
    for name, one in (("bfloat16", block), ("8 bits", EightBits(block))):
        call = functools.partial(one, *given)
        added = sum(each[:1].float() for each in call()) - sum(first)
        error = ((added - want).norm() / want.norm()).item()
        reports[name] = Report(error, weights_of(one), seconds_of(call, device))
    return reports


def weights_of(block: nn.Module) -> int:
    """The bytes of the weights of the products of a block, scales included."""
    layers = (one for one in block.children() if not isinstance(one, nn.ParameterList))
    return sum(each.nbytes for layer in layers for each in (*layer.parameters(), *layer.buffers()))


def seconds_of(call: Callable[[], object], device: str) -> float:
    """The shortest of some calls."""
    if device == "cpu":
        taken = []
        for _ in range(3):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
        return min(taken)
    taken = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return min(taken)


if __name__ == "__main__":
    if torch.cuda.is_available():
        reports = compare("cuda", 16384, 4096, 32, 11008)
    else:
        reports = compare("cpu", 64, 128, 4, 384)
    for name, one in reports.items():
        print(
            f"{name:8s}: error {one.error:.1e}, {one.weights / 1e6:.2f} MB of weights, "
            f"{one.seconds * 1e3:.2f} ms"
        )
