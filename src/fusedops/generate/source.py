# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Generate the source text of a kernel: C++ that only instantiates templates of the headers.

A kernel takes one struct, `Arguments`, whose members are the op, the views and the functors, in the
order of the declaration. The struct's text and its content come out of the same walk, on
`ArgumentWriter`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from fusedops.schedule.forward import HOST_BUFFERED
from fusedops.schedule.row_partition import FEW_ROWS
from fusedops.schedule.row_schedule import RESERVED_SHARED, Schedule, reserved_shared

__all__ = [
    "CUDA_LINKAGE",
    "HOST_LINKAGE",
    "Member",
    "Members",
    "Purpose",
    "Text",
    "cuda_source",
    "generated",
    "host_source",
    "of_side",
]

#: What a kernel does with a member of its argument: it is a functor of the LOAD or the STORE; it
#: receives the gradient of an operand; it is the number of rows between a prefetch and
#: its use, or of columns in an even chunk; it is the operator of a norm whose LOAD masks elements,
#: which are zero in y, or of a map whose LOAD does; or it has a place of its own among the kernel's
#: parameters.
Purpose: TypeAlias = (
    'Literal["functor", "target", "distance", "chunk", "masked", "masked map", "other"]'
)


class Member(NamedTuple):
    """One member of a kernel's argument."""

    cpp: str  # its C++ type
    name: str  # its C++ name
    purpose: Purpose = "other"  # what the kernel does with it
    #: Where the functor stands that the member is, or belongs to: "load" or "store"; "op" for the
    #: target of an operand of the operator itself.
    side: str = ""
    place: int = -1  # the index of that functor among those that act on its side
    #: Whether the functor's random draw lies in memory: a kernel then calls `drawn()` of it, once.
    drawn: bool = False
    sums: str = ""  # where a target keeps sums over rows: "registers", "shared" or "memory"
    masks: bool = False  # whether the functor is a mask

    @property
    def field(self) -> str:
        """The declaration of the member in the struct, a line of the generated source."""
        return f"  alignas(8) {self.cpp} {self.name};"


Members: TypeAlias = Sequence[Member]


def of_side(members: Iterable[Member], purpose: Purpose, side: str) -> list[Member]:
    """The members of one purpose and one side, in order."""
    return [one for one in members if one.purpose == purpose and one.side == side]


#: Linkage of the generated functions: they are looked up by name in a loaded binary.
CUDA_LINKAGE = 'extern "C"'
HOST_LINKAGE = 'extern "C" __attribute__((visibility("default")))'

#: C++ names of the values of `LaunchConfig.prefetch`, as in row/gradient.cuh.
_PREFETCH = {
    "never": "Prefetch::kNever",
    "per_thread": "Prefetch::kPerThread",
    "bulk": "Prefetch::kBulk",
    "per_line": "Prefetch::kPerLine",
    "across_rows": "Prefetch::kAcrossRows",
}


class Text(NamedTuple):
    """The C++ source of one variant, in its parts."""

    headers: tuple[str, ...]  # paths of the included headers, below fusedops/
    definitions: tuple[str, ...]  # source of operator and functors that no header holds
    #: The struct `Arguments` and the function that takes one; to be put into namespace fusedops, or
    #: where its names are visible.
    kernel: str
    #: Macros that are defined before the headers, where the kernel stands alone.
    macros: tuple[str, ...] = ()

    def __str__(self) -> str:
        macros = "".join(f"#define {name}\n" for name in self.macros)
        includes = "\n".join(f"#include <fusedops/{name}>" for name in self.headers)
        defined = "".join(f"{text}\n" for text in self.definitions)
        return f"{macros}{includes}\n\n{defined}using namespace fusedops;\n\n{self.kernel}"


