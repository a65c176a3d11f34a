# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The members of a kernel's argument that come from the declaration, with their words."""

from __future__ import annotations

from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry
from fusedops.bind.shard_offset import shared_dims
from fusedops.functors import rounded
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.source import Member, Purpose
from fusedops.schedule import Schedule


def declared(
    bound: Bound,
    write: ArgumentWriter,
    geometry: Geometry,
    gradient: bool = False,
    from_result: bool = False,
) -> list[Member]:
    """Write the members with which every kernel's argument begins: rows, operator, x, functors.

    The words of the members go to `write`. `gradient` says whether the operator's gradient takes
    the place of the operator, and `from_result` whether y takes the place of x in it.
    """
    members = [Member(write.rows(geometry.rows, geometry.sizes), "rows")]
    write.constant(geometry.columns)
    members.append(Member("int64_t", "cols"))
    operator = _operator(bound, write, gradient)
    purpose: Purpose = "masked" if bound.op.zeroes else "other"
    if bound.op.masked and not bound.op.reduces:
        purpose = "masked map"
    members.append(Member(f"FromResult<{operator}>" if from_result else operator, "op", purpose))
    members.append(Member(write.operand("x"), "x"))
    for side, chain in (("load", bound.load), ("store", bound.store)):
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
