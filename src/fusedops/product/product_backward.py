# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The gradient of what stands between two products, as the epilogue of the product that makes it.

Of ``h = STORE(z)`` and ``y = h @ w.T`` the gradient of h is ``dh = dy @ w``. One kernel multiplies,
and its epilogue goes back through the STORE: it reads z and writes dz, and h again, which the
gradient of w needs. dh is never in memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import Bound
from fusedops.bind.generator import draw
from fusedops.bind.geometry import Placed, Sharing, shares_of
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.generate.views import STORAGE, Number, Part, View, contiguous, part_of, views_of
from fusedops.map import Map
from fusedops.product.choice import (
    HALVES_ALONE,
    Choice,
    ProductCall,
    able,
    chosen_for,
    features_of_call,
    product_call,
)
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import HALVES
from fusedops.product.product_kernel import (
    WIDTH,
    build_or_warn,
    factors_of,
    in_order,
    launch_of,
)
from fusedops.run.backward_schedule import sums_schedule
from fusedops.run.operand_gradients import Occurrence, acting_place, gradient_like, occurrences
from fusedops.run.outline import is_shared
from fusedops.run.planned import Launch, Planned
from fusedops.run.reading import USUAL
from fusedops.run.second_stage import argument_of, second_stage
from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.features import ProductFeatures

__all__ = [
    "ProductBackward",
    "chosen",
    "describe",
    "explained",
    "features_of",
    "gradient_variants",
    "may_fuse",
]


def may_fuse(epilogue: Map) -> bool:
    """Whether a tile of a product can go back through the functors: no output, none masked."""
    plain = not (epilogue.store or epilogue.masked or epilogue.causal)
    return plain and able(epilogue) and len(epilogue.outputs) == 1


def chosen(
    epilogue: Map,
    dy: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    target: Target | None = None,
) -> Choice:
    """How the gradient of h, and what follows of it, is run, as far as shapes and types decide.

    The arguments are those of `features_of`; the target is by default dy's device.
    """
    call = _call_of(epilogue, dy, w, arguments)
    if isinstance(call, Choice):
        return call
    choice = chosen_for(call, target or Target.of(dy.device))
    if choice.tiling is None:
        return choice
    return choice._replace(tiling=dataclasses.replace(choice.tiling, mn_major=True))


def features_of(
    epilogue: Map, dy: Tensor, w: Tensor, arguments: Mapping[str, Any], target: Target
) -> ProductFeatures | Choice:
    """The features of a call; or two kernels, whatever the features.

    Args:
        epilogue: What made h.
        dy: The gradient of y, of shape (..., N).
        w: The weight, of shape (N, H), in the same dtype.
        arguments: The operands and options of the epilogue.
        target: What runs it.
    """
    call = _call_of(epilogue, dy, w, arguments)
    return call if isinstance(call, Choice) else features_of_call(call, target)


def _call_of(
    epilogue: Map, dy: Tensor, w: Tensor, arguments: Mapping[str, Any]
) -> ProductCall | Choice:
    if not may_fuse(epilogue):
        return Choice(
            None, "its functors mask, save or tap, which no GEMM epilogue goes back through"
        )
    if dy.dtype is not w.dtype or dy.dtype not in HALVES:
        return Choice(None, HALVES_ALONE)
    depth, columns = w.shape
    sizes = math.prod(dy.shape[:-1]), columns, depth, 1
    # It reads z, and writes h beside dz.
    text = f"gradient of {epilogue.text}"
    return product_call(epilogue, text, sizes, dy.dtype, arguments, reads=1, writes=1)


