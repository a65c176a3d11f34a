# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plan the backward pass of an op from the same declaration.

The kernel depends on the gradients that are wanted and on the saved streams that have gradients of
their own. Each such pair is a `Gradient`, which has plans of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import KEPT, Bound, bound_call
from fusedops.bind.dimensions import contiguous, find_reduced
from fusedops.bind.generator import draw
from fusedops.bind.operands import check_shape, with_column
from fusedops.bind.scalars import read_number
from fusedops.bind.shard_offset import check_part_of
from fusedops.bind.tables import check_table
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.functors import Role
from fusedops.generate.target import Target
from fusedops.plan.backward import Backward
from fusedops.plan.planned import Planned
from fusedops.plan.planner import plan, plan_loaded
from fusedops.plan.reading import USUAL, Hints, Reading
from fusedops.plan.saved_tensors import (
    RESULT,
    into_name,
    joining_name,
    may_start_from_result,
    reads_result,
    saved_name,
)
from fusedops.plan.shared_gradients import shared_gradients
from fusedops.plan.wanted_gradients import WantedGradients
from fusedops.run.fallback_arch import serve
from fusedops.run.runnable import flags_of

if TYPE_CHECKING:
    from fusedops.declare.declaration import Declaration
    from fusedops.generate.variant import Variant
    from fusedops.run.observer import CallText, Observer


#: Where tensors have no memory; to make a device of its name takes a call of its own each time.
_NO_MEMORY = torch.device("meta")


