# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate a kernel: C++ that only instantiates, and the words that are its one argument.

A kernel takes one struct whose members are the op, the views and the functors, in the order of the
declaration. Its text and its content come out of the same walk: every call on `Arguments` appends
the words of one member and returns the member's type. Types make the variant; words (strides,
sizes, pointers, numbers) are written anew for every shape, and some at every call.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from fusedops import _runtime
from fusedops.bind.geometry import Placed
from fusedops.schedule.forward import HOST_BUFFERED, Schedule

__all__ = [
    "CUDA_LINKAGE",
    "HOST_LINKAGE",
    "STORAGE",
    "Arguments",
    "Number",
    "Text",
    "View",
    "cuda_source",
    "host_source",
]

#: What the functions begin with: whoever loads a binary finds them by name.
CUDA_LINKAGE = 'extern "C"'
HOST_LINKAGE = 'extern "C" __attribute__((visibility("default")))'

#: C++ storage types of torch's.
STORAGE: dict[torch.dtype, str] = {
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "uint8_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
}


#: Type and name of each member of the kernel's argument.
Members: TypeAlias = Sequence[tuple[str, str]]


class Text(NamedTuple):
    """The C++ of one variant.

    Attributes:
        headers: Below fusedops/.
        definitions: Of functors that the headers do not hold.
        kernel: The struct `Arguments`, and the function that takes one; in namespace fusedops, or
            where its names are at hand.
    """

    headers: tuple[str, ...]
    definitions: tuple[str, ...]
    kernel: str

    def __str__(self) -> str:
        includes = "\n".join(f"#include <fusedops/{name}>" for name in self.headers)
        defined = "".join(f"{text}\n" for text in self.definitions)
        return f"{includes}\n\n{defined}using namespace fusedops;\n\n{self.kernel}"


class View(NamedTuple):
    """An operand that is a tensor.

    Attributes:
        patch: Where its pointer comes from at each call.
        shared: All rows read the same columns of it.
    """

    storage: str
    placed: Placed
    width: int
    patch: tuple[int, int]
    shared: bool


class Number(NamedTuple):
    """An operand that is a number, read from the slot at each call."""

    slot: int
    integer: bool = False


