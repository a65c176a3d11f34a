# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer and its cross entropy at sizes of language models, beside torch and others.

A step is the mean of the losses and the gradients of both factors: its time, and the most memory
that it has allocated, in that of factors and gradients. What a way keeps after its first step, such
as the room in which cuBLAS works, does not count. At the first rows a loss and its gradients are
compared with those of float64: a note says what is off by more than roundings, and what is wrong is
not timed.
"""

import functools
import importlib
import statistics
from collections.abc import Callable, Iterator

import torch
from peers import PEERS, SkipError
from points import DTYPES, HALVES, Selection
from results import Result
from sweep import attempt
from timing import queue_seconds
from torch import Tensor
from torch.nn import functional

import fusedops as fo

#: Rows, features and classes.
SHAPES = ((8192, 4096, 128256), (16384, 2048, 32000), (4096, 8192, 151936))
#: Rows at which results are compared, and how far they may be off as a relative norm: four
#: roundings of bfloat16, one each of logits, their gradient, a result, and what scales it.
COMPARED, NEAR = 64, 4 * 2.0**-8
#: So far off is wrong.
WRONG = 16 * NEAR
ROUNDS = 3  # Of all ways after one another.

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def ways() -> dict[str, Loss]:
    """The losses by name, the first of torch's of whole logits; a call of a missing one says so."""
    op, spends = fo.LinearCrossEntropy(), fo.LinearCrossEntropy(memory=1 << 60)
    return {
        "fusedops": lambda x, w, target: op(x, w, target=target),
        "fusedops, memory of all logits": lambda x, w, target: spends(x, w, target=target),
        "torch eager": _of_logits,
        "torch.compile": torch.compile(_of_logits, dynamic=False),
        "torch's linear_cross_entropy, chunked": _of_torch,
        "Liger": _of_liger,
        "Liger, sums in float32": functools.partial(_of_liger, sums=torch.float32),
        "QuACK": _of_quack,
    }


def _of_logits(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(x, w), target)


def _of_torch(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    try:  # Without options it computes whole logits, as the first of torch's ways.
        options = torch.nn.modules.linear_cross_entropy_options.LinearCrossEntropyOptions()
        chunked: Callable[..., Tensor] = functional.linear_cross_entropy
    except AttributeError:
        raise SkipError(f"torch {torch.__version__} has no linear_cross_entropy") from None
    return chunked(x, w, target, options=options)


def _of_liger(x: Tensor, w: Tensor, target: Tensor, sums: torch.dtype | None = None) -> Tensor:
    PEERS["liger"].version()
    liger = importlib.import_module("liger_kernel.transformers")
    loss: Tensor = liger.LigerFusedLinearCrossEntropyLoss(accum_dtype=sums)(w, x, target)
    return loss


def _of_quack(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    PEERS["quack"].version()
    quack = importlib.import_module("quack.linear_cross_entropy")
    loss: Tensor = quack.chunked_linear_cross_entropy(x, w, target)
    return loss


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Result]:
    """Each way at each shape in both halves; the others beside ours."""
    for rows, features, classes in SHAPES:
        for name in chosen.dtypes or HALVES:
            if name in HALVES:
                yield from _shape(rows, features, classes, name, device)


def _shape(rows: int, features: int, classes: int, name: str, device: str) -> Iterator[Result]:
    torch._dynamo.reset()
    x = torch.randn(rows, features, dtype=DTYPES[name], device=device).requires_grad_()
    w = torch.randn(classes, features, dtype=DTYPES[name], device=device) * features**-0.5
    given = x, w.requires_grad_(), torch.randint(0, classes, (rows,), device=device)
    case = f"linear cross entropy step {name} ({rows}, {features}, {classes})"
    calls: dict[str, Callable[[], object]] = {}
    notes: dict[str, str] = {}
    for by, loss in ways().items():
        call = functools.partial(step, loss, *given)
        off, failed = attempt(functools.partial(is_off, loss, *given))
        if not failed:
            peak, failed = attempt(functools.partial(peak_of, call, x.nbytes + w.nbytes))
            notes[by] = f"peak {peak:.2f} of factors and gradients{off}"
        if failed:
            yield Result("linear_losses", case, by, note=failed)
        else:
            calls[by] = call
    # In turn, since a chip at its power limit clocks down by the heat of what ran before.
    samples = [{by: queue_seconds([one]) for by, one in calls.items()} for _ in range(ROUNDS)]
    seconds = {by: statistics.median(one[by] for one in samples) for by in calls}
    for by, taken in seconds.items():
        beside = 0.0 if by == "fusedops" else seconds.get("fusedops", 0.0)
        yield Result("linear_losses", case, by, taken, beside=beside, note=notes[by])


@torch.enable_grad()
def step(loss: Loss, x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """The loss, and the gradients of both factors."""
    found = loss(x, w, target)
    return found.detach(), *torch.autograd.grad(found, (x, w))


def is_off(loss: Loss, x: Tensor, w: Tensor, target: Tensor) -> str:
    """What of the first rows is off by more than roundings, for a note; empty if nothing is.

    Raises:
        ArithmeticError: It is wrong.
    """
    few, target = x.detach()[:COMPARED].requires_grad_(), target[:COMPARED]
    double = [one.detach().double().requires_grad_() for one in (few, w)]
    wanted = step(_of_logits, *double, target)
    said = ""
    for name, found, true in zip(
        ("the loss", "x's gradient", "w's gradient"),
        step(loss, few, w, target),
        wanted,
        strict=True,
    ):
        error = float((found.double() - true).norm() / true.norm())
        if not error <= WRONG:  # NaN is wrong, too.
            raise ArithmeticError(f"{name} is off by {error:.2g}")
        if error > NEAR:
            said += f"; {name} is off by {error:.2g}"
    return said


def peak_of(call: Callable[[], object], factors: int) -> float:
    """The most bytes that a step has allocated, its factors among them, by twice the factors'."""
    call()  # What is built or kept at a first call is no part of it.
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before + factors) / (2 * factors)
