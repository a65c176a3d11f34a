# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration and the tensors of a call as words of a command line."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fusedops.errors import shortened
from fusedops.generate.views import STORAGE
from fusedops.prebuild.recording import Signature, read_value

if TYPE_CHECKING:
    from torch import Tensor

    from fusedops.bind.bind import Bound
    from fusedops.product.declaration import ProductOp
    from fusedops.product.mlp import MLP
    from fusedops.product.single import SingleProduct
    from fusedops.row_op import RowOp

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in STORAGE}
_FORMS = "NAME=DTYPE:SIZES, as in x=float16:8,1024, or NAME=NUMBER, as in scale=0.5"


def import_here(module: str) -> Any:
    """Import a module, of the working directory too.

    Raises:
        ValueError: There is none.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"no module {module!r} can be imported from here: {error}") from error
    finally:
        sys.path.pop(0)


def declaration(where: str, *products: type[ProductOp], cure: str = "") -> Any:
    """The op that is called ``module:attribute``, the working directory's modules among them.

    `products` is what it may be besides a `RowOp`, `cure` what to do with a product that is none.

    Raises:
        ValueError: There is none.
    """
    from fusedops.product import ProductOp
    from fusedops.row_op import RowOp

    module, _, attribute = where.partition(":")
    if not module or not attribute:
        raise ValueError(f"an op must be given as MODULE:ATTRIBUTE, got {where!r}")
    found = import_here(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module!r} has no {attribute!r}")
        found = getattr(found, part)
    if not isinstance(found, (RowOp, *products)):
        *names, last = ["a row op", *(one.__name__ for one in products)]
        said = f"{', '.join(names)} or {last}" if names else last
        then = f"; {cure}" if cure and isinstance(found, ProductOp) else ""
        raise ValueError(
            f"{where} must be {said}, such as fo.Softmax(...), got {shortened(found)}{then}"
        )
    return found


def signature(words: Iterable[str]) -> dict[str, Any]:
    """Operands by name, x among them: numbers, and tensors without memory.

    A word is ``NAME=DTYPE:SIZES``, ``NAME=DTYPE:SIZES@STRIDES`` or ``NAME=NUMBER``.

    >>> signature(["x=float16:8,1024", "scale=0.5"])["x"].shape
    torch.Size([8, 1024])

    Raises:
        ValueError: A word has another form, a name comes twice, or x is not among them.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in found:
            raise ValueError(f"operand {name!r} is given twice: {word!r}")
        try:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is no name")
            if ":" in value:
                read_dtype(value.partition(":")[0])
                found[name] = read_value(value.removeprefix("torch."))
            else:
                found[name] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError as error:
            raise ValueError(f"an operand must be {_FORMS}; got {word!r}: {error}") from None
    if "x" not in found:
        raise ValueError("--operand must give x, as in x=float16:8,1024")
    return found


def values_of(operand: Iterable[str], dtype: str) -> dict[str, Any]:
    """The values that such words give by name, as `signature`; T stands for `dtype`."""
    return signature(word.replace("=T:", f"={dtype}:") for word in operand)


def bound(
    op: RowOp, values: Mapping[str, Any], dim: str | None, result: str | None, **options: Any
) -> tuple[Bound, dict[str, Any]]:
    """The checked call on tensors without memory, and its options.

    `dim` is the reduced dimensions with commas between, `result` the name of the dtype of the
    result.

    Raises:
        TypeError, ValueError: The call does not fit.
    """
    if dim is not None:
        options["dim"] = ints(dim)
    if result is not None:
        options["dtype"] = read_dtype(result)
    operands = {name: value for name, value in values.items() if name != "x"}
    check_given(op, operands)
    return op.bind(values["x"], {**operands, **options}), options


def product(
    op: SingleProduct,
    values: Mapping[str, Any],
    dim: str | None,
    result: str | None,
    **options: Any,
) -> tuple[Bound, dict[str, Tensor], dict[str, Any]]:
    """The checked call of the STORE on a product, the factors x and w, and the options.

    The second factor is returned as w, of shape (..., N, K). `dim` must be None, since a row of a
    product is its last dimension; `result` is as for `bound`.

    Raises:
        TypeError, ValueError: The call does not fit.
    """
    from fusedops.product.choice import bind_store

    first, second = _factors(op, values)
    options |= _options(op, dim, result)
    operands = {name: value for name, value in values.items() if name not in op.inputs}
    check_given(op.epilogue, operands)
    w = op.turned(second)
    epilogue = op.that_adds(second, operands).epilogue
    return bind_store(epilogue, first, w, {**operands, **options}), {"x": first, "w": w}, options


def pair(
    op: MLP,
    values: Mapping[str, Any],
    dim: str | None,
    result: str | None,
    **options: Any,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The factors of a call of an op with two products, and its operands and options.

    The arguments are those of `product`. The factors have been checked.

    Raises:
        TypeError, ValueError: A factor does not fit, or an operand is missing.
    """
    factors = _factors(op, values)
    operands = {name: value for name, value in values.items() if name not in op.inputs}
    for each in op.epilogues:
        check_given(each, operands)
    return factors, {**operands, **options, **_options(op, dim, result)}


def _factors(op: SingleProduct | MLP, values: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The factors that the values give, checked."""
    sizes = {"w": "N,K", "other": "BATCH,K,N", "w1": "H,K", "w2": "N,H"}
    for name in op.inputs:
        if name not in values:  # x is there in any case
            cure = f"give --operand {name}=DTYPE:{sizes[name]}"
            raise ValueError(f"{op.name}: {name!r} is missing; {cure}")
    factors = tuple(values[name] for name in op.inputs)
    op.check(*factors)
    return factors


def _options(op: ProductOp, dim: str | None, result: str | None) -> dict[str, Any]:
    """The options of a call of an op whose rows are the last dimension of a product."""
    if dim not in (None, "-1"):
        raise ValueError(f"--dim is no option of {op.name}, got {dim!r}: leave it away")
    return {} if result is None else {"dtype": read_dtype(result)}


def recorded(files: Iterable[Path], lines: Iterable[str]) -> list[Signature]:
    """The signatures of lines, and of files that `fusedops record` has written.

    Raises:
        OSError, ValueError: A file cannot be read, or a line is no signature.
    """
    texts = [*lines]
    for file in files:
        texts += [line for line in file.read_text("utf-8").splitlines() if line]
    return [Signature.parse(text) for text in texts]


def check_given(op: RowOp, operands: Mapping[str, Any]) -> None:
    """Raise ValueError for operands that no word gives, with the words that would."""
    missing = [name for name in op.slots if name not in operands and name not in op.optional]
    if missing:
        words = [f"{k}=0.1" if k in op.probabilities else f"{k}=DTYPE:SIZES" for k in missing]
        cure = " ".join(f"--operand {word}" for word in words)
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"{op.name}: {', '.join(map(repr, missing))} {verb} missing; give {cure}")


def ints(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(one) for one in text.split(",") if one.strip())


def read_dtype(name: str) -> torch.dtype:
    """The dtype of this name, with or without ``torch.``."""
    dtype = _DTYPES.get(name.removeprefix("torch."))
    if dtype is None:
        raise ValueError(f"a dtype must be one of {', '.join(_DTYPES)}, got {name!r}")
    return dtype
