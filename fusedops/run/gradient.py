# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plan the backward pass of an op: the same declaration, walked for its gradient.

What is wanted, and which saved streams have gradients of their own, makes the kernel; each
such pair is a `Gradient`, with plans of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.bind import KEPT, Bound, bind
from fusedops.bind.generator import draw
from fusedops.errors import UnsupportedError
from fusedops.functors import Role
from fusedops.generate.target import Target
from fusedops.run.backward import Backward
from fusedops.run.fallback_arch import serve
from fusedops.run.saved_tensors import joining_name, saved_name
from fusedops.run.wanted_gradients import WantedGradients

if TYPE_CHECKING:
    from fusedops._runtime import Reason
    from fusedops.declare.declaration import Declaration
    from fusedops.run.observer import CallText, Observer

__all__ = ["Gradient", "described"]

#: What may be passed for an operand, or stand for it where it is not read.
_FLAGS = {
    Role.VALUE: _runtime.SLOT_NUMBER | _runtime.SLOT_TENSOR | _runtime.SLOT_DESCRIBED,
    Role.FLAGS: _runtime.SLOT_TENSOR | _runtime.SLOT_DESCRIBED,
    Role.COUNT: _runtime.SLOT_NUMBER | _runtime.SLOT_TENSOR | _runtime.SLOT_DESCRIBED,
    Role.PROBABILITY: _runtime.SLOT_PROBABILITY | _runtime.SLOT_NUMBER,
}


class Gradient(_runtime.Dispatcher, WantedGradients):
    """The backward pass of an op for one set of wanted gradients.

    Called with the gradient of y, and by keyword what `run.autograd` kept. Returns a tuple:
    the gradient of x if that is wanted, then one for each of `occurrences`. Incoming gradients that
    lie too unlike x for one kernel are copied first.

    Attributes:
        observer: Is told of calls that need a kernel; None where it is described, never called.
        loose: Whether a result of some plan made so far has to be summed by the caller: an operand
            that several functors use has several, others may come in the size of x.
    """

    def __init__(
        self,
        op: Declaration,
        wanted: frozenset[str],
        joining: frozenset[str],
        observer: Observer | None = None,
    ) -> None:
        WantedGradients.__init__(self, op, wanted, joining)
        self.observer = observer
        self.loose = len(set(self.names)) != len(self.names)
        flags = {operand.name: _FLAGS[operand.role] for operand in op.operands}
        flags["x"] = _runtime.SLOT_TENSOR | _runtime.SLOT_DESCRIBED
        slots = [(name, flags.get(name, _runtime.SLOT_TENSOR)) for name in self.numbers]
        _runtime.Dispatcher.__init__(self, f"gradient of {op.name}", slots, self._slow, draw, tuple)

    def _slow(self, reason: Reason, dy: Any, given: dict[str, Any], options: dict[str, Any]) -> Any:
        if reason == "miss":
            return self._plan(dy, given, options)
        if reason in ("neg", "conj"):
            plain = {name: _resolved(value) for name, value in given.items()}
            return self(_resolved(dy), **plain, **options)
        if reason == "functorch" or (reason == "layout" and dy.layout is torch.strided):
            raise UnsupportedError(
                f"{self.op.name}: a vectorized backward pass (is_grads_batched=True, or "
                "vectorize=True) does not see into a fused kernel; leave that away, or use "
                "op.unfused"
            )
        raise UnsupportedError(
            f"{self.op.name}: the gradient of its result, or a tensor kept for it, cannot be used "
            f"by a fused kernel ({reason}): it must be a plain dense torch.Tensor on the device of "
            f"x, got {type(dy).__name__} with layout {dy.layout}; use op.unfused"
        )

    def _plan(self, dy: Tensor, given: dict[str, Any], options: dict[str, Any]) -> Any:
        observer = self.observer
        assert observer is not None  # who calls a gradient has made it with one

        def call() -> CallText:
            return observer.of_gradient(self, dy, given, options)

        def planned(target: Target) -> Any:
            described = self.describe(dy, given, options, target)
            if described.apart:
                return None
            self.loose = self.loose or described.loose
            observer.notify(
                call,
                lambda other: self.describe(dy, given, options, other).variants,
                target,
            )
            return described.plan()

        try:
            plan = serve(dy.device, planned, call)
            if plan is not None:
                return plan
        except UnsupportedError:
            # The forward pass took the operands: it is how the gradients lie that is too much.
            joining = [given.get(joining_name(name)) for name in self.op.saves]
            if all(t.is_contiguous() for t in (dy, *joining) if isinstance(t, Tensor)):
                raise
        dense, values = self.copies(dy, given)
        return self(dense, **values, **options)

    def copies(self, dy: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The same, dense: what is run where they lie so that no kernel can be made."""
        dense = {k: v.contiguous() if isinstance(v, Tensor) else v for k, v in given.items()}
        return dy.contiguous(), dense

    def describe(
        self,
        dy: Tensor,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        target: Target | None = None,
        split: bool = False,
    ) -> Backward:
        """Place, choose and generate, without building anything; for dy's own device by default.

        `split`: as `Backward.partial` has it.
        """
        bound = self._bound(dy, given, options)
        return Backward(self, bound, dy, given, target or Target.of(dy.device), split)

    def _bound(self, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]) -> Bound:
        """The forward call, of tensors without memory: its checks have passed before."""
        operands = {operand.name: _meta(given[operand.name]) for operand in self.op.operands}
        draw = options.get("generator")
        draw = draw if isinstance(draw, Tensor) else None  # else it makes no difference to a plan
        options = {**options, "dtype": dy.dtype, "generator": None}
        bound = bind(self.op, _meta(given["x"]), operands, options)
        return bound._replace(generator=draw)


def described(
    bound: Bound, gradient: WantedGradients
) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
    """What a backward call is given: the gradient of y, values by keyword, options."""
    needed, op = gradient.needed, bound.op
    given: dict[str, Any] = {KEPT: _output(bound, KEPT)}
    for name, value in {"x": bound.x, **bound.operands}.items():
        read = needed.x if name == "x" else name in needed.operands
        unread = isinstance(value, Tensor) and not read
        given[name] = (value.dtype, value.shape) if unread else value
    for name in op.saves:
        if name in needed.streams:
            given[saved_name(name)] = _output(bound, name)
        given[joining_name(name)] = _output(bound, name)
    return _output(bound, "y"), given, {"dim": bound.reduced, "training": bool(bound.slots)}


def _output(bound: Bound, name: str) -> Tensor:
    keep = bound._replace(keep=True)
    return torch.empty(keep.output_shape(name), dtype=keep.output_dtype(name), device="meta")


def _meta(value: Any) -> Any:
    """A tensor, or the description of one, as a tensor without memory."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, tuple):
        dtype, shape = value
        return torch.empty(shape, dtype=dtype, device="meta")
    return value


def _resolved(value: Any) -> Any:
    return value.resolve_conj().resolve_neg() if isinstance(value, Tensor) else value
