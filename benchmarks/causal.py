# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A causal softmax over squares of scores, beside the same op unmasked.

Half of the scores are neither read nor computed; as many zeros are written.
"""

import functools
from collections.abc import Iterator

import targets
import torch
from points import DTYPES, ROWS, Selection
from results import Result
from sweep import attempt
from timing import Call, graph_seconds, sets, side_stream

import fusedops as fo

SIZES = (1024, 4096)
DEFAULT_DTYPES = ("float16", "bfloat16")
MASKED, UNMASKED = fo.Softmax(load=[fo.Causal()]), fo.Softmax()


def squares(chosen: Selection) -> Iterator[Result]:
    """Forward and backward; the target is the forward's."""
    for dtype in chosen.dtypes or DEFAULT_DTYPES:
        for size in SIZES:
            if size in (chosen.columns or SIZES):
                for direction in chosen.passes:
                    yield from _square(direction, dtype, size)


def _square(direction: str, dtype: str, size: int) -> Iterator[Result]:
    shape = (ROWS // size, size, size)
    moved = (2 if direction == "forward" else 3) * ROWS * size * DTYPES[dtype].itemsize

    def seconds(op: fo.Softmax) -> float:
        return graph_seconds(_calls(op, direction, dtype, shape, moved))

    masked, reason = attempt(functools.partial(seconds, MASKED))
    unmasked, other = attempt(functools.partial(seconds, UNMASKED))
    promised = direction == "forward"
    yield Result(
        "causal",
        f"softmax {direction} {dtype} {shape}",
        "fusedops",
        masked,
        against=unmasked,
        target=f"<= {targets.CAUSAL} of the time unmasked" if promised else "",
        met=bool(masked) and masked <= targets.CAUSAL * unmasked if promised else None,
        note=reason or other,
    )
    yield Result("causal", f"softmax {direction} {dtype} {shape}", "unmasked", unmasked, moved)


def _calls(
    op: fo.Softmax, direction: str, dtype: str, shape: tuple[int, ...], moved: int
) -> list[Call]:
    def normal() -> torch.Tensor:
        return torch.empty(shape, dtype=DTYPES[dtype], device="cuda").normal_()

    calls: list[Call] = []
    with torch.cuda.stream(side_stream()):  # A backward runs on the stream of its forward.
        for _ in range(sets(moved)):
            x = normal()
            if direction == "forward":
                calls.append(functools.partial(op, x))
                continue
            with torch.enable_grad():
                y = op(x.requires_grad_())
            calls.append(
                functools.partial(torch.autograd.grad, y, [x], normal(), retain_graph=True)
            )
    torch.cuda.synchronize()
    return calls
