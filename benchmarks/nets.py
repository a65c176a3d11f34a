# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Four models as people write them, like BERT, Llama, a ViT, and AlphaFold's stack of pairs.

They know nothing of fusedops, but that their attention is one of three by name: "eager" and "sdpa"
are torch's, "fused" is eager attention with `fusedops.nn.AttentionSoftmax`. Norms and residual sums
are left to `fusedops.patch`.
"""

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops as fo

ATTENTIONS = ("eager", "sdpa", "fused")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model and of its batch.

    Attributes:
        layers, dim, heads, inner: Of the blocks; `inner` is the width of the MLP.
        classes: What is predicted: tokens, or kinds of images.
        batch, length: Of the input: sequences and tokens, or patches and the class token.
    """

    layers: int
    dim: int
    heads: int
    inner: int
    classes: int
    batch: int
    length: int


class Attention(nn.Module):
    """Heads of equal size; dropout acts on the weights."""

    def __init__(
        self, sizes: Sizes, kind: str, *, p: float = 0.0, causal: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads, self.kind, self.p, self.causal = sizes.heads, kind, p, causal
        self.qkv = nn.Linear(sizes.dim, 3 * sizes.dim, bias=bias)
        self.softmax = None
        if kind == "fused":
            scale = (sizes.dim // sizes.heads) ** -0.5
            self.softmax = fo.nn.AttentionSoftmax(scale=scale, p=p, causal=causal)

    def forward(self, x: Tensor, rotation: Tensor | None = None) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        if rotation is not None:
            query, key = rotated(query, rotation), rotated(key, rotation)
        p = self.p if self.training else 0.0
        if self.kind == "sdpa":
            y = functional.scaled_dot_product_attention(
                query, key, value, dropout_p=p, is_causal=self.causal
            )
        elif self.softmax is not None:
            y = self.softmax(query @ key.mT) @ value
        else:
            scores = query @ key.mT * query.shape[-1] ** -0.5
            if self.causal:
                ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(ahead, -torch.inf)
            y = functional.dropout(torch.softmax(scores, -1), p) @ value
        return y.transpose(1, 2).flatten(2)


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """Each pair of features turned by the angle of its position."""
    even, odd = x.chunk(2, -1)
    cos, sin = rotation.to(x.dtype).unbind(0)
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], -1)


class SelfOutput(nn.Module):
    """As BERT's modules of this name and of the name Output."""

    def __init__(self, inner: int, dim: int, p: float) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(inner, dim), nn.Dropout(p)
        self.LayerNorm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + input_tensor)


