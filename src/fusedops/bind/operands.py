# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check the operands of a call: names, and dtype, shape, layout and device of tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.broadcasting import broadcast_cure, broadcast_shape, mismatch
from fusedops.declare.declaration import Declaration
from fusedops.declare.hints import for_call
from fusedops.declare.options import OPTIONS
from fusedops.errors import UnsupportedError
from fusedops.functors.operands import FLOATING, IDS, Operand, Role

__all__ = [
    "FLOATING",
    "begins_whole",
    "check_device",
    "check_layouts",
    "check_names",
    "check_shape",
    "check_tensor",
    "described",
    "dtype_names",
    "parts_of",
    "with_column",
]


def check_names(
    op: Declaration, name: str, operands: Mapping[str, Any], options: Collection[str] = OPTIONS
) -> None:
    """Raise TypeError for an operand that the op does not have, or that is missing or None."""
    for key in operands:
        if key not in op.slots:
            hint = for_call(op, key, options)
            raise TypeError(f"{name}: unknown operand {key!r}; {_wanted(op)}{hint}")
    for key in op.slots:
        if operands.get(key) is None and key not in op.optional:
            if key in operands:
                raise TypeError(
                    f"{name}: operand {key!r} must not be None; {_wanted(op)}: pass "
                    f"{key}=...{_spared(op, key)}, or call an op that is declared without it"
                )
            raise TypeError(f"{name}: operand {key!r} is missing; {_wanted(op)}: pass {key}=...")


def _spared(op: Declaration, key: str) -> str:
    """Alternatives to giving an operand, as the end of an error's sentence."""
    if key in op.probabilities:
        return f", {key}=0 to drop nothing"
    users = [f for f in (*op.load, *op.store) if key in (one.name for one in f.operands())]
    if users and all("optional" in getattr(f, "__dataclass_fields__", ()) for f in users):
        return ", declare the functor that takes it with optional=True"
    return ""


def _wanted(op: Declaration) -> str:
    return f"this op takes {', '.join(map(repr, op.slots)) or 'no operands'}"


def check_layouts(name: str, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a tensor that is nested, quantized, sparse or masked.

    The message says how to make it so. Values that are no tensors are ignored.
    """
    for key, value in values.items():
        if isinstance(value, Tensor):
            cure = _cure(key, value)
            if cure is not None and key.startswith("out"):
                cure = f"{cure.partition(';')[0]}; pass a plain tensor's memory"
            if cure is not None:
                raise UnsupportedError(
                    f"{name}: {described(key)} must be a dense, strided tensor, got {cure}"
                )


def described(key: str) -> str:
    """The way in which an error's message names an argument of a call."""
    return key if key in ("x", "out") else f"operand {key!r}"


def _cure(key: str, value: Tensor) -> str | None:
    """The kind of a tensor and how to make a dense one of it; None if it is dense and strided."""
    if value.is_nested:
        padded = f"pad it with torch.nested.to_padded_tensor({key}, 0.0), and"
        jagged = (
            f", or give the op {key}.values() where no row is cut"
            if value.layout is torch.jagged
            else ""
        )
        return f"a nested one; {padded} let a softmax leave out the padding by Lengths{jagged}"
    if value.is_quantized:
        return f"a quantized one ({value.dtype}); use {key}.dequantize()"
    if value.layout is not torch.strided:
        return f"one of layout {value.layout}; use {key}.to_dense()"
    if type(value).__name__ == "MaskedTensor":
        return (
            f"a MaskedTensor; give the op {key}.get_data(), and its mask, where it belongs to x, "
            f"to Mask('mask', keep=True): mask={key}.get_mask()"
        )
    return None


_FLAGS = (torch.bool,)
_COUNTS = (torch.int32, torch.int64)

#: The dtypes of a tensor operand of each role.
_DTYPES = {
    Role.VALUE: FLOATING,
    Role.ROW: FLOATING,
    Role.TABLE: FLOATING,
    Role.FLAGS: _FLAGS,
    Role.COUNT: _COUNTS,
    Role.IDS: IDS,
    Role.ROW_IDS: IDS,
    Role.KEY_IDS: IDS,
    Role.TARGET: IDS,
    Role.INTEGER: (*_FLAGS, *IDS),
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
            Role.TARGET: f"convert it with {key}.long()",
            Role.INTEGER: f"convert it with {key}.long()",
        }[role]
        if value.is_complex() and role is not Role.FLAGS:
            whole = f"convert it with {key}.real.long()"
            cure = parts_of(key) if _DTYPES[role] is FLOATING else whole
        elif role is Role.TARGET and value.shape == x.shape and value.dtype in FLOATING:
            cure = "declare soft=True for a weight of each class"
        if operand.declare and value.dtype in _DTYPES[Role.INTEGER]:
            cure += f"; or, if it holds integers or truth values, {operand.declare}"
        raise TypeError(f"{name}: operand {key!r} must be {role.value}, got {value.dtype}; {cure}")
    if role in (Role.TABLE, Role.TARGET):
        return  # the shapes of these are for `check_table` and `with_column` to check
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
        cure = broadcast_cure(key, x.shape, value.shape, single)
        if not cure:
            wanted = broadcast_shape(x.shape, single)
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
        cure = broadcast_cure(key, shape, own, single)
        if not cure:
            cure = f"give it a shape that broadcasts against {broadcast_shape(shape, single)}"
        raise ValueError(
            f"{name}: operand {key!r} of shape {tuple(own)} does not broadcast against x "
            f"of shape {tuple(shape)}: {detail}; {cure}"
        )


def with_column(name: str, key: str, value: Tensor, x: Tensor, reduced: Sequence[int]) -> Tensor:
    """A target, of x's shape without the reduced dimensions, with these of size 1.

    Raises:
        ValueError: It has another shape.
    """
    own = [1 if dim in reduced else size for dim, size in enumerate(x.shape)]
    if value.dim() == x.dim() and list(value.shape) == own:
        return value
    rows = [size for dim, size in enumerate(x.shape) if dim not in reduced]
    if list(value.shape) != rows:
        cure = _target_cure(key, list(value.shape), list(x.shape), reduced)
        raise ValueError(
            f"{name}: operand {key!r} has one column a row, so it must have x's shape without the "
            f"reduced dimension, {tuple(rows)}, got {tuple(value.shape)} for x of shape "
            f"{tuple(x.shape)}{cure}"
        )
    for dim in reduced:
        value = value.unsqueeze(dim)
    return value


def _target_cure(key: str, own: list[int], shape: list[int], reduced: Sequence[int]) -> str:
    """What may be meant by a target of another shape, as the end of an error's sentence."""
    for dim in range(len(shape)):
        if own == shape[:dim] + shape[dim + 1 :]:
            return f"; it goes with classes in x's dimension {dim}: pass dim={dim}, or move it"
    if own == shape:
        return f"; of one-hot rows take the columns: {key}.argmax({reduced[0]})"
    rows = [size for dim, size in enumerate(shape) if dim not in reduced]
    if math.prod(own) == math.prod(rows):
        return f"; give it that shape: {key}.reshape({', '.join(map(str, rows))})"
    return ""


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


def begins_whole(tensor: Tensor) -> bool:
    """Whether it begins at a multiple of 16 bytes of its memory; compiled code takes it to."""
    if torch.compiler.is_compiling():
        return True
    return bool(tensor.storage_offset() * tensor.element_size() % 16 == 0)
