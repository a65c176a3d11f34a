# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check a call against its declaration: which value belongs to which name, and whether it fits.

What passes is a `Bound` call. `op(...)`, `op.unfused(...)` and `op.explain(...)` all start from
one, so the three agree on what a call means and refuse the same calls with the same words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.dimensions import blocks_shape, check_packed, check_positions, find_reduced
from fusedops.bind.generator import check_generator
from fusedops.bind.operands import (
    FLOATING,
    check_layouts,
    check_names,
    check_tensor,
    dtype_names,
    parts_of,
    with_column,
)
from fusedops.bind.scalars import check_offset, offset_of, read_generator, read_number
from fusedops.bind.shard_offset import Whole, check_part_of, check_shared
from fusedops.bind.tables import SeenTable, check_table, seen
from fusedops.declare.chains import names_of
from fusedops.declare.declaration import Declaration
from fusedops.declare.options import OPTIONS
from fusedops.errors import IN_SYMBOLIC_TRACE, UnsupportedError, check_flag, counted, shortened
from fusedops.functors import Functor, Role

#: The most columns of a row that every schedule reads before it writes one of them.
MOST_PAIRED_IN_PLACE = 1024

#: The output with the row statistics, saved for the backward pass. No operand has such a name.
KEPT = "kept statistics"


