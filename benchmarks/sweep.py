# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Device time of the plain ops by columns, beside the ceiling and the peers; and with few rows.

A point that fails is a row that says why, and the sweep goes on.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ceiling
import targets
import torch
from peers import FUSEDOPS, PEER_COLUMNS, PEERS, Function, Rival, SkipError
from plain import PLAIN
from points import DTYPES, Point, Selection
from results import Result
from timing import Call, Captured, sets, side_stream
from torch import Tensor

from fusedops.run import single_length

MOST_SETS = 256  # Few short rows stay in the L2 cache: a graph of all that it holds is too long.
FEW_ROWS_PEERS = ("eager", "compile")
PEER_DTYPE = "float16"
IMPLAUSIBLE = 1.5  # Times the ceiling: then the graph did not hold the work.


class Buffers:
    """Normal values: what the calls of all ops of one shape go round; `most` sets of them."""

    def __init__(self, point: Point, most: int = MOST_SETS) -> None:
        self.count = min(most, sets(2 * point.bytes))
        self.vectors = [_normal(point) for _ in range(2)]  # Each aligned for itself.
        self._point = point
        self._streams: dict[str, Sequence[Tensor]] = {}
        self.stream("x")

    def stream(self, name: str) -> Sequence[Tensor]:
        """An x, another operand or an upstream gradient for each set, made when first asked for."""
        if name not in self._streams:
            made = _normal(self._point, self.count, self._point.rows)
            self._streams[name] = made.unbind()
        return self._streams[name]


def _normal(point: Point, *shape: int) -> Tensor:
    return torch.empty((*shape, point.columns), dtype=DTYPES[point.dtype], device="cuda").normal_()


def sweep(chosen: Selection) -> Iterator[Result]:
    """Many rows: percent of the ceiling, and the peers in float16 at some of the columns."""
    rivals, rows = installed(chosen.peers, "sweep")
    yield from rows
    for points in chosen.sweep():
        for_peers = points[0].dtype == PEER_DTYPE and points[0].columns in PEER_COLUMNS
        yield from _shape("sweep", points, rivals if for_peers else ())


def few_rows(chosen: Selection) -> Iterator[Result]:
    """Few rows, from decoding to small batches: beside torch alone."""
    rivals, rows = installed([p for p in chosen.peers if p in FEW_ROWS_PEERS], "few_rows")
    yield from rows
    for points in chosen.few_rows():
        yield from _shape("few_rows", points, rivals)


def installed(names: Sequence[str], part: str) -> tuple[list[Rival], list[Result]]:
    """The peers that are there, and a row for each: its version, or why it is left out."""
    rivals, rows = [], []
    for name in names:
        try:
            note = PEERS[name].version()
            rivals.append(PEERS[name])
        except SkipError as reason:
            note = f"skipped: {reason}"
        rows.append(Result(part, "peers", PEERS[name].by, note=note))
    return rivals, rows


def _shape(part: str, points: Sequence[Point], rivals: Sequence[Rival]) -> Iterator[Result]:
    buffers: Buffers | None = None
    for point in points:
        try:
            buffers = buffers or Buffers(point)
        except torch.OutOfMemoryError:
            yield Result(part, point.case, "fusedops", note="skipped: no room", point=point)
            torch.cuda.empty_cache()
            continue
        yield from _beside(part, point, rivals, buffers)
    del buffers
    torch.cuda.empty_cache()


def _beside(part: str, point: Point, rivals: Sequence[Rival], buffers: Buffers) -> Iterator[Result]:
    best, target = 0.0, None
    if part == "sweep":
        best, _ = attempt(lambda: ceiling.of_bytes(point.bytes, point.reads))
        target = targets.percent(point)
    ours, reason = attempt(functools.partial(seconds, FUSEDOPS, point, buffers))
    yield Result(
        part,
        point.case,
        FUSEDOPS.by,
        ours,
        point.moved,
        best,
        target="" if target is None else f">= {target:.0f} %",
        met=None if target is None else bool(ours) and 100 * best / ours >= target,
        note=reason,
        point=point,
    )
    for rival in rivals:
        if part == "sweep" and rival.columns and point.columns not in rival.columns:
            continue
        theirs, reason = attempt(functools.partial(seconds, rival, point, buffers))
        yield of_peer(part, point, rival, theirs, ours, best, reason)


def of_peer(
    part: str, point: Point, rival: Rival, theirs: float, ours: float, best: float, reason: str
) -> Result:
    """A peer's row: its seconds beside ours and the ceiling's, or why there are none."""
    if theirs and best > IMPLAUSIBLE * theirs:
        theirs, reason = 0.0, "skipped: it came back before its work can have been done"
    both, wanted = bool(ours and theirs), targets.beside(point, rival.by)
    return Result(
        part,
        point.case,
        rival.by,
        theirs,
        point.moved if theirs else 0,
        best if theirs else 0.0,
        beside=ours if both else 0.0,
        target=f">= {wanted} x" if both else "",
        met=theirs / ours >= wanted if both else None,
        note=reason or rival.version(),
        point=point,
    )


def attempt(measure: Callable[[], Any]) -> tuple[Any, str]:
    """What was measured or made, or 0 and why not.

    Raises:
        RuntimeError: The device is unusable from here on.
    """
    reason, found = "", 0.0  # type: str, Any
    try:
        found = measure()
    except SkipError as why:
        reason = f"skipped: {why}"
    except Exception as error:  # Whatever a peer or a new kernel may raise.
        first = str(error).strip().partition("\n")[0][:160]
        reason = f"failed: {type(error).__name__}: {first}"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return found, reason


def seconds(rival: Rival, point: Point, buffers: Buffers) -> float:
    """Device seconds of one call."""
    return captured(rival, point, buffers).seconds()


def captured(
    rival: Rival, point: Point, buffers: Buffers, function: Function | None = None
) -> Captured:
    """Its calls as a CUDA graph."""
    made = calls(rival, point, buffers, function)
    if rival is FUSEDOPS:
        with torch.cuda.stream(side_stream()):  # where the graph is captured, too
            made[0]()
            single_length.settle(made[0])
    return Captured(made)


def calls(
    rival: Rival, point: Point, buffers: Buffers, function: Function | None = None
) -> list[Call]:
    """One call for each x that has to be gone round; `function`: the rival's, if it was made.

    A backward's forwards are run here. The engine runs a backward on the stream of its forward, so
    that must be the one of the capture.
    """
    function = function or rival.function(point)
    plain, count = PLAIN[point.op], min(buffers.count, sets(point.moved))
    given = _sets([buffers.stream(name)[:count] for name in ("x", *plain.streams)])
    vectors = buffers.vectors[: len(plain.parameters)]
    torch.cuda.synchronize()  # The buffers were filled on another stream.
    if point.direction == "forward":
        parameters = rival.parameters(point, vectors)
        return [functools.partial(function, *of_call, *parameters) for of_call in given]
    upstream = _sets([buffers.stream(f"d{name}")[:count] for name in ("y", *plain.streams)])
    torch.cuda.synchronize()
    with torch.cuda.stream(side_stream()):
        parameters = rival.parameters(point, vectors)
        return [
            rival.backward(point, function, of_call, gradients, parameters)
            for of_call, gradients in zip(given, upstream, strict=True)
        ]


def _sets(streams: Sequence[Sequence[Tensor]]) -> list[tuple[Tensor, ...]]:
    """What each call has of each stream."""
    return list(zip(*streams, strict=True))
