# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `op.explain` answers: facts about one call, and their text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from fusedops.functors import Functor
from fusedops.schedule.forward import Schedule

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["CEILINGS", "Cached", "Ceiling", "Explanation", "Kept", "Place"]

#: Where a variant is.
Cached: TypeAlias = 'Literal["loaded", "on disk", "to be built"]'


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """The fastest plain kernel that moves as many bytes, as it was measured."""

    bytes_per_second: float
    source: str


#: By the device's name; docs/measured-facts.md says how they are measured.
CEILINGS = {
    "NVIDIA H200": Ceiling(
        4.28e12, "one read and one write at large sizes, driver 580, torch 2.11.0+cu130"
    )
}


@dataclasses.dataclass(frozen=True)
class Place:
    """One tensor of a call.

    Attributes:
        lies: How its rows and columns lie in memory.
        width: Elements that a GPU moves at once; None on a CPU, whose compiler chooses.
        limit: What decided the width.
        bytes: Of the elements that are touched, each counted once.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    lies: str
    width: int | None
    limit: str
    bytes: int

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} {self.shape}: {self.lies}; {self.limit}"


@dataclasses.dataclass(frozen=True)
class Kept:
    """One tensor that lives until the backward pass.

    Attributes:
        what: Where it comes from.
        bytes: Its size.
        own: How much of that the op allocates for the backward pass alone.
    """

    name: str
    what: str
    bytes: int
    own: int

    def __str__(self) -> str:
        return f"{self.name}: {self.bytes} bytes, {self.what}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a call would run; print it.

    Attributes:
        op: The declaration.
        device, arch: Where it would run and what the variant is built for.
        load, store: The functors that act; `left_out` are dropouts that drop nothing.
        rows, columns: What is reduced.
        visited: x's row dimensions, outermost first, in the order of the visit, and why that order.
        schedule: "register", "cluster", "shared", "streaming" or "host"; None where nothing is
            launched.
        tile: How a row is cut up on a GPU; None on a CPU.
        why: What decided the schedule and the tile.
        operands, outputs: The tensors by name, x among the operands.
        numbers: The operands that are numbers: arguments of the kernel, new ones build nothing.
        dropouts: The acting dropouts' slots and thresholds.
        kept: What lives until the backward pass; nothing where no gradient is wanted.
        backward: What that pass would run, or None.
        copies: Tensors that are copied first or last, since their reduced dimensions lie apart.
        cached: Whether the variant is in this process, in the cache on disk, or not there yet.
        variant: Its name, and its folder or what would build it.
        bytes: What must move: each element touched once, plus copies.
        ceiling: The device's measured ceiling, if there is one.
        notes: What else there is to know.
    """

    op: Declaration
    device: str
    arch: str
    compute: torch.dtype
    load: tuple[Functor, ...]
    store: tuple[Functor, ...]
    left_out: tuple[Functor, ...]
    rows: int
    columns: int
    visited: tuple[tuple[int, ...], str]
    schedule: str | None
    tile: Schedule | None
    why: str
    operands: Mapping[str, Place]
    numbers: Mapping[str, float]
    outputs: Mapping[str, Place]
    dropouts: tuple[str, ...]
    kept: tuple[Kept, ...]
    backward: str | None
    copies: tuple[str, ...]
    cached: Cached | None
    variant: str
    bytes: int
    ceiling: Ceiling | None
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float | None:
        """The time at the ceiling, or None where none has been measured."""
        return None if self.ceiling is None else self.bytes / self.ceiling.bytes_per_second

    def __str__(self) -> str:
        chain = " -> ".join(["x", *map(repr, self.load), "row"])
        back = " -> ".join(["row", *map(repr, self.store), "y"])
        constants = ", ".join(f"{key}={value!r}" for key, value in self.op.constants.items())
        compute = str(self.compute).removeprefix("torch.")
        lines = [
            ("LOAD", chain),
            ("op", f"{type(self.op).__name__}({constants}) in {compute}"),
            ("STORE", back),
            *(("left out", f"{functor!r}: drops nothing here") for functor in self.left_out),
            ("rows", f"{self.rows} of {self.columns} columns; {self.visited[1]}"),
            ("schedule", f"{self.schedule}: {self.why}" if self.schedule else self.why),
            *((name, str(place)) for name, place in self.operands.items()),
            *((name, f"the number {value}, an argument") for name, value in self.numbers.items()),
            *((f"{name} (out)", str(place)) for name, place in self.outputs.items()),
            *(("dropout", text) for text in self.dropouts),
            *(("kept", str(kept)) for kept in self.kept),
            *([("backward", self.backward)] if self.backward else []),
            *(("copied", text) for text in self.copies),
            ("variant", f"{self.cached}: {self.variant}" if self.cached else self.variant),
            ("bytes", f"{self.bytes} (each element that is touched, once)"),
            ("time", self._time()),
            *(("note", text) for text in self.notes),
        ]
        width = max(len(name) for name, _ in lines)
        head = f"{type(self.op).__name__} on {self.device} ({self.arch})"
        return "\n".join([head, *(f"  {name:<{width}}  {text}" for name, text in lines)])

    def _time(self) -> str:
        if self.ceiling is None or self.seconds is None:
            return f"no ceiling measured for {self.device}"
        rate = self.ceiling.bytes_per_second / 1e12
        return f"{self.seconds * 1e6:.1f} us at {rate:.2f} TB/s ({self.ceiling.source})"