class Bound(NamedTuple):
    """A call whose arguments have been checked."""

    op: Declaration  # the declaration that is called
    x: Tensor  # the input tensor
    reduced: tuple[int, ...]  # the dimensions of x that make a row, counted from 0, ascending
    columns: int  # the row length in elements, the product of the reduced sizes
    dtype: torch.dtype  # the dtype of the main output y
    compute: torch.dtype  # the dtype of the arithmetic, float32 or float64
    #: The tensors and plain numbers that the call gives, by operand name.
    operands: Mapping[str, Any]
    #: The functors that act, in order, without dropouts that drop nothing.
    load: tuple[Functor, ...]
    store: tuple[Functor, ...]
    #: The number, among the functors of the declaration that draw, of each one that acts, by (side,
    #: index in load or store).
    dropout_slots: Mapping[tuple[str, int], int]
    out: Mapping[str, Tensor]  # the preallocated outputs, by output name
    #: The generator for dropout, or a drawn (seed, offset): a pair or a tensor.
    generator: torch.Generator | tuple[int, int] | Tensor | None
    #: Whether the call also writes row statistics, for the backward pass (`KEPT`).
    keep: bool = False
    tables: Mapping[str, SeenTable] = {}  # the tables that functors look up, by operand name
    whole: Whole | None = None  # the tensor of which x is a part, if the call says so

    @property
    def differentiated(self) -> Bound:
        """The call whose backward pass runs: this one, without rounding y to 8 bits."""
        op = self.op.differentiated
        if op is self.op:
            return self
        operands = {name: value for name, value in self.operands.items() if name in op.slots}
        store = self.store[:-1]
        dtype = self.dtype if self.op.quantized is None else self.x.dtype
        return self._replace(op=op, dtype=dtype, operands=operands, store=store, out={})

    @property
    def seen(self) -> Mapping[str, Any]:
        """The operands as kernels see them, all of which broadcast against x."""
        if not self.tables:
            return self.operands
        return {**self.operands, **{name: one.first for name, one in self.tables.items()}}

    @property
    def chains(self) -> dict[str, tuple[Functor, ...]]:
        """The functors that act, by the side on which they stand."""
        return {"load": self.load, "store": self.store}

    @property
    def drawing(self) -> list[Functor]:
        """The functors that act and draw random numbers."""
        chains = self.chains
        return [chains[side][place] for side, place in self.dropout_slots]

    @property
    def read(self) -> tuple[Sequence[str], Sequence[str]]:
        """Names of the operands read by the active functors of LOAD and of STORE."""
        op = self.op
        if len(self.dropout_slots) == op.dropouts:
            return op.read_by_load, op.read_by_store
        return names_of(self.load), names_of(self.store)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the tensors that the kernel writes, in order."""
        return (*self.op.outputs, KEPT) if self.keep else self.op.outputs

    def output_dtype(self, name: str) -> torch.dtype:
        """The dtype of the output of this name."""
        if name == "y":
            return self.dtype
        if name in self.op.statistics or name == KEPT:
            return self.compute
        if name in self.op.stream_dtypes:
            return self.op.stream_dtypes[name]
        if name in self.op.maxima:
            return torch.float32
        if name in self.op.taps:
            return self.x.dtype if self.op.quantized else self.dtype
        like = self.op.saves[name]
        operand = None if like is None else self.operands[like]
        return operand.dtype if isinstance(operand, Tensor) else self.x.dtype

    def output_shape(self, name: str) -> tuple[int, ...]:
        """The shape of an output: x's, or as its kind has it, such as () for amax."""
        if name == KEPT:
            return (*self.row_shape, self.op.kept)
        if name in self.op.maxima:
            return ()
        if name in self.op.of_blocks:
            return blocks_shape(self.op.store[-1].block_layout, self.row_shape, self.blocks)
        if name == "y" and self.op.packed > 1:
            return (*self.x.shape[:-1], self.x.shape[-1] // self.op.packed)
        return self.row_shape if name in self.op.statistics else tuple(self.x.shape)

    @property
    def blocks(self) -> int:
        """The number of blocks of columns in a row that have a number each; 0 if none have."""
        op = self.op
        if not op.of_blocks:
            return 0
        return (self.columns + op.block - 1) // op.block if op.block else 1

    @property
    def counted(self) -> tuple[int, ...]:
        """Sizes by which rows and queries are numbered: the global shape of a sharded x."""
        return tuple(self.x.shape) if self.whole is None else self.whole.sizes

    @property
    def rows(self) -> list[int]:
        """The dimensions of x that are not reduced."""
        return [dim for dim in range(self.x.dim()) if dim not in self.reduced]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a statistic: x's without the reduced dimensions."""
        reduced = self.reduced
        return tuple([size for dim, size in enumerate(self.x.shape) if dim not in reduced])

    @property
    def queries(self) -> int:
        """The number of queries, which are the last of the dimensions of the rows; 1 without."""
        rows = self.rows
        return self.counted[rows[-1]] if rows else 1

    @property
    def first_query(self) -> int:
        """The number of x's first query, of those of the whole tensor."""
        return self.whole.first[self.rows[-1]] if self.whole is not None and self.rows else 0

    @property
    def options(self) -> dict[str, Any]:
        """The options by name, in plain types, with which a call means the same."""
        return {
            "dim": self.reduced,
            "dtype": self.dtype,
            "training": bool(self.dropout_slots),
            "generator": self.generator,
            "part_of": self.whole and tuple(self.whole),
        }


def bind(op: Declaration, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]) -> Bound:
    """Check a call's operands and options against its declaration; return the `Bound` call.

    Raises:
        TypeError: A value is of the wrong kind, or a name is unknown or missing. The call that is
            bound is of another op where optional operands are left out (`Declaration.given`).
        ValueError: A shape, a device or a number does not fit.
    """
    name = op.name
    op, operands = op.given(operands)
    if not isinstance(x, Tensor):
        cure = "make one, for example with torch.as_tensor(x)"
        if x is None or isinstance(x, (str, bytes)):
            cure = "a call is op(x, ...), the tensor by position, operands and options by name"
        if isinstance(x, torch.fx.Proxy):
            cure = IN_SYMBOLIC_TRACE
        raise TypeError(f"{name}: x must be a torch.Tensor, got {type(x).__name__}; {cure}")
    if not torch.compiler.is_compiling():
        check_layouts(name, {"x": x, **operands, "out": options.get("out")})
    if x.dtype not in FLOATING:
        raise TypeError(
            f"{name}: x must be floating point ({dtype_names(FLOATING)}), got {x.dtype}; "
            f"{parts_of('x') if x.is_complex() else 'convert it, for example with x.float()'}"
        )
    check_names(op, name, operands)
    for key in options:
        if key not in OPTIONS:
            raise TypeError(f"{name}: unknown option {key!r}")
    reduced = find_reduced(op, name, x.shape, options)
    if op.packed > 1:
        check_packed(op, name, x.shape, reduced)
    own = op.quantized or x.dtype
    dtype = own if options.get("dtype") is None else options["dtype"]
    if op.quantized is not None and dtype is not own:
        raise TypeError(
            f"{name}: y has the dtype of {op.store[-1]!r}, got dtype={shortened(dtype)}; leave "
            "dtype= out"
        )
    if op.quantized is None and (not isinstance(dtype, torch.dtype) or dtype not in FLOATING):
        got = shortened(dtype)
        raise TypeError(f"{name}: dtype must be one of {dtype_names(FLOATING)}, got {got}")
    training = check_flag(name, "training", options.get("training", True))
    generator = read_generator(name, options.get("generator"), x)
    values: dict[str, Any] = {}
    for operand in op.operands:
        key, role = operand.name, operand.role
        value = operands[key]
        if isinstance(value, Tensor):
            check_tensor(name, operand, value, x, reduced)
            if role is Role.TARGET:
                value = with_column(name, key, value, x, reduced)
        elif role in (Role.TABLE, Role.TARGET):
            raise TypeError(
                f"{name}: operand {key!r} must be {role.value}, got {type(value).__name__}; make "
                f"one with torch.as_tensor({key})"
            )
        else:
            value = read_number(name, key, role, value)
        values[key] = value
    check_shared(op, x.dim(), reduced)
    whole = check_part_of(name, x.shape, reduced, options.get("part_of"))
    check_positions(op, x.shape, reduced, whole)
    for key, one in op.tables.items():
        check_table(name, one, values[key], x, reduced)
    if op.pair is not None:
        op.pair.check_row(name, x.shape, reduced, values)
    bound = bound_call(op, x, reduced, dtype, values, training, generator, whole)
    slots = bound.dropout_slots
    if slots and isinstance(generator, torch.Generator):
        check_generator(name, generator, x.device.type, x.device.index or 0)
    offset = offset_of(generator)
    if offset is not None:
        check_offset(name, offset, op.dropouts if slots else 1)
    given = options.get("out")
    return bound if given is None else bound._replace(out=_out(bound, name, given))