class ProductBackward:
    """The gradients of z and of operands by one kernel, where it can be had and is faster.

    Args:
        epilogue: What made h of z.
        wanted: The operands whose gradients are wanted.

    Attributes:
        names: The names of the results after dz and h.
        able: Whether kernels can be had: False once one was missing and there was no compiler.
    """

    def __init__(self, epilogue: Epilogue, wanted: frozenset[str]) -> None:
        self._epilogue = epilogue
        self._wanted = wanted
        self.names = [one.name for one in occurrences(epilogue, wanted)]
        self.able = True
        slots = [("x", _runtime.SLOT_TENSOR), *epilogue.kinds, ("w", _runtime.SLOT_TENSOR)]
        label = f"gradient of {epilogue.label}"
        name = f"gradient of {epilogue.name}"
        self._call = _runtime.Dispatcher(name, slots, self._slow, draw, tuple, label=label)

    def __call__(
        self, dy: Tensor, w: Tensor, z: Tensor, arguments: Mapping[str, Any]
    ) -> Sequence[Tensor] | None:
        """Run a call: dz, h, and the gradients of `names`; None if two kernels have to.

        Args:
            dy: The gradient of y, of shape (..., N).
            w: The weight, of shape (N, H), in the same dtype.
            z: What h was made of, of shape (..., H).
            arguments: The operands and options of the epilogue, what it drew from among them.
        """
        if not self.able or not dy.is_cuda:
            return None
        if chosen(self._epilogue, dy, w, arguments).tiling is None:
            return None
        found: Sequence[Tensor] | None = self._call(dy.contiguous(), x=z, w=w, **arguments)
        return found

    def _slow(
        self, reason: Reason, dy: Any, operands: dict[str, Any], options: dict[str, Any]
    ) -> Any:
        if reason is not Reason.MISS:
            return None
        epilogue = self._epilogue
        w, z = operands.pop("w"), operands.pop("x")
        tiling = chosen(epilogue, dy, w, {**operands, **options}).tiling
        if tiling is None or epilogue.lacking(operands):
            return None
        bound = epilogue.bind(z, {**operands, **options})
        planned = describe(bound, self._wanted, dy, w, tiling, Target.of(dy.device))
        if planned is None:
            return None
        plan = build_or_warn(planned, epilogue.name)
        self.able = plan is not None
        return plan


