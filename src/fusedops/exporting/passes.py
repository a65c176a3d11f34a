# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The call to export, and its passes: their parameters, their launches, their workspace.

The facts are those that a plan is made of. Where rows have one dimension, their number is a
parameter, and what follows from it is an expression in place of a number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import KEPT, Bound, bind, floating
from fusedops.bind.dimensions import read_positions
from fusedops.bind.geometry import Geometry
from fusedops.declare.options import parted
from fusedops.errors import UnsupportedError
from fusedops.exporting.parameters import Parameter, Parameters
from fusedops.generate.target import Target
from fusedops.plan import forward, placing
from fusedops.plan.backward_schedule import in_one_block
from fusedops.plan.planned import Launch, Planned
from fusedops.plan.reading import ANY_ROWS, EXACT
from fusedops.plan.saved_tensors import joining_name, saved_name
from fusedops.plan.second_stage import argument_of
from fusedops.plan.wanted_gradients import WantedGradients
from fusedops.row_op import RowOp
from fusedops.run.gradient import Gradient, described
from fusedops.schedule.backward import resident_rows
from fusedops.schedule.row_partition import HOST_SLICE

_HELPERS = "exported::"

#: A kernel's argument begins with the number of rows.
_ROWS = (0, "rows")


class ExportedLaunch(NamedTuple):
    """One kernel of a pass."""

    launch: Launch  # the launch of a plan, whose rows and grid are those of the example
    writes: tuple[tuple[int, str], ...]  # which word of the argument gets which value at each call
    total: str  # how many rows, slices or sums there are, an expression
    grid: str  # blocks, an expression
    cluster: int = 1  # blocks of a cluster


class ExportedPass(NamedTuple):
    """One exported function: parameters, kernel launches, workspace."""

    kind: str  # "forward" or "backward"
    parameters: tuple[Parameter, ...]  # without those for stream, rows and workspace
    launches: tuple[ExportedLaunch, ...]  # one after another
    rows: int | None  # how many, or None where they are a parameter
    #: An expression for the slices of a backward pass whose rows are a parameter.
    slices: str | None = None
    pieces: tuple[str, ...] = ()  # bytes of each piece of the workspace, expressions
    #: Rows from which on sums over them are made as the op makes them: in parts. Of fewer it has
    #: other kernels, and a compiler may fuse another multiply-add there.
    fewest: int = 0


#: Options that belong to one call, not to what is exported.
_OF_A_CALL = ("out", "generator", "part_of")


def exported_call(op: RowOp, x: Any, arguments: Mapping[str, Any]) -> Bound:
    """Check the call, of tensors of which only shape, strides and dtype count.

    Raises:
        TypeError, ValueError: As a call of the op raises.
        UnsupportedError: No single kernel runs such a call.
    """
    for key in _OF_A_CALL:
        if arguments.get(key) is not None:
            raise TypeError(f"export: {key} belongs to a call, not to what is exported; leave it")
    operands, options = parted(arguments)
    bound = bind(op, _meta(x), {key: _meta(value) for key, value in operands.items()}, options)
    if bound.x.numel() == 0:
        raise ValueError(
            f"export: x must have elements, got shape {tuple(bound.x.shape)}: there is no kernel "
            "for none"
        )
    if placing.columns_apart(bound):
        raise UnsupportedError(
            f"export: {op.name} over dimensions {bound.reduced} runs on copies of operands whose "
            "reduced dimensions do not lie one constant step apart; make x and its operands dense, "
            "with the reduced dimensions last"
        )
    return bound


def gradient_of(bound: Bound, wanted: Collection[str] | bool) -> Gradient | None:
    """The backward pass to export: all gradients, the named ones, or None.

    Saved streams and differentiable statistics have gradients that come in; all of them.

    Raises:
        ValueError: A name that has no gradient.
        UnsupportedError: The op has no derivative.
    """
    if wanted is False:
        return None
    op = bound.op
    if op.forward_only:
        raise UnsupportedError(
            f"export: {op.forward_only[0]!r} has no derivative, so {op.name} has none; pass "
            "backward=False, or give the functor one"
        )
    if op.quantized is not None:
        raise UnsupportedError(
            f"export: the y of {op.store[-1]!r} has no gradient; pass backward=False, and export "
            f"the backward pass of {op.differentiated!r}"
        )
    able = ["x", *floating(bound.operands)]
    names = able if wanted is True else list(wanted)
    for name in names:
        if name not in able:
            raise ValueError(
                f"export: backward must name what has a gradient, {', '.join(able)}, got {name!r}"
            )
    if not names:
        return None
    return Gradient(op.differentiated, frozenset(names), frozenset(op.joining))


