# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check the tensors that a call gives for operands: dtypes, shapes and devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fusedops.bind import broadcast_hints
from fusedops.bind.geometry import mismatch
from fusedops.functors import Operand, Role

__all__ = ["FLOATING", "check_device", "check_shape", "check_tensor", "dtype_names", "parts_of"]

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLAGS = (torch.bool,)
_COUNTS = (torch.int32, torch.int64)
_IDS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

#: The dtypes of a tensor operand of each role.
_DTYPES = {
    Role.VALUE: FLOATING,
    Role.ROW: FLOATING,
    Role.TABLE: FLOATING,
    Role.FLAGS: _FLAGS,
    Role.COUNT: _COUNTS,
    Role.IDS: _IDS,
    Role.ROW_IDS: _IDS,
    Role.KEY_IDS: _IDS,
    Role.INTEGER: (*_FLAGS, *_IDS),
}

#: What an operand is that has size 1 in the reduced dimensions.
_SINGLE = {
    Role.ROW: "has one number a row",
    Role.COUNT: "counts columns a row",
    Role.ROW_IDS: "has one id a query",
}


def check_tensor(
    name: str, operand: Operand, value: Tensor, x: Tensor, reduced: tuple[int, ...]
) -> None:
    """Raise TypeError or ValueError for a tensor operand that does not fit its role or x."""
    key, role = operand.name, operand.role
    if role is Role.PROBABILITY:
        raise TypeError(
            f"{name}: operand {key!r} must be {role.value}, got a tensor; use {key}.item()"
        )
    check_device(name, key, value, x)
    if value.dtype not in _DTYPES[role]:
        cure = {
            Role.VALUE: f"convert it, for example with {key}.to(x.dtype)",
            Role.ROW: f"convert it, for example with {key}.to(x.dtype)",
            Role.TABLE: f"convert it, for example with {key}.to(x.dtype)",
            Role.FLAGS: f"write {key} != 0 (True is masked out) or {key} == 0, whichever is meant",
            Role.COUNT: f"convert it with {key}.long()",
            Role.IDS: f"convert it with {key}.long()",
            Role.ROW_IDS: f"convert it with {key}.long()",
            Role.KEY_IDS: f"convert it with {key}.long()",
            Role.INTEGER: f"convert it with {key}.long()",
        }[role]
        if value.is_complex() and role is not Role.FLAGS:
            whole = f"convert it with {key}.real.long()"
            cure = parts_of(key) if _DTYPES[role] is FLOATING else whole
        if operand.declare and value.dtype in _DTYPES[Role.INTEGER]:
            cure += f"; or, if it holds integers or truth values, {operand.declare}"
        raise TypeError(f"{name}: operand {key!r} must be {role.value}, got {value.dtype}; {cure}")
    if role is Role.TABLE:
        return  # its shape is `check_table`'s to check
    if role in _SINGLE:
        _check_single(name, key, value, x, reduced, _SINGLE[role], "in the reduced dimension")
    elif role is Role.KEY_IDS:
        rows = [dim for dim in range(x.dim()) if dim not in reduced]
        where = "in the dimension of the queries"
        _check_single(name, key, value, x, rows[-1:], "has one id a key", where)
    else:
        check_shape(name, key, value, x)


def _check_single(
    name: str, key: str, value: Tensor, x: Tensor, single: Sequence[int], what: str, where: str
) -> None:
    """Raise ValueError for an operand that does not broadcast against x with size 1 in `single`."""
    check_shape(name, key, value, x, single)
    absent = x.dim() - value.dim()
    if any(dim >= absent and value.shape[dim - absent] != 1 for dim in single):
        cure = broadcast_hints.cure(key, x.shape, value.shape, single)
        if not cure:
            wanted = broadcast_hints.wanted(x.shape, single)
            cure = f"give it a shape that broadcasts against {wanted}"
        raise ValueError(
            f"{name}: operand {key!r} {what}, so it must have size 1 {where}, "
            f"got shape {tuple(value.shape)} for x of shape {tuple(x.shape)}; {cure}"
        )


def check_shape(name: str, key: str, value: Tensor, x: Tensor, single: Sequence[int] = ()) -> None:
    """Raise ValueError for a tensor operand that does not broadcast against x.

    The cure is one with size 1 in the dimensions `single`.
    """
    shape, own = x.shape, value.shape
    if own == shape or own == shape[len(shape) - len(own) :]:  # mostly, and sooner found
        return
    wrong = mismatch(shape, own)
    if wrong is not None:
        detail = (
            f"x has no dimension {wrong.dim}"
            if wrong.wanted is None
            else f"size {wrong.got} in dimension {wrong.dim} where x has {wrong.wanted}"
        )
        cure = broadcast_hints.cure(key, shape, own, single)
        if not cure:
            cure = (
                f"give it a shape that broadcasts against {broadcast_hints.wanted(shape, single)}"
            )
        raise ValueError(
            f"{name}: operand {key!r} of shape {tuple(own)} does not broadcast against x "
            f"of shape {tuple(shape)}: {detail}; {cure}"
        )


def check_device(name: str, key: str, value: Tensor, x: Tensor) -> None:
    """Raise ValueError for an operand on another device than x."""
    if value.device != x.device:
        raise ValueError(
            f"{name}: operand {key!r} must be on x's device {x.device}, got {value.device}; "
            f"move it with .to({str(x.device)!r})"
        )


def parts_of(key: str) -> str:
    """The cure for complex numbers."""
    return f"take what is real of it: {key}.real or {key}.abs()"


def dtype_names(dtypes: tuple[torch.dtype, ...]) -> str:
    """Dtypes in words."""
    return ", ".join(str(dtype) for dtype in dtypes)
