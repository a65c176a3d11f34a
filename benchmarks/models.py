# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whole steps of training of four models, as they are and patched: time, memory and losses.

A step is a forward pass under autocast, the loss, a backward pass and AdamW's update. Half has a
gradient scaler. All start from the same weights and see the same batch.
"""

import contextlib
import copy
import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from nets import Decoder, Encoder, Folding, Sizes, Vision, batch_of
from points import DTYPES, Selection
from results import Result
from timing import once_seconds, synchronize
from torch import Tensor, nn
from torch.nn import functional

import fusedops as fo


class Model(NamedTuple):
    """A model of a size: how it is made with an attention of some name."""

    make: Callable[[Sizes, str], nn.Module]
    sizes: Sizes


MODELS = {
    "encoder like BERT-base, dropout 0.1": Model(
        Encoder, Sizes(12, 768, 12, 3072, 30522, batch=32, length=512)
    ),
    "decoder like Llama": Model(Decoder, Sizes(16, 2048, 32, 5632, 32000, batch=2, length=2048)),
    "pairs like AlphaFold's, dropout 0.25": Model(
        Folding, Sizes(4, 128, 4, 512, 64, batch=1, length=256)
    ),
    "ViT-B/16": Model(Vision, Sizes(12, 768, 12, 3072, 1000, batch=128, length=197)),
}


class Way(NamedTuple):
    """How a model is run: its attention, whether it is patched, and torch.compile's backend."""

    attention: str
    patched: bool
    backend: str = ""


WAYS = {
    "torch eager": Way("eager", False),
    "torch sdpa": Way("sdpa", False),
    "torch.compile": Way("eager", False, "inductor"),
    "torch.compile, sdpa": Way("sdpa", False, "inductor"),
    "fusedops, eager attention": Way("fused", True),
    "fusedops, sdpa": Way("sdpa", True),
    "fusedops, eager attention, compiled": Way("fused", True, "inductor"),
    "fusedops, sdpa, compiled": Way("sdpa", True, "inductor"),
    'backend="fusedops"': Way("eager", False, "fusedops"),
    'backend="fusedops", sdpa': Way("sdpa", False, "fusedops"),
}
STEPS = 50
TIMED = 10


def measured(
    chosen: Selection,
    models: Mapping[str, Model] = MODELS,
    ways: Mapping[str, Way] = WAYS,
    device: str = "cuda",
    steps: int = STEPS,
) -> Iterator[Result]:
    """Step time and peak memory of each way, then how far its losses are from those of eager."""
    for name, model in models.items():
        for dtype in chosen.dtypes or ("float16", "bfloat16"):
            yield from _of_one(name, model, dtype, ways, torch.device(device), steps)


def _of_one(
    name: str,
    model: Model,
    dtype: str,
    ways: Mapping[str, Way],
    device: torch.device,
    steps: int,
) -> Iterator[Result]:
    case = f"{name}, {dtype}, {model.sizes.batch} x {model.sizes.length}"
    torch.manual_seed(0)
    first = model.make(model.sizes, "eager").state_dict()
    eager: list[float] = []
    against = 0.0
    for by, way in ways.items():
        made = None
        try:
            made = Training(model, way, first, DTYPES[dtype], device)
            losses = made.losses(steps)
            seconds, peak = made.seconds(TIMED), made.peak
        except Exception as error:  # The other ways are measured all the same.
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Result("models", f"{case}: a step", by, note=f"not measured: {said[:200]}")
            continue
        finally:
            del made
            free(device)
        eager = eager or losses
        against = against or seconds
        yield Result(
            "models",
            f"{case}: a step",
            by,
            seconds,
            against=against,
            note=f"peak memory {peak / 2**30:.2f} GiB" if device.type == "cuda" else "",
        )
        yield Result("models", f"{case}: losses of {steps} steps", by, note=_beside(losses, eager))


def _beside(losses: list[float], eager: list[float]) -> str:
    apart = max(abs(a - b) for a, b in zip(losses, eager, strict=True))
    last = [statistics.mean(each[-10:]) for each in (losses, eager)]
    return (
        f"first {losses[0]:.4f}, mean of the last ten {last[0]:.4f}; torch eager's {last[1]:.4f}; "
        f"at most {apart:.4f} apart"
    )


class Training:
    """A model in training, one way.

    Attributes:
        peak: The most bytes that a step had allocated, weights and optimizer included.
    """

    def __init__(
        self,
        model: Model,
        way: Way,
        first: Mapping[str, Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.dtype, self.device, self.peak = dtype, device, 0
        self.model = model.make(model.sizes, way.attention)
        self.model.load_state_dict(copy.deepcopy(first))
        self.model.to(device).train()
        self.given, self.wanted = batch_of(self.model, model.sizes, device)
        if way.patched:
            fo.patch(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        half = dtype is torch.float16
        self.scaler = torch.amp.GradScaler(device.type, enabled=half, init_scale=2.0**12)
        torch._dynamo.reset()
        self.forward: nn.Module = self.model
        if way.backend:
            self.forward = torch.compile(self.model, dynamic=False, backend=way.backend)

    @torch.enable_grad()
    def step(self) -> Tensor:
        """One step of training; its loss."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, self.dtype):
            logits = self.forward(self.given)
            loss = functional.cross_entropy(logits.flatten(0, -2), self.wanted)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        """Of the first steps, from one seed; kernels are built here.

        Raises:
            ArithmeticError: One is not finite.
        """
        torch.manual_seed(2)
        found = [self.step() for _ in range(steps)]
        values = [loss.item() for loss in found]
        if not all(map(math.isfinite, values)):
            raise ArithmeticError(f"a loss is not finite: {values}")
        return values

    def seconds(self, steps: int) -> float:
        """The median of steps one after another, each waited for; notes the peak."""
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        synchronize(self.device)
        timed = [once_seconds(self.step, self.device) for _ in range(steps)]
        self.peak = torch.cuda.max_memory_allocated() if cuda else 0
        return statistics.median(timed)


def free(device: torch.device) -> None:
    """Give back what a model held, so that the next one's peak is its own."""
    gc.collect()
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
