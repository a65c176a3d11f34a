# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check which rows are whose in a call of a `GroupedLinear`, and its operands by group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.errors import shortened
from fusedops.torch_ops.tracing import is_distributed, is_plain

if TYPE_CHECKING:
    from fusedops.product.grouped_store import OfGroups

__all__ = ["OFFSETS", "check_groups", "check_offsets"]

#: The operand of a call that says which rows are whose.
OFFSETS = "offsets"


def check_groups(op: OfGroups, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> None:
    """Raise TypeError or ValueError for offsets, or operands by group, that do not fit."""
    op.check_names(arguments)
    offsets, groups = arguments[OFFSETS], second.shape[0]
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        kind = offsets.dtype if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(
            f"{op.name}: offsets must be a tensor of int32 or int64 on x's device, got "
            f"{kind}; torch.bincount(expert, minlength={groups}) counts rows"
        )
    if offsets.dim() != 1 or offsets.shape[0] not in (groups, groups + 1):
        raise ValueError(
            f"{op.name}: offsets must have shape ({groups + 1},), where each group begins "
            f"and the last one ends, or ({groups},), the rows of each group, for w of shape "
            f"{tuple(second.shape)}, got {tuple(offsets.shape)}"
        )
    if offsets.device != first.device:
        raise ValueError(
            f"{op.name}: offsets must be on x's device {first.device}, got {offsets.device}; "
            f"move them with .to({str(first.device)!r})"
        )
    if is_distributed(offsets) != is_distributed(first):
        raise TypeError(
            f"{op.name}: offsets must be a DTensor where x is one, and a plain tensor where "
            "it is not; for experts that are divided among ranks call the op with the rows, "
            "weights and offsets of this rank, by to_local()"
        )
    columns, half = second.shape[1], op.halves
    if half is not None:
        if columns % 2:
            raise ValueError(
                f"{op.name}: w must have an even number of rows for each group, of which "
                f"{half!r} is a half, got {tuple(second.shape)}"
            )
        columns //= 2
    for name in op.by_expert:
        table = arguments.get(name)
        if not isinstance(table, Tensor):
            continue
        entry = tuple(table.shape[1:])
        if table.dim() == 0 or table.shape[0] != groups or entry not in ((), (1,), (columns,)):
            raise ValueError(
                f"{op.name}: operand {name!r}, which by_expert names, must have shape "
                f"({groups}, {columns}), ({groups}, 1) or ({groups},), got "
                f"{tuple(table.shape)}; by_expert does not name what all groups share"
            )


def check_offsets(name: str, offsets: Tensor, rows: int, groups: int) -> None:
    """Raise ValueError for offsets or counts that decrease or leave x, where a CPU has them."""
    if type(offsets) is not Tensor or offsets.device.type != "cpu" or not is_plain():
        return
    counts = offsets.shape[0] == groups
    steps = offsets if counts else offsets.diff()
    total = int(offsets.sum()) if counts else int(offsets[-1])
    if (steps < 0).any() or total > rows or (not counts and int(offsets[0]) < 0):
        wanted = f"from 0 to x's {rows} rows, and not decrease"
        if counts:
            wanted = f"counts, none below 0, of x's {rows} rows at most"
        got, ends = shortened(offsets.tolist()), ""
        if counts and total > rows and not (offsets.diff() < 0).any() and int(offsets[-1]) <= rows:
            ends = "; if groups end there, as for torch's grouped_mm, put a 0 before the first"
        raise ValueError(f"{name}: offsets must be {wanted}, got {got}{ends}")