def _meta(value: Any) -> Any:
    """A tensor without memory: its pointer counts as aligned, which exported functions check."""
    if not isinstance(value, Tensor):
        return value
    if value.layout is not torch.strided:
        raise TypeError(f"export: tensors must be dense and strided, got layout {value.layout}")
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def forward_pass(bound: Bound, target: Target) -> ExportedPass:
    """The pass that a call of the op runs."""
    planned = forward.describe(bound, target, EXACT)
    fixed = not _any_rows(bound, planned.geometry)
    if not fixed:
        planned = forward.describe(bound, target, ANY_ROWS)
    (launch,), tile, rows = planned.launches, planned.tile, planned.geometry.rows
    parameters = Parameters()
    parameters.tensor(0, "x", bound.x)
    for name, slot in bound.op.slots.items():
        _operand(parameters, slot, name, bound)
    for number, name in enumerate(bound.outputs):
        if name == KEPT and not bound.op.kept:
            continue
        called = "kept" if name == KEPT else name
        shape, dtype = bound.output_shape(name), bound.output_dtype(name)
        parameters.output(number, called, dtype, shape, _note(bound, name))
    blocks = 1 if tile is None else tile.rows_per_block * tile.launch.abreast
    cluster, apart = (1, 1) if tile is None else (tile.cluster, tile.blocks_per_row)
    exported = ExportedLaunch(
        launch,
        (*parameters.writes(launch.patches), *([] if fixed else [_ROWS])),
        str(rows) if fixed else "rows",
        f"{_HELPERS}blocks({rows if fixed else 'rows'}, {blocks}, {apart})",
        cluster,
    )
    used = parameters.used(launch.patches)
    return ExportedPass("forward", used, (exported,), rows if fixed else None)


def backward_pass(bound: Bound, gradient: Gradient, target: Target) -> ExportedPass:
    """The pass that makes these gradients.

    Raises:
        UnsupportedError: A gradient would have to be summed by the caller.
    """
    dy, given, options = described(bound, gradient)
    planned = gradient.describe(dy, given, options, target, reading=EXACT)
    fixed = planned is None or not _any_rows(bound, planned.geometry)
    if not fixed:
        planned = gradient.describe(dy, given, options, target, split=True, reading=ANY_ROWS)
    if planned is None:
        raise UnsupportedError(
            f"export: the gradients of {bound.op.name} over dimensions {bound.reduced} would be "
            "made on copies; make x and its operands dense, with the reduced dimensions last"
        )
    _check_sums(bound, gradient, planned)
    parameters = _backward_parameters(bound, gradient, planned, dy, given)
    first, *second = planned.launches
    results, tile, rows = planned.results, planned.tile, planned.geometry.rows
    total = str(first.rows) if fixed else "slices.per_span"
    pieces: list[str] = []
    returned = len(gradient.names)
    for number, (dtype, (parts, wide)) in enumerate(results.outputs[returned:], returned):
        parameters.scratch(number, f"piece{len(pieces)}")
        size = f"{_share(planned, total, parts, number)} * {wide * dtype.itemsize}"
        pieces.append(f"{_HELPERS}piece({size})")
    lanes = 1 if tile is None else tile.rows_per_block
    cluster, apart = (1, 1) if tile is None else (tile.cluster, tile.blocks_per_row)
    open_words = [] if fixed else [_ROWS, *_slices(first.words)]
    writes = (*parameters.writes(first.patches), *open_words)
    launches = [ExportedLaunch(first, writes, total, _blocks(total, lanes, apart), cluster)]
    for sums in second:
        shares = [
            _share(planned, total, parts, number)
            for (_, number), parts in results.parts_of.values()
        ]
        call = planned.call
        at = argument_of(call.views, results.parts_of, results.pieces_of, call.compute).parts_at
        parts_of = [] if fixed else list(zip(at, shares, strict=True))
        writes = (*parameters.writes(sums.patches), *parts_of)
        launches.append(ExportedLaunch(sums, writes, str(sums.rows), str(sums.grid)))
    return ExportedPass(
        "backward",
        parameters.used([patch for one in planned.launches for patch in one.patches]),
        tuple(launches),
        rows if fixed else None,
        None if fixed else _cut(planned, target),
        tuple(pieces),
        0 if fixed or not pieces else _fewest(planned),
    )


def _note(bound: Bound, name: str) -> str:
    """What the caller of an exported function has to know of an output."""
    if name in bound.op.maxima:
        return "; the maximum joins what is there: zero it first"
    if name in bound.op.of_blocks and bound.op.store[-1].block_layout == "tiles":
        return "; what no row or block has is not written: zero it first"
    return ""


def _any_rows(bound: Bound, geometry: Geometry) -> bool:
    """Whether the kernel serves any number of rows, with all else as in the example.

    Functors that compare queries with keys know how many queries there are. One row does not say
    how far the next is.
    """
    leading = bound.reduced[0] == bound.x.dim() - len(bound.reduced)
    dims = read_positions(bound.op, bound.x.dim())
    told_apart = bound.op.causal or bool({*dims} - {*bound.reduced})
    if bound.op.of_blocks and bound.op.store[-1].block_layout != "rows":  # they say how many
        return False
    return len(geometry.sizes) == 1 and geometry.rows > 1 and leading and not told_apart


