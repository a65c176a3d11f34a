# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The base class of functors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.functors.operands import Operand, Place, Reads, Role, Stream, TableOf
from fusedops.functors.protocols import Chain, Writer

__all__ = ["Functor"]


class Functor:
    """Base of all functors: derive from it to write one of your own.

    docs/how-to/functor-in-cpp.md goes through an example. A functor is a frozen dataclass with the
    names of its operands. It says what it is in torch (`apply`) and which C++ struct does the same
    (`emit`, with `header` or `definition`). What else the rest of the package has to know of a
    functor is a trait: one of the attributes and properties below. No code outside this package
    asks for the class of a functor.

    Attributes:
        header: Path of the C++ struct's header, below include/fusedops/functor/. A functor whose
            struct is in no such header has `headers` and a `definition` instead.
        masks: Whether the functor removes elements from the row (kMasks in C++). It may then stand
            in a LOAD alone, and has `masked` in place of `apply`.
        bounds: Whether its C++ struct has `columns` or `any`, which tell from indices that columns
            are masked. What lies outside is not loaded, and `explain` says so.
        needs_query: Whether the functor compares the number of a query with that of a key. It may
            then stand in the LOAD of softmaxes and of `Map` alone, unless it masks.
        cancels: Whether terms of the functor's derivative cancel for some arguments, as those of a
            GELU do near -0.75. A gradient may then be off by roundings of these terms, and
            `fusedops.testing.check` allows that.
        rounds: Whether the functor rounds to fewer digits than the compute type has. A result then
            depends on which side of a rounding a value falls: `testing.check` allows both sides.
        is_affine: Whether the result is the value, times an operand or plus one, at most rounded or
            saved: so that with numbers for operands it is hardly worth a kernel.
        differentiable: Whether the C++ struct has a `backward`. An op with a functor that has none
            runs forward only.
        elementwise: Whether what the functor does to an element follows from the value and the
            operands there alone, wherever in x that is: its C++ reads neither row nor column. Ranks
            that have some columns of each row run it on theirs; for any other functor they gather
            the row first, unless it says what to run instead (`on_columns`). True of functors of a
            Python function that reads no position, and of C++ expressions.
        pairs: Whether what the functor does to an element follows from the value at a partner
            column as well (kPairs in C++). It stands in the declarations of some ops alone, once,
            and has `check_row`.
        optional: Whether a call may leave the functor's operands out, or give None for them: a
            field of the classes whose declarations choose.
        hardware_tanh: Whether tanh, and sigmoid by it, are those of the GPU's instruction: a field
            of the classes whose declarations choose. `apply` then calls torch.tanh or
            torch.sigmoid, and `testing.check` allows what such a call may be off by.
    """

    header: ClassVar[str]
    masks: ClassVar[bool] = False
    bounds: ClassVar[bool] = False
    needs_query: ClassVar[bool] = False
    rounds: ClassVar[bool] = False
    cancels: ClassVar[bool] = False
    is_affine: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False
    pairs: ClassVar[bool] = False
    optional: bool = False
    hardware_tanh: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "spell" in vars(cls):
            raise TypeError(
                f"{cls.__name__}: spell(write) is called emit(writer) now; rename the method"
            )

    @property
    def saves(self) -> Stream | None:
        """The stream that the functor saves (kSaves in C++), or None; in a LOAD alone.

        `apply` then returns ``chain.save(name, value)``, which rounds to the stream's dtype, and
        `emit` calls ``writer.output(name)`` and ``writer.output_gradient(name)``.
        """
        return None

    @property
    def taps(self) -> Stream | None:
        """The further output that the functor writes, or None; in a STORE alone.

        `apply` calls ``chain.tap(name, value)``. The C++ writes it wherever its type is not
        ``Unread``, which it is in the backward pass; it has no kSaves.
        """
        return None

    @property
    def quantizes(self) -> torch.dtype | None:
        """The dtype of 8 bits that y has after the functor, or None; last in a STORE alone.

        y has no gradient then, and the backward pass is that of the op without the functor.
        """
        return None

    @property
    def straight_through(self) -> bool:
        """Whether the functor rounds y, and a gradient of y is one of the value before it.

        Last in a STORE alone: the backward pass is that of the op without the functor.
        """
        return False

    @property
    def maximum(self) -> str | None:
        """The name of an output that holds the largest magnitude of all elements, or None.

        A float32 tensor without dimensions. `apply` calls ``chain.maximum(name, value)``.
        """
        return None

    @property
    def block(self) -> int | None:
        """The columns of a block whose largest value the functor needs (kBlock in C++), or None.

        16, 32, 64 or 128 neighbouring columns, or `WHOLE_ROW`; last in a STORE alone.
        """
        return None

    @property
    def of_blocks(self) -> Stream | None:
        """The output of one number for each block that a functor with a `block` writes, or None.

        Its shape follows from `block_layout`. `apply` calls ``chain.keep_blocks(name, values)``
        with one value a block in the last dimension.
        """
        return None

    @property
    def block_layout(self) -> str:
        """How `of_blocks` lies, one of `BLOCK_LAYOUTS`."""
        return "rows"

    @property
    def draws(self) -> str | None:
        """The probability operand of a functor that draws random numbers, or None.

        A call that gives 0 for it, or ``training=False``, runs without the functor. All others have
        a part of the random stream of its own for it: `apply` gets the elements that are kept from
        ``chain.dropout(self)``, and `emit` the C++ ``Dropout`` from ``writer.dropout(name)``.
        """
        return None

    @property
    def adds(self) -> str | None:
        """The operand of a functor that is ``x + operand`` and nothing else, or None.

        A matrix product can add such an operand by itself (`Linear`).
        """
        return None

    @property
    def shares_gradient(self) -> str | None:
        """The operand whose gradient is that of the functor's result, as the value's is, or None.

        Where such an operand has x's dtype and shape, one tensor is the gradient of both. Functors
        whose operand seldom has, such as a bias, only say that they add it (`adds`).
        """
        return None

    @property
    def passes_gradient(self) -> bool:
        """Whether the gradient of the value is that of the result, as if it only adds or saves."""
        return self.adds is not None or self.shares_gradient is not None

    @property
    def has_added(self) -> str | None:
        """The operand that the product before the functor has added to the value already, or None.

        Its gradient is the functor's all the same.
        """
        return None

    @property
    def shares(self) -> tuple[int, ...]:
        """The dimensions of x along which a functor that draws has one draw for all elements.

        They are x's as the call gives it, counted from the end where negative. Of the reduced
        dimensions a functor shares either all or none.
        """
        return ()

    def sharing(self, dims: Sequence[int]) -> Functor:
        """A copy with other dimensions for `shares`, for an x in another order of dimensions.

        A functor that overrides `shares` has it as well.
        """
        raise NotImplementedError(f"{type(self).__name__}: sharing(dims), the same with other dims")

    def check_row(
        self, name: str, shape: Sequence[int], reduced: Sequence[int], operands: Mapping[str, Any]
    ) -> None:
        """Raise ValueError for a call whose rows or operands have no partner columns.

        Called of functors with `pairs`.

        Args:
            name: The name of the op, for the message.
            shape: The shape of x.
            reduced: The dimensions that make a row.
            operands: What the call gives, by name.
        """

    def distance_in(self, columns: int) -> int:
        """The distance of all columns of such rows from their partners.

        Called of functors with `pairs`. It is 1 for neighbours and half of the columns for halves;
        0 where some columns have no partner, or another one.
        """
        return 0

    def bounds_along(self, rank: int, reduced: Sequence[int]) -> bool:
        """Whether the functor has bounds where these dimensions of an x of this rank make a row."""
        return self.bounds

    @property
    def positions(self) -> tuple[int, ...]:
        """The dimensions of x, as the call gives it, whose coordinates the functor reads.

        `apply` gets them from ``chain.position(dim)``, and `emit` the C++ operands from
        ``writer.position(dim)``. Negative ones are counted from the end.
        """
        return ()

    def on_columns(self, place: Place) -> Functor | None:
        """The functor for a rank's shard of the columns; None if there is none.

        Its numbers of queries and columns are those of the part. An operand of `Role.COUNT` counts
        from the part's first column on there.
        """
        return self if self.elementwise else None

    @property
    def tables(self) -> tuple[TableOf, ...]:
        """The operands of `Role.TABLE`, which the functor looks up by an index.

        `apply` gets what is looked up from ``chain.gathered(table)``, and `emit` the C++ operand,
        with the number of entries and the step from one to the next, from ``writer.table(name)``.
        The gradient of a table goes to the sink element by element.
        """
        return ()

    @property
    def channel_operands(self) -> tuple[str, ...]:
        """The operands of which GroupNorm and InstanceNorm take one number for each channel.

        There a tensor of one dimension for such an operand has shape (C,), as torch's weight and
        bias; for any other operand it broadcasts against x.
        """
        return ()

    @property
    def headers(self) -> tuple[str, ...]:
        """Paths of the headers that the C++ struct needs, below include/fusedops/."""
        if not hasattr(self, "header"):
            raise NotImplementedError(
                f"{type(self).__name__}: give it a header, the file of its C++ struct under "
                "include/fusedops/functor/; or a definition, its C++ text, and headers of its own"
            )
        return (f"functor/{self.header}",)

    @property
    def definition(self) -> str:
        """C++ text of the struct where it is in no header; empty for a functor of the library."""
        return ""

    def operands(self) -> tuple[Operand, ...]:
        """The operands that a call gives values to, in the order of the C++ struct's members."""
        return ()

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        """Compute the functor in torch, which defines what it means.

        Args:
            x: The value, of shape (..., columns) in the compute type: the reduced dimensions are
                the last and flattened to one.
            chain: Gives the operands, arranged likewise, and facts about the call.

        Returns:
            A tensor of the shape and dtype of x.
        """
        raise NotImplementedError(f"{type(self).__name__}: apply(x, chain), its meaning in torch")

    def masked(self, chain: Chain) -> Tensor:
        """Return the masked elements, in place of `apply`, for functors with `masks`.

        Returns:
            A bool tensor that broadcasts against the value of shape (..., columns); True where the
            element leaves the row.
        """
        raise NotImplementedError(f"{type(self).__name__}: masked(chain), what leaves the row")

    def intermediates(self, x: Tensor, chain: Chain) -> tuple[Tensor, ...]:
        """Values that `apply` rounds on the way to its result, if they may be larger than it.

        Where a sum cancels, its result is as uncertain as its terms: `testing.check` allows errors
        relative to these. x and the result of `apply` are always taken into account.
        """
        return ()

    def gradients(self) -> tuple[str | None, ...]:
        """The operands that have gradients; ``sink.add<k>`` in the C++ struct writes entry k.

        None stands for an operand without a gradient. By default those of `Role.VALUE` have one.
        """
        return tuple(
            operand.name if operand.role is Role.VALUE else None for operand in self.operands()
        )

    def reads(self, wanted: Collection[str]) -> Reads:
        """The values that the C++ ``backward`` reads for the gradients of some operands.

        By default all values. What is not listed is not saved for the backward pass: an operand
        that is fetched there all the same is zero, which gives a wrong gradient without an error.

        Args:
            wanted: The names of the operands whose gradients are computed, and "x" for that of x.
        """
        return Reads(True, tuple(operand.name for operand in self.operands()))

    @property
    def may_lack(self) -> tuple[str, ...]:
        """The names of the operands that a call may leave out, which are all if it is `optional`.

        The call then runs the declaration in which `without` has taken the functor's place.
        """
        return tuple(one.name for one in self.operands()) if self.optional else ()

    def without(self, names: Collection[str]) -> Functor | None:
        """The functor that replaces this one in a call without these operands; None to drop it.

        None, unless a functor knows better: nothing stands there.
        """
        return None

    def emit(self, writer: Writer) -> str:
        """Write the functor into the argument of a kernel; return its C++ type.

        Each call on ``writer`` appends one member of the struct, in their order, and returns the
        member's type. A struct without members calls ``writer.constant(0)``.
        """
        raise NotImplementedError(f"{type(self).__name__}: emit(writer), its type in C++")
