# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that one kernel runs as lines of text, and the variants that are built from such lines."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.declare.text import read
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.product.factors import factor_dtype
from fusedops.product.fused import able, bind_store, chosen, describe, reads_product

if TYPE_CHECKING:
    from fusedops.map import Map
    from fusedops.prebuild.signature import Signature

__all__ = ["record", "variants"]

#: The calls that have been looked at, as text.
_noted: set[str] = set()


def record(epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> None:
    """Record a call of a layer, if one kernel would run it on some GPU.

    Two kernels are recorded where the second is planned, as of any op.

    Args:
        epilogue: The STORE of the layer, which is `able`.
        x: The left factor, which has been checked.
        w: The right one likewise.
        arguments: Operands and options.
    """
    tensors = [x, w, *(one for one in arguments.values() if isinstance(one, Tensor))]
    if reads_product(epilogue, x, w, arguments):
        return  # the layer that is run saves it
    if any(type(one) not in (Tensor, torch.nn.Parameter) for one in tensors):
        return  # a tracer's, which have no memory
    if epilogue.lacking(dict(arguments)) or factor_dtype(w) is not factor_dtype(x):
        return
    try:
        bound = bind_store(epilogue, x, w, arguments)
    except (TypeError, ValueError):
        return  # which the call itself says in its own words
    factors = _cast(x, w)
    call = functools.partial(epilogue.observer.of_product, bound, factors)
    if (text := str(call())) in _noted:
        return
    _noted.add(text)

    def needed(target: Target) -> list[Variant]:
        return [*_variants(bound, factors, target)]

    own = Target.of(x.device)
    if needed(own) or needed(Target.named("sm_90")):
        epilogue.observer.notify(call, needed, own)


def _cast(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    """The factors in the dtype of the product, without their contents where that is another."""
    dtype = factor_dtype(x)
    given = {"x": x, "w": w}
    return {
        k: t if t.dtype is dtype else torch.empty_like(t, dtype=dtype) for k, t in given.items()
    }


def _variants(bound: Bound, factors: Mapping[str, Tensor], target: Target) -> Iterator[Variant]:
    """The kernel of a call on a target, if one runs it there."""
    x, w = factors["x"], factors["w"]
    arguments = {**bound.operands, "training": bool(bound.dropout_slots)}
    tiling = chosen(bound.op, x, w, arguments, target).tiling  # type: ignore[arg-type]
    told = None if tiling is None else describe(bound, x, w, tiling)
    if told is not None:
        yield told[0]


def variants(signatures: Iterable[Signature], target: Target) -> list[Variant]:
    """List the kernels that run product and STORE of such calls on a target, each once.

    Args:
        signatures: The signatures of any calls; those without factors need no such kernel.
        target: The target; its device need not be present. What was tuned on it does not count.

    Raises:
        TypeError, ValueError, UnsupportedError: A signature is that of a call that would raise so.
    """
    found: dict[tuple[object, ...], Variant] = {}
    for one in signatures:
        if not one.factors:
            continue
        epilogue = read(one.op)
        factors = one.read_factors()
        if not able(epilogue):
            continue
        z, operands, options = one.read()
        for training in (True, False) if epilogue.dropouts else (True,):
            bound = epilogue.bind(z, {**operands, **options, "training": training})
            found.update((each.key, each) for each in _variants(bound, factors, target))
    return list(found.values())
