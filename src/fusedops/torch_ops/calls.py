# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of the operators of torch by name, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from fusedops.bind.scalars import check_draw, drops
from fusedops.declare.declaration import Declaration
from fusedops.declare.text import read

if TYPE_CHECKING:
    from fusedops.run.runnable import Runnable


class OpCall(NamedTuple):
    """A call of an op as its user has written it, whose names have been checked.

    Dynamo traces what reads it.
    """

    op: Runnable
    text: str  # the text of the op that is run, from which optional operands may have been left out
    x: Any  # the input
    operands: Mapping[str, Any]  # the operands by name, None for one that is left out
    options: Mapping[str, Any]  # the options by name
    reduced: tuple[int, ...]  # the dimensions of x that are reduced, none of them negative
    dtype: torch.dtype  # the dtype of y

    @property
    def draws(self) -> bool:
        """Whether some dropout acts."""
        return drops(self.op, {**self.operands, **self.options})


class ForwardCall(NamedTuple):
    """The arguments of ``forward``, in the order in which the operator takes them (`schema`)."""

    x: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int] | None
    draw: Tensor | None
    op: str
    dim: tuple[int, ...]
    dtype: torch.dtype
    keep: bool
    part_of: Sequence[int] | None = None

    @classmethod
    def of(cls, arguments: Sequence[Any]) -> ForwardCall:
        """Those among the arguments of an operator that has further ones after them."""
        return cls(*arguments[: len(cls._fields)])

    def placed(self, x: Any, draw: Any, part_of: Sequence[int] | None) -> ForwardCall:
        """The same call of another x, draw and part. Dynamo traces it, so names are listed."""
        return ForwardCall(
            x,
            self.tensors,
            self.names,
            self.numbers,
            self.counts,
            draw,
            self.op,
            self.dim,
            self.dtype,
            self.keep,
            part_of,
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that calls of one kind have in common: what is no tensor, no number, no size."""
        _, _, names, _, _, draw, op, dim, dtype, keep, part_of = self
        return (op, keep, dtype, draw is None, *names, None, *dim, None, *(part_of or ()))

    @property
    def called(self) -> Runnable:
        """The op, with the draw checked for it."""
        called: Runnable = read(self.op)
        if self.draw is not None:
            check_draw(called.name, self.draw, self.x)
        return called


class BackwardCall(NamedTuple):
    """The arguments of ``backward``, in the order in which the operator takes them (`schema`)."""

    upstream: Sequence[Tensor]
    outputs: Sequence[str]
    kept: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    sizes: Sequence[int]
    described: Sequence[str]
    numbers: Sequence[float]
    counts: Sequence[int]
    draw: Tensor | None
    op: str
    dim: tuple[int, ...]
    dtype: torch.dtype
    wanted: Sequence[str]
    part_of: Sequence[int] | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that calls of one kind have in common: sizes too, which a description has."""
        _, outputs, kept, _, names, sizes, described, *_, draw, op, dim, dtype, wanted, part = self
        texts = (*outputs, None, *names, None, *described, None, *wanted)
        # The statistics' shape is that of the rows, by which shards are described.
        numbers = (*dim, None, *sizes, None, *kept.shape, None, *(part or ()))
        return (op, dtype, draw is None, *texts, None, *numbers)


#: The name of a product's second factor, which is the first of the tensors of ``forward``.
FACTOR = "w"


def rows_of(call: ForwardCall) -> tuple[Runnable, ForwardCall]:
    """The op of rows that a call runs, and its call.

    Of a product that is the `Map` of what follows the product, which is its x and has no memory.
    """
    called = read(call.op)
    if isinstance(called, Declaration):
        return called, call  # type: ignore[return-value]
    op: Runnable = called.epilogue
    z = called.without_memory(call.x, call.tensors[0])
    return op, call._replace(x=z, tensors=call.tensors[1:], names=call.names[1:], op=op.text)


#: What torch calls these types. In a list of integers it takes symbols, in a tuple none.
_TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    Sequence[Tensor]: "Tensor[]",
    Sequence[str]: "str[]",
    Sequence[float]: "float[]",
    Sequence[int]: "SymInt[]",
    Sequence[int] | None: "SymInt[]?",
    tuple[int, ...]: "int[]",
    torch.dtype: "ScalarType",
    str: "str",
    bool: "bool",
}


