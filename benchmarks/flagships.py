# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The flagship chains on a GPU in float16, forward and whole steps, beside torch.

Calls are queued, not captured: a dropout that draws from torch's generator cannot be.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ceiling
import targets
import torch
from points import ROWS
from results import Result
from timing import queue_seconds, sets
from training import inputs_of, step

from fusedops import flagship
from fusedops.flagship import Case

HALF = torch.float16
DROPOUTS = (0.1, 0.0)


class Chain(NamedTuple):
    """One of the two chains.

    `streams` are the large tensors that the forward reads and writes, and the backward. With
    dropout, a forward shall be `compiled` times as fast as torch.compile's, and a step
    `step_compiled` and `step_eager` times.
    """

    make: Callable[..., Case]
    shape: tuple[int, ...]
    streams: tuple[tuple[int, int], tuple[int, int]]
    compiled: float
    step_compiled: float
    step_eager: float


CHAINS = (
    Chain(flagship.attention, (8, 16, 1024, 1024), ((1, 1), (2, 1)), 4.0, 3.0, 6.0),
    Chain(flagship.add_norm, (ROWS, 1024), ((2, 2), (3, 2)), 1.6, 1.6, 3.5),
)


def forward() -> Iterator[Result]:
    """Both chains with dropout and without."""
    for chain, p, cases in _cases():
        case = cases[0]
        best = _least(case.x.numel(), (case.bytes,), chain.streams[:1])
        seconds = _rivals(cases, lambda case, call: lambda: call(case))
        wanted = targets.FLAGSHIPS.get((case.name, p))
        name, ours = f"{case.title}, p = {p}", seconds.pop("fusedops")
        yield Result(
            "flagship",
            name,
            "fusedops",
            ours,
            case.bytes,
            best,
            target="" if wanted is None else f">= {wanted:.0f} %",
            met=None if wanted is None else 100 * best / ours >= wanted,
        )
        speeds = {"torch.compile": chain.compiled} if p else {}
        yield from _beside("flagship", name, ours, seconds, case.bytes, best, speeds)


def steps() -> Iterator[Result]:
    """Both chains forward and backward, the gradients of all operands included."""
    for chain, p, cases in _cases():
        case = cases[0]
        both = case.bytes, backward_bytes(case)
        best = _least(case.x.numel(), both, chain.streams)
        seconds = _rivals(
            cases, lambda case, call: step(functools.partial(call, case), inputs_of(case))
        )
        name, ours = f"{case.title}, p = {p}", seconds.pop("fusedops")
        yield Result("flagship_backward", name, "fusedops", ours, sum(both), best)
        speeds = {"torch.compile": chain.step_compiled, "torch eager": chain.step_eager}
        yield from _beside(
            "flagship_backward", name, ours, seconds, sum(both), best, speeds if p else {}
        )


def _cases() -> Iterator[tuple[Chain, float, list[Case]]]:
    for chain in CHAINS:
        for p in DROPOUTS:
            make = functools.partial(chain.make, chain.shape, p=p, dtype=HALF, device="cuda")
            first = make()
            cases = [first, *(make() for _ in range(sets(first.bytes) - 1))]
            yield chain, p, cases
            del first, cases
            torch.cuda.empty_cache()


def _least(elements: int, moved: Sequence[int], streams: Sequence[tuple[int, int]]) -> float:
    """Seconds for a chain's bytes at the rate of the copy with its large streams."""
    return sum(
        count / ceiling.bandwidth(elements, HALF, *each)
        for count, each in zip(moved, streams, strict=True)
    )


def _rivals(
    cases: list[Case], make: Callable[[Case, Callable[[Case], Any]], Callable[[], object]]
) -> dict[str, float]:
    torch._dynamo.reset()
    compiled = torch.compile(cases[0].chain, dynamic=False)
    within = torch.compile(cases[0].op, dynamic=False, fullgraph=True)
    ways: dict[str, Callable[[Case], Any]] = {
        "torch eager": Case.unfused,
        "torch.compile": lambda case: compiled(case.x, **case.operands),
        "fusedops in torch.compile": lambda case: within(case.x, **case.operands),
        "fusedops": Case.fused,
    }
    return {by: queue_seconds([make(case, call) for case in cases]) for by, call in ways.items()}


def _beside(
    part: str,
    name: str,
    ours: float,
    theirs: dict[str, float],
    moved: int,
    best: float,
    speeds: dict[str, float],
) -> Iterator[Result]:
    for by, seconds in theirs.items():
        times = speeds.get(by)
        yield Result(
            part,
            name,
            by,
            seconds,
            moved,
            best,
            beside=ours,
            target=f">= {times} x" if times else "",
            met=seconds / ours >= times if times else None,
        )


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
