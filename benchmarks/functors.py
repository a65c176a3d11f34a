# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors in a place where models have them, forward in float16: percent of the ceiling.

The ceiling is the fastest plain kernel that moves as many bytes in as many tensors. Calls are
queued, not captured: a dropout that draws from torch's generator cannot be. `host_calls` are the
same calls with a single row, where the host's time is what there is.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ceiling
import torch
from host import devices, dtype_of
from points import Selection, rows_of
from results import Result
from sweep import attempt
from timing import host_seconds, queue_seconds, sets
from torch import Tensor
from training import outputs_of

import fusedops as fo

COLUMNS = (1024, 4096)
#: Scores have as many queries as keys, and belong to so many sequences.
SEQUENCES = 3

Make = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """One declaration, and what a call of it is given.

    Attributes:
        name: The functor, and where it stands.
        op: The declaration.
        operands: Makes the tensors of a call, by name, from x.
        numbers: The other operands.
        scores: Whether x is a batch of scores, (sequences, heads, columns, columns).
    """

    name: str
    op: Any
    operands: Callable[[Tensor], dict[str, Tensor]] = lambda x: {}
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scores: bool = False

    def shape(self, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of x with so many elements."""
        if not self.scores:
            return rows // 32, 32, columns
        heads = max(1, rows // (SEQUENCES * columns))
        return SEQUENCES, heads, columns, columns

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> "Made":
        """Random tensors of a call."""
        x = torch.randn(shape, dtype=dtype, device=device)
        return Made(self, x, self.operands(x))


@dataclasses.dataclass(frozen=True)
class Made:
    """A call with its tensors."""

    case: Case
    x: Tensor
    operands: dict[str, Tensor]

    def __call__(self) -> Any:
        """Call the op."""
        return self.case.op(self.x, **self.operands, **self.case.numbers)

    def bytes(self, result: Any) -> int:
        """What the call reads and writes: each element of each tensor once."""
        return sum(each.nbytes for each in (self.x, *self.operands.values(), *outputs_of(result)))

    def streams(self, result: Any) -> tuple[int, int]:
        """How many tensors of x's size it reads and writes."""
        reads = sum(each.numel() == self.x.numel() for each in (self.x, *self.operands.values()))
        return reads, len(outputs_of(result))


def columns_of(x: Tensor, *names: str) -> dict[str, Tensor]:
    """Vectors over the columns."""
    return {name: torch.randn(x.shape[-1], dtype=x.dtype, device=x.device) for name in names}


def another(name: str, dtype: torch.dtype | None = None) -> Callable[[Tensor], dict[str, Tensor]]:
    """An operand of x's shape."""
    return lambda x: {name: torch.randn_like(x, dtype=dtype or x.dtype)}


def packed(x: Tensor) -> dict[str, Tensor]:
    """The ids of four sequences that are packed into each row."""
    ids = torch.arange(x.shape[-1], device=x.device) * 4 // x.shape[-1]
    return {"queries": ids[:, None].clone(), "keys": ids.clone()}


def residual(x: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    return {**another("r", dtype)(x), **columns_of(x, "gamma", "beta")}


SCALE = fo.Scale("s")
AFFINE = [fo.Affine("gamma", "beta")]
CASES = (
    Case(
        "Softcap, in a softmax",
        fo.Softmax(load=[SCALE, fo.Softcap("cap")]),
        numbers={"s": 0.125, "cap": 50.0},
        scores=True,
    ),
    Case(
        "Segments, in a softmax",
        fo.Softmax(load=[SCALE, fo.Segments("queries", "keys")]),
        packed,
        {"s": 0.125},
        scores=True,
    ),
    Case(
        "an optional Bias that is left out, in a softmax",
        fo.Softmax(load=[SCALE, fo.Bias("b", optional=True)]),
        numbers={"s": 0.125},
        scores=True,
    ),
    Case(
        "Tap before Dropout, after a softmax",
        fo.Softmax(load=[SCALE], store=[fo.Tap("probs"), fo.Dropout("p")]),
        numbers={"s": 0.125, "p": 0.1},
        scores=True,
    ),
    *(
        Case(f"Gate({act}), a map", fo.Map(load=[fo.Gate("g", act, of="value")]), another("g"))
        for act in ("silu", "gelu", "sigmoid")
    ),
    Case(
        "Gate(silu), after an RMSNorm",
        fo.RMSNorm(store=[fo.Affine("gamma"), fo.Gate("g")]),
        lambda x: {**another("g")(x), **columns_of(x, "gamma")},
    ),
    Case(
        "Affine(zero_centred), after an RMSNorm",
        fo.RMSNorm(store=[fo.Affine("gamma", zero_centred=True)]),
        lambda x: columns_of(x, "gamma"),
    ),
    Case(
        "Dropout(shared) and Residual(save), in a LayerNorm",
        fo.LayerNorm(load=[fo.Dropout("p", shared=-2), fo.Residual("r", save="t")], store=AFFINE),
        residual,
        {"p": 0.25},
    ),
    Case(
        "Residual(save, float32), in a LayerNorm",
        fo.LayerNorm(load=[fo.Residual("r", save="t", dtype=torch.float32)], store=AFFINE),
        functools.partial(residual, dtype=torch.float32),
    ),
    Case(
        "Save, in a LayerNorm",
        fo.LayerNorm(load=[fo.Bias("b"), fo.Save("t")], store=AFFINE),
        lambda x: columns_of(x, "b", "gamma", "beta"),
    ),
    Case(
        "Lengths, all whole, in a LayerNorm",
        fo.LayerNorm(load=[fo.Lengths("n")], store=AFFINE),
        lambda x: {
            **columns_of(x, "gamma", "beta"),
            "n": torch.full((x.shape[0], 1, 1), x.shape[-1], device=x.device),
        },
    ),
)


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Result]:
    """Each case at each number of columns."""
    for columns in chosen.columns or COLUMNS:
        for case in CASES:
            shape = case.shape(rows_of(columns, "float16"), columns)
            found, reason = attempt(lambda case=case, shape=shape: _timed(case, shape, device))
            seconds, moved, best = found or (0.0, 0, 0.0)
            name = f"{case.name}, {shape}"
            yield Result("functors", name, "fusedops", seconds, moved, best, note=reason)
            if device == "cuda":
                torch.cuda.empty_cache()


def _timed(case: Case, shape: tuple[int, ...], device: str) -> tuple[float, int, float]:
    """Seconds of a call, its bytes, and the seconds of the ceiling."""
    first = case.make(shape, torch.float16, device)
    result = first()
    moved, (reads, writes) = first.bytes(result), first.streams(result)
    del result
    calls = [
        first,
        *(case.make(shape, torch.float16, device) for _ in range(sets(moved) - 1)),
    ]
    seconds = queue_seconds(calls)
    del first, calls
    return seconds, moved, ceiling.of_bytes(moved // (reads + writes), reads, writes)


def host_calls() -> Iterator[Result]:
    """The host's time of a call of each case; on a CPU with the arithmetic of one short row."""
    for device in devices():
        made = [case.make((1,) * (3 + case.scores), dtype_of(device), device) for case in CASES]
        seconds = host_seconds(made, device)
        for case, each in zip(CASES, seconds, strict=True):
            yield Result("functors_host", f"{case.name}, one element on {device}", "fusedops", each)
