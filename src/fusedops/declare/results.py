# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Named tuples that ops return, and their registration as types of exported programs.

A result with outputs that a declaration names itself, such as a saved stream, has a class that is
made for these outputs (`declare.declaration`). The classes here are those that annotations name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Iterator

    class Result(Tensor, Any):  # type: ignore[misc]
        """The result of a call for type checkers: a tensor, or a named tuple of tensors.

        The arguments of a declaration decide which of the two it is. So this is a tensor whose
        further attributes and whose elements are tensors, and Any among its bases makes it fit
        where one of the named tuples is asked for.
        """

        mean: Any  # names of outputs that are methods of a tensor
        norm: Any

        def __iter__(self) -> Iterator[Tensor]: ...
        def __getattr__(self, name: str) -> Tensor: ...


class SoftmaxResult(NamedTuple):
    """The result of a softmax with ``lse=True``.

    Attributes:
        y: The result, of x's shape.
        lse: The logsumexp of each row, of x's shape without the reduced dimension.
    """

    y: Tensor
    lse: Tensor


class ProbsResult(NamedTuple):
    """The result of a softmax that taps its weights as ``probs``, before a dropout, say.

    Attributes:
        y: The result, of x's shape.
        probs: The weights before what follows the tap, of x's shape.
    """

    y: Tensor
    probs: Tensor


class ProbsLseResult(NamedTuple):
    """The result of a softmax that taps its weights as ``probs``, with ``lse=True``.

    Attributes:
        y, probs: As of `ProbsResult`.
        lse: As of `SoftmaxResult`.
    """

    y: Tensor
    probs: Tensor
    lse: Tensor


class NormResult(NamedTuple):
    """The result of a LayerNorm or RMSNorm with ``stats=True``.

    Attributes:
        y: The result, of x's shape.
        mean: What was subtracted from each row.
        rstd: What each row was multiplied by.
    """

    y: Tensor
    mean: Tensor
    rstd: Tensor


class L2NormResult(NamedTuple):
    """The result of an `L2Norm` with ``stats=True``.

    Attributes:
        y: The result, of x's shape.
        norm: The norm of each row.
    """

    y: Tensor
    norm: Tensor


class StreamResult(NamedTuple):
    """The result of a norm that saves its residual stream under the name ``stream``.

    Attributes:
        y: The result, of x's shape.
        stream: What was normalised, of x's shape and the residual's dtype.
    """

    y: Tensor
    stream: Tensor


#: The classes above by their fields.
known_results: Mapping[tuple[str, ...], Any] = {
    each._fields: each
    for each in (
        SoftmaxResult,
        ProbsResult,
        ProbsLseResult,
        NormResult,
        L2NormResult,
        StreamResult,
    )
}


def register(kind: Any, name: str) -> None:
    """Name a class of results in the programs that torch.export saves.

    A program that returns one is loaded where the class is registered: for outputs that a
    declaration names, where an op with outputs of these names has been declared.
    """
    _pytree._register_namedtuple(kind, serialized_type_name=f"fusedops.{name}")


for _each in known_results.values():
    register(_each, _each.__name__)
