# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The members of a kernel's argument, with their words: those of the declaration come first."""

from __future__ import annotations

from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.shard_offset import first_rows, shared_dims
from fusedops.functors import rounded
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.source import Member, Purpose
from fusedops.generate.views import Number, View
from fusedops.plan.placing import row_maps
from fusedops.plan.planned import Call, Results
from fusedops.plan.saved_tensors import RESULT, saved_name
from fusedops.schedule import Schedule


def written(call: Call, results: Results) -> tuple[list[Member], ArgumentWriter]:
    """Generate the members of the kernel's argument; and the writer of its words."""
    one, geometry, views = call.one, call.geometry, call.views
    bound, slots = one.bound, one.slots
    operands: dict[str, View | Number] = {
        name: views[name] for name in ("x", *one.op.slots) if name in views
    }
    if one.from_result:
        operands["x"] = views[RESULT]
    elif one.from_stream is not None:
        operands["x"] = views[saved_name(one.from_stream)]
    for name, value in bound.operands.items():
        if not isinstance(value, Tensor):
            operands[name] = Number(slots[name], isinstance(value, int))
    outputs, joining = one.streams(views)
    write = ArgumentWriter(
        compute=call.compute,
        sizes=geometry.sizes,
        columns=geometry.columns,
        queries=bound.queries,
        first_query=bound.first_query,
        operands=operands,
        outputs=outputs,
        maps=row_maps(bound, call.maps, call.drawn),
        tables=bound.tables,
        table_columns=_table_columns(bound),
        first_rows=first_rows(bound.whole, call.drawn),
        slots=slots,
        output_gradients=joining,
        drawn_in_memory=isinstance(bound.generator, Tensor),
        in_order=one.in_order,
    )
    members = _declared(call, write)
    return members + one.members(call, write, members, results), write


def _table_columns(bound: Bound) -> dict[str, int] | None:
    """The columns of the tables of a functor that reads a partner column."""
    if bound.op.pair is None:
        return None
    lead = bound.x.dim() - bound.reduced[0]
    tables = {one.name: bound.operands[one.name] for one in bound.op.pair.operands()}
    return {
        name: table.shape[-lead] if table.dim() >= lead else 1
        for name, table in tables.items()
        if isinstance(table, Tensor)
    }


def _declared(call: Call, write: ArgumentWriter) -> list[Member]:
    """Write the members with which every kernel's argument begins: rows, operator, x, functors."""
    one, geometry = call.one, call.geometry
    bound = one.bound
    members = [Member(write.rows(geometry.rows, geometry.sizes), "rows")]
    write.constant(geometry.columns)
    members.append(Member("int64_t", "cols"))
    operator = _operator(bound, write, one.gradient)
    purpose: Purpose = "masked" if bound.op.zeroes else "other"
    if bound.op.masked and not bound.op.reduces:
        purpose = "masked map"
    operator = f"FromResult<{operator}>" if one.from_result else operator
    members.append(Member(operator, "op", purpose))
    members.append(Member(write.operand("x"), "x"))
    chains = dict(bound.chains)
    if one.from_stream is not None:
        chains["load"] = ()
        joining = write.output_gradient(one.from_stream)
        members.append(Member(f"Joined<{joining}>", "load0", "functor", "load", 0))
    for side, chain in chains.items():
        for index, functor in enumerate(chain):
            write.dropout_slot = bound.dropout_slots.get((side, index), -1)
            drawn = write.dropout_slot >= 0 and write.drawn_in_memory
            if write.dropout_slot >= 0:
                write.shared = shared_dims(functor, bound.x.dim())
                write.shares_columns = {*write.shared} >= {*bound.reduced}
            name = f"{side}{index}"
            cpp, masks = functor.emit(write), functor.masks
            members.append(Member(cpp, name, "functor", side, index, drawn, masks=masks))
    return members


def _operator(bound: Bound, write: ArgumentWriter, gradient: bool) -> str:
    """Write the data members of the operator or of its gradient; return its C++ type."""
    op = bound.op
    for name in op.numbers:
        write.number(rounded(op.constants[name], write.compute))
    kinds = [write.operand(name) for name in op.row_operands]
    if gradient:
        able = [name for name, one in op.statistics.items() if one.differentiable]
        kinds += [write.output_gradient(name) for name in able]
    if not op.numbers and not kinds:
        write.constant(0)
    return (op.gradient_cpp if gradient else op.cpp)(write.compute, *kinds)


def scheduled(write: ArgumentWriter, tile: Schedule | None) -> list[Member]:
    """The members that hold what a schedule leaves to the kernel's argument."""
    members: list[Member] = []
    if tile is None:
        return members
    if tile.launch.prefetch != "never":
        write.constant(tile.launch.prefetch_distance)
        members.append(Member("int64_t", "ahead", "distance"))
    if tile.even:
        write.constant(tile.chunk)
        members.append(Member("int64_t", "even", "chunk"))
    return members
