# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""All that is known of a forward call before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fusedops.bind.geometry import Geometry
from fusedops.generate.variant import Variant
from fusedops.generate.views import Number, View
from fusedops.run.planned import Launch
from fusedops.run.reading import Reading
from fusedops.schedule import Schedule

__all__ = ["ForwardInfo"]


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
