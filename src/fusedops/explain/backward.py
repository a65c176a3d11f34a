# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The part of `op.explain` about gradients: the saved tensors, and how gradients are computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT, Bound
from fusedops.errors import counted
from fusedops.explain.report import Kept
from fusedops.generate.target import Target
from fusedops.plan import placing
from fusedops.plan.planned import Planned
from fusedops.plan.wanted_gradients import Occurrence
from fusedops.run.gradient import described, gradient_of, sharing

_PLACES = {"registers": "registers", "shared": "shared memory", "memory": "memory"}


class GradCall:
    """A call in grad mode of which some tensors require grad.

    Attributes:
        bound: The checked call.
        names: The names of the tensors that require grad, operands or "x".
        refused: Why the fused call raises, or None if it does not.
        gradient: The backward pass for these names, with a gradient for every output.
        shared: The names whose gradient is the tensor of x's, or that of y's (`shared_gradients`).
    """

    def __init__(self, bound: Bound, names: frozenset[str], refused: str | None) -> None:
        self.bound = bound.differentiated
        self.names = names
        self.refused = refused
        self.gradient = gradient_of(bound, names, frozenset(bound.op.joining))
        self.shared = sharing(bound, names)

    def kept(self) -> tuple[Kept, ...]:
        """The saved tensors: row statistics, inputs and saved streams that the backward reads."""
        bound, needed = self.bound, self.gradient.needed
        compute = str(bound.compute).removeprefix("torch.")
        rows = bound.output_shape(KEPT)
        own = math.prod(rows) * bound.compute.itemsize
        kept = []
        if bound.op.kept:
            kept.append(
                Kept("statistics", f"{counted(rows[-1], 'number')} in {compute} a row", own, own)
            )
        for name, value in {"x": bound.x, **bound.operands}.items():
            read = needed.x if name == "x" else name in needed.operands
            if read and isinstance(value, Tensor):
                kept.append(Kept.given(name, value))
        for name in sorted(needed.streams):
            size = math.prod(bound.output_shape(name)) * bound.output_dtype(name).itemsize
            kept.append(Kept(name, "the output itself, not a copy", size, 0))
        if needed.result:
            size = math.prod(bound.x.shape) * bound.dtype.itemsize
            kept.append(Kept("y", "the output itself, not a copy, in place of x", size, 0))
        return tuple(kept)

    def how(self, target: Target) -> str:
        """Say what a backward pass would run on a target.

        The gradients of all outputs that can have one are taken to be given and contiguous.
        """
        told = None
        if not placing.columns_apart(self.bound):
            told = self.gradient.describe(*described(self.bound, self.gradient), target)
        names = ", ".join(self.gradient.names)
        if told is None:
            return f"gradients of {names}, on dense copies"
        stages = "one kernel" if len(told.launches) == 1 else "two kernels"
        parts = [f"gradients of {names} by {stages}, {told.call.storage}"]
        if told.tile is not None:
            tile = told.tile
            parts.append(tile.extent)
            rows = tile.rows_per_block * tile.launch.abreast
            parts.append(f"{counted(rows, 'row')} a block")
            parts.append(tile.served)
            if tile.tuned:
                parts.append(f"launch configuration tuned on this device, from {tile.tuned}")
        for one, share in told.call.sharing.items():
            if one.name in self.bound.tables:
                parts.append(f"{one.name}: then summed over equal indices by torch, sorted")
            if share.kind == "each":
                continue
            if share.kind == "apart":
                parts.append(f"{one.name}: written whole and summed by torch, since the rows that")
                parts[-1] += " share it are no neighbours"
                continue
            if one.side == "op" and share.group == 1:
                continue
            if share.kind == "channel":
                parts.append(f"{one.name}: {_of_channels(told, one)}")
                continue
            over = "columns" if share.kind == "row" and one.side != "op" else "rows"
            where = ""
            if share.kind == "column" and told.tile is not None:
                where = f" in {_PLACES[told.tile.launch.sum_storage]}"
            later = ", the parts added up by the second" * (one in told.results.parts_of)
            parts.append(f"{one.name}: summed over {over}{where}{later}")
        parts += [
            f"{name}: the gradient of {like}, one tensor" for name, like in self.shared.items()
        ]
        for found in filter(None, (variant.cached() for variant in told.variants)):
            parts += found.remarks
        return "; ".join(parts)


def _of_channels(told: Planned, one: Occurrence) -> str:
    """How the gradient of an operand with one value for several columns is made, in words."""
    (_, output), _ = told.results.parts_of[one]
    dtype, (rows, pieces) = told.results.outputs[output]
    return (
        f"each row leaves {counted(pieces, 'sum')} over pieces of its columns "
        f"({rows * pieces * dtype.itemsize} bytes in all), added up by the second"
    )


def grad_call(bound: Bound) -> GradCall | None:
    """The gradients of a call; None outside grad mode, for an empty x, or if it needs none."""
    if not torch.is_grad_enabled() or bound.x.numel() == 0:
        return None
    given = {"x": bound.x, **bound.operands}
    names = [name for name, t in given.items() if isinstance(t, Tensor) and t.requires_grad]
    if not names:
        return None
    refused = None
    if bound.out:
        refused = "out= does not go with gradients"
    elif bound.op.forward_only:
        refused = f"{bound.op.forward_only[0]!r} has no derivative"
    elif unable := bound.op.undifferentiated & {*names}:
        who = bound.op.pair or bound.op.store[-1]
        refused = f"{', '.join(sorted(unable))} of {who!r} has no gradient"
    return GradCall(bound, frozenset(names), refused)
