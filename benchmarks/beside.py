# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The plain ops at shapes of training, beside every peer and the ceiling in the same rounds.

What each gives is compared with torch's result first. A shape in one dtype has a process of its
own: all of them compile side by side, and are timed one after another. What is chosen by trial is
chosen before, with the machine to itself.
"""

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from models import free, most_gib
from peers import FUSEDOPS, PEERS, Function, Rival
from points import Point, Selection
from results import Result
from sweep import Buffers, attempt, calls, captured, installed, of_peer
from timing import Captured, copies, side_stream
from torch import Tensor
from turns import Job, in_turns

PART = "beside"
ROUNDS = 3  # Of all ways after one another, so that all meet the same device.
SAMPLES = 3  # Of a way in a round.
NEAR = 0.01  # So far from torch's result, as a relative norm, is rounding; some sum in 16 bits.
#: GiB of a process that compiles; and how many tensors of its shape it may have at a time.
ROOM, TENSORS = 2, 12


def measured(chosen: Selection) -> Iterator[Result]:
    """All ops and peers at each shape of `points.TRAINING`."""
    rivals, rows = installed(chosen.peers, PART)
    yield from rows
    names = [name for name in chosen.peers if PEERS[name] in rivals]
    shapes = list(chosen.training())
    for point, rival in [pair for points in shapes for pair in pairs(points, rivals)]:
        if rival.tried:
            chosen.told(f"{rival.by} at {point.case}")
            attempt(lambda point=point, rival=rival: calls(rival, point, Buffers(point, 1))[0]())
    jobs = {}
    for points in shapes:
        dtype, rows_, columns = points[0].dtype, points[0].rows, points[0].columns
        space = ROOM + TENSORS * points[0].bytes // 2**30
        jobs[f"{dtype} ({rows_}, {columns})"] = Job(Shape, (points, names), space)
    for name, prepared, found in in_turns(jobs, most_gib("cuda"), chosen.told):
        if found is None:
            yield Result(PART, name, "all", note=f"not measured: {prepared[:200]}")
        else:
            yield from found


def pairs(points: Sequence[Point], rivals: Sequence[Rival]) -> list[tuple[Point, Rival]]:
    """Who is measured where."""
    return [
        (point, rival)
        for point in points
        for rival in rivals
        if rival.columns is None or point.columns in rival.columns
    ]


class Shape:
    """All ops at one shape in one dtype, in a process of its own (`turns.Turn`)."""

    def __init__(self, points: Sequence[Point], names: Sequence[str]) -> None:
        self.pairs = pairs(points, [FUSEDOPS, *(PEERS[name] for name in names)])
        self.functions: dict[tuple[Point, Rival], Function] = {}
        self.reasons: dict[tuple[Point, Rival], str] = {}

    @torch.no_grad()
    def prepare(self) -> None:
        """Builds and compiles, and compares with torch's result."""
        # All of them first: torch.compile forgets what it has compiled when it is asked for more.
        for point, rival in self.pairs:
            made = self._attempt(point, rival, functools.partial(rival.function, point))
            self.functions[point, rival] = made
        wanted: dict[Point, list[Tensor]] = {}
        for point, rival in self.pairs:
            if not self.functions[point, rival]:
                continue
            if point not in wanted:
                wanted.clear()  # Large ones do not all fit.
                buffers = Buffers(point, 1)
                eager = PEERS["eager"]
                wanted[point] = self._results(point, eager, eager.function(point), buffers)
            check = functools.partial(self._check, point, rival, buffers, wanted[point])
            self._attempt(point, rival, check)
        del wanted, buffers
        free(torch.device("cuda"))

    def _attempt(self, point: Point, rival: Rival, work: Callable[[], Any]) -> Any:
        """What was made, and why not in `reasons`; RuntimeError where the device is lost by it."""
        try:
            made, self.reasons[point, rival] = attempt(work)
        except RuntimeError as error:
            said = str(error).strip().partition("\n")[0]
            raise RuntimeError(f"{rival.by}, {point.case}: {said}") from error
        return made

    def _check(self, point: Point, rival: Rival, buffers: Buffers, wanted: list[Tensor]) -> None:
        results = self._results(point, rival, self.functions[point, rival], buffers)
        compare(results, wanted)

    def _results(
        self, point: Point, rival: Rival, function: Function, buffers: Buffers
    ) -> list[Tensor]:
        (call,) = calls(rival, point, buffers, function)
        with torch.cuda.stream(side_stream()):  # on which the engine runs a backward
            found: Any = call()
        torch.cuda.synchronize()
        return [found] if isinstance(found, Tensor) else list(found)

    @torch.no_grad()
    def run(self) -> list[Result]:
        """Times all that gave the right result, op by op; none after one that lost the device."""
        found: list[Result] = []
        for point in dict.fromkeys(point for point, _ in self.pairs):
            try:
                found += self._point(point)
            except RuntimeError as error:
                said = str(error).partition("\n")[0][:200]
                found.append(Result(PART, point.case, "all", note=f"failed: {said}"))
        return found

    def _point(self, point: Point) -> Iterator[Result]:
        rivals = [rival for other, rival in self.pairs if other == point]
        buffers, graphs = Buffers(point), {}
        for rival in rivals:
            if not self.reasons[point, rival]:
                function = self.functions[point, rival]
                work = functools.partial(captured, rival, point, buffers, function)
                graph = self._attempt(point, rival, work)
                if graph:
                    graphs[rival] = graph
        plain = [Captured(each) for each in copies(point.bytes, point.reads, point.writes)]
        taken = in_rounds([*graphs.values(), *plain])
        seconds, best = dict(zip(graphs, taken, strict=False)), min(taken[len(graphs) :])
        ours = seconds.get(FUSEDOPS, 0.0)
        for rival in rivals:
            reason = self.reasons[point, rival]
            if rival is FUSEDOPS:
                yield Result(
                    PART, point.case, rival.by, ours, point.moved, best, note=reason, point=point
                )
            else:
                yield of_peer(PART, point, rival, seconds.get(rival, 0.0), ours, best, reason)
        del graphs, plain, buffers
        free(torch.device("cuda"))


def in_rounds(ways: Sequence[Captured]) -> list[float]:
    """Seconds of each: the median of rounds over all."""
    ways[0].seconds()  # so that the device is awake
    rounds = [[way.seconds(0.0, SAMPLES) for way in ways] for _ in range(ROUNDS)]
    return [statistics.median(of_way) for of_way in zip(*rounds, strict=True)]


def compare(results: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """ValueError where a result is farther from torch's than rounding takes it."""
    if len(results) != len(wanted):
        raise ValueError(f"{len(results)} results, torch has {len(wanted)}")
    for result, other in zip(results, wanted, strict=True):
        difference = (result.flatten() - other.flatten()).float()
        off = float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(other.float()))
        if not off <= NEAR:  # not a number is no rounding either
            raise ValueError(f"its result is off torch's by {off:.2g}, as a relative norm")
