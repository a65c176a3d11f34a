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
from fusedops.product.choice import able, as_if_cast, bind_store, chosen, reads_product
from fusedops.product.factors import factor_dtype
from fusedops.product.product_backward import gradient_variants, may_fuse
from fusedops.product.product_kernel import describe
from fusedops.schedule.architectures import PRODUCT_KERNELS

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
    if reads_product(epilogue, x, w, arguments) or _is_odd(epilogue, (x, w), arguments):
        return  # the layer that is run saves it; or
    try:
        bound = bind_store(epilogue, x, w, as_if_cast(epilogue, arguments, factor_dtype(x)))
    except (TypeError, ValueError):
        return  # which the call itself says in its own words
    _note(epilogue, bound, _cast(x, w), frozenset())


def record_gradient(
    epilogue: Map,
    wanted: frozenset[str],
    dy: Tensor,
    w: Tensor,
    z: Tensor,
    arguments: Mapping[str, Any],
) -> None:
    """Record a call of a `ProductBackward`, likewise; the arguments are those of its call."""
    if may_fuse(epilogue) and not _is_odd(epilogue, (dy, w, z), arguments):
        bound = epilogue.bind(z, dict(arguments))
        _note(epilogue, bound, {"x": dy.contiguous(), "w": w}, wanted | {"x"})


def _is_odd(epilogue: Map, factors: Iterable[Tensor], arguments: Mapping[str, Any]) -> bool:
    """True if a fused GEMM cannot record this call: traced, of mixed dtypes, or with no operand."""
    tensors = [*factors, *(one for one in arguments.values() if isinstance(one, Tensor))]
    if any(type(one) not in (Tensor, torch.nn.Parameter) for one in tensors):
        return True
    return bool(epilogue.lacking(dict(arguments))) or len({*map(factor_dtype, factors)}) > 1


def _note(
    epilogue: Map, bound: Bound, factors: Mapping[str, Tensor], wanted: frozenset[str]
) -> None:
    call = functools.partial(epilogue.observer.of_product, bound, factors, wanted)
    if (text := str(call())) in _noted:
        return
    _noted.add(text)

    def needed(target: Target) -> list[Variant]:
        return [*_variants(bound, factors, target, wanted)]

    own = Target.of(bound.x.device)
    if needed(own) or any(needed(Target.named(arch)) for arch in PRODUCT_KERNELS):
        epilogue.observer.notify(call, needed, own)


def _cast(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    """The factors in the dtype of the product, without their contents where that is another."""
    dtype = factor_dtype(x)
    given = {"x": x, "w": w}
    return {
        k: t if t.dtype is dtype else torch.empty_like(t, dtype=dtype) for k, t in given.items()
    }


def _variants(
    bound: Bound, factors: Mapping[str, Tensor], target: Target, wanted: frozenset[str]
) -> Iterator[Variant]:
    """The kernels of a call on a target, if one multiplies there: with `wanted`, of a gradient."""
    x, w = factors["x"], factors["w"]
    arguments = {**bound.operands, "training": bool(bound.dropout_slots)}
    if wanted:
        yield from gradient_variants(bound, wanted, x, w, arguments, target)
        return
    tiling = chosen(bound.op, x, w, arguments, target).tiling  # type: ignore[arg-type]
    planned = None if tiling is None else describe(bound, x, w, tiling, target)
    if planned is not None:
        yield from planned.variants


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
        if not (may_fuse if one.wanted else able)(epilogue):
            continue
        z, operands, options = one.read()
        for training in (True, False) if epilogue.dropouts else (True,):
            bound = epilogue.bind(z, {**operands, **options, "training": training})
            made = _variants(bound, factors, target, frozenset(one.wanted))
            found.update((each.key, each) for each in made)
    return list(found.values())
