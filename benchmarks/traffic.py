# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Declarations that move the same bytes, side by side: percent of the ceiling of each.

Their schedules are equal, so what is between them is what the functors compute, and noise.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ceiling
from peers import Function, Rival
from plain import PLAIN
from points import Point, Selection, rows_of
from results import Result
from sweep import Buffers, attempt, seconds
from torch import Tensor

import fusedops as fo

COLUMNS = (1023, 12289, 30522, 50257)
DTYPES = ("float16",)
NEAR = 3.0  # Points: so far do two runs of one kernel differ.


class Way(Rival):
    """One declaration of a pair.

    Attributes:
        by: What stands around the op.
        op: The fused op; its tensor operands are named as those of `PLAIN`.
        numbers: Its other operands.
    """

    def __init__(self, by: str, op: Any, **numbers: float) -> None:
        self.by = by
        self.op = op
        self.numbers = numbers

    def function(self, point: Point) -> Function:
        names = PLAIN[point.op].parameters

        def called(x: Tensor, *parameters: Tensor) -> Any:
            return self.op(x, **dict(zip(names, parameters, strict=True)), **self.numbers)

        return called


#: By op: the declaration that was measured at all columns, and another of the same traffic.
WAYS: dict[str, tuple[Way, Way]] = {
    "softmax": (
        Way("nothing", PLAIN["softmax"].op),
        Way("Scale(number)", fo.Softmax(load=[fo.Scale("s")]), s=0.5),
    ),
    "layer_norm": (
        Way("Affine(gamma, beta)", PLAIN["layer_norm"].op),
        Way(
            "Scale(gamma), Bias(beta)",
            fo.LayerNorm(store=[fo.Scale("gamma"), fo.Bias("beta")]),
        ),
    ),
    "rms_norm": (
        Way("Affine(gamma)", PLAIN["rms_norm"].op),
        Way("Scale(gamma)", fo.RMSNorm(store=[fo.Scale("gamma")])),
    ),
}


def pairs(chosen: Selection) -> Iterator[Result]:
    """Both declarations at each point; the second one's note is how many points it is ahead."""
    for points in _shapes(chosen):
        made = functools.cache(lambda point=points[0]: Buffers(point))
        for point in points:
            yield from _pair(point, made)
        del made


def jobs(chosen: Selection) -> Iterator[tuple[Point, Rival]]:
    """What `pairs` will call."""
    for points in _shapes(chosen):
        for point in points:
            for way in WAYS[point.op]:
                yield point, way


def _shapes(chosen: Selection) -> Iterator[list[Point]]:
    for dtype in chosen.dtypes or DTYPES:
        for columns in chosen.columns or COLUMNS:
            rows = rows_of(columns, dtype)
            kinds = itertools.product([op for op in WAYS if op in chosen.ops], chosen.passes)
            points = [Point(op, direction, dtype, rows, columns) for op, direction in kinds]
            if points:
                yield points


def _pair(point: Point, buffers: Callable[[], Buffers]) -> Iterator[Result]:
    best, reason = attempt(lambda: ceiling.of_bytes(point.bytes, point.reads))
    percents: list[float] = []
    for way in WAYS[point.op]:
        taken, why = attempt(lambda way=way: seconds(way, point, buffers()))
        result = Result("traffic", point.case, way.by, taken, point.moved, best, point=point)
        percents.append(result.percent if taken else 0.0)
        if len(percents) < 2 or not all(percents):
            yield dataclasses.replace(result, note=why or reason)
            continue
        ahead = percents[1] - percents[0]
        yield dataclasses.replace(
            result,
            target=f"within {NEAR:.0f} points",
            met=abs(ahead) <= NEAR,
            note=f"{ahead:+.1f} points",
        )
