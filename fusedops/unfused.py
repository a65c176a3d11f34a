# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run a declaration as a chain of plain torch calls: the same arguments, results and dropout mask.

Arithmetic is in the compute type (float32 for 16-bit inputs), as in the kernels, and each output is
rounded once. torch differentiates the chain as any other, twice if need be.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import Tensor

from fusedops.binding import Bound
from fusedops.functors import Dropout, Functor
from fusedops.random import keep_mask, keep_scale
from fusedops.runtime import draw

__all__ = ["Chain", "run"]


class Chain:
    """What functors may ask of a call. Tensors have the reduced dimensions last, as one."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.columns = bound.columns
        self._rows = [dim for dim in range(bound.x.dim()) if dim not in bound.reduced]
        self.queries = bound.x.shape[self._rows[-1]] if self._rows else 1
        self.saved: dict[str, Tensor] = {}
        self._slot = -1
        self._drawn: tuple[int, int] | None = None

    def arrange(self, tensor: Tensor) -> Tensor:
        """Move the reduced dimensions to the end and make them one."""
        bound = self._bound
        full = tensor[(None,) * (bound.x.dim() - tensor.dim())]
        if all(full.shape[dim] == 1 for dim in bound.reduced):
            moved = full.permute(*self._rows, *bound.reduced)
            return moved.reshape(*moved.shape[: len(self._rows)], 1)
        wide = list(full.shape)
        for dim in bound.reduced:
            wide[dim] = bound.x.shape[dim]
        moved = full.expand(wide).permute(*self._rows, *bound.reduced)
        return moved.reshape(*moved.shape[: len(self._rows)], self.columns)

    def restore(self, tensor: Tensor) -> Tensor:
        """Undo `arrange` for a tensor of x's size."""
        bound = self._bound
        order = [*self._rows, *bound.reduced]
        apart = tensor.reshape([bound.x.shape[dim] for dim in order])
        return apart.permute([order.index(dim) for dim in range(len(order))])

    def tensor(self, name: str) -> Any:
        """An operand as given, arranged; numbers as they are."""
        value = self._bound.operands[name]
        return self.arrange(value) if isinstance(value, Tensor) else value

    def value(self, name: str) -> Tensor | float:
        """A floating operand in the compute type."""
        value: Tensor | float = self.tensor(name)
        return value.to(self._bound.compute) if isinstance(value, Tensor) else value

    def column(self) -> Tensor:
        """The number of each column."""
        return torch.arange(self.columns, device=self._bound.x.device)

    def query(self) -> Tensor:
        """The number of each row's query, as a column."""
        return torch.arange(self.queries, device=self._bound.x.device)[:, None]

    def save(self, name: str, value: Tensor) -> Tensor:
        """Keep a value as an output; the chain goes on with what was kept."""
        rounded = value.to(self._bound.output_dtype(name))
        self.saved[name] = self.restore(rounded)
        return rounded.to(self._bound.compute)

    def dropout(self, functor: Dropout) -> tuple[Tensor, float]:
        """The elements that a dropout keeps, and their scale."""
        bound, x = self._bound, self._bound.x
        if self._drawn is None:
            count = sum(isinstance(f, Dropout) for f in (*bound.op.load, *bound.op.store))
            self._drawn = draw(x.device.type, x.device.index or 0, bound.generator, count)
        seed, offset = self._drawn
        p = bound.operands[functor.p]
        kept = keep_mask(
            tuple(x.shape),
            bound.reduced,
            seed=seed,
            offset=offset + self._slot,
            p=p,
            device=x.device,
        )
        return self.arrange(kept), keep_scale(p)

    def apply(self, side: str, functors: tuple[Functor, ...], value: Tensor) -> Tensor:
        """Run the functors that are not masks."""
        for place, functor in enumerate(functors):
            self._slot = self._bound.slots.get((side, place), -1)
            if not functor.masks:
                value = functor.apply(value, self)
        return value


def run(bound: Bound) -> dict[str, Tensor]:
    """The outputs of a call, by name."""
    chain = Chain(bound)
    names = bound.op.outputs
    value = chain.apply("load", bound.load, chain.arrange(bound.x).to(bound.compute))
    masks = [f.masked(chain) for f in bound.load if f.masks]
    if masks:
        # The union of the masks, last: a masked element leaves the row whatever stands after it.
        value = value.masked_fill(functools.reduce(operator.or_, masks), -torch.inf)
    if bound.columns == 0:
        result, statistics = value, {}
        rows = [bound.x.shape[dim] for dim in range(bound.x.dim()) if dim not in bound.reduced]
        statistics = {name: value.new_full(rows, torch.nan) for name in ("mean", "rstd")}
    else:
        result, statistics = bound.op.reference(value)
    result = chain.apply("store", bound.store, result)
    outputs = {"y": chain.restore(result).to(bound.dtype), **chain.saved, **statistics}
    results = {}
    for name in names:
        results[name] = outputs[name].contiguous()
        if name in bound.out:
            results[name] = bound.out[name].copy_(outputs[name])
    return results
