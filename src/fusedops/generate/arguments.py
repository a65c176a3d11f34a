# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Write the one argument of a kernel: the C++ types of its members, and their 64-bit words.

Every call on `ArgumentWriter` appends the words of one member and returns the member's C++ type.
The types determine the kernel variant; the words (strides, sizes, pointers, numbers) are written
anew for every shape. Some change at every call: a patch (relocation) tells the runtime which word
to fill in, and from what.

A walk over a declaration that is given a `Symbol` in the place of each number of a call writes a
`Recipe`, which says where that number goes, so that one walk serves many calls. A symbol can be
moved and multiplied, and nothing else: whoever compares, adds or writes one into text raises
TypeError, so a type that depends on a number cannot be taken for one that does not.
"""

from __future__ import annotations

import itertools
import math
import operator
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from fusedops import _runtime
from fusedops.bind.tables import SeenTable
from fusedops.generate.views import STORAGE, Number, OtherHalf, View


class Symbol:
    """A placeholder for a size or stride that each call fills in.

    Attributes:
        at: Its index among the numbers of the call.
        times: What it is multiplied by.
    """

    __slots__ = ("at", "times")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, at: int, times: int = 1) -> None:
        self.at = at
        self.times = times

    def __mul__(self, times: int) -> Symbol:
        if type(times) is not int:
            return NotImplemented
        return Symbol(self.at, self.times * times)

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __bool__(self) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __str__(self) -> NoReturn:
        raise TypeError("a symbol has no value")

    def __format__(self, spec: str) -> NoReturn:
        raise TypeError("a symbol has no value")


def known(values: Sequence[Any], numbers: Sequence[int]) -> tuple[int, ...]:
    """The values of symbols in a call; numbers stay as they are."""
    return tuple([numbers[one.at] * one.times if type(one) is Symbol else one for one in values])


def divider(size: int) -> tuple[int, int]:
    """The two words of a `Divider`, which divides by `size` in 32 bits."""
    shift = (size - 1).bit_length()
    multiplier = ((1 << 32) * ((1 << shift) - size)) // size + 1
    word = size | multiplier << 32
    return word if multiplier < 1 << 31 else word - (1 << 64), shift


class Recipe:
    """The bytes of a kernel's argument with placeholders for sizes and strides.

    Args:
        words: The words, two at least, each a number or a symbol.
        dividers: Where a `Divider` of a number of the call begins, as pairs of the index of its
            first word and of the number.
    """

    def __init__(self, words: Sequence[Any], dividers: Sequence[tuple[int, int]]) -> None:
        symbols = [word for word in words if isinstance(word, Symbol)]
        self._constants = [word for word in words if not isinstance(word, Symbol)]
        self._products = [(one.at, one.times) for one in symbols if one.times != 1]
        self._dividers = dividers
        self._layout = struct.Struct(f"<{len(words)}q")
        constant, product = itertools.count(), itertools.count(len(self._constants))
        first = len(self._constants) + len(self._products)

        def place(word: Any) -> int:
            """Where a word is among constants, products and then the numbers of a call."""
            if not isinstance(word, Symbol):
                return next(constant)
            return first + word.at if word.times == 1 else next(product)

        self._in_order = operator.itemgetter(*map(place, words))

    def fill(self, numbers: Sequence[int]) -> bytes:
        """The words of a call with these numbers, as the bytes that the kernel takes."""
        products = [numbers[at] * times for at, times in self._products]
        words = self._in_order([*self._constants, *products, *numbers])
        if self._dividers:
            words = [*words]
            for index, at in self._dividers:
                words[index : index + 2] = divider(numbers[at])
        return self._layout.pack(*words)


#: The least number of rows that are too many to be divided in 32 bits.
MANY_ROWS = 1 << 31


class RowMaps(NamedTuple):
    """Maps from rows and columns to the query and position indices that functors read."""

    query: Sequence[int] = ()  # the strides of the rows that give the number of a row's query
    #: Those that give its number in the dropout contract, by the shared dimensions.
    drawn_rows: Mapping[tuple[int, ...], Sequence[int]] = {}
    #: Those that give its coordinate, by the dimension of x.
    positions: Mapping[int, Sequence[int]] = {}
    #: The dimensions of x that make a row, each with its size.
    columns: Sequence[tuple[int, int]] = ()
    rank: int = 0  # the number of x's dimensions


class ArgumentWriter:
    """Appends members to the kernel's argument and remembers their words and patches.

    Attributes:
        compute: The C++ compute type, "float" or "double".
        rank: Number of row dimensions.
        queries, columns: Numbers of queries and of columns, for masks that are made from indices.
        first_query: The number of x's first query; not 0 only where x is a part of a tensor.
        dropout_slot: Dropout number of the functor that is emitted next; -1 if it draws nothing.
        shared: The dimensions of x along which that functor has one draw, the key of its map from
            rows to their numbers in the dropout contract.
        shares_columns: Whether it has one draw for all columns of a row.
        drawn_in_memory: Whether seed and offset are read from a tensor, as in a captured graph.
        words: The content of the argument so far, in 64-bit words; a `Symbol` where a number of the
            call is left open.
        patches: Words to fill in at each call, as (index of the word, kind, source).
    """

    def __init__(
        self,
        *,
        compute: str,
        sizes: Sequence[int],
        columns: int = 0,
        queries: int = 0,
        first_query: int = 0,
        operands: Mapping[str, View | Number | OtherHalf] | None = None,
        outputs: Mapping[str, View] | None = None,
        maps: RowMaps | None = None,
        tables: Mapping[str, SeenTable] | None = None,
        table_columns: Mapping[str, int] | None = None,
        slots: Mapping[str, int] | None = None,
        output_gradients: Mapping[str, View] | None = None,
        drawn_in_memory: bool = False,
        first_rows: Mapping[tuple[int, ...], int] | None = None,
        in_order: bool = False,
    ) -> None:
        self.compute = compute
        self._in_order = in_order  # of the tensor, so that the dimension of the queries is known
        self.rank = len(sizes)
        self.columns = columns
        self.queries = queries
        self.first_query = first_query
        self._operands = operands or {}
        self._outputs = outputs or {}
        self._output_gradients = output_gradients or {}
        self._maps = maps or RowMaps()
        self._tables = tables or {}
        self._table_columns = table_columns or {}
        self._first_rows = first_rows
        self._slots = slots or {}
        self.drawn_in_memory = drawn_in_memory
        self.dropout_slot = -1  # of the functor that is emitted next
        self.shared: tuple[int, ...] = ()
        self.shares_columns = False
        self._float_patch = _runtime.FLOAT32 if compute == "float" else _runtime.FLOAT64
        self._scale_patch = _runtime.KEEP_SCALE32 if compute == "float" else _runtime.KEEP_SCALE64
        self.words: list[int] = []
        self.patches: list[tuple[int, int, int]] = []
        self._dividers: list[tuple[int, int]] = []

    def operand(self, name: str) -> str:
        """Append an operand given at the call, a tensor or a number."""
        given = self._operands.get(name)
        if given is None:
            return self.unread()
        if isinstance(given, View):
            return self.view(given)
        if isinstance(given, OtherHalf):
            self.words.append(0)
            return f"gemm::OtherHalf<{given.storage}>"
        kind = _runtime.INT64 if given.integer else self._float_patch
        self._patched(kind, given.slot)
        return f"Value<{'int64_t' if given.integer else self.compute}>"

    def columns_of(self, name: str) -> int:
        """How many columns a table of a functor that reads a partner column has."""
        return self._table_columns[name]

    def output(self, name: str) -> str:
        """Append a tensor the kernel writes; in a gradient, one that the forward pass wrote."""
        return self.view(self._outputs[name]) if name in self._outputs else self.unread()

    def of_blocks(self, name: str, layout: str) -> str:
        """Append a tensor of one number for each block of columns, which are its columns."""
        storage, (rows, step, _), _, patch, _ = self._outputs[name]
        # Written one by one: with their strides, so that one type serves any number of blocks.
        if patch is not None:
            self.patches.append((len(self.words), *patch))
        self.words += (0, *rows, step)
        if layout == "tiles":
            return f"TiledView<{storage}, {len(rows)}>"
        return f"View<{storage}, {len(rows)}, Column::kStrided, 1>"

    def output_gradient(self, name: str) -> str:
        """Append the gradient of a saved stream, which the backward pass adds at that place."""
        view = self._output_gradients.get(name)
        return self.absent() if view is None else self.view(view)

    def view(self, view: View) -> str:
        """Append a tensor view: pointer, row strides and column stride, in elements."""
        storage, (rows, step, repeats), width, patch, shared = view
        words, rank = self.words, 0 if shared else len(rows)
        if patch is not None:
            self.patches.append((len(words), *patch))
        words += (0, 0, step) if shared else (0, *rows, step)  # the first word is the pointer
        if repeats > 1:
            if width:
                self._divider(repeats)
            else:
                words += (repeats, 0)  # on a CPU, where rows may have any number of columns
            return f"RepeatedView<{storage}, {rank}, {width}>"
        column = "kBroadcast" if step == 0 else "kContiguous" if step == 1 else "kStrided"
        return f"View<{storage}, {rank}, Column::{column}, {width}>"

    def number(self, value: float) -> str:
        """Append a constant of the declaration, in the compute type."""
        layout = "<fxxxx" if self.compute == "float" else "<d"
        self.words.append(int.from_bytes(struct.pack(layout, value), "little", signed=True))
        return f"Value<{self.compute}>"

    def unread(self) -> str:
        """Append a placeholder for a tensor that a gradient does not read."""
        self.words.append(0)
        return "Unread"

    def pointer(self, patch: tuple[int, int] | None) -> None:
        """Append the address of a tensor, or a null pointer."""
        if patch is None:
            self.words.append(0)
        else:
            self._patched(*patch)

    def absent(self) -> str:
        """Append a placeholder for a member that the declaration leaves out."""
        self.words.append(0)
        return "Absent"

    def constant(self, *values: int) -> None:
        """Append 64-bit integers."""
        self.words += values

    def query_map(self) -> str:
        """Append the map from a row's coordinates to its query index."""
        query = [*self._maps.query]
        if self._in_order and sorted(query) == [0] * (len(query) - 1) + [1]:
            self.words.append(0)
            return f"CoordinateMap<{query.index(1)}>"
        self.words.extend(query)
        return f"RowMap<{self.rank}>"

    def table(self, name: str) -> str:
        """Append a table's first entry, the number of entries and the step between them."""
        kind = self.operand(name)
        table = self._tables[name]
        self.words += (table.entries, table.step)
        return kind

    def position(self, dim: int) -> str:
        """Append the coordinate along a dimension of x."""
        dim %= self._maps.rank
        columns = self._maps.columns
        reduced = [one for one, _ in columns]
        if dim not in reduced:
            self.words.extend(self._maps.positions[dim])
            return f"RowPosition<{self.rank}>"
        if len(columns) == 1:
            self.words.append(0)
            return "ColumnPosition"
        at = reduced.index(dim)
        self.words += (math.prod(size for _, size in columns[at + 1 :]), columns[at][1])
        return "PartOfColumnPosition"

    def dropout(self, p: str) -> str:
        """Append a dropout: seed, offset, threshold, scale and the map to the logical row.

        `p` is the name of its probability.
        """
        slot = self._slots[p]
        if self.drawn_in_memory:
            self._patched(_runtime.DRAW, 0)
            self.words.append(self.dropout_slot)
        else:
            self._patched(_runtime.SEED, 0)
            self._patched(_runtime.OFFSET, self.dropout_slot)
        self._patched(_runtime.THRESHOLD, slot)
        self._patched(self._scale_patch, slot)
        self.words.extend(self._maps.drawn_rows[self.shared])
        rows = f"RowMap<{self.rank}>"
        if self._first_rows is not None:
            self.words.append(self._first_rows[self.shared])
            rows = f"PartRowMap<{self.rank}>"
        kind = "DropoutFrom" if self.drawn_in_memory else "Dropout"
        one_a_row = ", true" if self.shares_columns else ""
        return f"{kind}<{self.compute}, {rows}{one_a_row}>"

    def rows(self, count: int, sizes: Sequence[int]) -> str:
        """Append the row count and the row dimensions, with reciprocals for 32-bit division."""
        self.words.append(count)
        few = isinstance(count, Symbol)  # whoever leaves the number open knows that
        if not few and count >= MANY_ROWS and self.rank > 1:  # too many for the 32-bit division
            self.words.extend(sizes[1:])
            return f"WideRowSpace<{self.rank}>"
        for size in sizes[1:]:
            self._divider(size)
        return f"RowSpace<{self.rank}>"

    def storage(self, dtype: torch.dtype) -> str:
        """The C++ type of a torch dtype."""
        return STORAGE[dtype]

    def pack(self) -> bytes:
        """The words as the bytes that the kernel takes, little-endian."""
        return struct.pack(f"<{len(self.words)}q", *self.words)

    def recipe(self) -> Recipe:
        """The words where some are symbols, to be packed for any numbers in their places."""
        return Recipe(self.words, self._dividers)

    def _divider(self, size: int) -> None:
        """Append a `Divider`, which divides by `size` in 32 bits."""
        if isinstance(size, Symbol):
            self._dividers.append((len(self.words), size.at))
            self.words += (0, 0)
        else:
            self.words += divider(size)

    def _patched(self, kind: int, source: int) -> None:
        self.patches.append((len(self.words), kind, source))
        self.words.append(0)
