# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What there is to tune of recorded calls: the products, and the gradients between two of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from fusedops.declare.text import read
from fusedops.prebuild.recording import Signature
from fusedops.product import MLP, Linear, Matmul
from fusedops.product.epilogue import Epilogue
from fusedops.product.single import SingleProduct
from fusedops.tuning.tuner import Part, tune_gradient, tune_product

__all__ = ["parts"]


def parts(
    signatures: Iterable[Signature],
    *,
    training: bool = True,
    forward: bool = True,
    backward: bool = True,
) -> list[Part]:
    """What there is to tune of calls that have been recorded; of those without factors, nothing.

    Args:
        signatures: The signatures of any calls.
        training: Whether dropouts drop.
        forward: Whether to tune products.
        backward: Whether to tune gradients between two products.

    Raises:
        TypeError, ValueError, UnsupportedError: A signature is that of a call that would raise so.
    """
    found = []
    for number, one in enumerate(signatures, 1):
        if one.factors and (backward if one.wanted else forward):
            found.append(_part(one, number, training))
    return found


def _part(one: Signature, number: int, training: bool) -> Part:
    chain = read(one.op)
    functors = (*chain.load, *chain.store)
    z, operands, given = one.read()
    options = {"training": training, **{k: v for k, v in given.items() if k == "dtype"}}
    factors = one.read_factors()
    if one.wanted:
        epilogue = Epilogue(MLP.__name__, functors)
        bound = epilogue.bind(z, {**operands, **options})
        call = epilogue, bound, factors, frozenset(one.wanted) - {"x"}
        gradient = functools.partial(tune_gradient, *call, options=options)
        return Part(f"call {number}, gradient between products", gradient)
    op = (Linear if factors["w"].dim() == 2 else Matmul)(functors)
    bound = op.epilogue.bind(z, {**operands, **options})
    kept = _that_keeps_nothing(op)
    product = functools.partial(
        tune_product, kept or op, bound, factors, options=options, keeps=kept is not None
    )
    return Part(f"call {number}, product", product)


def _that_keeps_nothing(op: SingleProduct) -> SingleProduct | None:
    """The layer that was run as one that keeps its product, if this is such a one."""
    at = int(op.has_added is not None)
    if not any(one.saves for one in op.store[at : at + 1]):
        return None
    plain = type(op)([*op.store[:at], *op.store[at + 1 :]])
    return plain if plain.that_keeps() == op else None
