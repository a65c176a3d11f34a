# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The points of the sweeps: ops, passes, dtypes, and how many rows of how many columns."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm")
RESIDUAL = "residual_rms_norm"  # Only `beside` has it, as a kind of rms_norm.
PASSES = ("forward", "backward")
DTYPES = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32")}

ROWS = 49152
#: Rows are halved until a tensor has no more: inputs, gradients and outputs, two of each, fit.
MOST_BYTES = ROWS * 32768 * 2

SHORT = (32, 64, 128)
MAIN = (256, 512, 1024, 2048, 4096, 8192, 16384)
LONG = (32768, 65536, 131072, 262144)
#: No power of two; the last three are sizes of vocabularies.
AWKWARD = (257, 1000, 1023, 5120, 12289, 30522, 50257, 128256, 151936)
COLUMNS = tuple(sorted((*SHORT, *MAIN, *LONG, *AWKWARD)))

NORMS = ((16384, 4096), (8192, 8192), (4096, 16384), (49152, 1024), (131072, 128), (32768, 256))
#: Rows and columns as training has them, at which `beside` measures each op.
TRAINING = {
    "rms_norm": NORMS,
    "layer_norm": NORMS,
    "softmax": ((49152, 1024), (16384, 4096), (8192, 32768), (4096, 131072)),
    RESIDUAL: ((65536, 4096), (16384, 8192)),
}
HALVES = ("float16", "bfloat16")

FEW_ROWS = (1, 8, 64, 512)
FEW_ROWS_COLUMNS = (1024, 4096, 16384, 32768, 65536, 131072, 262144)


@dataclasses.dataclass(frozen=True)
class Point:
    """One op and pass of one size.

    Attributes:
        op: One of OPS, or RESIDUAL.
        direction: One of PASSES; the backward of a norm gives its parameters' gradients too.
        dtype: One of DTYPES, by name.
        rows, columns: The shape.
    """

    op: str
    direction: str
    dtype: str
    rows: int
    columns: int

    @property
    def case(self) -> str:
        """Its name in tables."""
        return f"{self.op} {self.direction} {self.dtype} ({self.rows}, {self.columns})"

    @property
    def bytes(self) -> int:
        """Of one tensor of that shape."""
        return self.rows * self.columns * DTYPES[self.dtype].itemsize

    @property
    def reads(self) -> int:
        """Tensors of that shape that are read: x; or an upstream gradient and x or y.

        With a residual the other summand as well; or the upstream gradient of the sum.
        """
        return (1 if self.direction == "forward" else 2) + (self.op == RESIDUAL)

    @property
    def writes(self) -> int:
        """Those that are written: one, and where a residual is added the sum."""
        return 1 + (self.op == RESIDUAL and self.direction == "forward")

    @property
    def moved(self) -> int:
        """The bytes that a call must move; parameters and numbers a row are not counted."""
        return self.bytes * (self.reads + self.writes)


def _kind(op: str) -> str:
    """What chooses it on the command line."""
    return "rms_norm" if op == RESIDUAL else op


def rows_of(columns: int, dtype: str) -> int:
    """How many rows a point of the sweep has."""
    rows = ROWS
    while rows * columns * DTYPES[dtype].itemsize > MOST_BYTES:
        rows //= 2
    return rows


@dataclasses.dataclass(frozen=True)
class Selection:
    """What was asked for on the command line; None and an empty tuple of columns choose all."""

    ops: tuple[str, ...] = OPS
    passes: tuple[str, ...] = PASSES
    dtypes: tuple[str, ...] | None = None
    columns: tuple[int, ...] = ()
    rows: tuple[int, ...] = FEW_ROWS
    peers: tuple[str, ...] = ()
    models: tuple[str, ...] | None = None
    compiled: bool = False
    profile: Path | None = None
    oneflow: Path | None = None
    told: Callable[[str], object] = lambda said: None  # how far a part is, where that takes long

    def sweep(self) -> Iterator[list[Point]]:
        """The points with many rows, those of one shape and dtype together."""
        for dtype, columns in itertools.product(self.dtypes or DTYPES, self.columns or COLUMNS):
            yield self._points(dtype, rows_of(columns, dtype), columns)

    def few_rows(self) -> Iterator[list[Point]]:
        """The points with few rows, likewise; float16 unless dtypes are named."""
        chosen = [c for c in FEW_ROWS_COLUMNS if c in (self.columns or FEW_ROWS_COLUMNS)]
        for dtype, rows, columns in itertools.product(
            self.dtypes or ("float16",), self.rows, chosen
        ):
            yield self._points(dtype, rows, columns)

    def training(self) -> Iterator[list[Point]]:
        """The points of TRAINING, likewise; in both halves unless dtypes are named."""
        shapes = list(dict.fromkeys(itertools.chain(*TRAINING.values())))
        chosen = {op: of_op for op, of_op in TRAINING.items() if _kind(op) in self.ops}
        for dtype, (rows, columns) in itertools.product(self.dtypes or HALVES, shapes):
            ops = [op for op, of_op in chosen.items() if (rows, columns) in of_op]
            if ops and columns in (self.columns or (columns,)):
                yield self._points(dtype, rows, columns, ops)

    def _points(self, dtype: str, rows: int, columns: int, ops: Sequence[str] = ()) -> list[Point]:
        return [
            Point(op, direction, dtype, rows, columns)
            for op, direction in itertools.product(ops or self.ops, self.passes)
        ]
