# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient between the products of an `MLP`, for which the fastest implementation is sought."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.generate.target import Target
from fusedops.product.autograd import W2, between_products, why_kept
from fusedops.product.choice import Choice
from fusedops.product.epilogue import Epilogue
from fusedops.product.product_backward import ProductBackward, explained, features_of
from fusedops.testing.pairs import compare_backward
from fusedops.tuning import clock
from fusedops.tuning.implementations import ImplementationProblem, elements_to_check
from fusedops.tuning.inputs import fewer_rows, fewer_rows_of_factor, filled

__all__ = ["GradientProblem"]

#: What dropouts start from: those of a backward pass are drawn again, not anew.
DRAWN = (5, 64)


class GradientProblem(ImplementationProblem):
    """A backward call of what stands between two products, on a GPU.

    The gradient of w2 is checked, since it is made of the hidden tensor, and not timed: it is one
    product more, whatever runs the rest.

    Args:
        epilogue: What made h of z.
        bound: Its checked call on z; its tensors may have no memory.
        factors: The gradient of y as "x", of shape (..., N), and w2 as "w", of shape (N, H).
        wanted: The operands whose gradients are wanted.
        device: The GPU.
        options: The options of the call.
    """

    cure: ClassVar[str] = "tune the layers alone, with --no-backward"

    def __init__(
        self,
        epilogue: Epilogue,
        bound: Bound,
        factors: Mapping[str, Tensor],
        wanted: Collection[str],
        device: torch.device,
        options: Mapping[str, Any],
    ) -> None:
        dy, w = factors["x"], factors["w"]
        arguments = {**bound.operands, **options}
        found = features_of(epilogue, dy, w, arguments, Target.of(device))
        names = {"x", *wanted}
        epilogue.check_differentiable()
        if why := why_kept(epilogue, (*sorted(names),), bound.operands, bound.x.numel()):
            found = Choice(None, why)
        super().__init__(epilogue.name, found, device)
        self._epilogue, self._wanted = epilogue, sorted(names)
        numbers = {k: v for k, v in arguments.items() if not isinstance(v, Tensor)}
        self._others = {**numbers, **({"generator": DRAWN} if bound.dropout_slots else {})}
        self._gradient = ProductBackward(epilogue, frozenset(wanted))
        self._between = functools.partial(
            between_products, epilogue, lambda _: self._gradient, self._others
        )
        z, operands = fewer_rows(bound, elements_to_check(bound))
        fewer = {"x": fewer_rows_of_factor(dy, z, 1), "w": w}
        call = self._call(fewer, {"x": z, **operands})
        self._comparison = compare_backward(
            epilogue, self._between, self._others, *call, [W2, *self._wanted]
        )
        whole = {"x": bound.x, **bound.operands}
        written = bound.x, bound.x  # the gradient of z, and h
        tensors = [one for one in (dy, w, *whole.values(), *written) if isinstance(one, Tensor)]
        count = clock.sets(sum(one.numel() * one.element_size() for one in tensors))
        self._sets = [self._call(factors, whole) for _ in range(count)]

    def _calls(self) -> list[clock.Call]:
        return [functools.partial(self._between, *call, self._wanted) for call in self._sets]

    def _why(self) -> str:
        if not self._gradient.able:
            return "one kernel for both could not be had, as a warning said"
        dy, w, tensors = self._sets[0]
        arguments = {**{k: v for k, v in tensors.items() if k != "x"}, **self._others}
        wanted = frozenset(self._wanted) - {"x"}
        return explained(self._epilogue, wanted, dy, w, tensors["x"], arguments).why

    def _call(
        self, factors: Mapping[str, Any], values: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Tensors for a call: the gradient of y, w2, and z and what else h was made of."""
        given = self._filled(factors)
        tensors = {k: v for k, v in values.items() if isinstance(v, Tensor)}
        return given["x"], given["w"], filled(tensors, self.features.columns, self._device)
