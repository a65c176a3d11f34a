# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of a chain after a product as an operator of torch takes them, and back."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.declare.text import read
from fusedops.plan.saved_tensors import needed
from fusedops.product.declaration import TAKEN

if TYPE_CHECKING:
    from fusedops.product.epilogue import Epilogue

__all__ = ["are_plain", "exports", "operands_by_name", "operands_listed", "read_by_gradient"]


def operands_listed(
    epilogue: Epilogue, arguments: Mapping[str, Any]
) -> tuple[list[Tensor], list[str], list[Any], bool] | None:
    """The operands of a call: tensors, their names, numbers; and whether it may draw.

    None where an operator takes no such call. Dynamo traces this, so it is plain.
    """
    if epilogue.counted or arguments.get("out") is not None:
        return None
    # A branch, since an integer of an object may be a symbol to Dynamo, where shapes are dynamic.
    draws = arguments.get("training", True) if epilogue.dropouts else False
    if not isinstance(draws, bool):
        return None
    tensors: list[Tensor] = []
    names: list[str] = []
    numbers: list[Any] = []
    for key in epilogue.slots:
        value = arguments.get(key)
        if isinstance(value, Tensor) and key not in epilogue.probabilities:
            names.append(key)
            tensors.append(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers.append(value)
        else:
            return None
    for key in arguments:
        if key not in epilogue.slots and key not in TAKEN:
            return None
    return tensors, names, numbers, draws


def operands_by_name(
    op: Any, tensors: Sequence[Any], names: Sequence[str], numbers: Sequence[float]
) -> dict[str, Any]:
    """The operands of a call by name; other tensors are left out."""
    given = {name: one for name, one in zip(names, tensors, strict=True) if name in op.slots}
    rest = iter(numbers)
    return given | {name: next(rest) for name in op.slots if name not in given}


def are_plain(tensors: Iterable[Tensor]) -> bool:
    """True if no tensor is a subclass of torch.Tensor other than Parameter."""
    for one in tensors:
        if type(one) is not Tensor and type(one) is not torch.nn.Parameter:
            return False
    return True


def read_by_gradient(op: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What the gradients of these names read, of a chain that is given as text.

    That are names of operands, and "x" for the product, by which that is named among `wanted`, too.
    """
    return _read_by_gradient(op, wanted)


@functools.lru_cache(maxsize=1024)  # eager calls ask it, too
def _read_by_gradient(op: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    if not wanted:
        return ()
    reads = needed(read(op), wanted)
    return (*["x"] * reads.x, *sorted(reads.operands))


def exports() -> bool:
    """Whether torch.export traces."""
    return torch.compiler.is_exporting()


# Dynamo asks as it compiles, as in torch_ops/tracing.py; that of torch 2.11 takes all it compiles
# for an export otherwise.
exports._dynamo_marked_constant = True  # type: ignore[attr-defined]
read_by_gradient._dynamo_marked_constant = True  # type: ignore[attr-defined]
