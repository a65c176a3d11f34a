# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whole steps of training of four models, as they are and patched: time, memory and losses.

A step is a forward pass under autocast, the loss, a backward pass and AdamW's update. Half has a
gradient scaler. All start from the same weights and see the same batch. On a GPU a step is timed as
Python issues it, and replayed from a CUDA graph, which says what the kernels take.
"""

import contextlib
import copy
import gc
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from types import MethodType
from typing import Any, NamedTuple

import torch
from nets import (
    Decoder,
    DecoderLayer,
    Encoder,
    Folding,
    LlamaRMSNorm,
    Sizes,
    Vision,
    batch_of,
)
from points import DTYPES, Selection
from profiles import profile_of
from results import Result
from timing import graph_seconds, once_seconds, synchronize
from torch import Tensor, nn
from torch.nn import functional
from turns import Job, in_turns

import fusedops as fo


class Model(NamedTuple):
    """A model of a size: how it is made with an attention of some name.

    `gib` is kept free for it, with eager attention: what a step was seen to need, the decoder's
    excepted, which is a guess.
    """

    make: Callable[[Sizes, str], nn.Module]
    sizes: Sizes
    gib: int = 1


MODELS = {
    "encoder like BERT-base, dropout 0.1": Model(
        Encoder, Sizes(12, 768, 12, 3072, 30522, batch=32, length=512), 19
    ),
    "decoder like Llama": Model(Decoder, Sizes(8, 2048, 32, 5632, 32000, batch=2, length=2048), 30),
    "pairs like AlphaFold's, dropout 0.25": Model(
        Folding, Sizes(4, 128, 4, 512, 64, batch=1, length=256), 5
    ),
    "ViT-B/16": Model(Vision, Sizes(12, 768, 12, 3072, 1000, batch=128, length=197), 13),
}


def patch_by_liger(model: nn.Module) -> None:
    """Have norms, and the gates of a decoder, run by Liger's kernels, as its own patches do."""
    from liger_kernel import ops

    def rms_norm(self: LlamaRMSNorm, x: Tensor) -> Any:
        return ops.LigerRMSNormFunction.apply(x, self.weight, self.variance_epsilon, 0.0, "llama")

    def layer_norm(self: nn.LayerNorm, x: Tensor) -> Any:
        return ops.LigerLayerNormFunction.apply(x, self.weight, self.bias, self.eps)

    def gated(self: DecoderLayer, y: Tensor) -> Any:
        return ops.LigerSiLUMulFunction.apply(self.gate(y), self.up(y))

    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = MethodType(rms_norm, module)
        elif isinstance(module, nn.LayerNorm):
            module.forward = MethodType(layer_norm, module)
        elif isinstance(module, DecoderLayer):
            module.gated = MethodType(gated, module)


class Way(NamedTuple):
    """How a model is run: its attention, what patches it, and torch.compile's backend."""

    attention: str
    patch: Callable[[nn.Module], object] | None = None
    backend: str = ""


WAYS = {
    "torch eager": Way("eager"),
    "torch sdpa": Way("sdpa"),
    "torch.compile": Way("eager", None, "inductor"),
    "torch.compile, sdpa": Way("sdpa", None, "inductor"),
    "fusedops, eager attention": Way("fused", fo.patch),
    "fusedops, sdpa": Way("sdpa", fo.patch),
    "fusedops, eager attention, compiled": Way("fused", fo.patch, "inductor"),
    "fusedops, sdpa, compiled": Way("sdpa", fo.patch, "inductor"),
    'backend="fusedops"': Way("eager", None, "fusedops"),
    'backend="fusedops", sdpa': Way("sdpa", None, "fusedops"),
}
if find_spec("liger_kernel") and torch.cuda.is_available():
    WAYS["Liger, sdpa"] = Way("sdpa", patch_by_liger)
STEPS = 50
TIMED = 10
#: Steps before those that are timed: memory is allocated again, the clock rises.
WARM = 3
ISSUED = "a step"
REPLAYED = "a step from a CUDA graph"

#: Seconds of a step by each clock, or why there are none.
Clocks = dict[str, float | str]


def short(name: str) -> str:
    """The word by which a model is chosen."""
    return name.split()[0].split("-")[0].lower()


