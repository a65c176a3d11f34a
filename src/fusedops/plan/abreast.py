# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How many rows a thread can have at a time (row/abreast.cuh): neighbours that share all operands.

It follows from where the operands lie, so it is known when they are placed. A schedule is chosen
for as many rows as there can be, and again where there are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusedops.bind.geometry import Sharing
    from fusedops.plan.planned import Call
    from fusedops.schedule import Schedule

__all__ = ["MOST", "rows_abreast"]

#: The most rows that a thread has at a time.
MOST = 8

#: A kernel multiplies the distance of a row in its group by the row's stride, in 32 bits.
MOST_DISTANCE = 2**32 - 1


def rows_abreast(tile: Schedule, call: Call, shared: Sequence[Sharing] | None = None) -> int:
    """The number of neighbouring rows of a call that a thread can have, a power of two.

    `shared` says how rows share each operand that has a gradient, in a backward pass.
    """
    bound, op = call.one.bound, call.one.bound.op
    whole = tile.exact and tile.one_tile and tile.chunks == 1 and tile.threads <= 32
    if not whole or op.pair is None or op.causal or op.positions or op.block is not None:
        return 1
    if call.reading.any_rows:
        return 1
    if bound.dropout_slots or bound.tables or op.saves or op.taps or not op.has_result:
        return 1
    apart = op.pair.distance_in(call.geometry.columns)
    if not (apart == 1 and tile.width > 1) and not (apart > 1 and tile.packs % 2 == 0):
        return 1
    operands = [call.views[name] for name in op.slots if name in call.views and name != "x"]
    if any(not view.shared and view.placed.row_strides[-1] for view in operands):
        return 1
    if shared is not None:
        in_turn = all(one.kind == "column" and one.of_all for one in shared)
        # A sum in memory begins with a slice's first row alone.
        if not in_turn or bound.load or not op.reduces or tile.launch.sum_storage == "memory":
            return 1
    step = max(view.placed.row_strides[-1] for view in call.views.values() if not view.shared)
    count = MOST
    while call.geometry.sizes[-1] % count or count * step > MOST_DISTANCE:
        count //= 2
    return count
