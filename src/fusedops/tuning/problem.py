# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""One pass of one call on this machine's GPU: what its kernel is, whether it is right, how fast."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, floating
from fusedops.errors import UnsupportedError
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.row_op import RowOp
from fusedops.run import forward, placing
from fusedops.run.gradient import Gradient, described, gradient_of
from fusedops.schedule.launch import LaunchConfig
from fusedops.testing import force_launch
from fusedops.testing.comparison import compare_call
from fusedops.tuning import clock
from fusedops.tuning.candidates import Kernel
from fusedops.tuning.inputs import fewer_rows, filled

__all__ = ["PASSES", "Problem", "kernel_of"]

PASSES = ("forward", "backward")

#: Elements of x in the call that is checked: its truth is in double.
CHECKED = 1 << 23

#: Bytes of x in the call that is timed at most, and the share of the free memory for it: beside x
#: there are outputs, gradients and operands, all of them several times.
TIMED_BYTES = 2 << 30
TIMED_SHARE = 1 / 24


def kernel_of(bound: Bound, kind: str, target: Target) -> Kernel:
    """The kernel of a pass and its schedule.

    Args:
        bound: The checked call; its tensors may have no memory.
        kind: The pass, one of `PASSES`. A backward pass computes all gradients.
        target: What it is built for, a GPU.

    Raises:
        UnsupportedError: It has no kernel of its own.
    """
    op = bound.op
    assert target.gpu is not None
    if not op.reduces:
        raise UnsupportedError(
            f"{op.name}: there is nothing to tune: without a reduction the launch configuration is "
            "a fixed one (fusedops/schedule/independent.py)"
        )
    if placing.columns_apart(bound) or bound.x.numel() == 0:
        raise UnsupportedError(
            f"{op.name}: there is no kernel to tune for x of shape {tuple(bound.x.shape)}: it has "
            "no elements, or its reduced dimensions do not lie in one; give another shape"
        )
    if kind == "forward":
        chosen = forward.describe(bound, target).tile
    else:
        gradient = _gradient(bound)
        chosen = gradient.describe(*described(bound, gradient), target).tile
    assert chosen is not None
    return Kernel(chosen, target.gpu)


def _gradient(bound: Bound) -> Gradient:
    op = bound.op
    if op.forward_only:
        raise UnsupportedError(
            f"{op.name}: {op.forward_only[0]!r} has no derivative, so there is no backward pass to "
            "tune; leave it out"
        )
    return gradient_of(bound, frozenset({"x", *floating(bound.operands)}), frozenset(op.saves))


class Problem:
    """A pass of a call on a GPU, as a `search.Trial`.

    The call is timed with as many rows as fit, and checked with fewer.

    Attributes:
        kernel: The kernel and its schedule now.
    """

    def __init__(
        self, op: RowOp, bound: Bound, kind: str, device: torch.device, options: Mapping[str, Any]
    ) -> None:
        # The op that sees x as the kernel does: that of a GroupNorm is a LayerNorm.
        op = cast("RowOp", bound.op)
        self.op, self.kind, self.device = op, kind, device
        self.kernel = kernel_of(bound, kind, Target.of(device))
        self._options = {k: v for k, v in options.items() if k != "normalized_shape"}
        self._options["dim"] = bound.reduced
        self._draws = bool(bound.dropout_slots)
        x, operands = fewer_rows(bound, CHECKED)
        given = filled({"x": x, **operands}, bound.columns, device)
        self._comparison = compare_call(op, given.pop("x"), **given, **self._options)
        free, _ = torch.cuda.mem_get_info(device)
        most = min(TIMED_BYTES, int(free * TIMED_SHARE))
        self._shapes = fewer_rows(bound, most // bound.x.element_size())
        self._columns = bound.columns
        first = self._filled()
        self.bytes = self._moved(first)
        count = clock.sets(self.bytes)
        self._sets = [first, *(self._filled() for _ in range(count - 1))]

    @functools.cached_property
    def least_seconds(self) -> float:
        """Seconds of the fastest plain kernel for the bytes that a call must move."""
        size = self._shapes[0].numel() * self._shapes[0].element_size()
        reads = 1 if self.kind == "forward" else 2
        return self.bytes / (size * (reads + 1)) * clock.of_bytes(size, reads)

    def percent(self, seconds: float) -> float:
        """A call's speed in percent of the ceiling."""
        return 100 * self.least_seconds / seconds

    def check(self, config: LaunchConfig) -> None:
        """Compare outputs and gradients with those in float64; AssertionError beyond the bound."""
        with self._forced(config):
            out = [one for one in self._comparison.again() if one.share > 1]
        if out:
            raise AssertionError(f"{self.op.declaration}: {out[0]} under {config}")

    def seconds(self, config: LaunchConfig) -> float:
        """Device seconds of one call."""
        with self._forced(config):
            return self._clock(self._calls())

    @property
    def _clock(self) -> Callable[[Sequence[clock.Call]], float]:
        # A draw from torch's generator cannot be captured in a graph.
        return clock.queue_seconds if self._draws else clock.graph_seconds

    def _forced(self, config: LaunchConfig) -> contextlib.AbstractContextManager[None]:
        if self.kind == "forward":
            return force_launch(forward=config)
        return force_launch(backward=config)

    def _filled(self) -> dict[str, Any]:
        x, operands = self._shapes
        return filled({"x": x, **operands}, self._columns, self.device)

    def _calls(self) -> list[clock.Call]:
        if self.kind == "forward":
            return [functools.partial(self._call, dict(given)) for given in self._sets]
        torch.cuda.synchronize(self.device)  # the tensors were filled on another stream
        # The engine runs a backward pass on the stream of its forward pass: that of the capture.
        captured = self._clock is clock.graph_seconds
        on = torch.cuda.stream(clock.side_stream()) if captured else contextlib.nullcontext()
        with on, torch.enable_grad():
            return [self._backward(given) for given in self._sets]

    def _call(self, given: dict[str, Any]) -> object:
        operands = {name: value for name, value in given.items() if name != "x"}
        return self.op(given["x"], **operands, **self._options)

    def _backward(self, given: dict[str, Any]) -> clock.Call:
        able = [name for name in floating(given) if name not in self.op.undifferentiated]
        leaves = {name: given[name].detach().requires_grad_() for name in able}
        found = self._call({**given, **leaves})
        result: Any = (found,) if isinstance(found, Tensor) else found
        outputs = dict(zip(self.op.outputs, result, strict=True))
        arriving = [name for name in ("y", *self.op.saves) if name in self.op.able]
        upstream = {name: torch.randn_like(outputs[name]) for name in arriving}
        return functools.partial(
            torch.autograd.grad,
            [outputs[name] for name in upstream],
            list(leaves.values()),
            list(upstream.values()),
            retain_graph=True,
            allow_unused=True,
        )

    def _moved(self, given: dict[str, Any]) -> int:
        """The bytes that a call must move: each element that is touched, once."""
        operands = {name: value for name, value in given.items() if name != "x"}
        bound = self.op.bind(given["x"], {**operands, **self._options})
        if self.kind == "forward":
            with torch.no_grad():
                moved: int = explain(bound).bytes
                return moved
        gradient = _gradient(bound)
        dy, read, _ = described(bound, gradient)
        tensors = [dy, *(value for value in read.values() if isinstance(value, Tensor))]
        results = [given[name] for name in floating(given)]
        return sum(tensor.numel() * tensor.element_size() for tensor in (*tensors, *results))