def cuda_source(
    entry: str,
    members: Members,
    words: int,
    tile: Schedule,
    headers: Sequence[str],
    definitions: Sequence[str] = (),
) -> Text:
    """The source of one GPU variant, which has one kernel, `fusedops_kernel`.

    `entry` is "forward", "gradient" or "sums". `headers` are all that the text includes beside the
    kernel's own, those of functors among them, and `definitions` what no header holds; "sums" has
    neither. `members`, `words` and `tile`, a GPU's, are those of `Variant`.
    """
    prefetch = tile.launch.prefetch
    prefetches = str(prefetch != "never").lower()
    stages = str(tile.staged_bytes > 0).lower()
    relays = str(tile.launch.relay_handshake).lower()
    eager = str(tile.launch.eager_operands).lower()
    forward = (f"row_kernel<{tile.cpp}, {prefetches}, {stages}, {relays}>", "row/kernel.cuh")
    if tile.storage == "chunks":
        forward = (f"map_kernel<{tile.cpp}>", "row/map.cuh")
    gradient = (
        f"gradient_kernel<{tile.cpp}, {_PREFETCH[prefetch]}, {eager}{_rows_ahead(tile)}>",
        "row/gradient.cuh",
    )
    if tile.launch.abreast > 1:
        forward = (f"abreast_kernel<{tile.cpp}>", "row/abreast.cuh")
        gradient = (f"abreast_gradient_kernel<{tile.cpp}>", "row/abreast_gradient.cuh")
    called, header = {
        "forward": forward,
        "gradient": gradient,
        "sums": (
            f"all_column_sums<{_of_sums(tile)}>",
            "op/column_sums.cuh",
        ),
    }[entry]
    cluster = f" __cluster_dims__({tile.cluster}, 1, 1)" if tile.cluster > 1 else ""
    arguments = ["blockIdx.x"] * (entry == "sums") + _arguments(entry, members)
    return generated(
        members,
        words,
        [*headers, header, "core/dependency.cuh" if entry == "sums" else "row/beginning.cuh"],
        definitions,
        f"""\
#if defined(FUSEDOPS_BLOCKS)
inline constexpr int kBlocks = FUSEDOPS_BLOCKS;
#else
inline constexpr int kBlocks = {tile.min_blocks_per_sm};
#endif
{CUDA_LINKAGE} __global__ void __launch_bounds__({tile.threads_per_block}, kBlocks){cluster}
fusedops_kernel(const __grid_constant__ Arguments a) {{
  {_beginning(entry, members, tile)}
  {called}({_wrapped(arguments)});
}}
{"" if entry == "sums" else _shared_memory_checks(tile, members)}""",
    )


#: Values of a row per thread beyond which a kernel has no registers to spare where it begins: a
#: LayerNorm of 16384 columns of 16 bits took 84 us in place of 68 (one H200).
MOST_VALUES = 32

#: Bytes of rows up to which a branch where a kernel begins is felt: a softmax of 32 columns of 16
#: bits took 2.97 us in place of 2.93.
SHORT_BYTES = 128

#: Least and most bytes of a row where the first blocks of a large grid prefetch all of theirs:
#: RMSNorm and LayerNorm of 256 columns of 16 bits take 0.976 to 0.98 of their time so, of 128
#: columns 0.986 to 0.997.
PREFETCHED_FIRST = (256, 512)


def _beginning(entry: str, members: Members, tile: Schedule) -> str:
    """The first statement of a kernel: it waits for the previous one (row/beginning.cuh)."""
    if entry == "sums":
        # Few parts are those of a small computation, whose next kernel is small as well.
        return f"begin_after_previous(a.{members[0].name}.parts <= kFewBlocks);"
    # A kernel with a second stage follows one, which releases it before its end where there are few
    # rows. If they are of one warp, that was not measured: few of them are one block's.
    second_stage = any(one.sums for one in members) and tile.rows_per_block < FEW_ROWS
    waits = second_stage and tile.tile.threads <= 32
    # A map, which has no features, was not measured.
    short = tile.features is None or tile.features.row_bytes <= SHORT_BYTES
    if waits or short or tile.tile.registers(tile.compute_bytes) > MOST_VALUES:
        return "begin_after_previous();"
    even = next((f"a.{one.name}" for one in members if one.purpose == "chunk"), "0")
    abreast = tile.launch.abreast
    single = "SingleRows{}" if abreast == 1 else f"FirstAbreast<{abreast}>{{}}"
    rows = f"{single if entry == 'forward' else 'a.slices'}, a.rows, a.cols"
    given = any(one.name == "upstream" for one in members)
    views = "a.x, a.upstream" if given else "a.x"
    large = ""
    alone = tile.storage == "register" and abreast == 1
    if entry == "forward" and alone and tile.launch.prefetch == "never":
        least, most = PREFETCHED_FIRST
        assert tile.features is not None
        large = ", true" if least <= tile.features.row_bytes <= most else ""
    return f"begin_with_rows<{tile.cpp}{large}>(\n    a, {rows}, {even}, {views});"


