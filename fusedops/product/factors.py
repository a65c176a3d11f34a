# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The factors of a matrix product: what they may be, and how a kernel of our own reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.layouts import check_layouts
from fusedops.bind.operands import FLOATING, parts_of
from fusedops.errors import shortened
from fusedops.generate.product import Factor

__all__ = [
    "HALVES",
    "check_factors",
    "factor_dtype",
    "matrix_of",
    "wants_gradient",
    "wrong_shape",
    "wrong_weight",
]

#: CUtensorMapDataType in cuda.h.
_KINDS = {torch.float16: 6, torch.bfloat16: 9}
#: The dtypes of factors that a kernel of our own multiplies.
HALVES = (*_KINDS,)


def check_factors(name: str, keys: tuple[str, ...], factors: tuple[Any, ...]) -> None:
    """Raise TypeError or ValueError unless these are floating tensors that can be multiplied.

    Args:
        name: The name of the op.
        keys: The names of the factors.
        factors: The factors. Their shapes are the caller's to check.
    """
    first, kind = keys[0], factors[0]
    for key, value in zip(keys, factors, strict=True):
        if not isinstance(value, Tensor):
            cure = (
                f"a call is op({', '.join(keys)}, ...), these by position, operands and options "
                "by name"
            )
            if hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
                cure = f"make one with torch.as_tensor({key})"
            raise TypeError(
                f"{name}: {key} must be a torch.Tensor, got {type(value).__name__}; {cure}"
            )
        if value.layout is not torch.strided or value.is_nested:
            check_layouts(name, {key: value})
        if value.dtype not in FLOATING:
            allowed = ", ".join(map(str, FLOATING))
            raise TypeError(
                f"{name}: {key} must be floating point ({allowed}), got {value.dtype}; "
                + (parts_of(key) if value.is_complex() else f"convert it with {key}.float(), say")
            )
        if value.device != kind.device:
            raise ValueError(
                f"{name}: {key} must be on {first}'s device {kind.device}, got {value.device}; "
                f"move it with .to({str(kind.device)!r})"
            )
        if value.dtype is not kind.dtype and not torch.is_autocast_enabled(kind.device.type):
            raise TypeError(
                f"{name}: {key} must have {first}'s dtype {kind.dtype}, got {value.dtype}; convert "
                f"it with {key}.to({first}.dtype), or call the op under torch.autocast"
            )


def factor_dtype(factor: Tensor) -> torch.dtype:
    """The dtype in which torch multiplies, and so that of the product: autocast may lower it."""
    device = factor.device.type
    if device == "meta":  # which torch.is_autocast_enabled does not know
        return factor.dtype
    if factor.dtype is not torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return factor.dtype


def wants_gradient(values: Iterable[Any]) -> bool:
    """Whether a gradient goes back through a call of these values, tensors among them."""
    return torch.is_grad_enabled() and any(
        isinstance(one, Tensor) and one.requires_grad for one in values
    )


def wrong_shape(name: str, key: str, value: Tensor, wanted: str, cure: str) -> ValueError:
    """The error of a factor whose shape does not fit."""
    return ValueError(
        f"{name}: {key} must have shape {wanted}, got {shortened(tuple(value.shape))}; {cure}"
    )


def wrong_weight(name: str, key: str, value: Tensor, columns: int, of: str) -> ValueError:
    """The error of a weight whose rows do not have this many columns, those of `of`."""
    cure = "each row of it makes one number of each row, as in torch.nn.Linear"
    if value.dim() == 2 and value.shape[0] == columns:
        cure = f"pass {key}.mT: the rows of {key} are the outputs, as in torch.nn.Linear"
    elif value.dim() == 2:
        outputs, takes = value.shape
        cure = f"this {key} is one of torch.nn.Linear({takes}, {outputs}), for {takes} columns"
    return wrong_shape(name, key, value, f"(N, {columns}) for {of}", cure)


def matrix_of(factor: Tensor, slot: int, box: int) -> Factor | None:
    """A factor as a matrix that bulk copies can read; None where they cannot.

    Args:
        factor: The factor, of shape (..., columns).
        slot: The number of its operand in the call.
        box: The rows that one copy takes.
    """
    columns = factor.shape[-1]
    try:
        matrix = factor.view(-1, columns)
    except RuntimeError:
        return None  # rows that are not evenly apart
    pitch = matrix.stride(0) * factor.element_size()
    if matrix.stride(1) != 1 or pitch % 16 or factor.data_ptr() % 16:
        return None
    return Factor(slot, matrix.shape[0], columns, pitch, box, _KINDS[factor.dtype])