def schema(call: Any) -> str:
    """The arguments of an operator in torch's language: the fields of a named tuple of these types.

    >>> class Call(NamedTuple):
    ...     x: Tensor
    ...     sizes: Sequence[int] | None = None
    >>> schema(Call)
    'Tensor x, SymInt[]? sizes=None'
    """
    left = call._field_defaults
    return ", ".join(
        f"{_TYPES[kind]} {name}{'=None' if name in left else ''}"
        for name, kind in get_type_hints(call).items()
    )


class Shapes(NamedTuple):
    """Dtypes and shapes of the tensors that a backward call does not read, by name.

    ``whole`` has them as they are described. Where tensors are sharded that is the shape of the
    whole tensor, since numbers are not sharded with it; ``local`` has those of the shards, which
    follow from the rows of the saved statistics: an operand has a row dimension in x's size or in
    size 1, and columns are never sharded.
    """

    whole: dict[str, tuple[torch.dtype, Any]]
    local: dict[str, tuple[torch.dtype, Any]]

    @staticmethod
    def whole_of(call: BackwardCall) -> dict[str, tuple[torch.dtype, Any]]:
        """As they are described."""
        return dict(_described(call.sizes, call.described))

    @classmethod
    def of(cls, call: BackwardCall) -> Shapes:
        """Those of a call."""
        whole = cls.whole_of(call)
        known = dict(zip(call.names, call.tensors, strict=True))
        dim = {*call.dim}
        x = known["x"].shape if "x" in known else whole["x"][1]
        rows = iter(call.kept.shape[:-1])
        here = [size if at in dim else next(rows) for at, size in enumerate(x)]
        called: Runnable = read(call.op)
        tables = called.tables
        local = {
            name: (dtype, shape if name in tables else _cut(shape, here))
            for name, (dtype, shape) in whole.items()
        }
        return cls(whole, local)


def pair_of(part_of: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The option of this name: sizes and first index apart; None if there are none."""
    if not part_of:
        return None
    half = len(part_of) // 2
    return tuple(part_of[:half]), tuple(part_of[half:])


def like(
    wanted: Sequence[str], known: Mapping[str, Tensor], shapes: Mapping[str, tuple[Any, Any]]
) -> list[tuple[torch.dtype, Any]]:
    """The dtype and shape of each gradient, which are those of its forward tensor."""
    return [
        (known[name].dtype, known[name].shape) if name in known else shapes[name] for name in wanted
    ]


def operands_of(
    op: Declaration,
    tensors: Sequence[Any],
    names: Sequence[str],
    numbers: Sequence[float],
    counts: Sequence[int],
) -> dict[str, Any]:
    """All operands of a call, by name."""
    given = {name: one for name, one in zip(names, tensors, strict=True) if name != "x"}
    return given | numbers_of(op, names, numbers, counts)


def numbers_of(
    op: Declaration, present: Sequence[str], numbers: Sequence[float], counts: Sequence[int]
) -> dict[str, Any]:
    """The operands that are no tensors, by name."""
    of_float, of_int = iter(numbers), iter(counts)
    return {
        name: next(of_int) if name in op.counted else next(of_float)
        for name in op.slots
        if name not in present
    }


def _cut(shape: Sequence[int], x: Sequence[int]) -> Any:
    """The shape of an operand's shard beside an x of this shape; sizes of 1 are broadcast."""
    of_x = x[len(x) - len(shape) :]
    cut = [_size(size, there) for size, there in zip(shape, of_x, strict=True)]
    return torch.Size(cut) if all(type(size) is int for size in cut) else tuple(cut)


def _size(size: Any, there: Any) -> Any:
    if type(size) is int:
        return size if size == 1 else there
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return size if free_unbacked_symbols(size) else there  # which may be a size of 1 when it runs


def _described(
    sizes: Sequence[int], described: Sequence[str]
) -> Iterator[tuple[str, tuple[torch.dtype, Any]]]:
    """Tensors that the backward pass does not read, by name: dtype and shape."""
    start = 0
    for entry in described:
        name, dtype, rank = entry.split()
        shape = sizes[start : start + int(rank)]
        start += int(rank)
        plain = all(type(size) is int for size in shape)
        yield name, (getattr(torch, dtype), torch.Size(shape) if plain else tuple(shape))
