# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Two transformer blocks of fused modules: BERT's, post-norm, and Llama's, pre-norm.

`python examples/blocks.py` runs both, and compares them with the same blocks of torch's own calls.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import fusedops as fo

DIM, HEADS = 64, 4
HEAD_DIM = DIM // HEADS


def heads(x: Tensor) -> Tensor:
    """(batch, tokens, dim) as (batch, heads, tokens, head_dim)."""
    return x.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)


class BertBlock(nn.Module):
    """Each norm takes the bias of the layer before it, the dropout and the residual."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.softmax = fo.nn.AttentionSoftmax(scale=HEAD_DIM**-0.5, p=p)
        self.out = nn.Linear(DIM, DIM)
        self.out_norm = fo.nn.ResidualLayerNorm(DIM, 1e-12, p=p)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.down_norm = fo.nn.ResidualLayerNorm(DIM, 1e-12, p=p)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = map(heads, self.qkv(x).chunk(3, -1))
        attended = self.softmax(query @ key.mT, mask=mask) @ value
        attended = functional.linear(attended.transpose(1, 2).flatten(2), self.out.weight)
        x = self.out_norm(attended, x, input_bias=self.out.bias)
        hidden = functional.linear(functional.gelu(self.up(x)), self.down.weight)
        return self.down_norm(hidden, x, input_bias=self.down.bias)

    def unfused(self, x: Tensor, mask: Tensor) -> Tensor:
        """The same in torch's own calls, without dropout."""
        query, key, value = map(heads, self.qkv(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(query, key, value, mask)
        x = layer_norm(self.out_norm, x + self.out(attended.transpose(1, 2).flatten(2)))
        return layer_norm(self.down_norm, x + self.down(functional.gelu(self.up(x))))


class LlamaBlock(nn.Module):
    """The stream goes through the norms, each of which adds the block before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = fo.nn.ResidualRMSNorm(DIM, 1e-6, return_stream=True)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.softmax = fo.nn.AttentionSoftmax(scale=HEAD_DIM**-0.5, causal=True)
        self.out = nn.Linear(DIM, DIM, bias=False)
        self.mlp_norm = fo.nn.ResidualRMSNorm(DIM, 1e-6, return_stream=True)
        self.gate, self.up = (nn.Linear(DIM, 2 * DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        y, stream = self.norm(x, stream)
        query, key, value = map(heads, self.qkv(y).chunk(3, -1))
        attended = self.softmax(query @ key.mT) @ value
        y, stream = self.mlp_norm(self.out(attended.transpose(1, 2).flatten(2)), stream)
        return self.down(functional.silu(self.gate(y)) * self.up(y)), stream

    def unfused(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The same in torch's own calls."""
        stream = stream + x
        y = functional.rms_norm(stream, (DIM,), self.norm.weight, 1e-6)
        query, key, value = map(heads, self.qkv(y).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.out(attended.transpose(1, 2).flatten(2))
        y = functional.rms_norm(stream, (DIM,), self.mlp_norm.weight, 1e-6)
        return self.down(functional.silu(self.gate(y)) * self.up(y)), stream


def layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def compare() -> dict[str, float]:
    """How far each block is from its unfused self, of results near one."""
    torch.manual_seed(0)
    x, residual = torch.randn(2, 2, 10, DIM).unbind()
    mask = (torch.arange(10) < torch.tensor([[10], [7]]))[:, None, None, :]
    bert, llama = BertBlock().eval(), LlamaBlock().eval()
    with torch.no_grad():
        of_bert = bert(x, mask) - bert.unfused(x, mask)
        of_llama = sum(llama(x, residual)) - sum(llama.unfused(x, residual))
    return {"BERT": of_bert.abs().max().item(), "Llama": of_llama.abs().max().item()}


if __name__ == "__main__":
    for name, difference in compare().items():
        print(f"{name}'s block: {difference:.1e} from torch's")
