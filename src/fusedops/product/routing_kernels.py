# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The small kernels around products of experts, on a GPU: routing, and copies and sums of tokens.

torch takes some ten kernels to route, each of which is launched, and waits, for longer than it
works where tokens are few. One of ours sorts the choices of all tokens by counting and copies each
token to its rows, another one copies alone, as gradients do, and a third one sums the rows of each
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Plan
from fusedops.generate.arguments import ArgumentWriter
from fusedops.generate.plain import PlainKernel
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import STORAGE
from fusedops.jit import env
from fusedops.plan.planned import Launch, Results, runtime_plan
from fusedops.product.kernel_or_torch import KernelOrTorch

__all__ = ["copied_tokens", "routed", "summed_choices"]

#: What errors and profilers call these kernels, and the header that has them.
_NAME, _HEADER = "Experts", "gemm/routing.cuh"

#: Threads of a block that routes, and the most blocks, as many as let the next kernel come up
#: (`kFewBlocks` in core/dependency.cuh).
_THREADS, _MOST_BLOCKS = 512, 128
#: The most choices, of which each block counts all, and the most experts, of which each warp has a
#: number in shared memory: every GPU has as much.
_MOST_CHOICES, _MOST_EXPERTS = 1 << 18, 1024
#: Threads of a block that copies or sums, and the bytes that each one has of a row.
_BY_COLUMN, _PACK_BYTES = 128, 16


class _Kernel(NamedTuple):
    """One launch, before it is built."""

    launch: Launch  # the kernel, and its argument
    results: Results  # what it writes

    def build(self) -> Plan:
        """Build the kernel.

        Raises:
            CompileError, CompilerNotFound, MissingVariantError: It cannot be had.
        """
        return runtime_plan(None, [self.launch], self.results, self.launch.variant.entry)


class _Argument:
    """The argument of a kernel as it is written, member by member."""

    def __init__(self) -> None:
        self.write = ArgumentWriter(compute="float", sizes=())
        self.members: list[Member] = []

    def pointer(self, kind: str, name: str, patch: tuple[int, int] | None) -> None:
        """Append the address of a tensor of the call, or of a result, or none."""
        self.members.append(Member(f"{kind}*", name))
        self.write.pointer(patch)

    def number(self, name: str, value: int) -> None:
        """Append a number that the shapes of a call decide."""
        self.members.append(Member("int64_t", name))
        self.write.constant(value)

    def kernel(
        self,
        entry: str,
        template: Sequence[object],
        dtype: torch.dtype,
        results: Results,
        grid: int,
        shared: int,
        target: Target,
    ) -> _Kernel:
        """The launch of a function of the header with this argument.

        Args:
            entry: The function.
            template: Its template arguments, of which the threads of a block are the first.
            dtype: That of the floating numbers, which the name of the kernel says.
            results: What it writes.
            grid: Blocks.
            shared: Bytes of dynamic shared memory.
            target: What runs it.
        """
        cpp = f"gemm::{entry}<{', '.join(map(str, template))}>"
        threads = int(str(template[0]))
        variant = Variant(
            arch=target.arch,
            schedule=str(threads),
            tile=PlainKernel(cpp, _HEADER, threads),
            members=tuple(self.members),
            words=len(self.write.words),
            op=_NAME,
            headers=(),
            load=(),
            store=(),
            dtype=dtype,
            declaration=f"{_NAME}: {entry}",
            definitions=(),
            entry=entry,
            translated=target.translated,
        )
        words, patches = self.write.pack(), self.write.patches
        launch = Launch(variant, words, patches, 1, 1, grid, threads, shared)
        return _Kernel(launch, results)


