# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Base class of operators: what a reduction declares about itself, in Python.

Its C++ half is include/fusedops/op/contract.cuh. Everything else (arguments of kernels, outputs,
gradients, torch operators, exports, error bounds) reads what is said here, and knows no operator.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fusedops.declare.op import Op
from fusedops.functors import Functor, Role

#: The ops that are part of fusedops, by class name; a text names them without a module.
own_operators: dict[str, type[Op]] = {}


class Statistic(NamedTuple):
    """A number that an operator knows of each row, and that a call can return.

    Attributes:
        member: The member of the C++ ``Finish`` that gives it: a data member, or a member function
            without arguments.
        option: The argument of the declaration that asks for it: ``stats=True``. Empty for one that
            every call returns, which an operator without y has.
        differentiable: Whether it has a gradient. If so, the C++ struct of the gradient has a
            further data member, the gradient of the statistic, whose type `gradient_cpp` gets.
    """

    member: str
    option: str = "stats"
    differentiable: bool = False


class RowParts(NamedTuple):
    """How ranks that have some columns of each row compute an operator together.

    Each reduces its own columns to a few numbers of each row, `Operator.part_numbers`. From those
    of all ranks follows what makes a part that of the whole row, `Operator.of_parts`: the results
    on a rank's own columns are ``(part + shift) * scale``, where part is what the LOAD makes of
    them. Then comes the STORE.

    Attributes:
        numbers: How many numbers of each row a rank hands to the others.
        said: What these are, as `explain` says it: "each row's mean", say.
        shift: Whether something is added.
        scale: Whether something multiplies.
        own: The constants of a declaration of the operator that a rank calls on its own columns:
            its y is then the part, and its one statistic the number. None: the part is what the
            LOAD makes, and `Operator.part_numbers` computes the numbers.
    """

    numbers: int
    said: str
    shift: bool = False
    scale: bool = True
    own: Mapping[str, Any] | None = None


class WholeRow(NamedTuple):
    """Statistics of a whole row, combined from the numbers of all ranks.

    Attributes:
        shift: What is added to a rank's part, of size 1 in the last dimension; None if nothing is.
        scale: What it is then multiplied by.
        statistics: The operator's statistics by name, of the rows' shape, if it has any.
    """

    shift: Tensor | None = None
    scale: Tensor | None = None
    statistics: Mapping[str, Tensor] | None = None


