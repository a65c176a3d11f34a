# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the reduced dimensions of a call merge into one, remembered by its tensors' layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.bind.scalars import read_ints

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable

__all__ = ["known_to_merge", "note_that_merges", "reduces_several"]


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