class EncoderLayer(nn.Module):
    def __init__(self, sizes: Sizes, kind: str, p: float) -> None:
        super().__init__()
        self.attention = Attention(sizes, kind, p=p)
        self.attended = SelfOutput(sizes.dim, sizes.dim, p)
        self.up, self.down = (
            nn.Linear(sizes.dim, sizes.inner),
            SelfOutput(sizes.inner, sizes.dim, p),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.attended(self.attention(x), x)
        return self.down(functional.gelu(self.up(x)), x)


class Encoder(nn.Module):
    """Like BERT: post-norm, dropout 0.1, a token predicted at each place."""

    def __init__(self, sizes: Sizes, kind: str, p: float = 0.1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.classes, sizes.dim)
        self.places = nn.Parameter(0.02 * torch.randn(sizes.length, sizes.dim))
        self.norm, self.dropout = nn.LayerNorm(sizes.dim, eps=1e-12), nn.Dropout(p)
        self.layers = nn.ModuleList(EncoderLayer(sizes, kind, p) for _ in range(sizes.layers))
        self.head = nn.Linear(sizes.dim, sizes.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.tokens(tokens) + self.places))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LlamaRMSNorm(nn.Module):
    """As Llama's: rounded before the weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        self.norm, self.mlp_norm = LlamaRMSNorm(sizes.dim), LlamaRMSNorm(sizes.dim)
        self.attention = Attention(sizes, kind, causal=True, bias=False)
        self.out = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.gate = nn.Linear(sizes.dim, sizes.inner, bias=False)
        self.up = nn.Linear(sizes.dim, sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, sizes.dim, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.norm(x), rotation))
        return x + self.down(self.gated(self.mlp_norm(x)))

    def gated(self, y: Tensor) -> Tensor:
        """What goes into the last layer."""
        return functional.silu(self.gate(y)) * self.up(y)


class Decoder(nn.Module):
    """Like Llama: pre-norm, rotary positions, the next token predicted."""

    rotation: Tensor

    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.classes, sizes.dim)
        self.layers = nn.ModuleList(DecoderLayer(sizes, kind) for _ in range(sizes.layers))
        self.norm = LlamaRMSNorm(sizes.dim)
        self.head = nn.Linear(sizes.dim, sizes.classes, bias=False)
        half = sizes.dim // sizes.heads // 2
        angles = torch.outer(torch.arange(sizes.length), 10000.0 ** -(torch.arange(half) / half))
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()]))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.rotation)
        return self.head(self.norm(x))


class VisionLayer(nn.Module):
    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        self.norm, self.mlp_norm = (nn.LayerNorm(sizes.dim, eps=1e-6) for _ in range(2))
        self.attention, self.out = Attention(sizes, kind), nn.Linear(sizes.dim, sizes.dim)
        self.up, self.down = nn.Linear(sizes.dim, sizes.inner), nn.Linear(sizes.inner, sizes.dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.norm(x)))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Vision(nn.Module):
    """Like a ViT: pre-norm, patches of 16 x 16, a kind of image predicted at the class token."""

    PATCH = 3 * 16 * 16

    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        self.patches = nn.Linear(self.PATCH, sizes.dim)
        self.first = nn.Parameter(torch.zeros(1, 1, sizes.dim))
        self.places = nn.Parameter(0.02 * torch.randn(sizes.length, sizes.dim))
        self.layers = nn.ModuleList(VisionLayer(sizes, kind) for _ in range(sizes.layers))
        self.norm, self.head = (
            nn.LayerNorm(sizes.dim, eps=1e-6),
            nn.Linear(sizes.dim, sizes.classes),
        )

    def forward(self, patches: Tensor) -> Tensor:
        x = self.patches(patches)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


class TriangleAttention(nn.Module):
    """Each row of a pair representation attends within itself, biased by the pair."""

    def __init__(self, sizes: Sizes, kind: str) -> None:
        super().__init__()
        self.kind, self.heads = kind, sizes.heads
        self.scale = (sizes.dim // sizes.heads) ** -0.5
        self.softmax = fo.nn.AttentionSoftmax(scale=self.scale) if kind == "fused" else None
        self.norm, self.qkv = nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, 3 * sizes.dim)
        self.bias = nn.Linear(sizes.dim, sizes.heads, bias=False)
        self.gate, self.out = nn.Linear(sizes.dim, sizes.dim), nn.Linear(sizes.dim, sizes.dim)

    def forward(self, pair: Tensor) -> Tensor:
        y = self.norm(pair)
        heads = self.qkv(y).unflatten(-1, (3, self.heads, -1)).transpose(2, 4)
        query, key, value = heads.unbind(3)
        bias = self.bias(y).permute(0, 3, 1, 2)[:, None]
        if self.kind == "sdpa":
            bias = bias.expand(-1, pair.shape[1], -1, -1, -1)
            attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        elif self.softmax is not None:
            attended = self.softmax(query @ key.mT, bias=bias) @ value
        else:
            attended = torch.softmax(query @ key.mT * self.scale + bias, -1) @ value
        return self.out(attended.transpose(2, 3).flatten(3) * self.gate(y).sigmoid())


class PairLayer(nn.Module):
    """Attention around the starting and the ending node with row-wise dropout; a transition."""

    def __init__(self, sizes: Sizes, kind: str, p: float) -> None:
        super().__init__()
        self.starting, self.ending = (TriangleAttention(sizes, kind) for _ in range(2))
        self.norm, self.p = nn.LayerNorm(sizes.dim), p
        self.up, self.down = nn.Linear(sizes.dim, sizes.inner), nn.Linear(sizes.inner, sizes.dim)

    def forward(self, pair: Tensor) -> Tensor:
        pair = pair + self.dropped(self.starting(pair))
        turned = pair.transpose(1, 2)
        turned = turned + self.dropped(self.ending(turned))
        pair = turned.transpose(1, 2)
        return pair + self.down(functional.relu(self.up(self.norm(pair))))

    def dropped(self, update: Tensor) -> Tensor:
        """One draw for all rows."""
        shape = update.shape[0], 1, *update.shape[2:]
        ones = torch.ones(shape, dtype=update.dtype, device=update.device)
        return update * functional.dropout(ones, self.p, self.training)


class Folding(nn.Module):
    """Like AlphaFold's stack of pairs: a kind of distance is predicted for each pair of tokens."""

    def __init__(self, sizes: Sizes, kind: str, p: float = 0.25) -> None:
        super().__init__()
        self.left, self.right = (nn.Embedding(sizes.classes, sizes.dim) for _ in range(2))
        self.layers = nn.ModuleList(PairLayer(sizes, kind, p) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.dim), nn.Linear(sizes.dim, sizes.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        pair = self.left(tokens)[:, :, None] + self.right(tokens)[:, None]
        for layer in self.layers:
            pair = layer(pair)
        return self.head(self.norm(pair))


def batch_of(model: nn.Module, sizes: Sizes, device: torch.device) -> tuple[Tensor, Tensor]:
    """One batch, the same in every process: what a call takes, and what it should predict."""
    generator = torch.Generator().manual_seed(1)
    if isinstance(model, Vision):
        shape = (sizes.batch, sizes.length - 1, Vision.PATCH)
        given = torch.randn(shape, generator=generator)
        wanted = torch.randint(sizes.classes, (sizes.batch,), generator=generator)
    elif isinstance(model, Folding):
        given = torch.randint(sizes.classes, (sizes.batch, sizes.length), generator=generator)
        wanted = (given[:, :, None] - given[:, None]).abs().flatten()
    else:
        whole = torch.randint(sizes.classes, (sizes.batch, sizes.length + 1), generator=generator)
        given, wanted = whole[:, :-1], whole[:, 1:].flatten()
    return given.to(device), wanted.to(device)