class Arguments:
    """Appends members to the kernel's argument and remembers their words.

    Attributes:
        compute: the C++ compute type, "float" or "double".
        rank: how many dimensions the rows have.
        queries, columns: for masks that are made from indices.
    """

    def __init__(
        self,
        *,
        compute: str,
        sizes: Sequence[int],
        columns: int,
        queries: int,
        operands: Mapping[str, View | Number],
        outputs: Mapping[str, View],
        query: Sequence[int],
        logical_row: Sequence[int],
        slots: Mapping[str, int],
        joining: Mapping[str, View] | None = None,
        drawn_in_memory: bool = False,
    ) -> None:
        self.compute = compute
        self.rank = len(sizes)
        self.columns = columns
        self.queries = queries
        self._operands = operands
        self._outputs = outputs
        self._joining = joining or {}
        self._query = query
        self._logical_row = logical_row
        self._slots = slots
        self._drawn_in_memory = drawn_in_memory
        self.dropout_slot = -1  # of the functor that is about to be spelled
        self._float_patch = _runtime.FLOAT32 if compute == "float" else _runtime.FLOAT64
        self._scale_patch = _runtime.KEEP_SCALE32 if compute == "float" else _runtime.KEEP_SCALE64
        self.words: list[int] = []
        self.patches: list[tuple[int, int, int]] = []

    def operand(self, name: str) -> str:
        """A tensor or a number given at the call."""
        given = self._operands.get(name)
        if given is None:
            return self.unread()
        if isinstance(given, View):
            return self.view(given)
        kind = _runtime.INT64 if given.integer else self._float_patch
        self._patched(kind, given.slot)
        return f"Value<{'int64_t' if given.integer else self.compute}>"

    def output(self, name: str) -> str:
        """A tensor that the kernel writes; in a gradient, one that the forward pass wrote."""
        return self.view(self._outputs[name]) if name in self._outputs else self.unread()

    def joining(self, name: str) -> str:
        """The gradient of a saved stream, which joins there on the way back."""
        view = self._joining.get(name)
        return self.absent() if view is None else self.view(view)

    def view(self, view: View) -> str:
        """Pointer, row strides, column stride."""
        storage, (rows, step), width, patch, shared = view
        self._patched(*patch)
        self.words += (0, step) if shared else (*rows, step)
        column = "kBroadcast" if step == 0 else "kContiguous" if step == 1 else "kStrided"
        return f"View<{storage}, {0 if shared else len(rows)}, Column::{column}, {width}>"

    def number(self, value: float) -> str:
        """A constant of the declaration, in the compute type."""
        layout = "<fxxxx" if self.compute == "float" else "<d"
        self.words.append(int.from_bytes(struct.pack(layout, value), "little", signed=True))
        return f"Value<{self.compute}>"

    def unread(self) -> str:
        """Stands for a tensor that a gradient does not read."""
        self.words.append(0)
        return "Unread"

    def pointer(self, patch: tuple[int, int] | None) -> None:
        """The address of a tensor, or of nothing."""
        if patch is None:
            self.words.append(0)
        else:
            self._patched(*patch)

    def absent(self) -> str:
        """Stands for a member that the declaration leaves out."""
        self.words.append(0)
        return "Absent"

    def constant(self, value: int) -> None:
        """A 64-bit integer."""
        self.words.append(value)

    def query_map(self) -> None:
        """The map from a row's coordinates to the number of its query."""
        self.words.extend(self._query)

    def dropout(self, p: str) -> str:
        """Seed, offset, threshold, scale and the map to the logical row."""
        slot = self._slots[p]
        if self._drawn_in_memory:
            self._patched(_runtime.DRAW, 0)
            self.words.append(self.dropout_slot)
        else:
            self._patched(_runtime.SEED, 0)
            self._patched(_runtime.OFFSET, self.dropout_slot)
        self._patched(_runtime.THRESHOLD, slot)
        self._patched(self._scale_patch, slot)
        self.words.extend(self._logical_row)
        kind = "DropoutFrom" if self._drawn_in_memory else "Dropout"
        return f"{kind}<{self.compute}, RowMap<{self.rank}>>"

    def rows(self, count: int, sizes: Sequence[int]) -> str:
        """The dimensions that rows run over."""
        self.words.append(count)
        if count >= 1 << 31 and self.rank > 1:  # too many for the 32-bit division
            self.words.extend(sizes[1:])
            return f"WideRowSpace<{self.rank}>"
        for size in sizes[1:]:
            shift = (size - 1).bit_length()
            multiplier = ((1 << 32) * ((1 << shift) - size)) // size + 1
            word = size | multiplier << 32
            self.words.append(word if multiplier < 1 << 31 else word - (1 << 64))
            self.words.append(shift)
        return f"RowSpace<{self.rank}>"

    def storage(self, dtype: torch.dtype) -> str:
        """The C++ type of a torch dtype."""
        return STORAGE[dtype]

    def pack(self) -> bytes:
        """The words as the kernel gets them."""
        return struct.pack(f"<{len(self.words)}q", *self.words)

    def _patched(self, kind: int, source: int) -> None:
        self.patches.append((len(self.words), kind, source))
        self.words.append(0)


