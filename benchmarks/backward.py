# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients on a GPU: device time of the backward alone and of whole steps, and memory. fp16."""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ceiling
import torch
from gpu import COLUMNS, HALF, ROWS, beside_eager
from results import Result
from timing import Call, graph_seconds, queue_seconds, sets, side_stream
from torch import Tensor
from torch.nn import functional
from training import inputs_of, outputs_of, step

import fusedops as fo
from fusedops import flagship
from fusedops.flagship import Case

# Percent of the ceiling, by columns.
SOFTMAX_TARGETS = dict.fromkeys((256, 1024, 4096, 8192, 16384), 95.0)
LAYER_NORM_TARGETS = {256: 70.0, 1024: 82.0, 4096: 82.0, 8192: 75.0, 16384: 75.0}
MOST_BYTES_A_ROW = 16.0


def softmax() -> Iterator[Result]:
    """Plain softmax over the columns: dx."""
    op = fo.Softmax()
    yield from _sweep(
        "softmax_backward",
        SOFTMAX_TARGETS,
        lambda columns: (),
        op,
        lambda x: torch.softmax(x, -1),
    )


def layer_norm() -> Iterator[Result]:
    """LayerNorm over the columns: dx, dgamma and dbeta."""
    op = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    yield from _sweep(
        "layer_norm_backward",
        LAYER_NORM_TARGETS,
        lambda columns: torch.randn(2, columns, dtype=HALF, device="cuda").unbind(),
        lambda x, gamma, beta: op(x, gamma=gamma, beta=beta),
        lambda x, gamma, beta: functional.layer_norm(x, x.shape[-1:], gamma, beta),
    )


def _sweep(
    part: str,
    targets: Mapping[int, float],
    parameters: Callable[[int], tuple[Tensor, ...]],
    fused: Callable[..., Tensor],
    eager: Callable[..., Tensor],
) -> Iterator[Result]:
    for columns in COLUMNS:
        elements = ROWS * columns
        moved = 3 * elements * HALF.itemsize
        best = ceiling.seconds(elements, HALF, reads=2, writes=1)
        extra = parameters(columns)
        baseline = graph_seconds(_backwards(eager, columns, extra, sets(moved)))
        torch.cuda.empty_cache()
        seconds = graph_seconds(_backwards(fused, columns, extra, sets(moved)))
        torch.cuda.empty_cache()
        yield from beside_eager(part, columns, seconds, moved, best, baseline, targets.get(columns))


@torch.enable_grad()
def _backwards(
    forward: Callable[..., Tensor], columns: int, extra: tuple[Tensor, ...], count: int
) -> list[Call]:
    """The backward passes of `count` forward passes, which are run here and kept.

    The engine runs a backward on the stream of its forward, so that must be the one of the capture.
    """
    calls = []
    with torch.cuda.stream(side_stream()):
        for _ in range(count):
            x = torch.randn(ROWS, columns, device="cuda").to(HALF)
            inputs = [each.detach().requires_grad_() for each in (x, *extra)]
            y = forward(*inputs)
            dy = torch.randn(ROWS, columns, device="cuda").to(HALF)
            calls.append(functools.partial(torch.autograd.grad, y, inputs, dy, retain_graph=True))
    torch.cuda.synchronize()
    return calls


def flagships() -> Iterator[Result]:
    """Forward and backward of both flagship chains, the gradients of all operands included."""
    for make, shape, streams, targets in (
        (flagship.attention, (8, 16, 1024, 1024), ((1, 1), (2, 1)), (3.0, 6.0)),
        (flagship.add_norm, (ROWS, 1024), ((2, 2), (3, 2)), (1.6, 3.5)),
    ):
        for p in (0.1, 0.0):
            cases = [make(shape, p=p, dtype=HALF, device="cuda")]
            cases += [
                make(shape, p=p, dtype=HALF, device="cuda") for _ in range(sets(cases[0].bytes) - 1)
            ]
            yield from _flagship(cases, streams, p, targets if p else (None, None))
            del cases
            torch.cuda.empty_cache()


def _flagship(
    cases: list[Case],
    streams: tuple[tuple[int, int], tuple[int, int]],
    p: float,
    targets: tuple[float | None, float | None],
) -> Iterator[Result]:
    case = cases[0]
    # The chain's bytes at the rate of the copy with its large streams, forward and backward.
    both = case.bytes, backward_bytes(case)
    best = sum(
        moved / ceiling.bandwidth(case.x.numel(), HALF, *each)
        for moved, each in zip(both, streams, strict=True)
    )
    torch._dynamo.reset()
    compiled = torch.compile(case.chain, dynamic=False)
    seconds = {
        by: queue_seconds([step(functools.partial(call, each), inputs_of(each)) for each in cases])
        for by, call in {
            "torch eager": Case.unfused,
            "torch.compile": lambda each: compiled(each.x, **each.operands),
            "fusedops": Case.fused,
        }.items()
    }
    name, ours = f"{case.title}, p = {p}", seconds.pop("fusedops")
    for target, (by, theirs) in zip(targets, reversed(seconds.items()), strict=True):
        yield Result(
            "flagship_backward",
            name,
            f"fusedops beside {by}",
            ours,
            sum(both),
            best,
            theirs,
            f">= {target} x" if target else "",
            theirs / ours >= target if target else None,
        )
    for by, theirs in seconds.items():
        yield Result("flagship_backward", name, by, theirs, sum(both), best)


def backward_bytes(case: Case) -> int:
    """The bytes that a backward must move: each input read once, each gradient written once.

    A softmax needs its scores again, or else its weights; a norm needs the stream in place of all
    that it was made from.
    """
    x, operands = case.x, case.operands
    inputs = inputs_of(case)
    gradients = sum(each.nbytes for each in inputs)
    if case.op is flagship.ADD_NORM:
        upstream, again = 2 * x.nbytes, x.nbytes + operands["gamma"].nbytes
    else:
        upstream = x.nbytes
        again = x.nbytes + operands["pair_bias"].nbytes + operands["padding"].nbytes
    return upstream + again + gradients


def memory() -> Iterator[Result]:
    """What the flagship attention softmax holds for its backward, beside inputs and output."""
    case = flagship.attention((8, 16, 1024, 1024), p=0.1, dtype=HALF, device="cuda")
    inputs = inputs_of(case)
    rows = case.x.numel() // case.x.shape[-1]
    torch._dynamo.reset()
    compiled = torch.compile(case.chain, dynamic=False)
    for by, call in {
        "fusedops": case.fused,
        "torch eager": case.unfused,
        "torch.compile": lambda: compiled(case.x, **case.operands),
    }.items():
        held, peak = _held(call, inputs)
        for when, count in (("between forward and backward", held), ("at the peak", peak)):
            ours = by == "fusedops"
            yield Result(
                "memory",
                f"{case.title}, {when}",
                by,
                held=count / rows,
                target=f"<= {MOST_BYTES_A_ROW:.0f} bytes a row" if ours else "",
                met=count / rows <= MOST_BYTES_A_ROW if ours else None,
            )


@torch.enable_grad()
def _held(call: Callable[[], Any], inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Bytes beside the outputs that a forward pass leaves allocated, and that it had at most."""
    step(call, inputs)()  # What is built or kept at a first call is no part of it.
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = outputs_of(call())
    torch.cuda.synchronize()
    own = sum(each.nbytes for each in outputs)
    held = torch.cuda.memory_allocated() - before - own
    return held, torch.cuda.max_memory_allocated() - before - own
