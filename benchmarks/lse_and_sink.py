# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A softmax that returns its logsumexp, and one with a sink, beside the plain op and torch.

The logsumexp and a sink's logits are a number a row, so each moves as much as the plain op. In a
backward pass every output has an upstream gradient.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import ceiling
import torch
from peers import Function, Rival, Tensors
from points import Point, Selection, rows_of
from results import Result
from sweep import Buffers, attempt, seconds
from timing import Call
from torch import Tensor

import fusedops as fo

COLUMNS = (1024, 4096, 12289, 50257)
OPS: dict[str, Any] = {"softmax": fo.Softmax, "log_softmax": fo.LogSoftmax}


class Outputs(Rival):
    """A declaration, fused or as the chain of torch calls that it means.

    Attributes:
        by: What it is called in tables.
        called: The op, or its `unfused`.
        sink: Whether it takes a sink.
    """

    def __init__(self, by: str, called: Function, sink: bool) -> None:
        self.by = by
        self.called = called
        self.sink = sink

    def function(self, point: Point) -> Function:
        if not self.sink:
            return self.called
        logits = torch.randn(point.rows, 1, device="cuda", requires_grad=True)
        wanted = logits if point.direction == "backward" else logits.detach()
        return functools.partial(self.called, s=wanted)

    @torch.enable_grad()
    def backward(
        self, point: Point, function: Function, given: Tensors, upstream: Tensors, vectors: Tensors
    ) -> Call:
        x = given[0].detach().requires_grad_()
        results = function(x)
        outputs = [results] if isinstance(results, Tensor) else list(results)
        upstream = [*upstream, *(torch.randn_like(each) for each in outputs[1:])]
        inputs = [x, *getattr(function, "keywords", {}).values()]
        return functools.partial(torch.autograd.grad, outputs, inputs, upstream, retain_graph=True)


def ways(op: str) -> list[Outputs]:
    """The plain op, each option fused, and each as torch computes it."""
    made = OPS[op]
    plain, lse, sink = made(), made(lse=True), made(sink="s")
    return [
        Outputs("nothing", plain, sink=False),
        Outputs("lse", lse, sink=False),
        Outputs("sink", sink, sink=True),
        Outputs("lse, torch", lse.unfused, sink=False),
        Outputs("sink, torch", sink.unfused, sink=True),
    ]


def measured(chosen: Selection) -> Iterator[Result]:
    """Each way at each point: percent of the ceiling of the plain op's bytes."""
    for dtype in chosen.dtypes or ("float16",):
        for columns in chosen.columns or COLUMNS:
            rows = rows_of(columns, dtype)
            made = functools.cache(
                lambda dtype=dtype, rows=rows, columns=columns: Buffers(
                    Point("softmax", "backward", dtype, rows, columns)
                )
            )
            for op in [op for op in OPS if op in chosen.ops]:
                for direction in chosen.passes:
                    yield from _point(Point(op, direction, dtype, rows, columns), made)
            del made


def _point(point: Point, buffers: Callable[[], Buffers]) -> Iterator[Result]:
    best, reason = attempt(lambda: ceiling.of_bytes(point.bytes, point.reads))
    for way in ways(point.op):
        taken, why = attempt(lambda way=way: seconds(way, point, buffers()))
        result = Result("lse_and_sink", point.case, way.by, taken, point.moved, best, point=point)
        yield dataclasses.replace(result, note=why or reason)
