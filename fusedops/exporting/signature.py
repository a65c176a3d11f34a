# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration and a signature as words of a command line."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fusedops.generate.views import STORAGE

if TYPE_CHECKING:
    from fusedops.row_op import RowOp

__all__ = ["declaration", "ints", "read_dtype", "signature"]

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STORAGE}
_FORMS = "NAME=DTYPE:SIZES, as in x=float16:8,1024, or NAME=NUMBER, as in scale=0.5"


def declaration(where: str) -> RowOp:
    """The op that is called ``module:attribute``, the working directory's modules among them.

    Raises:
        ValueError: There is none.
    """
    from fusedops.row_op import RowOp

    module, _, attribute = where.partition(":")
    if not module or not attribute:
        raise ValueError(f"an op must be given as MODULE:ATTRIBUTE, got {where!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"no module {module!r} can be imported from here: {error}") from error
    finally:
        sys.path.pop(0)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not isinstance(found, RowOp):
        raise ValueError(f"{where} must be an op, such as fo.Softmax(...), got {found!r}")
    return found


def signature(words: Iterable[str]) -> dict[str, Any]:
    """Operands by name, x among them: numbers, and tensors without memory.

    >>> signature(["x=float16:8,1024", "scale=0.5"])["x"].shape
    torch.Size([8, 1024])

    Args:
        words: ``NAME=DTYPE:SIZES``, ``NAME=DTYPE:SIZES@STRIDES`` or ``NAME=NUMBER``.

    Raises:
        ValueError: A word has another form, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"an operand must be {_FORMS}; got {word!r}")
        if name in found:
            raise ValueError(f"operand {name!r} is given twice: {word!r}")
        found[name] = _tensor(word, value) if ":" in value else _number(word, value)
    return found


def ints(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(one) for one in text.split(",") if one.strip())


def read_dtype(name: str) -> torch.dtype:
    """The dtype of this name, with or without ``torch.``."""
    dtype = _DTYPES.get(name.removeprefix("torch."))
    if dtype is None:
        raise ValueError(f"a dtype must be one of {', '.join(_DTYPES)}, got {name!r}")
    return dtype


def _tensor(word: str, value: str) -> torch.Tensor:
    kind, _, layout = value.partition(":")
    sizes, at, strides = layout.partition("@")
    whole = re.compile(r"(\d+(,\d+)*)?")
    if not whole.fullmatch(sizes) or not whole.fullmatch(strides):
        raise ValueError(
            f"sizes, and strides after an '@', must be numbers with commas between; got {word!r}"
        )
    try:
        dtype = read_dtype(kind)
    except ValueError as error:
        raise ValueError(f"{word!r}: {error}") from None
    shape = ints(sizes)
    if not at:
        return torch.empty(shape, dtype=dtype, device="meta")
    steps = ints(strides)
    if len(steps) != len(shape):
        raise ValueError(f"{word!r} has {len(shape)} sizes and {len(steps)} strides")
    return torch.empty_strided(shape, steps, dtype=dtype, device="meta")


def _number(word: str, value: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    raise ValueError(f"an operand must be {_FORMS}; got {word!r}")
