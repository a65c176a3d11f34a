# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which operations of torch a functor may be made of; all others are refused by name."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from fusedops.errors import UnsupportedError
from fusedops.functors.integers import is_integer
from fusedops.functors.pointwise import COPIES, DIVISIONS, EMPTY, SAME, SPELLINGS

CURE = (
    "compute it outside and pass the result as an operand, or give the functor as C++ with "
    "fusedops.cpp_functor"
)


def check(title: str, shape: tuple[int, ...], node: fx.Node, name: str) -> None:
    """Refuse an operation that does not work on one element at a time.

    `name` is the operation's, without the underscore of one that works in place.

    Raises:
        UnsupportedError: The message names the operation.
    """
    target: Any = node.target

    def refuse(why: str) -> NoReturn:
        raise UnsupportedError(f"{title}: {target.overloadpacket} ({target}) {why}")

    if torch.Tag.nondeterministic_seeded in target.tags:
        refuse("draws random numbers; the functor for that is fusedops.Dropout")
    if name not in (*SPELLINGS, *DIVISIONS) and name not in SAME | COPIES | EMPTY:
        if torch.Tag.pointwise in target.tags:
            refuse(f"is pointwise, but has no spelling in C++ here; {CURE}")
        refuse(f"is not pointwise: a functor sees one element at a time; {CURE}")
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else [values]:
        if not isinstance(value, Tensor):
            refuse(f"makes no tensor; {CURE}")
        if tuple(value.shape) != shape and value.numel() != 1:
            refuse(
                f"makes shape {tuple(value.shape)} of {shape}: a functor sees one element "
                f"at a time; {CURE}"
            )
        if value.dtype in (torch.float16, torch.bfloat16):
            refuse(f"rounds to {value.dtype}; the functor for that: fusedops.Cast")
        if value.dtype.is_floating_point and value.dtype not in (torch.float32, torch.float64):
            refuse(f"rounds to {value.dtype}, which no functor does; {CURE}")
        if value.dtype.is_complex:
            refuse(f"makes complex numbers; {CURE}")
        if str(target) == "aten.view.dtype":
            refuse(f"reads bits as another type; {CURE}")
        if name in COPIES and is_integer(value.dtype):
            source = node.args[0]
            dtype = source.meta["val"].dtype if isinstance(source, fx.Node) else None
            if dtype is not None and dtype.is_floating_point:
                refuse(
                    f"makes {value.dtype} of {dtype}; write torch.trunc, torch.floor or "
                    "torch.round of the value in its place, which keep the dtype"
                )
