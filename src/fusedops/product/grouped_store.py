# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a `GroupedLinear` makes of its product, as one function for autograd.

The gradients of both halves of a product are written to the halves of one tensor. Of operands with
an entry for each group the entries are saved, and become rows where a kernel reads them by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.product.grouped_product import rows_of_groups, sums_of_groups
from fusedops.run.autograd import no_statistics, note_arguments, save_for_gradients
from fusedops.run.backward import Saved, run_backward
from fusedops.run.first_derivative import only_once
from fusedops.run.recipe import recipe_of

if TYPE_CHECKING:
    from typing import Protocol

    from fusedops._runtime import Plan
    from fusedops.product.choice import Choice
    from fusedops.product.epilogue import Epilogue
    from fusedops.schedule.architectures import ProductTiling

    class OfGroups(Protocol):
        """The part of a `GroupedLinear` that its calls with gradients need."""

        epilogue: Epilogue
        by_expert: tuple[str, ...]
        halves: str | None
        dropouts: int

        @property
        def title(self) -> str: ...
        @property
        def name(self) -> str: ...
        @property
        def of_product(self) -> tuple[str, ...]: ...
        def __call__(self, /, *factors: Tensor, **arguments: Any) -> Any: ...
        def alone(self, first: Tensor, arguments: dict[str, Any]) -> bool: ...
        def check(self, *factors: Any) -> None: ...
        def check_names(self, arguments: Mapping[str, Any]) -> None: ...
        def by_row(self, arguments: dict[str, Any], ends: Tensor, rows: int) -> dict[str, Any]: ...
        def check_broadcast(
            self, epilogue: Epilogue, z: Tensor, arguments: Mapping[str, Any]
        ) -> None: ...
        def chosen(
            self, first: Tensor, second: Tensor, arguments: dict[str, Any], keeps: bool = False
        ) -> Choice: ...
        def plan_of(
            self,
            first: Tensor,
            second: Tensor,
            arguments: dict[str, Any],
            tiling: ProductTiling,
            keeps: bool = False,
        ) -> Plan | None: ...
        def read_by_store(
            self, z: Tensor, arguments: dict[str, Any]
        ) -> tuple[Tensor, dict[str, Any]]: ...
        def run_apart(
            self, first: Tensor, second: Tensor, /, way: str = "__call__", **arguments: Any
        ) -> Any: ...


__all__ = ["stored"]


def stored(
    op: OfGroups,
    z: Tensor,
    ends: Tensor,
    arguments: Mapping[str, Any],
    made: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """The outputs of a STORE, recorded for autograd.

    Args:
        op: The op, whose STORE has a derivative.
        z: The product, whose memory is read if the gradient of the STORE reads it, or if its
            outputs are yet to be made.
        ends: Where the groups end.
        arguments: Operands and options of the call.
        made: The outputs, if the kernel of the product has made them.
    """
    names = [name for name in op.epilogue.slots if name != op.halves]
    options = {key: one for key, one in arguments.items() if key not in names}
    values = [arguments.get(name) for name in names]
    apply: Any = _Stored.apply
    outputs: tuple[Tensor, ...] = apply(op, options, made, z, ends, *values)
    return outputs


class _Stored(torch.autograd.Function):
    """The STORE as a function of the whole product and of operands, those by group as they are."""

    @staticmethod
    def forward(
        ctx: Any,
        op: OfGroups,
        options: dict[str, Any],
        made: Sequence[Tensor] | None,
        z: Tensor,
        ends: Tensor,
        *values: Any,
    ) -> tuple[Tensor, ...]:
        epilogue, half = op.epilogue, op.halves
        names = [name for name in epilogue.slots if name != half]
        operands = dict(zip(names, values, strict=True))
        tables = {name: operands[name] for name in op.by_expert if name in operands}
        tables = {name: one for name, one in tables.items() if isinstance(one, Tensor)}
        of_z, _, *of_values = ctx.needs_input_grad[3:]
        needs = dict(zip(names, of_values, strict=True))
        value, halves = op.read_by_store(z, {})
        known = {**operands, **halves}
        needs.update(dict.fromkeys(halves, of_z))
        recipe = recipe_of(epilogue, (of_z, *(needs[name] for name in epilogue.slots)))
        for name, table in tables.items():  # rows without memory
            known[name] = table.new_empty((1, 1)).expand(
                z.shape[0], table.numel() // table.shape[0]
            )
        # Both halves are saved as the one tensor that they are.
        kept = zip(epilogue.slots, recipe.kept, strict=True)
        alone = recipe._replace(
            x=False, kept=tuple(keep and name not in halves for name, keep in kept)
        )
        ordered = [known[name] for name in epilogue.slots]
        arguments, (given, saved, tensors) = note_arguments(
            epilogue, options, value, ordered, alone
        )
        tensors = [tables.get(name, one) for name, one in zip(saved, tensors, strict=True)]
        statistics = no_statistics(value)
        if made is None:
            arguments |= {
                name: rows_of_groups(table, ends, z.shape[0]) for name, table in tables.items()
            }
            *made, statistics = epilogue.trained(value, **arguments)
        ctx.op, ctx.tables, ctx.of_z = op, {name: one.shape for name, one in tables.items()}, of_z
        ctx.like = z.shape, z.dtype
        reads = recipe.x or any(
            keep for name, keep in zip(epilogue.slots, recipe.kept, strict=True) if name in halves
        )
        further = z if reads else None, ends, statistics
        noted = given, saved, tensors
        return save_for_gradients(ctx, epilogue, alone, noted, value, made, further)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        op: OfGroups = ctx.op
        saved: Saved = ctx.saved
        kept = ctx.saved_tensors  # once: a checkpoint hands them out a single time
        with torch.no_grad():
            dz, results = _gradients(op, ctx, saved, kept, incoming)
        if torch.is_grad_enabled():
            dz, *results = only_once(op.name, (dz, *results), (*kept, *incoming))
        return None, None, None, dz, None, *results


def _gradients(
    op: OfGroups,
    ctx: Any,
    saved: Saved,
    kept: Sequence[Tensor],
    incoming: Sequence[Tensor | None],
) -> tuple[Tensor | None, Sequence[Tensor | None]]:
    """The gradient of the product, and those of operands in the order of the STORE, no halves."""
    z, ends, statistics, *tensors = kept
    shape, dtype = ctx.like
    given = {**saved.given}
    if z is not None:
        given["x"], halves = op.read_by_store(z, {})
        given.update(halves)
    rows = [
        rows_of_groups(one, ends, shape[0]) if name in ctx.tables else one
        for name, one in zip(saved.names, tensors, strict=True)
    ]
    dz, into = None, {}
    if ctx.of_z:
        dz = statistics.new_empty(shape, dtype=dtype)
        into["x"], halves = op.read_by_store(dz, {})
        into.update(halves)
    of_x, *found = run_backward(
        saved._replace(given=given), (statistics, *rows), incoming, shares=False, into=into
    )
    made = {"x": of_x, **dict(zip(op.epilogue.slots, found, strict=True))}
    for name, to in into.items():
        if (one := made[name]) is not None:  # a sum, since several functors use it
            to.copy_(one)
    for name, size in ctx.tables.items():
        if made[name] is not None:
            made[name] = sums_of_groups(made[name], ends).view(size)
    return dz, [made[name] for name in op.epilogue.slots if name != op.halves]
