# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What planning works on: a pass, its placed call, the tensors it allocates, and its launches.

A pass says what differs between forward, backward and the two passes of a product; `plan.planner`
does for all of them what does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch

from fusedops import _runtime
from fusedops.bind.bind import Bound
from fusedops.bind.geometry import Geometry, Placed, Sharing
from fusedops.bind.operands import FLOATING
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import Part, View
from fusedops.plan.placing import Outline
from fusedops.plan.reading import Reading
from fusedops.plan.wanted_gradients import Occurrence
from fusedops.schedule import Schedule
from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.row_partition import Slices, is_sum

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration

__all__ = ["Call", "Launch", "Pass", "Planned", "Results", "Sums", "Tensors", "runtime_plan"]

#: Dtype and shape of a tensor that a plan allocates.
Output: TypeAlias = "tuple[torch.dtype, Sequence[int]]"

#: The tensors of a pass by key, and the indices of some of them (`Pass.tensors`).
Tensors: TypeAlias = "tuple[dict[Any, Part], Sequence[int]]"

#: DLPack's type code and bits of each dtype that a kernel writes.
_DLPACK = {dtype: (4 if dtype is torch.bfloat16 else 2, dtype.itemsize * 8) for dtype in FLOATING}
_DLPACK |= {torch.int32: (0, 32), torch.int64: (0, 64)}
_DLPACK |= {torch.float8_e4m3fn: (10, 8), torch.float8_e5m2: (12, 8)}
_DLPACK |= {torch.float8_e8m0fnu: (14, 8), torch.float4_e2m1fn_x2: (17, 4)}


class Pass(Protocol):
    """One pass of a checked call, as a kernel of its own runs it."""

    bound: Bound  # the forward call
    op: Declaration  # the declaration whose operator the kernel has
    entry: str  # the kernel template, as in `Variant`
    product: str  # what a product is called in the name of its kernel; "" of a row op
    dtype: torch.dtype  # the dtype in that name
    #: The number of each operand among the arguments of the call, x being 0 in a forward pass.
    slots: dict[str, int]
    info: str  # what `testing.last_schedule` reports; "" for where a row or its sums are stored
    forms: dict[Any, Any]  # what is known of its arguments whatever the sizes (`plan.planner`)
    gradient: bool  # whether the operator's gradient takes the place of the operator
    from_result: bool  # whether y takes the place of x in that
    from_stream: str | None  # the saved stream that takes the place of the LOAD in that, or None
    in_order: bool  # whether rows are visited in the order of the tensor, as those of a product

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """The tensors by key, that of an operand being its name; None if no kernel takes them.

        With them come the indices of those that are sums over what they are broadcast over.
        `vectors` is that of the `Reading`.
        """

    def schedule(
        self, geometry: Geometry, outline: Outline, target: Target, reading: Reading
    ) -> tuple[Schedule | ProductTiling | None, str]:
        """The schedule of a GPU or None, and the storage of a row."""

    def settled(self, call: Call) -> Call | None:
        """The call with what follows from its views; None if no kernel takes these."""

    def results(self, call: Call) -> Results:
        """The tensors that the plan allocates, so far without workspaces."""

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """The outputs of the forward pass, and the gradients of these that join, by name."""

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write the members of the kernel's argument after the declared ones."""

    def types(self, call: Call) -> tuple[object, ...] | None:
        """What the argument's types follow from beside views; None if numbers are among that."""

    def launch(self, call: Call, results: Results) -> tuple[int, int, int, int, int]:
        """Rows, grain, grid, block and shared memory of the kernel, as in `Launch`."""


class Sums(NamedTuple):
    """How a backward call cuts its rows into slices, and sums gradients of operands over them."""

    chosen: Schedule | None  # the schedule that was chosen for the row; None on a CPU
    tile: Schedule | None  # the schedule of the kernel
    few: bool  # whether one block has all rows, so that no sum over them is in parts
    slices: Slices  # the slices of the rows
    partial: list[bool]  # whether each gradient is a sum that is left in partial sums
    #: The indices of those of which the caller makes the sum, since no single stride leads from
    #: group to group of the rows.
    apart: list[int]
    #: The number of thread blocks, in each of which the sums of all slices are combined; on a CPU
    #: that of slices.
    blocks: int
    of_one: int  # elements of shared memory that the sums of one operand take in a block
    #: All of this that the types of a kernel follow from; None if numbers are among that.
    told: tuple[object, ...] | None


