# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run a call on contiguous copies where its reduced dimensions do not merge into one column stride.

Where instead the row dimensions are too many for a kernel, the caller has to make the copies, of a
tensor that `plan.placing` names.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.dimensions import arranged, order, restored
from fusedops.bind.scalars import read_ints
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor
from fusedops.run.runnable import Runnable


def reduces_several(op: Runnable, options: Mapping[str, Any]) -> bool:
    """Whether more than one dimension is reduced."""
    given = ((key, options.get(key)) for key in ("dim", "normalized_shape"))
    return any(len(read_ints(op.name, key, value)) > 1 for key, value in given if value is not None)


#: The most layouts that an op remembers.
_MOST_LAYOUTS = 1024


def _layout(options: Mapping[str, Any], x: Tensor, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """All that decides whether an op's reduced dimensions merge; None of options but tuples."""
    dims = options.get("dim"), options.get("normalized_shape")
    if not all(one is None or isinstance(one, tuple) for one in dims):
        return None
    given = (x, *values)
    return (*dims, *[(t.shape, t.stride()) if isinstance(t, Tensor) else None for t in given])


def known_to_merge(
    op: Runnable, options: Mapping[str, Any], x: Tensor, values: Sequence[Any]
) -> bool:
    """Whether a call of the op of this layout has been noted."""
    return _layout(options, x, values) in op.merging


def note_that_merges(
    op: Runnable, options: Mapping[str, Any], x: Tensor, values: Sequence[Any]
) -> None:
    """Remember that the reduced dimensions of calls of this layout merge.

    Finding that out takes longer than the call. Of other ops it says nothing: where a table lies
    beside x is not where a bias would.
    """
    if (layout := _layout(options, x, values)) is not None:
        if len(op.merging) >= _MOST_LAYOUTS:
            op.merging.clear()
        op.merging.add(layout)


def options(bound: Bound) -> dict[str, Any]:
    """The options by name with which the call on copies computes what the given call means."""
    rank = bound.x.dim()
    dim = tuple(range(rank - len(bound.reduced), rank))
    dims = order(rank, bound.reduced)
    part_of = bound.whole and tuple(tuple(one[dim] for dim in dims) for one in bound.whole)
    return {**bound.options, "dim": dim, "part_of": part_of}


def copies(bound: Bound) -> tuple[Tensor, dict[str, Any]]:
    """Contiguous copies of x and of the tensor operands, with the reduced dimensions last.

    Returns:
        The copy of x, and the operands by name; numbers are as given.
    """

    def dense(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return arranged(value, bound.x.shape, bound.reduced).contiguous()

    operands = bound.operands.items()
    return dense(bound.x), {k: v if k in bound.tables else dense(v) for k, v in operands}


def run_on_copies(op: Runnable, bound: Bound) -> Any:
    """Run a call on contiguous copies, and return its result in x's order of dimensions.

    Outputs of the shape of x are copied back, and so are those that the call gave in out. `explain`
    lists all these copies.
    """
    dense, operands = copies(bound)
    results = _arranged_op(op, order(bound.x.dim(), bound.reduced))(
        dense, **operands, **options(bound)
    )
    names = op.outputs
    tensors = dict(zip(names, [results] if len(names) == 1 else results, strict=True))
    for name, tensor in tensors.items():
        if tensor.dim() == dense.dim():
            tensors[name] = restored(tensor, bound.reduced).contiguous()
        if name in bound.out:
            tensors[name] = bound.out[name].copy_(tensors[name])
    return op.wrap(tensors)


def _arranged_op(op: Runnable, dims: Sequence[int]) -> Runnable:
    """The op for an x whose dimensions come in another order: dimension i of its x is dims[i].

    Raises:
        UnsupportedError: A functor reads coordinates, whose dimensions it alone can name.
    """
    reading = [functor for functor in (*op.load, *op.store) if functor.positions]
    if reading and [*dims] != sorted(dims):
        raise UnsupportedError(
            f"{op.name}: {reading[0]!r} reads positions along dimensions of x, which this call "
            "would have to copy into another order; movedim the reduced dimensions to the end and "
            "make x contiguous, or use op.unfused"
        )
    if not any(functor.shares for functor in (*op.load, *op.store)):
        return op
    return _moved(op, tuple(dims))


@functools.lru_cache(maxsize=1024)
def _moved(op: Runnable, dims: tuple[int, ...]) -> Runnable:
    def moved(functor: Functor) -> Functor:
        if not functor.shares:
            return functor
        return functor.sharing([dims.index(dim % len(dims)) for dim in functor.shares])

    load, store = ([moved(one) for one in side] for side in (op.load, op.store))
    made: Runnable = op.of(load, store)
    return made
