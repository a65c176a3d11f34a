# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A product and its STORE, for which the fastest implementation is sought."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.generate.target import Target
from fusedops.product.choice import Choice, able, features_of
from fusedops.product.single import SingleProduct
from fusedops.schedule.architectures import PRODUCT_KERNELS
from fusedops.testing.comparison import compare_forward
from fusedops.tuning import clock
from fusedops.tuning.implementations import ImplementationProblem, elements_to_check
from fusedops.tuning.inputs import fewer_rows, fewer_rows_of_factor

__all__ = ["ProductProblem"]


class ProductProblem(ImplementationProblem):
    """A call of a `Linear` or a `Matmul` on a GPU that wants no gradient, or keeps the product.

    Args:
        op: The declaration.
        bound: The checked call of its STORE on the product; its tensors may have no memory.
        factors: x and w, of shape (..., N, K), which may have none.
        device: The GPU.
        options: The options of the call.
        keeps: Whether the product is kept for a gradient that reads it.
    """

    cure: ClassVar[str] = (
        "one kernel is for functors after a product of float16 or bfloat16 on an "
        f"{' or '.join(PRODUCT_KERNELS)} GPU, and what two run needs no tuning"
    )

    def __init__(
        self,
        op: SingleProduct,
        bound: Bound,
        factors: Mapping[str, Tensor],
        device: torch.device,
        options: Mapping[str, Any],
        *,
        keeps: bool = False,
    ) -> None:
        x, w = factors["x"], factors["w"]
        arguments = {**bound.operands, **options}
        op = op.that_adds(op.turned(w), arguments)
        self.op, self._options = op, options
        self._compared = op.that_keeps() if keeps else op
        self._run: Callable[..., Any] = functools.partial(_keeping, op) if keeps else op
        found = features_of(self._compared.epilogue, x, w, arguments, Target.of(device))
        if not able(op.epilogue):
            found = Choice(None, "its functors make 8 bits")
        elif op.alone(x, arguments):
            found = Choice(None, "torch's product alone runs it")
        super().__init__(op.name, found if isinstance(found, Choice) else found[0], device)
        self._draws = bool(bound.dropout_slots)
        z, operands = fewer_rows(bound, elements_to_check(bound))
        fewer = {"x": fewer_rows_of_factor(x, z, 1), "w": fewer_rows_of_factor(w, z, 2)}
        given = self._filled({**fewer, **operands})
        pair = given.pop("x"), op.turned(given.pop("w"))
        given |= dict(zip(op.inputs, pair, strict=True))
        self._comparison = compare_forward(self._compared, given, options, self._run)
        whole = {"x": x, "w": w, **bound.operands}
        tensors = [one for one in (*whole.values(), bound.x) if isinstance(one, Tensor)]
        count = clock.sets(sum(one.numel() * one.element_size() for one in tensors))
        self._sets = [self._filled(whole) for _ in range(count)]

    @property
    def _clock(self) -> Callable[[Sequence[clock.Call]], float]:
        # A draw from torch's generator cannot be captured in a graph.
        return clock.queue_seconds if self._draws else clock.graph_seconds

    def _calls(self) -> list[clock.Call]:
        calls: list[clock.Call] = []
        for given in self._sets:
            factors, arguments = self._call(given)
            calls.append(functools.partial(self._run, *factors, **arguments))
        return calls

    def _why(self) -> str:
        factors, arguments = self._call(self._sets[0])
        return self._compared.choice(*factors, arguments).why

    def _call(self, given: Mapping[str, Any]) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
        """The factors, as the op is given them, and operands and options."""
        operands = {name: one for name, one in given.items() if name not in ("x", "w")}
        return (given["x"], self.op.turned(given["w"])), {**operands, **self._options}


def _keeping(op: SingleProduct, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
    """A call that keeps the product, with the outputs of the layer that has it as a stream."""
    z, made = op.run_keeping(first, second, arguments)
    y, *others = (made,) if isinstance(made, Tensor) else made
    return (y, z, *others)
