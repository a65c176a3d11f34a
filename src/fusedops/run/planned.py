# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a plan of the runtime is made of: launches, outputs and workspaces; nothing is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from fusedops import _runtime
from fusedops.bind.geometry import Geometry
from fusedops.bind.operands import FLOATING
from fusedops.generate.variant import Variant
from fusedops.generate.views import Number, View
from fusedops.run.reading import Reading
from fusedops.schedule import Schedule

__all__ = ["ForwardInfo", "Launch", "Planned"]


class ForwardInfo(NamedTuple):
    """All that is known of a forward call before it runs; `explain` and the test hooks read it.

    `schedule` says where a row is stored, `tile` is a GPU's schedule (None on a CPU),
    `operands` and `outputs` are views by name, `words` and `patches` are the argument words and
    their relocations, and `draws` is the number of dropouts that draw random numbers. `reading` is
    how the call is read where its shapes leave that open.
    """

    schedule: str
    tile: Schedule | None
    geometry: Geometry
    operands: Mapping[str, View | Number]
    outputs: Mapping[str, View]
    variant: Variant
    words: bytes
    patches: list[tuple[int, int, int]]
    draws: int
    reading: Reading

    @property
    def apart(self) -> bool:
        """Whether no kernel can be made: copies have been made before (`run.contiguous`)."""
        return False

    @property
    def adds_nothing(self) -> bool:
        """Whether no sum over rows is part of the result."""
        return True

    @property
    def loaded(self) -> bool:
        """Whether the kernel is loaded in this process."""
        return bool(self.variant.loaded)

    def launch(self, grain: int) -> Launch:
        """The launch of the kernel; on a CPU a thread takes `grain` rows at a time."""
        rows, tile = self.geometry.rows, self.tile
        argument = (self.variant, self.words, self.patches, rows, grain)
        if tile is None:
            return Launch(*argument)
        return Launch(*argument, tile.grid(rows), tile.threads_per_block, tile.shared_bytes)


#: DLPack's type code and bits of each dtype that a kernel writes.
_DLPACK = {dtype: (4 if dtype is torch.bfloat16 else 2, dtype.itemsize * 8) for dtype in FLOATING}
_DLPACK |= {torch.float8_e4m3fn: (10, 8), torch.float8_e5m2: (12, 8)}


class Launch(NamedTuple):
    """One kernel launch of a plan.

    Attributes:
        variant: The kernel.
        words: The words of its argument.
        patches: The relocations: which words each call rewrites, and with what (`_runtime.Plan`).
        rows: The rows of the kernel; 0 launches nothing.
        grain: The rows that a CPU thread takes at a time.
        grid: The thread blocks.
        block: The threads of a block.
        shared: The bytes of dynamic shared memory.
    """

    variant: Variant
    words: bytes
    patches: list[tuple[int, int, int]]
    rows: int
    grain: int = 1
    grid: int = 1
    block: int = 1
    shared: int = 0


class Planned(NamedTuple):
    """A call as it will be launched.

    Attributes:
        launches: The kernels, one after another on a stream; none for a call without elements.
        outputs: Dtype and shape of each output, workspaces last.
        draws: The dropouts that draw random numbers.
        info: What `testing.last_schedule` reports.
        returned: How many of the outputs a call returns; the others are workspaces. None for all.
        cleared: The numbers of outputs that are zero when the first kernel begins.
    """

    launches: tuple[Launch, ...]
    outputs: Sequence[tuple[torch.dtype, Sequence[int]]]
    draws: int
    info: str | None
    returned: int | None = None
    cleared: Sequence[int] = ()

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The kernels, in the order in which they run."""
        return tuple([launch.variant for launch in self.launches])

    def build(self, calls: int = 0) -> _runtime.Plan:
        """Build the kernels and return the runtime's plan; it is made again after so many `calls`.

        Raises:
            CompileError, CompilerNotFound, MissingVariantError: A kernel cannot be had.
        """
        stages: list[_runtime.Stage] = [
            (launch.variant.kernel(), *launch[1:]) for launch in self.launches
        ]
        first, *then = stages or [(None, b"", [], 0, 1, 1, 1, 0)]
        kernel, words, patches, rows, grain, grid, block, shared = first
        return _runtime.Plan(
            kernel=kernel,
            words=words,
            patches=patches,
            outputs=[(*_DLPACK[dtype], tuple(shape)) for dtype, shape in self.outputs],
            rows=rows,
            grain=grain,
            grid=grid,
            block=block,
            shared=shared,
            draws=self.draws,
            info=self.info,
            then=then,
            returned=self.returned,
            cleared=self.cleared,
            calls=calls,
        )
