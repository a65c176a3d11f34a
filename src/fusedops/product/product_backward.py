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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import Bound
from fusedops.bind.dimensions import contiguous
from fusedops.bind.generator import draw
from fusedops.bind.geometry import Placed, Sharing, shares_of
from fusedops.generate.product import write_factors
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE, Part, View, part_of
from fusedops.map import Map
from fusedops.plan.planned import Call, Results, Tensors
from fusedops.plan.planner import plan
from fusedops.plan.wanted_gradients import acting_place, gradient_like, occurrences
from fusedops.product import choice as choices
from fusedops.product.choice import HALVES_ALONE, Choice, able, chosen_for, features_of_sizes
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import HALVES
from fusedops.product.product_kernel import ProductPass, build_or_warn, factors_of, is_near
from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import ProductConfig

if TYPE_CHECKING:
    from fusedops.generate.arguments import ArgumentWriter
    from fusedops.plan.placing import Outline


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
    target = target or Target.of(dy.device)
    return _that_goes_back(chosen_for(features_of(epilogue, dy, w, arguments, target), target))


def choose(
    features: ProductFeatures, target: Target, forced: ProductConfig | None = None
) -> Choice:
    """How a gradient with these features is run; the arguments are those of `choice.decided`."""
    return _that_goes_back(choices.choose(features, target, forced))


def _that_goes_back(choice: Choice) -> Choice:
    """The choice; two kernels in place of one that has no gradient."""
    tiling = choice.tiling
    if tiling is not None and not (tiling.several and tiling.one_column):
        return Choice(None, f"one kernel of the tiling {tiling.name} has no gradient")
    return choice


def features_of(
    epilogue: Map, dy: Tensor, w: Tensor, arguments: Mapping[str, Any], target: Target
) -> ProductFeatures | Choice:
    """The features of a call; or two kernels, whatever the features.

    dy, the gradient of y, has shape (..., N), and w (N, H) and the same dtype. The epilogue made h,
    of these operands and options.
    """
    if not may_fuse(epilogue):
        return Choice(
            None, "its functors mask, save or tap, which no GEMM epilogue goes back through"
        )
    if dy.dtype is not w.dtype or dy.dtype not in HALVES:
        return Choice(None, HALVES_ALONE)
    depth, columns = w.shape
    sizes = math.prod(dy.shape[:-1]), columns, depth, 1
    found = features_of_sizes(epilogue, sizes, dy.dtype, arguments, target)
    if isinstance(found, Choice):
        return found
    # It reads z, and writes h beside dz.
    text = f"gradient of {epilogue.text}"
    return found._replace(reads=found.reads + 1, writes=1, store=text, gradient=True)


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

        dy has shape (..., N), w (N, H) and the same dtype, and z, of which h was made, (..., H).
        What the epilogue drew from is among the arguments.
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
        planned = plan(ProductGradient(bound, self._wanted, dy, w, tiling))
        if planned is None:
            return None
        made = build_or_warn(planned, epilogue.name)
        self.able = made is not None
        return made


class ProductGradient(ProductPass):
    """The pass of the gradients of z and of operands as one kernel.

    It allocates dz, h, the gradients of operands, and then workspaces.

    `bound` is the call of the epilogue on z; dy has shape (..., N), and w, which is MN-major
    whatever the tiling says, (N, H).
    """

    entry = "product_gradient"
    product = "Linear"

    def __init__(
        self, bound: Bound, wanted: frozenset[str], dy: Tensor, w: Tensor, tiling: ProductTiling
    ) -> None:
        super().__init__(bound, dy.dtype, dataclasses.replace(tiling, mn_major=True))
        self.uses = occurrences(bound.op, wanted)
        self.slots = {"x": 1, **{name: slot + 1 for name, slot in bound.op.slots.items()}}
        self.rows, self.columns = math.prod(dy.shape[:-1]), bound.columns
        self.info = f"{tiling.name}, gradient"
        self.factors = factors_of(bound, dy, w, len(bound.op.slots) + 2, self.tiling)

    def tensors(self, outline: Outline, vectors: bool) -> Tensors | None:
        """What the epilogue reads by name, dz as ("to",), h as ("again",), and the gradients.

        None if bulk copies cannot read the factors, or two functors use an operand.
        """
        bound, uses = self.bound, self.uses
        if self.factors is None or len({one.name for one in uses}) < len(uses):
            return None
        parts: dict[Any, Part] = {}
        for name, value in {"x": bound.x, **bound.operands}.items():
            if isinstance(value, Tensor):
                patch = (_runtime.POINTER, self.slots[name])
                parts[name] = part_of(value, patch, name in outline.shared[vectors])
        shape = tuple(bound.x.shape)
        made: dict[Any, Any] = {("to",): (bound.x.dtype, shape), ("again",): (bound.dtype, shape)}
        for one in uses:
            like = gradient_like(bound, one)
            made[one] = like.dtype, tuple(like.shape)
        for number, (key, (dtype, sizes)) in enumerate(made.items()):
            parts[key] = Part(sizes, contiguous(sizes), dtype, (_runtime.OUTPUT, number), 16)
        return parts, ()

    def settled(self, call: Call) -> Call | None:
        """The call, if a tile can address its tensors and add up the gradients of operands."""
        if not is_near(call):
            return None
        geometry = call.geometry
        places = [call.views[one].placed for one in self.uses]
        shares = shares_of(places, geometry.sizes, geometry.columns)
        if not all(_can_add(share, geometry.rows) for share in shares):
            return None
        return call._replace(sharing=dict(zip(self.uses, shares, strict=True)))

    def results(self, call: Call) -> Results:
        """dz, h, and the gradients of operands."""
        made = [call.parts[key] for key in (("to",), ("again",), *self.uses)]
        return Results([(part.dtype, tuple(part.shape)) for part in made], len(made))

    def streams(self, views: Mapping[Any, View]) -> tuple[dict[str, View], dict[str, View]]:
        """None is read, and nothing joins."""
        return {}, {}

    def members(
        self, call: Call, write: ArgumentWriter, declared: Sequence[Member], results: Results
    ) -> list[Member]:
        """Write h, dz, the gradients of operands and the factors."""
        assert self.factors is not None
        views, columns = call.views, call.geometry.columns
        members = [Member(write.view(views["again",]), "again")]
        members.append(Member(write.view(views["to",]), "to"))
        for one in self.uses:
            place = acting_place(self.bound, one)
            kind, view = "Each", views[one]
            if call.sharing[one].kind != "each":
                count = self.tiling.parts(call.geometry.rows)
                patch = (_runtime.OUTPUT, len(results.outputs))
                results.outputs.append((torch.float32, (count, columns)))
                results.parts_of[one] = patch, count
                kind = "gemm::OfTile"
                view = View(STORAGE[torch.float32], Placed((columns,), 1), 4, patch, False)
            cpp = f"{kind}<{place}, {one.number}, {write.view(view)}>"
            members.append(Member(cpp, f"of_load{place}_{one.number}", "target", "load", place))
        return members + write_factors(write, *self.factors, self.tiling)


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
    if plan(ProductGradient(bound, wanted, dy, w, choice.tiling)) is None:
        return Choice(
            None,
            "one kernel for both reads w by bulk copies, from rows that begin at multiples of 16 "
            "bytes, and adds up gradients of operands that all rows share, not of these",
        )
    return choice


def _can_add(share: Sharing, rows: int) -> bool:
    """Whether a tile has the gradient of an operand, or sums of all rows that share it."""
    return share.kind == "each" or (share.kind == "column" and share.group == rows)