class Call(NamedTuple):
    """A pass whose tensors are placed and whose schedule is chosen."""

    one: Pass
    target: Target  # the target that kernels are built for
    reading: Reading  # how the call is read where its shapes leave that open
    outline: Outline  # the outline of the forward call
    #: The maps from rows to their numbers in the dropout contract.
    drawn: dict[tuple[int, ...], list[int]]
    parts: dict[Any, Part]  # the tensors by key
    merged: Geometry  # where they lie, with no row dimension more than they need
    geometry: Geometry  # the same with the row dimensions of the kernel
    storage: str  # where a row is stored
    views: dict[Any, View]  # the tensors by key, as the kernel addresses them
    #: The maps from a row to the numbers that functors read, as placed.
    maps: tuple[Placed | None, ...]
    tile: Any  # the schedule of a GPU, a `ProductTiling` of a product; None on a CPU
    #: How rows and columns share each operand whose gradient is wanted.
    sharing: Mapping[Occurrence, Sharing] = {}
    #: How these gradients are summed over rows, in a backward pass of a row op.
    sums: Sums | None = None

    @property
    def compute(self) -> str:
        """The C++ compute type, "float" or "double"."""
        return "double" if self.one.bound.compute is torch.float64 else "float"

    @property
    def adds_nothing(self) -> bool:
        """Whether no rows share an element of a gradient, so that all readings add the same."""
        return all(share.group == 1 for share in self.sharing.values())

    def adds_as(self, other: Call) -> bool:
        """Whether this reading of a call adds up every sum over rows in the same order as another.

        The kernel of a reading with more sums may have another launch configuration, and so another
        row partition. It may not serve then: which kernels are loaded must not decide a bit.
        """
        shares = (*self.sharing.values(), *other.sharing.values())
        if not any(is_sum(share) and share.group > 1 for share in shares):
            return True
        blocks = [0 if tile is None else tile.rows_per_block for tile in (self.tile, other.tile)]
        slices = [None if sums is None else sums.slices for sums in (self.sums, other.sums)]
        return slices[0] == slices[1] and blocks[0] == blocks[1]


@dataclasses.dataclass(eq=False)
class Results:
    """The tensors that a plan allocates: outputs, then workspaces that hold partial sums."""

    outputs: list[Output]  # dtype and shape of each
    returned: int | None = None  # how many of them a call returns; None for all
    cleared: Sequence[int] = ()  # the numbers of those that are zero when the first kernel begins
    #: Whether some gradient has the shape of x and is for the caller to sum.
    loose: bool = False
    in_shared: int = 0  # the number of operands whose sums a block keeps in shared memory
    #: For each gradient that has partial sums, the source of the pointer of their workspace, and
    #: their number.
    parts_of: dict[Occurrence, tuple[tuple[int, int], int]] = dataclasses.field(
        default_factory=dict
    )
    #: For each gradient that is summed over pieces of a row's columns too, the number of pieces
    #: that make one element; on a CPU there is one, and none is listed.
    pieces_of: dict[Occurrence, int] = dataclasses.field(default_factory=dict)


class Launch(NamedTuple):
    """One kernel launch of a plan."""

    variant: Variant  # the kernel
    words: bytes  # the words of its argument
    #: The relocations: which words each call rewrites, and with what (`_runtime.Plan`).
    patches: list[tuple[int, int, int]]
    rows: int  # the rows of the kernel; 0 launches nothing
    grain: int = 1  # the rows that a CPU thread takes at a time
    grid: int = 1  # the thread blocks
    block: int = 1  # the threads of a block
    shared: int = 0  # the bytes of dynamic shared memory


class Planned(NamedTuple):
    """A call as it will be launched."""

    call: Call  # the call, placed and scheduled
    launches: tuple[Launch, ...]  # the kernels, one after another on a stream
    results: Results  # the tensors that are allocated

    @property
    def geometry(self) -> Geometry:
        """The rows and columns."""
        return self.call.geometry

    @property
    def variant(self) -> Variant:
        """The first kernel."""
        return self.launches[0].variant

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The kernels, in the order in which they run."""
        return tuple([launch.variant for launch in self.launches])

    @property
    def tile(self) -> Schedule | None:
        """The schedule of a row pass on a GPU; None on a CPU."""
        tile: Schedule | None = self.call.tile
        return tile

    def build(self, calls: int = 0) -> _runtime.Plan:
        """Build the kernels and return the runtime's plan; it is made again after so many `calls`.

        Raises:
            CompileError, CompilerNotFound, MissingVariantError: A kernel cannot be had.
        """
        one, results, storage = self.call.one, self.results, self.call.storage
        sums_shared = results.in_shared and storage == "register"
        info = one.info or ("shared" if sums_shared else storage)
        return runtime_plan(one, self.launches, results, info, calls)


def runtime_plan(
    one: Pass | None, launches: Sequence[Launch], results: Results, info: str | None, calls: int = 0
) -> _runtime.Plan:
    """The runtime's plan of a pass, or of kernels that are none's and draw nothing.

    Of a call without elements there are no launches.
    """
    stages: list[_runtime.Stage] = [(launch.variant.kernel(), *launch[1:]) for launch in launches]
    first, *then = stages or [(None, b"", [], 0, 1, 1, 1, 0)]
    kernel, words, patches, rows, grain, grid, block, shared = first
    return _runtime.Plan(
        kernel=kernel,
        words=words,
        patches=patches,
        outputs=[(*_DLPACK[dtype], tuple(shape)) for dtype, shape in results.outputs],
        rows=rows,
        grain=grain,
        grid=grid,
        block=block,
        shared=shared,
        # All dropouts draw or none does, so that each has its own offset.
        draws=one.op.dropouts if one is not None and one.bound.dropout_slots else 0,
        info=info,
        then=then,
        returned=results.returned,
        cleared=results.cleared,
        calls=calls,
    )
