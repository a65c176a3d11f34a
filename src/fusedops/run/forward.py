# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Make the plan of a call: place the operands, choose the schedule, generate, build, and pack.

A plan holds for shapes, strides and dtypes. The kernel it launches depends only on the types of its
argument's members, so a new shape of a known pattern finds that kernel and builds nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fusedops.bind.bind import KEPT, Bound
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import Number, View, kept_view
from fusedops.reference.unfused import run
from fusedops.run import single_length
from fusedops.run.contiguous import run_on_copies
from fusedops.run.fallback_arch import serve
from fusedops.run.forward_form import Call, written
from fusedops.run.outline import outline_of
from fusedops.run.placing import (
    columns_apart,
    parts_of,
    placed,
    placed_views,
    row_numbers,
)
from fusedops.run.planned import ForwardInfo, Planned
from fusedops.run.reading import USUAL, Hints, Reading, as_loaded, padded, rank_of
from fusedops.run.runnable import Runnable
from fusedops.schedule import Schedule, override
from fusedops.schedule import forward as schedule
from fusedops.schedule.independent import choose_map

if TYPE_CHECKING:
    from fusedops.run.observer import Observer

__all__ = [
    "ForwardInfo",
    "Variant",
    "check_columns",
    "describe",
    "make_plan",
    "resolve",
]

#: The most elements for which a call on a CPU uses one thread only. Two threads against one,
#: residual LayerNorm in float32: 16384 elements 10 us against 11, 32768 elements 12 against 28.
HOST_INLINE = 16384

#: Elements that a CPU thread takes at a time: 16 threads then share 65536 elements among all.
HOST_GRAIN = 4096

#: The most columns of a row in a GPU kernel, which counts them in 32 bits.
MOST_COLUMNS = 2**31 - 1


def make_plan(op: Runnable, bound: Bound, shape: Sequence[int] | None = None) -> Any:
    """Return the plan of a call that the C++ path has not seen, or, if none fits, the result.

    `shape` is that of the plan's outputs of x's size, if not x's: of as many elements.
    """
    shapes = [bound.output_shape(name) for name in bound.outputs]
    if shape is not None:
        own = tuple(bound.x.shape)
        shapes = [tuple(shape) if one == own else one for one in shapes]
    outputs = [
        (bound.output_dtype(name), one) for name, one in zip(bound.outputs, shapes, strict=True)
    ]
    cleared = [place for place, name in enumerate(bound.outputs) if name in op.maxima]
    if bound.x.numel() == 0:
        if bound.columns == 0 and any(name in op.statistics for name in op.outputs):
            return op.wrap(run(bound))  # rows without columns have statistics
        return Planned((), outputs, _draws(bound), None, cleared=cleared).build()
    if len(bound.reduced) > 1 and columns_apart(bound):
        assert not bound.keep, "who trains makes the copies, since a backward pass reads them"
        return run_on_copies(op, bound)
    observer = op.observer
    info, calls = serve(
        bound.x.device,
        functools.partial(_built, bound, op.hints, observer),
        functools.partial(observer.of_call, bound),
    )
    launches = (info.launch(_grain(info.geometry.rows, info.geometry.columns)),)
    return Planned(launches, outputs, info.draws, info.schedule, cleared=cleared).build(calls)


def _built(
    bound: Bound, hints: Hints, observer: Observer, target: Target
) -> tuple[ForwardInfo, int]:
    """Notify the observer of a call, build its kernel, and return what the call runs.

    The second element says after how many calls to make the plan again (`single_length`).
    """
    observer.notify(
        functools.partial(observer.of_call, bound),
        lambda other: [describe(bound, other).variant],
        target,
    )
    info = resolve(bound, target, hints)
    info.variant.kernel()
    return info, single_length.calls_until_next(info, _single(bound, target, info))