class Operator(Op):
    """Base of all operators. Derive from `RowOp`, not from this class, to write one.

    The C++ structs are in a header of fusedops (`header`, `gradient_header`), or in text
    (`definition`).

    Attributes:
        header: The C++ header of the operator, below include/fusedops/.
        gradient_header: The C++ header of the operator's gradient.
        definition: C++ text that holds both structs, for an operator that no header has.
        kept: The numbers of a row that the backward pass reads; kKept in the C++.
        kept_of_masks: How many more of them it reads where the LOAD masks elements.
        reduces: Whether rows are reduced; False for an operator whose results are functions of
            single elements, which keeps nothing and has neither statistics nor row operands.
        has_result: Whether there is y, of x's size. False for an operator whose results are numbers
            of rows alone: `statistics`, of which each call returns the first, take the place of y,
            nothing stands in the store, and nothing of x's size is written (kHasResult in the C++).
        reduces_gradient: Whether the backward pass reduces rows; False where all that it needs of a
            row is known from the forward pass, so that any part of a row is work of its own
            (kReduces of the C++ gradient).
        in_place: Whether the gradient of x is written to x's memory, as a declaration may ask for.
        row_roles: The roles of the row operands that are not floating point, by name.
        numbers: The names of the constants that are data members of the C++ structs, in order.
        statistics: The numbers of a row that a call can return, by the output's name, in order.
        several_dims: Whether a row may have several dimensions: dim= takes a sequence, and there is
            normalized_shape=.
        masks: Whether elements may be masked: those of value -inf leave the row.
        zeroes_masked: Whether elements leave the row only where the LOAD masks them, and are zero
            in y, whatever the STORE does. Without masks -inf is a value like any other.
        pairs: Whether a functor may read a partner column: the reduction leaves the values of a row
            as the LOAD made them, and a result follows from its value and what is known of the row.
        centred: Whether the operator subtracts a mean of the row.
        logarithmic: Whether the result is a logarithm, so that it is -inf at masked elements,
            whatever the STORE does.
        gradient_schedule: The family of schedules of the backward pass, "softmax" or "norm".
    """

    header: ClassVar[str] = ""
    gradient_header: ClassVar[str] = ""
    definition: ClassVar[str] = ""
    kept: int
    kept_of_masks: ClassVar[int] = 0
    reduces: ClassVar[bool] = True
    has_result: ClassVar[bool] = True
    reduces_gradient: ClassVar[bool] = True
    row_roles: Mapping[str, Role] = types.MappingProxyType({})
    in_place: bool = False
    numbers: ClassVar[tuple[str, ...]] = ()
    statistics: ClassVar[Mapping[str, Statistic]] = types.MappingProxyType({})
    several_dims: ClassVar[bool] = False
    masks: ClassVar[bool] = False
    zeroes_masked: ClassVar[bool] = False
    pairs: ClassVar[bool] = False
    centred: ClassVar[bool] = False
    logarithmic: ClassVar[bool] = False
    gradient_schedule: ClassVar[str] = "norm"

    # What each declaration has of its own; `declare.declaration` says what it is.
    load: tuple[Functor, ...]
    store: tuple[Functor, ...]
    zeroes: bool
    masked: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
        if ours and hasattr(cls, "kept") and not cls.__name__.startswith("_"):
            own_operators[cls.__name__] = cls
        if "cpp" in vars(cls) and "zeroes_masked" not in vars(cls) and cls.zeroes_masked:
            # A C++ struct of its own, derived from a norm's, need not know masks.
            cls.masks = cls.zeroes_masked = False
        if "cpp" in vars(cls) and "pairs" not in vars(cls):
            cls.pairs = False
        changed = {"__call__", "cpp", "definition", "header", "reference"} & {*vars(cls)}
        if changed and not ours and "row_parts" not in vars(cls):  # it computes something else
            setattr(cls, "row_parts", None)  # noqa: B010 (a type checker knows a property)

    @property
    def row_parts(self) -> RowParts | None:
        """How ranks that have some columns of each row compute it together; None if they gather it.

        A class that is derived from another operator, and has C++, a reference or a `__call__` of
        its own, says it anew.
        """
        return None

    def part_numbers(self, value: Tensor) -> Tensor:
        """The numbers per row that a rank shares with the others, differentiably in torch.

        Args:
            value: What the LOAD makes of a rank's columns; at least one.

        Returns:
            The numbers of each row, in a last dimension of their own.
        """
        raise NotImplementedError(f"{type(self).__name__}: part_numbers(value)")

    def of_parts(self, here: Tensor, parts: Tensor, columns: Sequence[int]) -> WholeRow:
        """Compute a rank's shard of the result from whole-row statistics, differentiably.

        Args:
            here: The rank's own numbers, in a last dimension of their own.
            parts: Those of all ranks, in their order in the last dimension but one. To have the
                same bits on all ranks, they are put together in this order.
            columns: How many columns each rank has. Numbers of none are zeros, or with `own` what
                the operator returns of rows without columns.
        """
        raise NotImplementedError(f"{type(self).__name__}: of_parts(here, parts, columns)")

    @property
    def from_result(self) -> bool:
        """Whether the gradient can be computed from y and the saved statistics, without x.

        If so, `gradient_header` has the template ``FromResult``: for the C++ struct G of the
        gradient, ``FromResult<G>`` is the same with y loaded in place of the value.
        """
        return False

    @property
    def from_rounded_result(self) -> bool:
        """Whether it is computed from a y that was rounded, too, as the declaration asks for."""
        return False

    @property
    def row_operands(self) -> tuple[str, ...]:
        """The names of the operands of the operator itself, in the order of its data members.

        A call gives each as a number, or as a floating-point tensor that broadcasts against x and
        has size 1 in the reduced dimensions: one number a row, which rows may share.
        """
        return ()

    def reads(self, wanted: Collection[str]) -> tuple[str, ...]:
        """The row operands that the gradient reads if these names' gradients are wanted.

        All, unless the operator knows better. In the backward pass the others read as zero.
        """
        return self.row_operands

    def ignored(self, *operands: Tensor) -> Tensor | None:
        """The rows that have no results and no gradients, whatever they hold; None if all have.

        Args:
            operands: The row operands, as `reference` gets them.

        Returns:
            True where a row is ignored, of size 1 in the last dimension.
        """
        return None

    def reference(self, value: Tensor, *operands: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the reduction over the last dimension of `value` with torch operations.

        Args:
            value: What is reduced, of any number of rows.
            operands: The row operands, each of as many dimensions as value, of size 1 in the last,
                or a 0-d tensor; those without a role of their own (`row_roles`) of value's dtype.

        Returns:
            The result, of value's shape (any tensor where there is no y), and the statistics by
            name, of the shape of value without its last dimension. torch differentiates the result
            and the differentiable statistics.
        """
        raise NotImplementedError(f"{type(self).__name__}: reference(value), its meaning in torch")

    def reference_of_nothing(self, value: Tensor, *operands: Tensor) -> Mapping[str, Tensor]:
        """The statistics of rows that have no columns, by name: NaN, unless it makes sense."""
        return {name: value.new_full(value.shape[:-1], torch.nan) for name in self.statistics}

    def cpp(self, compute: str, *operands: str) -> str:
        """The C++ type of the operator.

        Args:
            compute: The C++ compute type, "float" or "double".
            operands: The C++ types of the row operands, in order.
        """
        raise NotImplementedError(f"{type(self).__name__}: cpp(compute), its type in C++")

    def gradient_cpp(self, compute: str, *operands: str) -> str:
        """The C++ type of the operator's gradient.

        Args:
            compute: The C++ compute type, "float" or "double".
            operands: The C++ types of the row operands, and then of the gradients of the
                differentiable statistics, in order; Absent where none comes in.
        """
        raise NotImplementedError(f"{type(self).__name__}: gradient_cpp(compute)")

    def gradient_sizes(
        self, value: Tensor, result: Tensor, upstream: Tensor, statistics: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Magnitudes of the terms in the gradient of `value`, per element.

        `fusedops.testing.check` allows errors relative to them. None, unless an operator knows a
        formula: then they are estimated from gradients of random signs, which is slow, and too
        small where the terms of one element cancel.

        Args:
            value: What is reduced.
            result: What `reference` makes of it.
            upstream: The size of the gradient of the result, per element.
            statistics: The sizes of the gradients of the differentiable statistics, by name.
        """
        return None

    def statistic_sizes(self, name: str, value: Tensor, statistic: Tensor) -> Tensor:
        """Magnitudes of the terms in a statistic, per row; its own unless terms cancel."""
        return statistic.abs()

    def headers(self, gradient: bool = False) -> Sequence[str]:
        """The C++ headers that the operator or its gradient needs, below include/fusedops/."""
        header = self.gradient_header if gradient else self.header
        return [header] if header else ["op/contract.cuh"]

    def check_contract(self) -> None:
        """Raise TypeError if the class lacks a required attribute."""
        name = type(self).__name__
        if not self.definition and not (self.header and self.gradient_header):
            raise TypeError(
                f"{name}: an operator says where its C++ is: definition, the text of both structs, "
                "or header and gradient_header, files under include/fusedops/ (see "
                "fusedops/op/contract.cuh)"
            )
        kept = getattr(self, "kept", None)
        if not self.reduces:
            if kept != 0 or self.statistics or self.row_operands:
                raise TypeError(
                    f"{name}: an operator that reduces nothing knows nothing of a row: kept = 0, "
                    f"no statistics, no row operands; got kept = {kept!r}, statistics "
                    f"{sorted(self.statistics)} and row operands {sorted(self.row_operands)}"
                )
        elif isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
            raise TypeError(
                f"{name}: an operator says how many numbers of a row its gradient reads, at least "
                f"one: kept = 1, say, as kKept in its C++; got {kept!r}"
            )
        if self.gradient_schedule not in ("softmax", "norm"):
            raise TypeError(
                f"{name}: gradient_schedule must be 'softmax' or 'norm', got "
                f"{self.gradient_schedule!r}"
            )
        for number in self.numbers:
            if number not in self.constants:
                raise TypeError(
                    f"{name}: numbers names {number!r}, which is no argument of the declaration; "
                    f"pass {number}=... to super().__init__"
                )
