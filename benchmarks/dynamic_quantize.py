# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 8 bits whose scales the kernel finds: percent of the ceiling, beside torch.compile.

An RMSNorm with a residual and its saved stream, a LayerNorm, and the gate of a SwiGLU, each with
scales per row, per 128 columns, and per 32 as exponents of 8 bits. bfloat16 in.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ceiling
import torch
from results import Result
from timing import graph_seconds, sets
from torch import Tensor
from torch.nn import functional

import fusedops as fo

ROWS, COLUMNS = 16384, (1024, 4096, 8192, 16384)
COMPILED = (4096, 16384)  # columns at which torch.compile is measured, too
KIND, HALF = torch.float8_e4m3fn, torch.bfloat16
MOST, EPS = 448.0, 1e-6
PERCENT = 97.0


def scaled(v: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Scales of blocks of so many columns, in torch."""
    blocks = v.float().unflatten(-1, (-1, size))
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = torch.where(amax == 0, 1.0, amax / MOST)
    y = (blocks * (1 / scale)).clamp(-MOST, MOST).to(KIND)
    return y.flatten(-2), scale.squeeze(-1)


def scaled_by_exponents(v: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The same with scales of float8_e8m0fnu, whose codes are returned."""
    blocks = v.float().unflatten(-1, (-1, size))
    bits = blocks.abs().amax(-1, keepdim=True).view(torch.int32)
    exponent = torch.where(bits == 0, 127, ((bits >> 23) - 8).clamp(min=0))
    inverse = ((254 - exponent) << 23).view(torch.float32)
    y = (blocks * inverse).clamp(-MOST, MOST).to(KIND)
    return y.flatten(-2), exponent.squeeze(-1).to(torch.uint8)


class Scaling(NamedTuple):
    """One way to scale, as arguments of the functor and in torch; `size` 0 is a row."""

    options: dict[str, Any]
    size: int
    plain: Callable[[Tensor, int], tuple[Tensor, Tensor]] = scaled


SCALINGS = {
    "a row": Scaling({}, 0),
    "128": Scaling({"per": 128}, 128),
    "32, exponents": Scaling(
        {"per": 32, "scale_dtype": torch.float8_e8m0fnu}, 32, scaled_by_exponents
    ),
}


def rms_norm(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The value and the stream."""
    stream = x + r
    return functional.rms_norm(stream.float(), g.shape, g.float(), EPS), stream


def layer_norm(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The value."""
    return (functional.layer_norm(x.float(), g.shape, g.float(), b.float()),)


def gated(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The value."""
    return (functional.silu(x.float()) * r.float(),)


class Case(NamedTuple):
    """What is quantised: an op for functors that end it, its operands, and the same in torch.

    `reads` and `writes` count tensors of x's size, y left out.
    """

    op: Callable[[list[fo.Functor]], Any]
    operands: str
    plain: Callable[..., tuple[Tensor, ...]]
    reads: int
    writes: int


CASES = {
    "residual, RMSNorm": Case(
        lambda last: fo.RMSNorm(
            load=[fo.Residual("r", save="s")], store=[fo.Affine("g", None), *last], eps=EPS
        ),
        "rg",
        rms_norm,
        2,
        1,
    ),
    "LayerNorm": Case(
        lambda last: fo.LayerNorm(store=[fo.Affine("g", "b"), *last]), "gb", layer_norm, 1, 0
    ),
    "SwiGLU": Case(
        lambda last: fo.Map(load=[fo.Gate("r", of="value")], store=last), "r", gated, 2, 0
    ),
}


def tensors(columns: int, case: Case) -> list[dict[str, Tensor]]:
    """Sets of tensors that are gone round."""
    size = ROWS * columns * HALF.itemsize
    made = functools.partial(torch.randn, dtype=HALF, device="cuda")
    g, b = made(columns), made(columns)
    count = sets((case.reads + case.writes) * size)
    return [
        {"x": made(ROWS, columns), "r": made(ROWS, columns), "g": g, "b": b} for _ in range(count)
    ]


def ours(case: Case, scaling: Scaling) -> Callable[[dict[str, Tensor]], Any]:
    """The op."""
    op = case.op([fo.DynamicQuantize(KIND, **scaling.options)])
    return lambda given: op(given["x"], **{name: given[name] for name in case.operands})


def by_torch(case: Case, scaling: Scaling) -> Callable[[dict[str, Tensor]], Any]:
    """The same in torch, compiled."""

    def call(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        value, *streams = case.plain(x, r, g, b)
        return *scaling.plain(value, scaling.size or x.shape[-1]), *streams

    compiled = torch.compile(call, dynamic=False)
    return lambda given: compiled(**given)


def cells() -> Iterator[tuple[str, str, int]]:
    """Case, scaling and columns of each measurement."""
    for name in CASES:
        for scaling in SCALINGS:
            for columns in COLUMNS:
                yield name, scaling, columns


def measured(
    chosen: Sequence[tuple[str, str, int]] | None = None, *, peers: bool = True
) -> Iterator[Result]:
    """Every case, scaling and length; beside torch.compile where COMPILED says so."""
    for name, scaling, columns in cells() if chosen is None else chosen:
        case, how = CASES[name], SCALINGS[scaling]
        given = tensors(columns, case)
        size = given[0]["x"].nbytes
        blocks = math.ceil(columns / how.size) if how.size else 1
        item = 1 if "scale_dtype" in how.options else 4
        moved = (case.reads + case.writes) * size + size // 2 + ROWS * blocks * item
        # Of a copy of as many bytes in tensors of y's size, so that reads and writes are as here.
        elements = given[0]["x"].numel() // 2
        best = moved / ceiling.bandwidth(elements, HALF, 2 * case.reads, 2 * case.writes + 1)
        torch._dynamo.reset()  # else it stops to compile after so many variants of a function
        ways = {"fusedops": ours(case, how)}
        if peers and columns in COMPILED:
            ways["torch.compile"] = by_torch(case, how)
        seconds = {
            by: graph_seconds([functools.partial(call, one) for one in given])
            for by, call in ways.items()
        }
        for by, taken in seconds.items():
            rival = by != "fusedops"
            yield Result(
                "dynamic_quantize",
                f"{name}, {columns} columns, a scale for {scaling}",
                by,
                taken,
                moved,
                best,
                beside=seconds["fusedops"] if rival else 0.0,
                target=">= 1 x" if rival else f">= {PERCENT:.0f} %",
                met=taken >= seconds["fusedops"] if rival else 100 * best / taken >= PERCENT,
            )
