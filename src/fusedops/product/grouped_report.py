# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`explain` of a `GroupedLinear`: what is saved by group, and by what its gradients are made."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.explain.report import Kept, ProductExplanation
from fusedops.generate.target import Target
from fusedops.product.factors import factor_dtype, wants_gradient
from fusedops.product.grouped_plain import chosen_without_store
from fusedops.product.grouped_weights import chosen_for_weights
from fusedops.product.report import explain_product

if TYPE_CHECKING:
    from collections.abc import Collection

    from fusedops.product.choice import Choice
    from fusedops.product.single import SingleProduct

__all__ = ["explain_groups"]


def explain_groups(
    op: SingleProduct,
    by_expert: Collection[str],
    first: Tensor,
    second: Tensor,
    arguments: dict[str, Any],
    choice: Choice,
) -> ProductExplanation:
    """Explain a call whose factors and groups have been checked; nothing is computed.

    Args:
        op: The op.
        by_expert: The operands that have an entry for each group.
        first: The rows of all groups.
        second: A matrix for each group.
        arguments: Operands and options, without the offsets.
        choice: How the call is run.
    """
    tables: dict[str, Tensor] = {}
    for name in by_expert:
        if isinstance(one := arguments.get(name), Tensor):
            tables[name] = one
    by_row = {
        name: one.new_empty((first.shape[0], *(one.shape[1:] or (1,)))).requires_grad_(
            one.requires_grad
        )
        for name, one in tables.items()
    }
    told = explain_product(op, first, second, {**arguments, **by_row}, choice)
    kept = _as_given(told.kept, tables)
    store = told.store and dataclasses.replace(told.store, kept=_as_given(told.store.kept, tables))
    told = dataclasses.replace(told, kept=kept, store=store)
    if choice.tiling is not None:  # it reads the entries, where a kernel of its own reads rows
        fused = tuple(
            dataclasses.replace(one, read=tables[one.name].nbytes) if one.name in tables else one
            for one in told.fused
        )
        told = dataclasses.replace(told, fused=fused, bytes=sum(one.bytes for one in fused))
    # Sizes and dtypes decide how gradients are made, so these have no memory.
    dtype, shape = factor_dtype(first), op.shape(first, second)
    dz = first.new_empty((1, 1), dtype=dtype).expand(shape)
    notes = [*told.notes]
    if wants_gradient((first,)):
        notes.append(_by("x", chosen_without_store(dz, second.mT), "groups"))
    if wants_gradient((second,)):
        x = first.new_empty((1, 1), dtype=dtype).expand(first.shape)
        made = chosen_for_weights(dz, x, second.shape[0], Target.of(first.device))
        notes.append(_by("w", made, "each group's rows"))
    return dataclasses.replace(told, notes=tuple(notes))


def _by(name: str, choice: Choice, of: str) -> str:
    by = "torch:" if choice.tiling is None else f"one kernel ({choice.tiling.name}),"
    return f"the gradient of {name} is a product of {of} by {by} {choice.why}"


def _as_given(kept: tuple[Kept, ...], tables: dict[str, Tensor]) -> tuple[Kept, ...]:
    """What is saved, of operands by group the entries."""
    return tuple(
        Kept.given(one.name, tables[one.name]) if one.name in tables else one for one in kept
    )
