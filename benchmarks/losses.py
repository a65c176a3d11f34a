# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Cross entropy at sizes of language models, forward and backward, beside torch and others.

Forward, the logits are read once; backward, they are read once and their gradient is written once;
a step is both, of the mean. The ceiling is the fastest copy that moves as many bytes in all. A peer
is not timed where its loss is not that of float64. Liger finds the gradient in its forward pass and
in the logits' memory, so it is timed by steps alone.
"""

import functools
from collections.abc import Callable, Iterator
from types import ModuleType

import ceiling
import peers
import torch
from points import PASSES, Selection
from results import Result
from sweep import attempt
from timing import Captured, queue_seconds, sets, side_stream
from torch import Tensor
from torch.nn import functional

import fusedops as fo

SHAPES = ((8192, 32000), (8192, 50257), (8192, 128256), (4096, 151936), (16384, 8192))
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
#: Percent of the ceiling where columns fill vectors: forward, backward.
TARGETS = {"forward": 95.0, "backward": 92.0}

Loss = Callable[[Tensor, Tensor], Tensor]
Given = list[tuple[Tensor, Tensor]]


def ways(reduction: str = "none") -> dict[str, Loss]:
    """The losses by name, as far as they are installed; those of whole steps for a mean."""
    op = fo.CrossEntropy(reduction=reduction)

    def eager(x: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(x, target, reduction=reduction)

    found: dict[str, Loss] = {
        "fusedops": lambda x, target: op(x, target=target),
        "torch eager": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
    }
    whole = reduction == "mean"
    if whole:
        inside = fo.CrossEntropy(reduction=reduction, inplace=True)
        found["fusedops, in place"] = lambda x, target: inside(x.view_as(x), target=target)
    try:
        from quack.cross_entropy import cross_entropy
    except ImportError:
        pass
    else:
        found["QuACK"] = functools.partial(cross_entropy, reduction=reduction)
        if whole:
            found["QuACK, in place"] = functools.partial(cross_entropy, inplace_backward=True)
    try:
        from liger_kernel import functional as liger
    except ImportError:
        pass
    else:
        for rival in (peers.Liger, peers.LigerCute) if whole else ():
            found[rival.by] = functools.partial(_of_liger, liger, rival.implementation)
    return found


def _of_liger(liger: ModuleType, implementation: str, x: Tensor, target: Tensor) -> Tensor:
    result = liger.cross_entropy(x.view_as(x), target, impl=implementation)
    return result[0]  # type: ignore[no-any-return]


def measured(chosen: Selection) -> Iterator[Result]:
    """Each way at each shape and dtype; ours against its target, the others beside ours."""
    for rows, columns in SHAPES:
        if columns not in (chosen.columns or (columns,)):
            continue
        for name in chosen.dtypes or DTYPES:
            dtype = DTYPES.get(name)
            if dtype is not None:
                yield from _shape(rows, columns, name, dtype, chosen.passes)


def _shape(
    rows: int, columns: int, name: str, dtype: torch.dtype, passes: tuple[str, ...]
) -> Iterator[Result]:
    size = rows * columns * dtype.itemsize
    given = [
        (
            torch.randn(rows, columns, dtype=dtype, device="cuda"),
            torch.randint(0, columns, (rows,), device="cuda"),
        )
        for _ in range(sets(size))
    ]
    torch._dynamo.reset()
    each = ways()
    measures = [("forward", each, _forward, size), ("backward", each, _backward, 2 * size)]
    if passes == PASSES:
        measures.append(("step", ways("mean"), _step, 3 * size))
    for direction, made, time, moved in measures:
        if direction in PASSES and direction not in passes:
            continue
        best = ceiling.of_bytes(moved // 2)
        ours, even = 0.0, columns % (16 // dtype.itemsize) == 0
        for by, loss in made.items():
            case = f"cross entropy {direction} {name} ({rows}, {columns})"
            why = attempt(lambda loss=loss: _is_off(loss, given))
            seconds, failed = attempt(lambda time=time, loss=loss: time(loss, given))
            if any(why) or failed:
                yield Result("losses", case, by, note="; ".join(filter(None, (*why, failed))))
                continue
            ours = ours or seconds
            aim = TARGETS.get(direction) if by == "fusedops" and even else None
            yield Result(
                "losses",
                case,
                by,
                seconds,
                moved,
                best,
                beside=0.0 if by == "fusedops" else ours,
                target="" if aim is None else f">= {aim:.0f} %",
                met=None if aim is None else 100 * best / seconds >= aim,
            )


def _is_off(loss: Loss, given: Given) -> str:
    """Why a loss is wrong at the first rows; empty if it is not."""
    x, target = (one[:64] for one in given[0])
    with torch.no_grad():
        found = loss(x.clone(), target).double()
    wanted = functional.cross_entropy(x.double(), target, reduction="none")
    off = float((found - (wanted if found.dim() else wanted.mean())).abs().max())
    return "" if off < 0.05 else f"off by {off:.3g}"


def _forward(loss: Loss, given: Given) -> float:
    with torch.no_grad():
        return Captured([functools.partial(loss, x, target) for x, target in given]).seconds()


def _backward(loss: Loss, given: Given) -> float:
    calls = []
    for values, target in given:
        x = values.detach().requires_grad_()
        # The engine runs a backward on the stream of its forward, which is that of the capture.
        with torch.cuda.stream(side_stream()), torch.enable_grad():
            result = loss(x, target)
        upstream = torch.randn_like(result)
        calls.append(functools.partial(torch.autograd.grad, result, x, upstream, retain_graph=True))
    return Captured(calls).seconds()


def _step(loss: Loss, given: Given) -> float:
    """Queued and not captured: some wait for the device."""

    def once(x: Tensor, target: Tensor) -> None:
        with torch.enable_grad():
            torch.autograd.grad(loss(x, target), x)

    leaves = [(x.detach().requires_grad_(), target) for x, target in given]
    return queue_seconds([functools.partial(once, *one) for one in leaves])
