# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Refuse tensors that are not dense and strided, and say how to make them so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.errors import UnsupportedError


def check_layouts(name: str, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a tensor that is nested, quantized, sparse or masked.

    Args:
        name: The name of the op in the error's message.
        values: The arguments of a call by name; those that are no tensors are ignored.

    Raises:
        UnsupportedError: A tensor is none that is dense and strided; the message says how to make
            it so.
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