def _of_sums(tile: Schedule) -> str:
    """The columns of a block, the threads of a column, and the columns of a thread if several."""
    numbers = [tile.width, tile.threads_per_block * tile.packs // tile.width, tile.packs]
    return ", ".join(str(one) for one in numbers[: 3 if tile.packs > 1 else 2])


def _rows_ahead(tile: Schedule) -> str:
    """The template arguments of a backward kernel that most schedules leave at their defaults."""
    launch = tile.launch
    flags: tuple[object, ...] = (launch.interleaved, tile.stages)
    if tile.leaves_in_words:
        flags += (True,)
    return "".join(f", {str(one).lower()}" for one in flags) if any(flags) else ""


def _load_of_ring(members: Members) -> list[Member]:
    """The members of the LOAD of a backward pass whose rows bulk copies bring."""
    x = [one for one in members if one.name == "x"]
    return x + of_side(members, "functor", "load")


def _shared_memory_checks(tile: Schedule, members: Members) -> str:
    """Assertions that the headers use as much shared memory as the schedule reserves."""
    checks = []
    if tile.staged_bytes:
        views = "decltype(Arguments::x), decltype(Arguments::y)"
        of_row = f"fusedops::detail::Stage<{tile.cpp}, {views}>::kBytes"
        of_rows = f"{of_row} * {tile.rows_per_block}"
        checks.append((f"{of_rows} == {tile.shared_bytes}", "row/staging.cuh"))
    elif tile.ring_bytes:
        types = ", ".join(f"decltype(Arguments::{name})" for name in ("upstream", "kept"))
        load = ", ".join(f"decltype(Arguments::{one.name})" for one in _load_of_ring(members))
        types = f"decltype(Arguments::op), Load<{load}>, {types}"
        of = f"{tile.stages}, {tile.cpp}, {types}"
        taken = f"fusedops::detail::Ring<{of}>::kBytes"
        if tile.leaves_in_words:
            taken += f" + fusedops::detail::Leaving<{tile.cpp}, decltype(Arguments::to)>::kBytes"
        checks.append((f"{taken} == {tile.ring_bytes}", "row/ring.cuh"))
    elif tile.storage == "shared":
        of_chunk = tile.shared_bytes // tile.chunks
        compute = "decltype(Arguments::op)::Compute"
        taken = f"fusedops::InShared::chunk_bytes<{tile.cpp}, {compute}>()"
        checks.append((f"{taken} == {of_chunk}", "row/storage.cuh"))
    if tile.shared_bytes or tile.ring_bytes or any(one.sums == "shared" for one in members):
        reserved = reserved_shared(tile.threads_per_block, tile.compute_bytes) - RESERVED_SHARED
        parts = f"fusedops::detail::Parts<{tile.cpp}, decltype(Arguments::op)>::kShared"
        checks.append((f"{parts} <= {reserved}", "row/combine.cuh"))
    return "".join(
        f'static_assert({check}, "row_schedule.py and {header} disagree");\n'
        for check, header in checks
    )


def host_source(
    entry: str,
    members: Members,
    words: int,
    most_columns: int,
    headers: Sequence[str],
    definitions: Sequence[str] = (),
) -> Text:
    """The source of one CPU variant: `fusedops_rows` over a range of rows, or of slices of rows.

    `most_columns` is as `host_columns` gives it; the other arguments are as for `cuda_source`.
    """
    storage = f"InRegisters, {most_columns}" if most_columns else "Streamed"
    schedule = f"HostSchedule<{storage}>"
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
    return generated(
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
    """Expressions for the kernel's arguments: LOAD and STORE each combine a view and functors."""

    def functors(side: str) -> list[str]:
        found = of_side(members, "functor", side)
        return [f"a.{one.name}{'.drawn()' if one.drawn else ''}" for one in found]

    def targets(*sides: str) -> str:
        found = [one for side in sides for one in of_side(members, "target", side)]
        return f"targets({', '.join(f'a.{one.name}' for one in found)})"

    masked = any(one.purpose == "masked" for one in members)
    last = ["NanForInfinity{}"] * masked
    if entry == "gradient" and any(one.purpose == "masked map" for one in members):
        last = ["FiniteForInfinity{}"]
    load = f"load({', '.join(['a.x', *functors('load'), *last])})"
    ahead = [f"a.{one.name}" for one in members if one.purpose == "distance"]
    even = [f"a.{one.name}" for one in members if one.purpose == "chunk"]
    if even and not ahead:
        ahead = ["0"]
    if entry == "forward":
        store = f"store({', '.join([*functors('store'), 'a.y'])})"
        if not any(one.name == "y" for one in members):
            store = "store(Absent{})"
        store += ".zero_where_masked()" * masked
        return ["a.op", load, store, "a.statistics", "a.rows", "a.cols", *ahead, *even]
    if entry == "gradient":
        store = f"store({', '.join([*functors('store'), 'Absent{}'])})"
        given = any(one.name == "upstream" for one in members)
        upstream = "a.upstream" if given else "a.op.upstream()"
        return [
            *("a.op", load, upstream, store, "a.kept", "a.to"),
            *(targets("load", "op"), targets("store"), "a.slices", "a.rows", "a.cols"),
            *(*ahead, *even),
        ]
    return [f"a.{one.name}" for one in members]


def _wrapped(arguments: Sequence[str]) -> str:
    return ",\n    ".join(arguments)


def generated(
    members: Members,
    words: int,
    headers: Sequence[str],
    definitions: Sequence[str],
    function: str,
) -> Text:
    """The parts of a source: the struct `Arguments` of the members, and the function."""
    fields = "\n".join(one.field for one in members)
    size = 8 * words
    kernel = f"""\
struct Arguments {{
{fields}
}};
static_assert(sizeof(Arguments) == {size}, "arguments.py and the headers disagree on a layout");

{function}"""
    defined = tuple(dict.fromkeys(text for text in definitions if text))
    return Text(tuple(dict.fromkeys(headers)), defined, kernel)