def cuda_source(
    entry: str,
    members: Members,
    words: int,
    tile: Schedule,
    headers: Sequence[str],
    definitions: Sequence[str] = (),
) -> Text:
    """The text of one GPU variant, which has one kernel, `fusedops_kernel`."""
    asks = str(tile.asks != "never").lower()
    stages = str(tile.staged > 0).lower()
    leads = str(tile.leads).lower()
    ask = "Ask::k" + tile.asks.title().replace(" ", "")
    gathers = str(tile.gathers).lower()
    called, header = {
        "forward": (f"row_kernel<{tile.cpp}, {asks}, {stages}, {leads}>", "row/kernel.cuh"),
        "gradient": (f"gradient_kernel<{tile.cpp}, {ask}, {gathers}>", "row/gradient.cuh"),
        "sums": (
            f"all_column_sums<{tile.width}, {tile.block // tile.width}>",
            "op/column_sums.cuh",
        ),
    }[entry]
    cluster = f" __cluster_dims__({tile.cluster}, 1, 1)" if tile.cluster > 1 else ""
    arguments = ["blockIdx.x"] * (entry == "sums") + _arguments(entry, members)
    return _source(
        members,
        words,
        [*headers, header, "core/dependency.cuh"],
        definitions,
        f"""\
#if defined(FUSEDOPS_BLOCKS)
inline constexpr int kBlocks = FUSEDOPS_BLOCKS;
#else
inline constexpr int kBlocks = {tile.blocks};
#endif
{CUDA_LINKAGE} __global__ void __launch_bounds__({tile.block}, kBlocks){cluster}
fusedops_kernel(const __grid_constant__ Arguments a) {{
  begin_after_previous();
  {called}({_wrapped(arguments)});
}}
""",
    )


def host_source(
    entry: str,
    members: Members,
    words: int,
    kind: str,
    headers: Sequence[str],
    definitions: Sequence[str] = (),
) -> Text:
    """The text of one CPU variant: `fusedops_rows` over a range of rows, or of slices of them."""
    schedule = f"HostSchedule<{'Streamed' if kind == 'streaming' else 'InRegisters'}>"
    arguments = _wrapped(_arguments(entry, members))
    body, header = {
        "forward": (f"host_rows<{schedule}>({arguments}, begin, end);", "host/rows.cuh"),
        "gradient": (f"host_gradient<{schedule}>({arguments}, begin, end);", "host/gradient.cuh"),
        "sums": (
            f"for (; begin < end; ++begin) all_column_sums(begin, {arguments});",
            "op/column_sums.cuh",
        ),
    }[entry]
    check = f"""\
static_assert({schedule}::kBuffered == {HOST_BUFFERED}, "forward.py and host/rows.cuh disagree");

"""
    return _source(
        members,
        words,
        [*headers, header],
        definitions,
        f"""\
{check if entry != "sums" else ""}{HOST_LINKAGE}
void fusedops_rows(const void* words, int64_t begin, int64_t end) {{
  const Arguments& a = *static_cast<const Arguments*>(words);
  {body}
}}
""",
    )


def _arguments(entry: str, members: Members) -> list[str]:
    """What the kernel's members are to it: LOAD and STORE are made of a view and functors each."""

    def of(side: str, *, first: str = "", last: str = "") -> str:
        found = [
            f"a.{name}{'.drawn()' if kind.startswith('DropoutFrom') else ''}"
            for kind, name in members
            if name.startswith(side)
        ]
        return ", ".join(filter(None, [first, *found, last]))

    load = f"load({of('load', first='a.x')})"
    ahead = ["a.ahead"] if ("int64_t", "ahead") in members else []
    if entry == "forward":
        store = f"store({of('store', last='a.y')})"
        return ["a.op", load, store, "a.statistics", "a.rows", "a.cols", *ahead]
    if entry == "gradient":
        store = f"store({of('store', last='Absent{}')})"
        targets = [f"targets({of('of_load')})", f"targets({of('of_store')})"]
        return [
            *("a.op", load, "a.upstream", store, "a.kept", "a.to", *targets),
            *("a.slices", "a.rows", "a.cols", *ahead),
        ]
    return [f"a.{name}" for _, name in members]


def _wrapped(arguments: Sequence[str]) -> str:
    return ",\n    ".join(arguments)


def _source(
    members: Members,
    words: int,
    headers: Sequence[str],
    definitions: Sequence[str],
    function: str,
) -> Text:
    fields = "\n".join(f"  alignas(8) {kind} {name};" for kind, name in members)
    kernel = f"""\
struct Arguments {{
{fields}
}};
static_assert(sizeof(Arguments) == {8 * words}, "source.py and the headers disagree on a layout");

{function}"""
    defined = tuple(dict.fromkeys(text for text in definitions if text))
    return Text(tuple(dict.fromkeys(headers)), defined, kernel)