def measured(
    chosen: Selection,
    models: Mapping[str, Model] = MODELS,
    ways: Mapping[str, Way] = WAYS,
    device: str = "cuda",
    steps: int = STEPS,
) -> Iterator[Result]:
    """Step time and peak memory of each way, then how far its losses are from those of the first.

    On a GPU the ways of all models are compiled side by side in processes of their own, as many as
    have room, then timed in turn while the others wait.
    """
    ways = {by: way for by, way in ways.items() if way.backend or not chosen.compiled}
    jobs: dict[tuple[str, str], Job] = {}
    for name, model in models.items():
        if chosen.models is not None and short(name) not in chosen.models:
            continue
        for dtype in chosen.dtypes or ("float16", "bfloat16"):
            case = f"{name}, {dtype}, {model.sizes.batch} x {model.sizes.length}"
            for by, way in ways.items():
                room = math.ceil(model.gib * (0.75 if way.attention == "sdpa" else 1))
                arguments = model, way, dtype, device, steps, chosen.profile is not None
                jobs[case, by] = Job(Timed, arguments, room)
    found = in_turns(jobs, most_gib(device), chosen.told)
    for case, of_case in itertools.groupby(found, lambda one: one[0][0]):
        yield from _results(case, ways, ((name[1], *rest) for name, *rest in of_case), chosen)


def most_gib(device: str) -> int:
    """GiB for all that compile side by side; 0 on a CPU, whose cores they would share."""
    if device == "cpu":
        return 0
    return int(0.9 * torch.cuda.get_device_properties(device).total_memory / 2**30)


def _results(
    case: str,
    ways: Mapping[str, Way],
    found: Iterable[tuple[Any, ...]],
    chosen: Selection,
) -> Iterator[Result]:
    folder = chosen.profile
    first: tuple[str, list[float], Clocks] | None = None
    compiled: dict[str, Clocks] = {}  # torch.compile's by attention
    for by, losses, timed in found:
        if timed is None:
            yield Result("models", f"{case}: {ISSUED}", by, note=f"not measured: {losses[:200]}")
            continue
        clocks, peak, page = timed
        first = first or (by, losses, clocks)
        way = ways[by]
        if way == Way(way.attention, None, "inductor"):
            compiled[way.attention] = clocks
        beside = compiled.get("sdpa" if way.attention == "sdpa" else "eager", {})
        for what, seconds in clocks.items():
            notes = [f"peak memory {peak / 2**30:.2f} GiB"] if peak and what == ISSUED else []
            if isinstance(seconds, str):
                yield Result("models", f"{case}: {what}", by, note=f"not measured: {seconds}")
                continue
            if clocks is not beside and isinstance(other := beside.get(what), float):
                notes.append(f"{other / seconds:.2f} times torch.compile's speed")
            against = first[2][what]
            yield Result(
                "models",
                f"{case}: {what}",
                by,
                seconds,
                against=against if isinstance(against, float) else 0.0,
                note="; ".join(notes),
            )
        note = _beside(losses, *first[:2])
        yield Result("models", f"{case}: losses of {len(losses)} steps", by, note=note)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9]+", "-", f"{case} {by}").strip("-")
            (folder / f"{name}.txt").write_text(f"{case}: {by}\n{page}")


def _beside(losses: list[float], other: str, others: list[float]) -> str:
    apart = max(abs(a - b) for a, b in zip(losses, others, strict=True))
    last = [statistics.mean(each[-10:]) for each in (losses, others)]
    return (
        f"first {losses[0]:.4f}, mean of the last ten {last[0]:.4f}; {other}'s {last[1]:.4f}; "
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
        if way.patch is not None:
            way.patch(self.model)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, fused=cuda, capturable=cuda
        )
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

    def clocks(self, steps: int) -> Clocks:
        """Seconds of a step, on a GPU by both clocks."""
        found: Clocks = {ISSUED: self.seconds(steps)}
        if self.device.type == "cuda":
            try:
                found[REPLAYED] = graph_seconds([self.step])
            except RuntimeError as error:  # What waits for the GPU cannot be captured.
                found[REPLAYED] = str(error).splitlines()[0]
        return found


class Timed:
    """A way of a model in its process: trained first, then timed."""

    def __init__(
        self, model: Model, way: Way, dtype: str, device: str, steps: int, profiled: bool
    ) -> None:
        self.device, self.steps, self.profiled = torch.device(device), steps, profiled
        torch.manual_seed(0)
        first = model.make(model.sizes, "eager").state_dict()
        self.training = Training(model, way, first, DTYPES[dtype], self.device)

    def prepare(self) -> list[float]:
        """The losses of the first steps."""
        losses = self.training.losses(self.steps)
        self.training.optimizer.zero_grad()
        free(self.device)
        return losses

    def run(self) -> tuple[Clocks, int, str]:
        """Seconds of a step, the peak of memory, and a page about where the time goes."""
        for _ in range(WARM):
            self.training.step()
        page = profile_of(self.training.step, self.device) if self.profiled else ""
        clocks, peak = self.training.clocks(TIMED), self.training.peak
        self.training.optimizer.zero_grad()
        free(self.device)
        return clocks, peak, page


def free(device: torch.device) -> None:
    """Give back what a model held on a GPU, so that the next one's peak is its own."""
    if device.type == "cuda":
        gc.collect()
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()