def _operand(parameters: Parameters, slot: int, name: str, bound: Bound) -> None:
    value = bound.operands[name]
    if isinstance(value, Tensor):
        parameters.tensor(slot, name, value)
    else:
        drops = name in bound.op.probabilities
        parameters.number(slot, name, integer=isinstance(value, int), probability=drops)


def _backward_parameters(
    bound: Bound, gradient: WantedGradients, planned: Planned, dy: Tensor, given: dict[str, object]
) -> Parameters:
    """Name gradients and saved tensors after the forward tensors they belong to."""
    parameters, op, numbers = Parameters(), bound.op, gradient.numbers
    parameters.tensor(0, "dy", dy)
    parameters.tensor(numbers["x"], "x", bound.x)
    for name in op.slots:
        _operand(parameters, numbers[name], name, bound)
    keywords = {saved_name(name): name for name in op.saves}
    keywords |= {joining_name(name): f"d{name}" for name in op.joining}
    for keyword, name in {**keywords, KEPT: "kept"}.items():
        value = given.get(keyword)
        if isinstance(value, Tensor) and (name != "kept" or op.kept):
            parameters.tensor(numbers[keyword], name, value)
    for number, name in enumerate(gradient.names):
        dtype, shape = planned.results.outputs[number]
        parameters.output(number, f"d{name}", dtype, shape)
    return parameters


def _check_sums(bound: Bound, gradient: Gradient, planned: Planned) -> None:
    """Refuse gradients that a kernel does not finish."""
    if not (gradient.loose or planned.results.loose):
        return
    apart = {one.name for one, share in planned.call.sharing.items() if share.kind == "apart"}
    looked_up = {*bound.tables} & {*gradient.names}
    names = gradient.names
    twice = {name for name in names if names.count(name) > 1}
    why = (
        f"of {', '.join(sorted(twice))}, which several functors use"
        if twice
        else f"of {', '.join(sorted(looked_up))}, which is looked up by an index"
        if looked_up
        else f"of {', '.join(sorted(apart))}, whose rows are no neighbours"
    )
    able = ", ".join(dict.fromkeys(name for name in names if name not in twice | apart | looked_up))
    raise UnsupportedError(
        f"export: {bound.op.name}: the gradient {why}, would be left for the caller to sum; leave "
        f"it out with backward=, which may name {able or 'nothing then'}, or use two names"
    )


def _blocks(slices: str, of_block: int, apart: int) -> str:
    """Blocks for so many slices, of which each has `apart`."""
    if apart > 1:
        return f"{slices} * {apart}"
    return slices if of_block == 1 else f"({slices} + {of_block - 1}) / {of_block}"


def _cut(planned: Planned, target: Target) -> str:
    """The slices of rows of one dimension, an expression: what `row_partition.cut` computes."""
    tile = planned.tile
    if tile is None:
        most = f"{_HELPERS}host_slices(rows, {_fewest_rows(planned)})"
        return f"fusedops::cut_rows(rows, {most}, 1, 1)"
    summed = any(s.group > 1 for s in planned.call.sharing.values() if s.kind in ("column", "row"))
    if not tile.launch.persistent and not summed:
        return "fusedops::cut_rows(rows, rows, 1, 1)"
    resident = resident_rows(tile, target.multiprocessors)
    return f"fusedops::cut_rows(rows, {resident}, 1, {tile.rows_per_block})"


def _fewest(planned: Planned) -> int:
    """Rows from which on the op makes sums over them in parts."""
    tile, gpu = planned.tile, planned.call.target.gpu
    if tile is None or gpu is None:
        return 2 * _fewest_rows(planned)
    few = in_one_block(tile, gpu)
    return 2 if few is None else 1 + few.rows_per_block


def _fewest_rows(planned: Planned) -> int:
    """The fewest rows of a slice on a CPU."""
    return -(-HOST_SLICE // planned.geometry.columns)


def _slices(words: bytes) -> list[tuple[int, str]]:
    """A gradient's argument ends with the slices."""
    first = len(words) // 8 - 3
    return [(first, "slices.rows"), (first + 1, "slices.span"), (first + 2, "slices.per_span")]


def _share(planned: Planned, total: str, parts: int, number: int) -> str:
    """So many parts as an expression of all slices: one for each, or for each block of them.

    `number` is that of the output that holds them. Where columns share an element there is a part
    for each row.
    """
    for one, ((_, output), _) in planned.results.parts_of.items():
        if output == number and planned.call.sharing[one].kind == "channel":
            return str(parts) if total.isdigit() else "rows"
    each = planned.launches[0].rows // parts
    if total.isdigit():
        return str(parts)
    return total if each == 1 else f"{total} / {each}"
