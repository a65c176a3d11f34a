# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The call that is exported: a bound call of tensors without memory, and what its gradient gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, bind, floating
from fusedops.declare.chains import parted
from fusedops.errors import UnsupportedError
from fusedops.run import placing
from fusedops.run.gradient import Gradient

if TYPE_CHECKING:
    from fusedops.row_op import RowOp

#: Options that belong to one call, not to what is exported.
_OF_A_CALL = ("out", "generator", "part_of")


def exported_call(op: RowOp, x: Any, arguments: Mapping[str, Any]) -> Bound:
    """Check the call, of tensors of which only shape, strides and dtype count.

    Raises:
        TypeError, ValueError: As a call of the op raises.
        UnsupportedError: No single kernel runs such a call.
    """
    for key in _OF_A_CALL:
        if arguments.get(key) is not None:
            raise TypeError(f"export: {key} belongs to a call, not to what is exported; leave it")
    operands, options = parted(arguments)
    bound = bind(op, _meta(x), {key: _meta(value) for key, value in operands.items()}, options)
    if bound.x.numel() == 0:
        raise ValueError(
            f"export: x must have elements, got shape {tuple(bound.x.shape)}: there is no kernel "
            "for none"
        )
    if placing.columns_apart(bound):
        raise UnsupportedError(
            f"export: {op.name} over dimensions {bound.reduced} runs on copies of operands whose "
            "reduced dimensions do not lie one constant step apart; make x and its operands dense, "
            "with the reduced dimensions last"
        )
    return bound


def gradient_of(bound: Bound, wanted: Collection[str] | bool) -> Gradient | None:
    """The gradients that are exported: all that there can be, those of these names, or none.

    Saved streams and differentiable statistics have gradients that come in; all of them.

    Raises:
        ValueError: A name that has no gradient.
        UnsupportedError: The op has no derivative.
    """
    if wanted is False:
        return None
    op = bound.op
    if op.forward_only:
        raise UnsupportedError(
            f"export: {op.forward_only[0]!r} has no derivative, so {op.name} has none; pass "
            "backward=False, or give the functor one"
        )
    if op.quantized is not None:
        raise UnsupportedError(
            f"export: the y of {op.store[-1]!r} has no gradient; pass backward=False, and export "
            f"the backward pass of {op.differentiated!r}"
        )
    able = ["x", *floating(bound.operands)]
    names = able if wanted is True else list(wanted)
    for name in names:
        if name not in able:
            raise ValueError(
                f"export: backward must name what has a gradient, {', '.join(able)}, got {name!r}"
            )
    if not names:
        return None
    return Gradient(op, frozenset(names), frozenset(op.joining))


def _meta(value: Any) -> Any:
    """A tensor without memory: its pointer counts as aligned, which exported functions check."""
    if not isinstance(value, Tensor):
        return value
    if value.layout is not torch.strided:
        raise TypeError(f"export: tensors must be dense and strided, got layout {value.layout}")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
