# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `op.explain` returns: the facts of one call of a row op or of matrix products, as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fusedops.declare.declaration import Declaration
from fusedops.errors import counted
from fusedops.explain.picture import Bar, Picture, as_html, chain_bars
from fusedops.functors import Functor
from fusedops.schedule.row_schedule import Schedule

#: The state of a variant: in this process, in the cache on disk, or not built yet.
Cached: TypeAlias = 'Literal["loaded", "on disk", "to be built"]'


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """The measured memory throughput of a device, by the fastest plain kernel.

    Attributes:
        bytes_per_second: The throughput, reads and writes together, in bytes a second.
        source: What was measured, and with which driver and torch.
    """

    bytes_per_second: float
    source: str


#: The ceilings by device name; benchmarks/README.md says how they are measured.
CEILINGS = {
    "NVIDIA H200": Ceiling(
        4.28e12, "one read and one write at large sizes, driver 580, torch 2.11.0+cu130"
    )
}


@dataclasses.dataclass(frozen=True)
class Place:
    """How one tensor of a call lies in memory and is accessed.

    Attributes:
        dtype: The dtype of the tensor.
        shape: The shape of the tensor.
        lies: How its rows and columns lie in memory, in words.
        width: The vector width, in elements, of a GPU's accesses; None on a CPU, whose compiler
            chooses it.
        limit: What decided the width, in words.
        bytes: The size in bytes of the elements that are accessed, each counted once.
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
    """One saved tensor: a tensor that lives until the backward pass.

    Attributes:
        name: The name of the tensor: "x", an operand's, a saved stream's, or "statistics".
        what: Where the tensor comes from, in words.
        bytes: The size of the tensor in bytes.
        own: How many of those bytes the op allocates for the backward pass alone.
    """

    name: str
    what: str
    bytes: int
    own: int

    @classmethod
    def given(cls, name: str, tensor: Tensor) -> Kept:
        """An argument of the call that is saved as it is."""
        return cls(name, "the tensor that was given, not a copy", tensor.nbytes, 0)

    def __str__(self) -> str:
        return f"{self.name}: {self.bytes} bytes, {self.what}"


class Report:
    """Named facts, printed as a table under a heading; the reports of parts follow, indented.

    In a notebook a report shows its picture, and its text behind a click.
    """

    def picture(self, measured: float | None = None) -> Picture:
        """The bytes of the call, fused and unfused, as what `save` draws.

        Args:
            measured: The time in seconds that the call took, if you have measured it.
        """
        raise NotImplementedError

    def save(self, path: str | Path, *, measured: float | None = None) -> None:
        """Draw the bytes of the call: of each tensor, fused, and of each step, unfused.

        The picture says how many times fewer bytes the fused call moves. Where the memory
        throughput of the device was measured, it also gives the time that both take at least.

        Args:
            path: The SVG file to write, ``"call.svg"`` say.
            measured: The time in seconds that the call took, if you have measured it: the picture
                then gives the percentage of the device's measured throughput.

        Raises:
            ValueError: The path does not end in .svg, or the time is not above 0.
        """
        path = Path(path)
        if path.suffix != ".svg":
            raise ValueError(f"explain: path must end in .svg, got {str(path)!r}")
        if measured is not None and not measured > 0:
            raise ValueError(f"explain: measured must be a time in seconds above 0, got {measured}")
        path.write_text(self.picture(measured).svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return as_html(self.picture(), str(self))

    def _heading(self) -> str:
        raise NotImplementedError

    def _facts(self) -> Iterable[tuple[str, str]]:
        """The name and the text of each fact."""
        raise NotImplementedError

    def _parts(self) -> Mapping[str, Report]:
        """The reports of parts of the call, by what each is of."""
        return {}

    def __str__(self) -> str:
        facts = [*self._facts()]
        width = max(len(name) for name, _ in facts)
        lines = [self._heading(), *(f"  {name:<{width}}  {text}" for name, text in facts)]
        for name, part in self._parts().items():
            lines += [f"  {line}" for line in f"{name}: {part}".splitlines()]
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Explanation(Report):
    """What a call would run, and why; print it, or read its attributes.

    Attributes:
        op: The declaration that is called.
        device: The device on which the call would run, by name.
        arch: The architecture for which the variant is built.
        compute: The dtype of the arithmetic, float32 or float64.
        load, store: The functors that act, before and after the reduction, in order.
        left_out: The dropouts that drop nothing in this call.
        rows: The number of rows that are reduced.
        columns: The row length in elements.
        visited: The row dimensions of x in the order in which they are visited, outermost first,
            and the reason for that order in words.
        schedule: How a row is stored: "register", "cluster", "shared", "streaming" or "host";
            None if nothing is launched.
        tile: How a GPU divides rows among threads and thread blocks; None on a CPU.
        why: What decided the schedule and the tile, in words.
        operands: The tensors that the call reads, by name, x among them.
        numbers: The operands that are numbers, by name. They are arguments of the kernel, so that a
            new number builds nothing.
        outputs: The tensors that the call returns, by name.
        dropouts: The slot and the threshold of each acting dropout, in words.
        kept: The tensors saved for the backward pass; none if no gradient is wanted.
        backward: What the backward pass would run, in words; None if no gradient is wanted.
        copies: The copies made before or after the kernel, in words; they are made if the reduced
            dimensions of a tensor do not merge into one column stride.
        cached: Whether the variant is in this process, in the cache on disk, or not built yet; None
            if nothing is launched.
        variant: The name of the variant, and its folder or what would build it.
        bytes: The bytes that must move: each element that is accessed once, plus copies and the row
            statistics for the backward pass.
        ceiling: The device's measured ceiling, or None.
        notes: Further remarks, in words.
        redistributed: Of distributed tensors (DTensor), those that are redistributed before the
            call, in words, with the bytes that each rank receives; all else is of this rank's
            shards.
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
    redistributed: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The time in seconds to move `bytes` at the ceiling; None if no ceiling is measured."""
        return None if self.ceiling is None else self.bytes / self.ceiling.bytes_per_second

    def picture(self, measured: float | None = None) -> Picture:
        """The bytes of each tensor of the kernel, and of each step of the unfused chain."""
        reads = {name: place.bytes for name, place in self.operands.items()}
        writes = {name: place.bytes for name, place in self.outputs.items()}
        fused = [Bar(name, read=size) for name, size in reads.items()]
        fused += [Bar(name, written=size) for name, size in writes.items()]
        fused += [Bar(one.name, written=one.own) for one in self.kept if one.own]
        if copied := self.bytes - sum(bar.bytes for bar in fused):
            fused.append(Bar("copies", copied // 2, copied - copied // 2))
        x = self.operands["x"].dtype
        elements = self.rows * self.columns
        chain = (self.op, self.load, self.store, reads, writes)
        rows = f"{counted(self.rows, 'row')} of {counted(self.columns, 'column')}"
        return Picture(
            title=self.op.label,
            where=f"{rows}, {str(x).removeprefix('torch.')}, on {self.device}",
            kernels="one kernel and copies" if self.copies else "one kernel",
            fused=tuple(fused),
            unfused=chain_bars(*chain, elements * x.itemsize, elements),
            ceiling=None if self.ceiling is None else self.ceiling.bytes_per_second,
            measured=measured,
        )

    def _heading(self) -> str:
        return f"{type(self.op).__name__} on {self.device} ({self.arch})"

    def _facts(self) -> Iterable[tuple[str, str]]:
        chain = " -> ".join(["x", *map(repr, self.load), "row"])
        back = " -> ".join(["row", *map(repr, self.store), "y"])
        if not self.op.has_result:
            back = "empty: no y, but numbers of rows"
        constants = ", ".join(f"{key}={value!r}" for key, value in self.op.constants.items())
        compute = str(self.compute).removeprefix("torch.")
        return (
            ("LOAD", chain),
            ("op", f"{type(self.op).__name__}({constants}) in {compute}"),
            ("STORE", back),
            *(("left out", f"{functor!r}: drops nothing here") for functor in self.left_out),
            ("rows", f"{self.rows} of {counted(self.columns, 'column')}; {self.visited[1]}"),
            ("schedule", f"{self.schedule}: {self.why}" if self.schedule else self.why),
            *((name, str(place)) for name, place in self.operands.items()),
            *((name, f"the number {value}, an argument") for name, value in self.numbers.items()),
            *((f"{name} (out)", str(place)) for name, place in self.outputs.items()),
            *(("dropout", text) for text in self.dropouts),
            *(("kept", str(kept)) for kept in self.kept),
            *([("backward", self.backward)] if self.backward else []),
            *(("redistributed", text) for text in self.redistributed),
            *(("copied", text) for text in self.copies),
            ("variant", f"{self.cached}: {self.variant}" if self.cached else self.variant),
            ("bytes", f"{self.bytes} (each element that is touched, once)"),
            ("time", self._time()),
            *(("note", text) for text in self.notes),
        )

    def _time(self) -> str:
        if self.ceiling is None or self.seconds is None:
            return f"no ceiling measured for {self.device}"
        rate = self.ceiling.bytes_per_second / 1e12
        return f"{self.seconds * 1e6:.1f} us at {rate:.2f} TB/s ({self.ceiling.source})"


@dataclasses.dataclass(frozen=True)
class ProductExplanation(Report):
    """What a call of an op with matrix products would run, and why; print it, or its attributes.

    Attributes:
        op: The declaration that is called.
        kept: The tensors saved for the backward pass; none if no gradient is wanted. An `MLP` calls
            the tensor between its products h.
        backward: What the backward pass would run, in words; None if no gradient is wanted. Of an
            `MLP`, how h is made again, and why; None if h is kept.
        flops: The floating-point operations of the products.
        bytes: The bytes that must move in the forward pass: each element once that a product reads
            and writes, and those of the kernel after it.
        product: The product, its dtype and its size, in words; empty for several.
        implementation: What runs the product and the functors after it, with the reason and the
            bytes that the functors move beside the product, in words; empty for several.
        store: What the kernel after the product would be; None if there is none.
        layers: The report of each layer of an `MLP`; else empty.
        notes: Further remarks, in words.
        kernels: The number of kernels, those of torch's products included.
        fused: The bytes of each tensor that these kernels read or write.
        unfused: The bytes of each step, the product and each functor, as kernels of their own.
    """

    op: Any
    kept: tuple[Kept, ...]
    backward: str | None
    flops: int
    bytes: int
    product: str = ""
    implementation: str = ""
    store: Explanation | None = None
    layers: tuple[ProductExplanation, ...] = ()
    notes: tuple[str, ...] = ()
    kernels: int = 1
    fused: tuple[Bar, ...] = ()
    unfused: tuple[Bar, ...] = ()

    def picture(self, measured: float | None = None) -> Picture:
        """The bytes of each tensor of the call, and of each step of the unfused chain."""
        chains = self.op.chains.values()
        words = " | ".join(", ".join(type(one).__name__ for one in chain) for chain in chains)
        stores = [one.store for one in (self, *self.layers) if one.store is not None]
        ceiling = stores[0].ceiling if stores else None
        where = f", on {stores[0].device}" if stores else ""
        return Picture(
            title=f"{type(self.op).__name__}({words})",
            where=f"{self.flops / 1e9:.3g} Gflop{where}",
            kernels=counted(self.kernels, "kernel"),
            fused=self.fused,
            unfused=self.unfused,
            ceiling=None if ceiling is None else ceiling.bytes_per_second,
            measured=measured,
        )

    @property
    def recomputed(self) -> bool:
        """Whether h of an `MLP` is made again in the backward pass, in place of being kept."""
        return bool(self.layers) and self.backward is not None

    def _heading(self) -> str:
        return type(self.op).__name__

    def _facts(self) -> Iterable[tuple[str, str]]:
        return (
            ("op", repr(self.op)),
            *([("product", self.product)] if self.product else []),
            *([("implementation", self.implementation)] if self.implementation else []),
            *(("kept", str(one)) for one in self.kept),
            *([("backward", self.backward)] if self.backward else []),
            ("bytes", f"{self.bytes} (each element that is touched, once by each kernel)"),
            *(("note", text) for text in self.notes),
        )

    def _parts(self) -> Mapping[str, Report]:
        names = ("the first layer", "the second layer")
        parts: dict[str, Report] = dict(zip(names, self.layers, strict=False))
        return parts if self.store is None else {"the STORE": self.store}