class Gradient(_runtime.Dispatcher, WantedGradients):
    """The backward pass of an op for one set of wanted gradients.

    It is called with the gradient of y, which has x's shape, and by keyword with row statistics,
    saved tensors and the gradients of saved streams (`numbers` has the keywords). It returns a
    tuple: the gradient of x if that is wanted, then one gradient for each of `occurrences`.
    Incoming gradients whose strides do not go with those of x in one kernel are copied first.

    Attributes:
        observer: The object that is notified of calls that need a kernel; None for a gradient that
            is only described, never called.
        loose: Whether the caller has to sum results of some plan made so far: an operand that
            several functors use has several gradients, that of a table comes element by element of
            its index, and others may come in the shape of x.
    """

    def __init__(
        self,
        op: Declaration,
        wanted: frozenset[str],
        joining: frozenset[str],
        observer: Observer | None = None,
        from_result: bool = False,
        in_place: bool = False,
        into: Collection[str] = (),
    ) -> None:
        WantedGradients.__init__(self, op, wanted, joining, from_result, in_place, into)
        self.observer = observer
        self._hints = Hints()
        #: The outputs that have the shapes of further tensors, by the keywords of these.
        self._outputs = {KEPT: KEPT, RESULT: "y"}
        self._outputs.update((saved_name(name), name) for name in op.saves)
        self._outputs.update((joining_name(name), name) for name in op.joining)
        self.loose = bool(self.twice or self.lookups)
        flags = {operand.name: flags_of(operand.role) for operand in op.operands}
        for name, one in flags.items():
            if one & _runtime.SLOT_TENSOR:  # or dtype and shape of one that is not read
                flags[name] = one | _runtime.SLOT_DESCRIBED
        flags["x"] = _runtime.SLOT_TENSOR | _runtime.SLOT_DESCRIBED
        slots = [(name, flags.get(name, _runtime.SLOT_TENSOR)) for name in self.numbers]
        label = f"gradient of {op.label}"
        _runtime.Dispatcher.__init__(
            self, f"gradient of {op.name}", slots, self._slow, draw, tuple, label=label
        )

    def _slow(self, reason: Reason, dy: Any, given: dict[str, Any], options: dict[str, Any]) -> Any:
        if reason is Reason.MISS:
            return self._plan(dy, given, options)
        if reason in (Reason.NEG, Reason.CONJ):
            plain = {name: _resolved(value) for name, value in given.items()}
            return self(_resolved(dy), **plain, **options)
        if reason is Reason.FUNCTORCH or (reason is Reason.LAYOUT and dy.layout is torch.strided):
            raise UnsupportedError(
                f"{self.op.name}: a vectorized backward pass (is_grads_batched=True, or "
                "vectorize=True) does not see into a fused kernel; leave that away, or use "
                f"{UNFUSED}"
            )
        raise UnsupportedError(
            f"{self.op.name}: the gradient of its result, or a tensor kept for it, cannot be used "
            f"by a fused kernel ({reason.value}): it must be a plain dense torch.Tensor on the "
            f"device of x, got {type(dy).__name__} with layout {dy.layout}; use {UNFUSED}"
        )

    def _plan(self, dy: Tensor, given: dict[str, Any], options: dict[str, Any]) -> Any:
        observer = self.observer
        assert observer is not None  # who calls a gradient has made it with one

        def call() -> CallText:
            return observer.of_gradient(self, dy, given, options)

        def planned(target: Target) -> Any:
            found = plan_loaded(self.pass_of(dy, given, options), target, self._hints)
            if found is None:
                return None
            self.loose = self.loose or found.results.loose

            def variants(other: Target) -> Sequence[Variant]:
                made = self.describe(dy, given, options, other)
                return () if made is None else made.variants

            observer.notify(call, variants, target)
            return found.build()

        try:
            built = serve(dy.device, planned, call)
            if built is not None:
                return built
        except UnsupportedError:
            # The forward pass took the operands: it is how the gradients lie that is too much.
            joining = [given.get(joining_name(name)) for name in self.op.joining]
            if all(t.is_contiguous() for t in (dy, *joining) if isinstance(t, Tensor)):
                raise
        dense, values = self.copies(dy, given)
        return self(dense, **values, **options)

    def copies(self, dy: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Contiguous copies of the tensors of a backward call whose strides fit no kernel."""
        written = {into_name(name) for name in self.into}
        dense = {
            k: v.contiguous() if isinstance(v, Tensor) and k not in written else v
            for k, v in given.items()
        }
        return dy.contiguous(), dense

    def describe(
        self,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        target: Target | None = None,
        split: bool = False,
        reading: Reading = USUAL,
    ) -> Planned | None:
        """Plan a call, without building its kernels; None if it takes copies.

        The target is by default that of dy's device. With `split` every sum over all rows is left
        in partial sums (`is_partial`).

        Raises:
            UnsupportedError: No kernel can be made for the tensors or for the target.
        """
        one = self.pass_of(dy, given, options, split)
        return plan(one, target or Target.of(dy.device), reading)

    def pass_of(
        self,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        split: bool = False,
    ) -> Backward:
        """The pass of a call; the arguments are those of `describe`."""
        return Backward(self, self._bound(dy, given, options), dy, given, split)

    def _bound(self, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]) -> Bound:
        """The forward call, whose checks have passed before.

        A tensor that is not read has no memory here. Shapes are checked again, since a hook on
        saved tensors may have changed them.
        """
        named = {name: given[name] for name in ("x", *self.op.slots)}
        like = dy.dtype, dy.shape
        for name, value in named.items():
            if type(value) is tuple:
                named[name] = dy if value == like else _unread(*value)
        x = named.pop("x")
        op, operands = self.op.given(named)
        shape = x.shape
        fit = not op.tables and _runtime.broadcast(shape, operands.values())
        for operand in op.operands:
            value = operands[operand.name]
            if not isinstance(value, Tensor):
                operands[operand.name] = read_number(op.name, operand.name, operand.role, value)
            elif not fit and operand.role not in (Role.TABLE, Role.TARGET):
                check_shape(op.name, operand.name, value, x)
        reduced = find_reduced(op, op.name, shape, options)
        for key, role in op.row_roles.items():
            if role is Role.TARGET:
                operands[key] = with_column(op.name, key, operands[key], x, reduced)
        whole = check_part_of(op.name, shape, reduced, options.get("part_of"))
        for key, one in op.tables.items():
            check_table(op.name, one, operands[key], x, reduced)
        draw = options.get("generator")
        draw = draw if isinstance(draw, Tensor) else None  # else it makes no difference to a plan
        training = options.get("training", True)
        bound = bound_call(op, x, reduced, dy.dtype, operands, training, draw, whole)
        self._check_shapes(bound, dy, given)
        return bound

    def _check_shapes(self, bound: Bound, dy: Tensor, given: Mapping[str, Any]) -> None:
        """Refuse a saved tensor that has come back as another, which a kernel would read beyond."""
        if dy.shape != bound.x.shape:
            raise _changed(self.op.name, "x", bound.x.shape, dy.shape)
        for key, output in self._outputs.items():
            value = given.get(key)
            if isinstance(value, Tensor) and value.shape != bound.output_shape(output):
                raise _changed(self.op.name, key, value.shape, bound.output_shape(output))


def _changed(name: str, what: str, got: Sequence[int], wanted: Sequence[int]) -> ValueError:
    return ValueError(
        f"{name}: {what} has shape {tuple(got)} in the backward pass, expected {tuple(wanted)}; a "
        "hook on saved tensors must return what it was given"
    )


def gradient_of(bound: Bound, wanted: frozenset[str], joining: frozenset[str]) -> Gradient:
    """The backward pass of a call, as autograd would run it; it is only described, never called."""
    wanted -= bound.op.undifferentiated
    wanted = wanted.difference(sharing(bound, wanted))
    op = bound.op
    from_result = may_start_from_result(op) and reads_result(op, bound.dtype, bound.x.dtype)
    return Gradient(bound.differentiated.op, wanted, joining, from_result=from_result)


def sharing(bound: Bound, wanted: frozenset[str]) -> dict[str, str]:
    """The `shared_gradients` of a call whose y has a gradient."""
    op, given = bound.differentiated.op, {"x": bound.x, **bound.operands}
    tensors = {name: one for name, one in given.items() if isinstance(one, Tensor)}
    dy = bound.output_dtype("y") if op.has_result else None
    return shared_gradients(op, wanted & tensors.keys(), tensors, dy)


def described(
    bound: Bound, gradient: WantedGradients
) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
    """The arguments of a backward call, of a forward call with contiguous outputs.

    Returns:
        The gradient of y, the other tensors and numbers by keyword, and the options by name.
        Tensors that the forward pass makes have no memory.
    """
    bound = bound.differentiated
    needed, op = gradient.needed, bound.op
    given: dict[str, Any] = {KEPT: _output(bound, KEPT)}
    for name, value in {"x": bound.x, **bound.operands}.items():
        read = needed.x if name == "x" else name in needed.operands
        unread = isinstance(value, Tensor) and not read
        given[name] = (value.dtype, value.shape) if unread else value
    for name in op.saves:
        if name in needed.streams:
            given[saved_name(name)] = _output(bound, name)
    for name in op.joining:
        given[joining_name(name)] = _output(bound, name)
    if needed.result:
        given[RESULT] = _output(bound, "y")
    options = {name: bound.options[name] for name in ("dim", "training", "part_of")}
    if isinstance(bound.generator, Tensor):  # else it makes no difference to a plan
        options["generator"] = bound.generator
    return _output(bound, "y"), given, options


def _output(bound: Bound, name: str) -> Tensor:
    keep = bound._replace(keep=True)
    return torch.empty(keep.output_shape(name), dtype=keep.output_dtype(name), device="meta")


@functools.lru_cache(maxsize=64)  # vectors of one length, and x of both passes, are several a call
def _unread(dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(shape, contiguous(shape), dtype=dtype, device=_NO_MEMORY)


def _resolved(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value