def planned_route(
    expert: Tensor, weight: Tensor, x: Tensor, offsets: Any, target: Target
) -> _Kernel | None:
    """The kernel that routes; None where torch has to.

    Args:
        expert: The expert of each choice, in one dimension.
        weight: The weight of each choice.
        x: The tokens, each of which has equally many choices.
        offsets: Dtype and shape of a result: where each expert's rows begin, then the last one's
            end.
        target: What runs it.
    """
    rows, experts, (tokens, columns) = expert.shape[0], offsets[1][0] - 1, x.shape
    if not 0 < rows <= _MOST_CHOICES or experts > _MOST_EXPERTS:
        return None
    if expert.dtype not in (torch.int32, torch.int64) or weight.dtype not in _COMPUTE:
        return None
    if expert.stride(0) != 1 or weight.stride(0) != 1 or weight.shape[0] != rows or rows % tokens:
        return None
    if x.dtype not in _COMPUTE or x.stride(1) != 1:
        return None
    choices = rows // tokens
    each = -(-tokens // _MOST_BLOCKS) * choices
    if each // choices * columns >= (1 << 31) - _THREADS:  # what a thread counts to, and one step
        return None
    index, storage, of_x = (STORAGE[one.dtype] for one in (expert, weight, x))
    one = _Argument()
    one.pointer(f"const {index}", "group_of", (_runtime.POINTER, 0))
    one.pointer(f"const {storage}", "weights", (_runtime.POINTER, 1))
    for name, value in (("rows", rows), ("groups", experts), ("each", each)):
        one.number(name, value)
    kinds = {"order": "int64_t", "place": "int64_t", "offsets": "int32_t", "sorted": storage}
    for number, (name, kind) in enumerate(kinds.items()):
        one.pointer(kind, name, (_runtime.OUTPUT, number))
    places = torch.int64, (rows,)
    one.pointer(f"const {of_x}", "x", (_runtime.POINTER, 2))
    for name, value in (("apart", x.stride(0)), ("choices", choices), ("cols", columns)):
        one.number(name, value)
    one.pointer(of_x, "to", (_runtime.OUTPUT, len(kinds)))
    of_weights, copied = (weight.dtype, (rows, 1)), (x.dtype, (rows, columns))
    results = Results([places, places, (torch.int32, (experts + 1,)), of_weights, copied])
    shared = 4 * (_THREADS // 32 + 2) * (experts + 1)
    template = _THREADS, index, storage, of_x, _width(x)
    given = template, x.dtype, results, -(-rows // each), shared, target
    return one.kernel("route_and_copy", *given)


def planned_copy(x: Tensor, place: Tensor, target: Target) -> _Kernel | None:
    """The kernel that copies each token to its rows, which `place` says; None where torch does."""
    if (tokens := x.shape[0]) == 0:
        return None
    shape = place.shape[0], x.shape[1]
    return _of_tokens("copy_tokens", x, tokens, shape, place.shape[0], True, target)


def planned_sum(rows: Tensor, place: Tensor | None, tokens: int, target: Target) -> _Kernel | None:
    """The kernel that sums the rows of each token, which lie in order or where `place` says."""
    shape, count = (tokens, rows.shape[1]), rows.shape[0]
    return _of_tokens("sum_choices", rows, tokens, shape, count, place is not None, target)


def _width(x: Tensor) -> int:
    """The columns that a thread has at a time, of rows that are read and of dense ones."""
    width = _PACK_BYTES // x.dtype.itemsize
    aligned = not (x.shape[1] % width or x.stride(0) % width or x.data_ptr() % _PACK_BYTES)
    return width if aligned else 1


def _of_tokens(
    entry: str,
    read: Tensor,
    tokens: int,
    shape: tuple[int, int],
    rows: int,
    placed: bool,
    target: Target,
) -> _Kernel | None:
    columns, (apart, inner), dtype = read.shape[1], read.stride(), read.dtype
    if not (rows and columns) or inner != 1 or dtype not in _COMPUTE:
        return None
    width = _width(read)
    blocks = tokens * -(-columns // (_BY_COLUMN * width))
    if blocks >= 1 << 31:
        return None
    storage = STORAGE[dtype]
    one = _Argument()
    one.pointer(f"const {storage}", "read", (_runtime.POINTER, 0))
    one.number("apart", apart)
    one.pointer("const int64_t", "place", (_runtime.POINTER, 1) if placed else None)
    one.number("choices", rows // tokens)
    one.number("cols", columns)
    one.pointer(storage, "written", (_runtime.OUTPUT, 0))
    template = [_BY_COLUMN, storage, width, *[_COMPUTE[dtype]] * (entry == "sum_choices")]
    return one.kernel(entry, template, dtype, Results([(dtype, shape)]), blocks, 0, target)


#: The C++ type in which numbers of each dtype are added.
_COMPUTE = dict.fromkeys((torch.bfloat16, torch.float16, torch.float32), "float")
_COMPUTE[torch.float64] = "double"


class _Kernels(KernelOrTorch):
    """The kernels: `route`, `copy` and `sum` give what the functions of this module give."""

    def __init__(self) -> None:
        super().__init__(_NAME, "torch routes tokens by kernels of its own")
        tensor, described = _runtime.SLOT_TENSOR, _runtime.SLOT_DESCRIBED
        slots = ("weight", tensor), ("x", tensor), ("offsets", described)
        self.route = self.dispatcher(slots, result=tuple)
        self.copy = self.dispatcher([("place", tensor)])
        self.sum = self.dispatcher([("place", tensor), ("y", described)])

    def planned(self, x: Tensor, operands: dict[str, Any]) -> _Kernel | None:
        """The kernel of a call; None where torch has to run."""
        if env.record_file() is not None:
            return None
        target = Target.of(x.device)
        if "weight" in operands:
            return planned_route(x, **operands, target=target)
        if "y" in operands:
            return planned_sum(x, operands.get("place"), operands["y"][1][0], target)
        return planned_copy(x, **operands, target=target)


_kernels = _Kernels()


def _runs(tensor: Tensor) -> bool:
    return not torch.compiler.is_compiling() and tensor.is_cuda and _kernels.available


def routed(expert: Tensor, weight: Tensor, x: Tensor, experts: int) -> Sequence[Tensor] | None:
    """Route, and copy tokens to their rows, of which no gradients are recorded.

    Args:
        expert: The expert of each choice, in one dimension.
        weight: The weight of each choice, below one another.
        x: The tokens, each of which has equally many choices.
        experts: How many there are.

    Returns:
        The order of rows, the place of each choice, offsets of experts, weights in the order of the
        rows, and the rows; None where torch has to route.
    """
    if not _runs(expert):
        return None
    offsets = torch.int32, (experts + 1,)
    given = {"weight": weight.detach().view(-1), "x": x.detach(), "offsets": offsets}
    with torch.no_grad():
        found: Sequence[Tensor] | None = _kernels.route(expert, **given)
    return found


def copied_tokens(x: Tensor, place: Tensor) -> Tensor | None:
    """Each token in the rows that `place` says of its choices; None where torch has to copy."""
    if not _runs(x):
        return None
    rows: Tensor | None = _kernels.copy(x, place=place)
    return rows


def summed_choices(rows: Tensor, place: Tensor | None, tokens: int) -> Tensor | None:
    """The sum of each token's rows in the order of its choices; None where torch has to sum.

    Args:
        rows: The rows.
        place: The row of each choice; None where they are in that order.
        tokens: How many tokens there are.
    """
    if not _runs(rows):
        return None
    places = {} if place is None else {"place": place}
    y: Tensor | None = _kernels.sum(rows, **places, y=(rows.dtype, (tokens, rows.shape[1])))
    return y
