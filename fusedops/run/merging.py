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


#: The layouts of calls whose reduced dimensions merge: finding that out takes longer than the call.
_merging: set[tuple[Any, ...]] = set()

#: The most layouts that are remembered.
_MOST_LAYOUTS = 1024


def _layout(options: Mapping[str, Any], x: Tensor, values: Sequence[Any]) -> tuple[Any, ...] | None:
    """All that decides whether reduced dimensions merge; None if the options are no tuples."""
    dims = options.get("dim"), options.get("normalized_shape")
    if not all(one is None or type(one) is tuple for one in dims):
        return None
    tensors = [one for one in (x, *values) if isinstance(one, Tensor)]
    return (*dims, *[(one.shape, one.stride()) for one in tensors])


def known_to_merge(options: Mapping[str, Any], x: Tensor, values: Sequence[Any]) -> bool:
    """Whether a call of this layout has been noted."""
    return _layout(options, x, values) in _merging


def note_that_merges(options: Mapping[str, Any], x: Tensor, values: Sequence[Any]) -> None:
    """Remember that the reduced dimensions of calls of this layout merge."""
    if (layout := _layout(options, x, values)) is not None:
        if len(_merging) >= _MOST_LAYOUTS:
            _merging.clear()
        _merging.add(layout)
