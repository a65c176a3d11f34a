# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The unit of compilation: a kernel variant for a target, and the kernels loaded in this process.

The types of the members of its kernel's argument tell a variant from others. The source text
follows from them and is written only where there is no such kernel yet, since a new shape of a
known pattern has to be quick.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fusedops import _runtime, jit
from fusedops.errors import CompileError, FusedOpsError
from fusedops.functors import Functor
from fusedops.generate.plain import PlainKernel, plain_source
from fusedops.generate.product import SHORT, product_source
from fusedops.generate.source import Member, Text, cuda_source, host_source
from fusedops.jit.lock import guard
from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.row_schedule import Schedule

#: Kernels loaded in this process, by Variant.key.
_kernels: dict[tuple[object, ...], _runtime.Kernel] = {}


class Variant(NamedTuple):
    """A kernel that is compiled or could be.

    Attributes:
        arch: The architecture, as in `Target`.
        schedule: The storage of rows, as `Schedule.storage`; on a CPU "host" or "streaming".
        tile: The GPU schedule, a `ProductTiling` of a product, a `PlainKernel` of a kernel without
            functors; None on a CPU.
        members: The members of the kernel's argument, in order.
        words: Size of the argument in words of 8 bytes.
        op, headers, load, store, dtype, definitions: The parts of the call, without its tensors;
            `headers` are those of the operator.
        declaration: Text of the declaration, which error messages name.
        entry: The kernel template: "forward", "gradient" or "sums", the second stage of a gradient;
            "product" for one that multiplies before the STORE, "product_gradient" for one that
            multiplies before it goes back through a LOAD; both have a `ProductTiling`.
        translated: Whether the driver compiles PTX to machine code, for a GPU newer than `arch`.
        most_columns: As `host_columns`; 0 on a GPU.
    """

    arch: str
    schedule: str
    tile: Schedule | ProductTiling | PlainKernel | None
    members: tuple[Member, ...]
    words: int
    op: str
    headers: tuple[str, ...]
    load: tuple[Functor, ...]
    store: tuple[Functor, ...]
    dtype: torch.dtype
    declaration: str
    definitions: tuple[str, ...]
    entry: str = "forward"
    translated: bool = False
    most_columns: int = 0

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the variant in this process: everything that the source text is made of."""
        tile = (self.schedule, self.most_columns) if self.tile is None else self.tile.cpp
        options = self.tile and self.tile.source_options
        arch = (self.arch, self.translated)
        return (arch, tile, options, self.entry, self.members, self.definitions)

    @property
    def name(self) -> str:
        """Prefix of the variant's folder in the cache.

        One source under two names would be built twice. So a second stage, whose source has neither
        the op's nor the functors' code, and on a CPU not the schedule's, has a name without them.
        """
        if self.entry == "sums":
            return "sums"
        functors = [type(functor).__name__.lower() for functor in (*self.load, *self.store)]
        dtype = str(self.dtype).removeprefix("torch.")
        entry = [] if self.entry == "forward" else [self.entry]
        return "-".join([self.op.lower(), *functors, dtype, *entry, self.schedule])

    @property
    def source(self) -> str:
        """The C++ source text, as it is compiled."""
        return str(self.text)

    @property
    def text(self) -> Text:
        """The C++ source in its parts."""
        if isinstance(self.tile, PlainKernel):
            return plain_source(self.members, self.words, self.tile)
        functors = (*self.load, *self.store)
        of_functors = [header for functor in functors for header in functor.headers]
        headers = ["functor/compose.cuh", *of_functors, *self.headers, "row/statistics.cuh"]
        definitions = self.definitions
        if self.entry == "sums":
            headers, definitions = [], ()
        if self.tile is None:
            return host_source(
                self.entry, self.members, self.words, self.most_columns, headers, definitions
            )
        if isinstance(self.tile, ProductTiling):
            return product_source(
                self.entry, self.members, self.words, self.tile, headers, definitions
            )
        text = cuda_source(self.entry, self.members, self.words, self.tile, headers, definitions)
        return text._replace(macros=(SHORT,)) if self._rounds_most() else text

    def _rounds_most(self) -> bool:
        """Whether all that the kernel writes has 8 bits or less, but for the scales of these.

        Then functions of few instructions do, whose errors the rounding hides.
        """
        last = self.store[-1] if self.store else None
        if self.entry != "forward" or last is None or last.quantizes is None or last.maximum:
            return False
        further = any(one.saves or one.taps for one in (*self.load, *self.store))
        return not further and any(one.cpp == "NoStatistics" for one in self.members)

    @property
    def loaded(self) -> _runtime.Kernel | None:
        """The kernel, if it is loaded in this process."""
        return _kernels.get(self.key)

    def cached(self) -> jit.Artifact | None:
        """The variant's entry in the cache, or None if it is not there."""
        return jit.cached(self.source, name=self.name, arch=self.arch)

    @property
    def order(self) -> jit.Order:
        """The order for the compilers: source, name, architecture, and text for messages."""
        members = tuple(f"{one.cpp} {one.name}" for one in self.members)
        return jit.Order(self.source, self.name, self.arch, self.declaration, members)

    def build(self) -> jit.Artifact:
        """Return the variant's entry in the cache, compiling it if it is not there."""
        try:
            return jit.build(**self.order._asdict())
        except CompileError as error:
            raise self.blamed(error) from None

    def blamed(self, error: FusedOpsError) -> FusedOpsError:
        """`error`, naming the functor or operand that the compiler rejected, if it was one."""
        if isinstance(error, CompileError):
            with guard:
                from fusedops.generate.compiler_errors import culprit

            sides = {"load": self.load, "store": self.store}
            of_functors = {functor.definition for functor in (*self.load, *self.store)}
            own = next((text for text in self.definitions if text not in of_functors), "")
            error.culprit = culprit(error.log, self.source, self.members, sides, (self.op, own))
        return error

    def kernel(self) -> _runtime.Kernel:
        """Load the kernel, building it if the cache does not hold it."""
        key = self.key
        known = _kernels.get(key)
        if known is None:
            built = self.build()
            if self.tile is None:
                known = jit.load_host(built, "fusedops_rows")
            else:
                with guard:
                    from fusedops.jit.nvrtc import PTX

                image = built.read(PTX if self.translated else built.binary.name)
                known = _runtime.load_cuda(image, "fusedops_kernel", waits=True)
            _kernels[key] = known
        return known