def _check_in_place(bound: Bound, name: str) -> None:
    """Raise UnsupportedError for out= where a row is not read as a whole before it is written.

    One block has such a row; of numbers of 64 bits it holds half as many.
    """
    double = bound.compute is torch.float64
    most = MOST_PAIRED_IN_PLACE // 2 if double else MOST_PAIRED_IN_PLACE
    if bound.columns > most:
        raise UnsupportedError(
            f"{name}: {bound.op.pair!r} reads partner columns, so out=, which may be x, goes with "
            f"rows of up to {most} columns{' of float64' if double else ''}, got {bound.columns}; "
            "leave it away"
        )


def bound_call(
    op: Declaration,
    x: Tensor,
    reduced: tuple[int, ...],
    dtype: torch.dtype,
    operands: Mapping[str, Any],
    training: bool,
    generator: torch.Generator | tuple[int, int] | Tensor | None,
    whole: Whole | None,
) -> Bound:
    """The call of arguments that have been checked; `training` says whether dropouts may drop."""
    load, store, slots = _acting(op, operands, training)
    double = x.dtype is torch.float64 or dtype is torch.float64
    tables = {}
    for key, one in op.tables.items():
        tables[key] = seen(operands[key], one, x.dim())
    return Bound(
        op,
        x,
        reduced,
        math.prod([x.shape[dim] for dim in reduced]),
        dtype,
        torch.float64 if double else torch.float32,
        operands,
        load,
        store,
        slots,
        {},
        generator,
        tables=tables,
        whole=whole,
    )


def floating(values: Mapping[str, Any]) -> list[str]:
    """The names of the floating-point tensors among these values."""
    return [k for k, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()]


def _acting(
    op: Declaration, values: Mapping[str, Any], training: bool
) -> tuple[tuple[Functor, ...], tuple[Functor, ...], dict[tuple[str, int], int]]:
    if training and not [p for p in op.probabilities if not values[p] > 0]:
        return op.load, op.store, op.dropout_slots
    slots: dict[tuple[str, int], int] = {}
    acting: dict[str, list[Functor]] = {"load": [], "store": []}
    number = -1
    for side, chain in acting.items():
        for functor in op.chains[side]:
            if functor.draws is not None:
                number += 1
                if not training or not values[functor.draws] > 0:
                    continue
                slots[side, len(chain)] = number
            chain.append(functor)
    return tuple(acting["load"]), tuple(acting["store"]), slots


def _out(bound: Bound, name: str, given: Any) -> dict[str, Tensor]:
    if bound.op.pair is not None:
        _check_in_place(bound, name)
    names = bound.op.outputs
    if not isinstance(given, (Tensor, tuple, list)):
        raise TypeError(
            f"{name}: out must be a tensor, or a tuple of tensors, one for each output "
            f"({', '.join(names)}), got {type(given).__name__}"
        )
    tensors = (given,) if isinstance(given, Tensor) else tuple(given)
    if len(tensors) != len(names):
        raise ValueError(
            f"{name}: out must hold {counted(len(names), 'tensor')} "
            f"({', '.join(names)}), got {len(tensors)}"
        )
    for key, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name}: out for {key!r} must be a tensor, got {type(tensor).__name__}"
            )
        if tensor.device != bound.x.device:
            raise ValueError(
                f"{name}: out for {key!r} must be on x's device {bound.x.device}, "
                f"got {tensor.device}"
            )
        if tuple(tensor.shape) != bound.output_shape(key):
            raise ValueError(
                f"{name}: out for {key!r} must have shape {bound.output_shape(key)}, "
                f"got {tuple(tensor.shape)}"
            )
        packed = key == "y" and bound.op.packed > 1
        dense = key in bound.op.of_blocks or packed
        if dense and not tensor.is_contiguous():
            raise ValueError(
                f"{name}: out for {key!r} must be contiguous, got strides {tensor.stride()}; leave "
                "it out, and copy"
            )
        if packed and type(tensor) is Tensor and tensor.data_ptr() % 4:
            raise ValueError(
                f"{name}: out for {key!r} must begin at a multiple of 4 bytes, by which columns of "
                "4 bits are written; leave it out, and copy"
            )
        if tensor.dtype != bound.output_dtype(key):
            raise TypeError(
                f"{name}: out for {key!r} must have dtype {bound.output_dtype(key)}, "
                f"got {tensor.dtype}; the output's dtype is chosen with dtype="
            )
    return {key: tensor for key, tensor in zip(names, tensors, strict=True) if tensor is not None}