def _grain(rows: int, columns: int) -> int:
    """The rows that a CPU thread takes at a time; all rows where the calling thread runs alone."""
    return rows if rows * columns <= HOST_INLINE else max(1, HOST_GRAIN // columns)


def resolve(bound: Bound, target: Target, hints: Hints | None = None) -> ForwardInfo:
    """Return what a call runs: its own variant, or that of another reading that is loaded."""
    info = as_loaded(bound, hints, functools.partial(describe, bound, target))
    return single_length.replaced(info, _single(bound, target, info))


def _single(bound: Bound, target: Target, info: ForwardInfo) -> Callable[[], ForwardInfo]:
    """Describes the call with a kernel for its row length alone."""
    return functools.partial(describe, bound, target, info.reading, single=True)


def describe(
    bound: Bound,
    target: Target | None = None,
    reading: Reading = USUAL,
    single: bool = False,
) -> ForwardInfo:
    """Place the operands, choose the schedule and generate the variant, without building anything.

    `target` is x's device by default. `single`: with a kernel for this row length alone, if the row
    is cut into chunks.
    """
    op, x = bound.op, bound.x
    target = target or Target.of(x.device)
    outline = outline_of(bound)
    inputs, outputs = parts_of(bound, outline, reading.vectors)
    drawn = row_numbers(bound, outline)
    parts = [*inputs.values(), *outputs.values()]
    geometry = placed(bound, parts, drawn)
    geometry = padded(geometry, reading.rank or rank_of(outline.broadcasts, geometry.sizes))
    columns = max(geometry.columns, 1)
    tile, streams = None, "many"
    forced, gpu = override.current(), target.gpu
    if gpu is None:
        kind, width = schedule.choose_host(columns, forced.storage), 0
    else:
        check_columns(op.name, columns)
        streams = outline.streams
        row = schedule.Row(
            columns=columns,
            element_bytes=x.element_size(),
            compute_bytes=bound.compute.itemsize,
            dropout=len(bound.dropout_slots) > 0,
            streams=streams,
            centred=op.centred,
            single=single,
        )
        if op.reduces:
            tile = schedule.choose(row, target.arch, gpu, forced.storage, forced.forward)
        else:
            tile = choose_map(row, gpu, forced.storage, forced.forward)
        kind, width = tile.storage, tile.width
    operands, views = placed_views(bound, inputs, outputs, geometry.placed, width, columns)
    if KEPT in views:
        views[KEPT] = kept_view(views[KEPT], op.kept, width)
    stages = op.reduces and streams != "many"
    if tile is not None and gpu is not None and gpu.bulk_copies and stages:
        tile = _staged(bound, tile, operands["x"], views["y"], gpu.shared_limit)
    call = Call(bound, geometry, operands, views, geometry.placed[len(parts) :], drawn, tile)
    members, count, words, patches = written(call)
    variant = Variant(
        arch=target.arch,
        schedule=kind,
        tile=tile,
        members=members,
        words=count,
        op=op.kernels,
        headers=tuple(op.headers()),
        load=bound.load,
        store=bound.store,
        dtype=x.dtype,
        declaration=op.declaration,
        definitions=op.definitions,
        translated=target.translated,
        most_columns=0 if tile is not None else schedule.host_columns(kind, columns),
    )
    return ForwardInfo(
        schedule=kind,
        tile=tile,
        geometry=geometry,
        operands=operands,
        outputs=views,
        variant=variant,
        words=words,
        patches=patches,
        draws=_draws(bound),
        reading=reading,
    )


def _staged(
    bound: Bound,
    tile: Schedule,
    x: View | Number,
    y: View,
    shared_limit: int,
) -> Schedule:
    assert isinstance(x, View)
    if x.placed[1:] != (1, 1) or y.placed[1:] != (1, 1):  # columns apart, or shared
        return tile.replaced(staged_bytes=0) if tile.staged_bytes else tile
    sizes = (bound.x.element_size(), bound.output_dtype("y").itemsize)
    own = min(size * min(tile.width, 16 // size) for size in sizes)
    access = min(x.width * sizes[0], y.width * sizes[1])
    return schedule.staged(tile, own, access, max(sizes), shared_limit)


def check_columns(name: str, columns: int) -> None:
    """Raise UnsupportedError for rows of more columns than a GPU kernel counts in 32 bits."""
    if columns > MOST_COLUMNS:
        raise UnsupportedError(
            f"{name}: rows of {columns} columns, a GPU kernel holds at most {MOST_COLUMNS}; "
            f"compute on the CPU, or use {UNFUSED}"
        )


def _draws(bound: Bound) -> int:
    """The number of dropouts that draw: all or none, so that each has its own offset."""
    return bound.op.dropouts if bound.dropout_slots else 0
