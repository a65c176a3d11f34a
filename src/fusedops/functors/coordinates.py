# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The position of an element in x, for functions that are made into functors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from torch import Tensor

from fusedops.errors import UnsupportedError, shortened

__all__ = ["position"]

#: The coordinates that the function which runs now is given, by dimension; None where none runs.
_given: ContextVar[Mapping[int, Tensor] | None] = ContextVar("_given", default=None)


class NotGiven(Exception):  # noqa: N818 (not an error: it tells the tracer what to give)
    """A function that is traced asks for coordinates that it was not given.

    Attributes:
        dim: The dimension whose coordinates it asks for.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(f"position({dim}) was not given")
        self.dim = dim


def position(dim: int) -> Tensor:
    """The coordinate of the element along a dimension of x, in a function made into a functor.

    It stands in functions that `fusedops.functor` decorates, and nowhere else. With
    ``position(-1)`` for keys and ``position(-2)`` for queries, masks and biases can be computed
    from indices, and no tensor is read for them.

    >>> import torch, fusedops as fo
    >>> @fo.functor
    ... def nearer(x, slope):
    ...     distance = fo.position(-2) - fo.position(-1)
    ...     return x - slope * distance.abs().to(x.dtype)
    >>> fo.Softmax(load=[nearer("slope")])(torch.zeros(2, 2), slope=1.0)
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])

    Args:
        dim: A dimension of the x that the op is called with, counted from 0, or from the end where
            negative. It may be one that the op reduces.

    Returns:
        A tensor of int64. Arithmetic with it and with other integers is that of int64.

    Raises:
        TypeError: dim is no int.
        UnsupportedError: It is called outside of such a function.
    """
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"position: dim must be an int, a dimension of x, got {shortened(dim)}")
    given = _given.get()
    if given is None:
        raise UnsupportedError(
            "position: it stands in a function that fusedops.functor decorates, where the kernel "
            "knows where in x an element is; outside use torch.arange"
        )
    if dim not in given:
        raise NotGiven(dim)
    return given[dim]


@contextlib.contextmanager
def positions(given: Mapping[int, Tensor]) -> Iterator[None]:
    """In the block, `position` returns these coordinates, by dimension."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)
