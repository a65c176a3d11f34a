# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of a `GroupedLinear` that want gradients: by one kernel, which writes the product as well.

It does so where the gradient of the STORE reads the product. autograd sees a product and a STORE,
whatever made their results.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Delegate, Plan, Reason
from fusedops.bind.generator import draw
from fusedops.errors import FusedOpsError
from fusedops.plan.saved_tensors import needed
from fusedops.product.choice import as_multiplied
from fusedops.product.factors import as_factor, factor_dtype, wants_gradient
from fusedops.product.group_checks import OFFSETS, check_groups
from fusedops.product.grouped_product import ends_of, grouped_product, product_of_tokens
from fusedops.product.grouped_store import stored
from fusedops.product.kernel_or_torch import left_to_torch
from fusedops.product.torch_op import are_plain
from fusedops.torch_ops.tracing import is_plain

if TYPE_CHECKING:
    from fusedops.product.grouped_store import OfGroups
    from fusedops.product.routing import Route

__all__ = ["GroupedTraining"]


class GroupedTraining:
    """The calls of an op that want gradients.

    Args:
        op: The op.
        slots: The arguments of a call by name, each with the flags of what it may be given.
    """

    def __init__(self, op: OfGroups, slots: Sequence[tuple[str, int]]) -> None:
        self._op = op
        #: Whether the gradients of these names read the product.
        self._reading: dict[frozenset[str], bool] = {}
        drawing = functools.partial(draw, op=op.title)
        #: Gives the outputs and then the product, or None where no kernel makes both.
        self._keeping = _runtime.Dispatcher(
            op.title, slots, self._slow, drawing, tuple, label=op.epilogue.label
        )

    def run(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call whose factors have been checked."""
        return self._run(first, second, arguments)

    def of_tokens(
        self, x: Tensor, rows: Tensor, w: Tensor, way: Route, arguments: dict[str, Any]
    ) -> Any:
        """Run a call whose rows are tokens, whose gradient a kernel writes token by token.

        Args:
            x: The tokens.
            rows: The tokens in the order of the groups.
            w: A matrix for each group.
            way: Where the rows come from.
            arguments: Operands and options.

        Returns:
            What the call returns; None where it wants no gradients, or is traced or transformed.
        """
        tensors = (x, w, *(one for one in arguments.values() if isinstance(one, Tensor)))
        if x.is_meta or torch._C._len_torch_function_stack() or not is_plain():
            return None
        if not are_plain(tensors) or not wants_gradient(tensors):
            return None
        arguments = {**arguments, OFFSETS: way.offsets}
        self._op.check(rows, w)
        check_groups(self._op, rows, w, arguments)
        return self._run(rows, w, arguments, (x, way))

    def _run(
        self,
        first: Tensor,
        second: Tensor,
        arguments: dict[str, Any],
        source: tuple[Tensor, Route] | None = None,
    ) -> Any:
        op, empty = self._op, not first.numel() or not second.numel()
        if empty or op.alone(first, arguments) or arguments.get("out") is not None:
            return op.run_apart(first, second, **arguments)
        known = {**arguments, **dict.fromkeys(op.of_product, first)}
        if op.epilogue.lacking(known):  # the gradient of a STORE has all operands
            return op.run_apart(first, second, **arguments)
        made, z = self._made(first, second, arguments)
        if made is None and op.halves is None:
            return op.run_apart(first, second, **arguments)
        dtype = factor_dtype(first)
        x, w = first.to(dtype), as_factor(second, dtype)
        offsets = arguments.pop(OFFSETS)
        if source is None:
            ends = ends_of(offsets, first.shape[0], second.shape[0])
            z = grouped_product(x, w, ends, z)
        else:
            tokens, way = source
            ends = way.ends
            z = product_of_tokens(tokens.to(dtype), x, w, way, z)
        try:
            outputs = stored(op, z, ends, arguments, made)
        except FusedOpsError:
            raise
        except (TypeError, ValueError):
            value, arguments = op.read_by_store(z, op.by_row(arguments, ends, z.shape[0]))
            op.check_broadcast(op.epilogue, value, arguments)
            raise
        return outputs[0] if len(outputs) == 1 else op.epilogue.result_type._make(outputs)

    def reads_product(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether the gradient of a call reads the product, or a half of it."""
        op = self._op
        wanted = {name for name in op.epilogue.slots if wants_gradient((arguments.get(name),))}
        if wants_gradient((first, second)):
            wanted |= {"x", *op.of_product}
        found = self._reading.get(frozenset(wanted))
        if found is None:
            reads = needed(op.epilogue, wanted)
            found = bool(wanted) and (reads.x or not reads.operands.isdisjoint(op.of_product))
            self._reading[frozenset(wanted)] = found
        return found

    def _made(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> tuple[Sequence[Tensor] | None, Tensor | None]:
        """The outputs and the product by one kernel; None of both where no kernel makes both.

        A product that the gradient does not read has no memory, and its outputs are made as those
        of a call without gradients.
        """
        op = self._op
        if not first.is_cuda or op.dropouts:
            return None, None
        op.epilogue.check_differentiable()
        keeps = self.reads_product(first, second, arguments)
        with torch.no_grad():
            x, w = as_multiplied(first, second)
            if keeps:
                found = self._keeping(x, w=w, **arguments)
                return (None, None) if found is None else (found[:-1], found[-1])
            y = op(x, w, **arguments)
        z = x.new_empty((1, 1)).expand(x.shape[0], w.shape[1])
        return (y,) if isinstance(y, Tensor) else tuple(y), z

    def _slow(
        self, reason: Reason, first: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Plan | Delegate | None:
        if reason is not Reason.MISS:
            return None
        second = operands.pop("w")
        arguments = {**operands, **options}
        tiling = self._op.chosen(first, second, arguments, keeps=True).tiling
        made = None
        if tiling is not None:
            made = self._op.plan_of(first, second, arguments, tiling, keeps=True)
        return made or left_to_torch()