def describe(
    bound: Bound,
    wanted: frozenset[str],
    dy: Tensor,
    w: Tensor,
    tiling: ProductTiling,
    target: Target,
) -> Planned | None:
    """The launches of a call, or None where one kernel cannot run it.

    It allocates dz, h, the gradients of operands, and then workspaces.

    Args:
        bound: The call of the epilogue on z.
        wanted: The operands whose gradients are wanted.
        dy: The gradient of y, of shape (..., N).
        w: The weight, of shape (N, H).
        tiling: The form of the kernel, for an MN-major w.
        target: The GPU that the grid is for.
    """
    op = bound.op
    uses = occurrences(op, wanted)
    numbers = {"x": 1, **{name: slot + 1 for name, slot in op.slots.items()}}
    numbers["w"] = len(op.slots) + 2
    factors = factors_of(bound, dy, w, numbers["w"], tiling)
    if factors is None or len({one.name for one in uses}) < len(uses):
        return None
    outputs: list[tuple[torch.dtype, tuple[int, ...]]] = []

    def made(dtype: torch.dtype, shape: Sequence[int]) -> Part:
        outputs.append((dtype, tuple(shape)))
        strides = contiguous(tuple(shape))
        return Part(tuple(shape), strides, dtype, (_runtime.OUTPUT, len(outputs) - 1), 16)

    parts: dict[Any, Part] = {"x": part_of(bound.x, (_runtime.POINTER, numbers["x"]))}
    for name, value in bound.operands.items():
        if isinstance(value, Tensor):
            patch = (_runtime.POINTER, numbers[name])
            parts[name] = part_of(value, patch, is_shared(bound, name, value, USUAL.vectors))
    inputs = [*parts]
    parts["to",] = made(bound.x.dtype, bound.x.shape)
    parts["again",] = made(bound.dtype, bound.x.shape)
    for one in uses:
        like = gradient_like(bound, one)
        parts[one] = made(like.dtype, like.shape)
    placing = in_order(bound, [*parts.values()])
    if placing is None:
        return None
    geometry = placing.geometry
    columns = geometry.columns
    views = dict(
        zip(parts, views_of([*parts.values()], placing.places, WIDTH, columns), strict=True)
    )
    places = [views[one].placed for one in uses]
    shares = dict(zip(uses, shares_of(places, geometry.sizes, columns), strict=True))
    if not all(_can_add(share, geometry.rows) for share in shares.values()):
        return None
    operands: dict[str, View | Number] = {name: views[name] for name in inputs}
    for name, value in bound.operands.items():
        if name not in operands:
            operands[name] = Number(numbers[name], isinstance(value, int))
    maps = iter(placing.places[len(parts) :])
    write, members = placing.argument(maps, operands, {}, numbers)
    members.append(Member(write.view(views["again",]), "again"))
    members.append(Member(write.view(views["to",]), "to"))
    parts_of: dict[Occurrence, tuple[tuple[int, int], int]] = {}
    for one in uses:
        place = acting_place(op, bound, one)
        kind, view = "Each", views[one]
        if shares[one].kind != "each":
            count = tiling.parts(geometry.rows)
            patch = (_runtime.OUTPUT, len(outputs))
            outputs.append((torch.float32, (count, columns)))
            parts_of[one] = patch, count
            kind = "gemm::OfTile"
            view = View(STORAGE[torch.float32], Placed((columns,), 1), 4, patch, False)
        cpp = f"{kind}<{place}, {one.number}, {write.view(view)}>"
        members.append(Member(cpp, f"of_load{place}_{one.number}", "target", "load", place))
    variant = placing.variant("product_gradient", write, members, factors, tiling, dy.dtype)
    rows = math.prod(dy.shape[:-1])
    grid = tiling.grid(rows, columns, target.multiprocessors)
    launches: list[Launch] = [launch_of(variant, write, rows, grid)]
    draws = op.dropouts if bound.dropout_slots else 0
    info = f"{tiling.name}, gradient"
    if not parts_of:
        return Planned(tuple(launches), outputs, draws, info, 2 + len(uses))
    argument = argument_of(views, parts_of, {}, "float")
    stage = second_stage(argument, geometry, shares, views, parts_of, {})
    sums = variant._replace(
        arch=target.arch,
        schedule="register",
        tile=sums_schedule(stage.block, stage.wide),
        members=stage.argument.members,
        words=stage.argument.words,
        op=op.kernels,
        entry="sums",
    )
    argument_words = (sums, stage.words, argument.patches, stage.rows)
    launches.append(Launch(*argument_words, grid=stage.blocks, block=stage.block))
    return Planned(tuple(launches), outputs, draws, info, 2 + len(uses))


def gradient_variants(
    bound: Bound,
    wanted: frozenset[str],
    dy: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    target: Target,
) -> Iterator[Variant]:
    """The kernels of a call on a target, if one multiplies there; as `describe` and `chosen`."""
    tiling = chosen(bound.op, dy, w, arguments, target).tiling  # type: ignore[arg-type]
    planned = None if tiling is None else describe(bound, wanted, dy, w, tiling, target)
    if planned is not None:
        yield from planned.variants


def explained(
    epilogue: Epilogue,
    wanted: frozenset[str],
    dy: Tensor,
    w: Tensor,
    z: Tensor,
    arguments: Mapping[str, Any],
) -> Choice:
    """How a call is run, and why, strides and alignment included; nothing is built."""
    choice = chosen(epilogue, dy, w, arguments)
    if choice.tiling is None:
        return choice
    if epilogue.lacking(dict(arguments)):
        return Choice(None, "one kernel for both leaves out no operand")
    bound = epilogue.bind(z, dict(arguments))
    if describe(bound, wanted, dy, w, choice.tiling, Target.of(dy.device)) is None:
        return Choice(
            None,
            "one kernel for both reads w by bulk copies, from rows that begin at multiples of 16 "
            "bytes, and adds up gradients of operands that all rows share, not of these",
        )
    return choice


def _can_add(share: Sharing, rows: int) -> bool:
    """Whether a tile has the gradient of an operand, or sums of all rows that share it."""
    return share.kind == "each" or (share.kind == "column" and share.group == rows)
