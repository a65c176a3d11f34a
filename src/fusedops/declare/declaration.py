# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A declaration: a reduction over rows, with a LOAD before it and a STORE after it.

A declaration is a value: printable, hashable, comparable. It says what a call takes and returns
and what that means, and does not depend on given tensors, on kernels or on devices.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.declare.chains import (
    check_chain,
    check_free,
    names_of,
    operands_of,
    optional_of,
    pair_of,
    partners_of,
)
from fusedops.declare.operator import Operator, own_operators
from fusedops.declare.results import known_results, register
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor, Role

#: Where Dynamo may go on frame by frame, it leaves a frame that reads no `torch` alone.
_FOUR_BITS, _SINGLE = torch.float4_e2m1fn_x2, torch.float32


class Declaration(Operator):
    """A reduction over rows, with a LOAD before it and a STORE after it.

    Attributes:
        load, store: The functors before and after the reduction, which are its chains.
        outputs: The names of the results: "y", or the first statistic of an operator without it,
            then the saved streams, the taps, the other statistics and the maximum.
        joining: The results besides y that can have a gradient, in order: the saved streams, the
            taps, then the differentiable statistics.
        able: Those of the results that can have a gradient: "y", unless it has 8 bits, and these.
        quantized: The dtype of y where a functor makes 8 bits of it, or None.
        packed: How many columns an element of y holds.
        maxima: The names of the outputs that are a maximum over all elements.
        block: The columns of a block whose largest value the last functor of the STORE needs:
            0 for the whole row, None for none.
        of_blocks: The names of the outputs that have one number for each block.
        taps: The names of the further outputs that functors of the STORE write.
        stream_dtypes: The dtypes of the saved streams whose functors say one, by name.
        drawing: The functors that draw, such as `Dropout`, LOAD before STORE.
        dropout_slots: The number of each, by (side, index in load or store).
        read_by_load, read_by_store: The names of the operands that the functors of a side read, in
            their order; an operand that two functors read is there twice.
        counted: The names of the operands whose numbers are integers, such as those of `Lengths`.
        tables: The tables that functors look up, by operand name.
        positions: The dimensions whose coordinates functors read, as they name them: from the first
            or, if negative, from the last.
        masked: Whether a functor of the LOAD masks elements.
        zeroes: Whether what is masked is zero in y, whatever the STORE does: a norm with masks.
        forward_only: The functors that have no derivative.
        leaves_out: Whether the backward pass is that of the op without the last functor of the
            STORE: one that makes a y of 8 bits, or through which gradients pass straight.
        pair: The functor that reads a partner column, or None.
        text: The declaration as a line of text (`declare.text.spell`); set when the declaration
            becomes an op that can be called.
        outlines: What calls of these dimensions have been found to be (`plan.placing`).
        forms: What forward kernels have in common whatever the sizes (`plan.planner`).
    """

    text: str

    def __init__(
        self, load: Iterable[Functor] = (), store: Iterable[Functor] = (), **constants: Any
    ) -> None:
        self.constants = constants
        self.check_contract()
        self.load = check_chain(self, "load", load)
        self.masked = any(functor.masks for functor in self.load)
        self.zeroes = self.zeroes_masked and self.masked
        self.store = check_chain(self, "store", store)
        self.pair = pair_of(self)
        self.chains = {"load": self.load, "store": self.store}
        if self.masked:
            self.kept += self.kept_of_masks
        self.operands = operands_of(self)
        self.slots = {operand.name: slot for slot, operand in enumerate(self.operands, 1)}
        streams = [f.saves for f in self.load if f.saves is not None]
        self.saves = {stream.name: stream.like for stream in streams}
        taps = [f.taps for f in self.store if f.taps is not None]
        self.taps = tuple(tap.name for tap in taps)
        streams += taps
        if len({one.name for one in streams}) != len(streams):
            names = [stream.name for stream in streams]
            raise ValueError(
                f"{self.title}: names of saved streams and taps must differ, got {names}"
            )
        self.stream_dtypes = {one.name: one.dtype for one in streams if one.dtype is not None}
        self.optional = optional_of(self)
        self._partners = partners_of(self) if self.optional else {}
        self._without: dict[tuple[str, ...], Any] = {}
        self.outlines: dict[tuple[object, ...], Any] = {}
        self.forms: dict[tuple[object, ...], Any] = {}
        returned = [name for name, one in self.statistics.items() if constants.get(one.option)]
        first = "y" if self.has_result else next(iter(self.statistics))
        self.outputs: tuple[str, ...] = (first, *self.saves, *self.taps, *returned)
        differentiable = [name for name in returned if self.statistics[name].differentiable]
        if not self.has_result:
            differentiable.insert(0, first)
        self.joining: tuple[str, ...] = (*self.saves, *self.taps, *differentiable)
        last = self.store[-1] if self.store else None
        self.quantized = None if last is None else last.quantizes
        self.packed = 2 if self.quantized is _FOUR_BITS else 1
        maximum = None if last is None else last.maximum
        self.maxima: tuple[str, ...] = () if maximum is None else (maximum,)
        if maximum is not None:
            check_free(self, last, maximum)
        self.outputs += self.maxima
        self.block = None if last is None else last.block
        of_blocks = None if last is None else last.of_blocks
        self.of_blocks: tuple[str, ...] = () if of_blocks is None else (of_blocks.name,)
        if of_blocks is not None:
            check_free(self, last, of_blocks.name)
            self.outputs += self.of_blocks
            self.stream_dtypes[of_blocks.name] = of_blocks.dtype or _SINGLE
        alone = self.quantized or not self.has_result
        self.able = self.joining if alone else ("y", *self.joining)
        chains = self.functors
        self.drawing = [f for f in chains if f.draws is not None]
        self.probabilities = [f.draws for f in self.drawing if f.draws is not None]
        self.dropouts = len(self.drawing)
        places = [(side, at) for side, chain in self.chains.items() for at in range(len(chain))]
        drawing = [place for place, f in zip(places, chains, strict=True) if f.draws is not None]
        self.dropout_slots = {place: number for number, place in enumerate(drawing)}
        self.read_by_load, self.read_by_store = map(names_of, self.chains.values())
        whole = (Role.COUNT, Role.INTEGER)
        self.counted = [operand.name for operand in self.operands if operand.role in whole]
        self.tables = {one.table: one for functor in chains for one in functor.tables}
        self.positions = {dim for functor in chains for dim in functor.positions}
        self.causal = any(f.needs_query for f in self.load)
        self.forward_only = [f for f in chains if not f.differentiable]
        through = last is not None and last.straight_through
        self.leaves_out = through or self.quantized is not None
        if through or (self.quantized and self.joining):
            self.forward_only.remove(self.store[-1])

    def given(self, operands: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The op that a call with these operands runs, and its operands.

        It is another op where the call leaves out optional operands, or gives None for them: that
        in which the functors' `without` has taken their places. With an operand that no functor
        names it is the op itself, whose checks refuse the name and list its operands.

        Raises:
            TypeError: An operand is given whose functor is left out for want of another.
        """
        lacking = self.lacking(operands)
        if not lacking or not operands.keys() <= self.slots.keys():
            return self, dict(operands)
        self.check_partners(operands, lacking)
        return self.without(lacking), {
            name: value for name, value in operands.items() if name not in lacking
        }

    def lacking(self, operands: Mapping[str, Any]) -> tuple[str, ...]:
        """The optional operands that a call leaves out, or gives None for."""
        optional = self.optional
        return tuple([name for name in optional if operands.get(name) is None]) if optional else ()

    def check_partners(self, operands: Mapping[str, Any], lacking: tuple[str, ...]) -> None:
        """Raise TypeError for an operand whose functor is left out for want of another one."""
        for name, partners in self._partners.items():
            missing = [one for one in partners if one in lacking]
            if missing and operands.get(name) is not None:
                raise TypeError(
                    f"{self.name}: operand {name!r} is given, but not {', '.join(missing)}, "
                    "without which its functor is left out; give both or neither"
                )

    def without(self, names: tuple[str, ...]) -> Any:
        """The op that runs where these optional operands are left out; cached."""
        found = self._without.get(names)
        if found is None:

            def those(functors: Iterable[Functor]) -> list[Functor]:
                kept = (f.without(names) if {*f.may_lack} & {*names} else f for f in functors)
                return [one for one in kept if one is not None]

            found = self._without.setdefault(names, self.of(those(self.load), those(self.store)))
        return found

    @functools.cached_property
    def differentiated(self) -> Any:
        """The op whose backward pass runs: this one, without rounding y to 8 bits."""
        return self.of(self.load, self.store[:-1]) if self.leaves_out else self

    @functools.cached_property
    def undifferentiated(self) -> frozenset[str]:
        """The floating operands without a gradient: a scale of 8 bits, and tables of a rotation."""
        tables = () if self.pair is None else self.pair.operands()
        able = () if self.pair is None else self.pair.gradients()
        own = [one.name for one, name in zip(tables, able, strict=False) if name is None]
        return frozenset(own).union(self.slots.keys() - self.differentiated.slots.keys())

    @functools.cached_property
    def sharing_gradients(self) -> dict[str, str]:
        """The operands whose gradient is that of x or of y, "x" or "y" by name.

        They are what is added to x before anything else is done to it, and what is added to y after
        all else, if they have the dtype and the shape of x, and y has them too.
        """
        # The gradient of a stream joins, so what is added after it has another than x.
        passing = list(itertools.takewhile(lambda one: one.passes_gradient, self.load))
        saves = next((at for at, one in enumerate(passing, 1) if one.saves), None)
        found = dict.fromkeys([one.shares_gradient for one in passing[:saves]], "x")
        # An element that is masked has a y, of which nothing that was added is a part.
        if self.has_result and not any(f.masks for f in self.load):
            last = reversed(self.store if self.reduces else self.functors)
            ends = itertools.takewhile(lambda one: one.passes_gradient and not one.saves, last)
            found = dict.fromkeys([one.shares_gradient for one in ends], "y") | found
        uses = [name for functor in self.functors for name in functor.gradients()]
        return {name: like for name, like in found.items() if name and uses.count(name) == 1}

    def of(self, load: Iterable[Functor], store: Iterable[Functor]) -> Any:
        """The same op with other functors, as pickling would make it."""
        reduced: Any = self.__reduce__()
        make, (kind, _, constants) = reduced
        return make(kind, {"load": tuple(load), "store": tuple(store)}, constants)

    @property
    def kernels(self) -> str:
        """The name of the op in the names of its kernels: ops of one source have one."""
        return self.name

    @functools.cached_property
    def label(self) -> str:
        """The declaration in short, as profilers show it: ``LayerNorm(Residual | Affine)``."""
        load, store = (", ".join(type(f).__name__ for f in chain) for chain in self.chains.values())
        chains = f"{load} | {store}".strip() if store else load
        return f"{type(self).__name__}({chains})"

    def check_differentiable(self) -> None:
        """Raise UnsupportedError if a functor, and so the op, has no derivative."""
        for functor in self.forward_only:
            if functor.quantizes is not None:
                raise UnsupportedError(
                    f"{self.name}: {functor!r} makes a y of 8 bits, which has no gradient, and the "
                    "op has no other output that has one; call it under torch.no_grad(), detach() "
                    "what needs no gradient, return the value before it as well, by a Tap in "
                    "store, train with DynamicQuantize(dtype, gradient='straight_through'), whose "
                    "y of floats has one, or use op.unfused, whose y is rounded straight through"
                )
            raise UnsupportedError(
                f"{self.name}: {functor!r} has no derivative, so the op has none; give the functor "
                "one, call the op under torch.no_grad(), or detach() what needs no gradient"
            )

    @functools.cached_property
    def definitions(self) -> tuple[str, ...]:
        """The C++ text of operator and functors that no header of fusedops holds, in order."""
        texts = (self.definition, *(f.definition for f in (*self.load, *self.store)))
        return tuple(text for text in texts if text)

    @functools.cached_property
    def result_type(self) -> Any:
        """The named-tuple class of a result with several outputs; its fields are `outputs`."""
        return named_result(f"{type(self).__name__}Result", self.outputs)

    def wrap(self, outputs: Mapping[str, Tensor]) -> Any:
        """The result of a call: y if it is the only output, else all as a `result_type`."""
        return outputs[self.outputs[0]] if len(self.outputs) == 1 else self.result_type(**outputs)


@functools.cache
def named_result(name: str, fields: tuple[str, ...]) -> Any:
    """The named-tuple class of these fields; its instances pickle by name and fields."""
    if name.removesuffix("Result") in own_operators and fields in known_results:
        return known_results[fields]
    made = collections.namedtuple(name, fields)  # type: ignore[misc]

    def reduce(result: Any) -> tuple[Any, ...]:
        return _result, (name, fields, tuple(result))

    setattr(made, "__reduce__", reduce)  # noqa: B010 (a type checker knows no such assignment)
    register(made, f"{name}({', '.join(fields)})")
    return made


def _result(name: str, fields: tuple[str, ...], values: Iterable[Any]) -> Any:
    return named_result(name, fields)._make(values)
