# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What there is to tune of a call of an `MLP`: its layers, and the gradient between them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, floating
from fusedops.product.choice import bind_store, gradient_reads_product
from fusedops.product.factors import factor_dtype
from fusedops.product.linear import Linear
from fusedops.product.mlp import MLP
from fusedops.tuning.tuner import Part, tune_gradient, tune_product

__all__ = ["parts"]


def parts(
    op: MLP,
    factors: Sequence[Tensor],
    arguments: Mapping[str, Any],
    *,
    forward: bool = True,
    backward: bool = True,
) -> list[Part]:
    """What there is to tune of a call; where one kernel cannot run a part, tuning that says why.

    Args:
        op: The declaration.
        factors: x, w1 and w2; they may have no memory.
        arguments: The operands and options of the call.
        forward: Whether to tune both layers where no gradient is wanted.
        backward: Whether to tune what a call that wants all gradients runs otherwise: the first
            layer, which keeps its product, and the gradient between the products.

    Raises:
        TypeError, ValueError: The call does not fit.
    """
    x, w1, w2 = factors
    op.check(x, w1, w2)
    h = torch.empty((*x.shape[:-1], w1.shape[0]), dtype=factor_dtype(x), device=x.device)
    first, second = (
        _layer(layer.that_adds(pair[1], own), *pair, own)
        for layer, pair, own in zip(
            op.layers, ((x, w1), (h, w2)), op.shared(arguments), strict=True
        )
    )
    epilogue = first.op.epilogue
    found = []
    if forward:
        found += [first.part("first layer"), second.part("second layer")]
    if backward:
        wanted = [k for k in floating(first.bound.operands) if k not in epilogue.undifferentiated]
        if not epilogue.forward_only and gradient_reads_product(epilogue, {"x", *wanted}):
            found.append(first.part("first layer, keeping its product", keeps=True))
        dy = h.new_empty((*h.shape[:-1], w2.shape[0]))
        call = epilogue, first.bound, {"x": dy, "w": w2}, wanted
        gradient = functools.partial(tune_gradient, *call, options=first.options)
        found.append(Part("gradient between the products", gradient))
    return found


def _layer(op: Linear, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> _Layer:
    return _Layer(op, bind_store(op.epilogue, x, w, arguments), x, w, arguments)


class _Layer(NamedTuple):
    op: Linear
    bound: Bound
    x: Tensor
    w: Tensor
    arguments: Mapping[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        return {key: one for key, one in self.arguments.items() if key not in self.op.slots}

    def part(self, name: str, *, keeps: bool = False) -> Part:
        call = self.op, self.bound, {"x": self.x, "w": self.w}
        return Part(name, functools.partial(tune_product, *call, options=self.options, keeps=keeps))
