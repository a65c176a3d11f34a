# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call that is tuned on this machine's GPU: whether it is right, and how fast it is.

It is checked with fewer rows than it is timed with, since its truth is in float64. No tile and no
launch configuration depends on the number of rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fusedops.bind.bind import Bound, floating
from fusedops.errors import UnsupportedError
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.plan import forward, placing
from fusedops.plan.planned import Planned
from fusedops.row_op import RowOp
from fusedops.run.gradient import Gradient, described, gradient_of
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch, last_schedule
from fusedops.testing.comparison import Comparison, compare_call
from fusedops.testing.report import narrowed
from fusedops.tuning import clock
from fusedops.tuning.search import Config, Implementations, Kernel

#: Elements of x in the call that is checked.
CHECKED = 1 << 23

#: Bytes of x in the call that is timed at most, and the share of the free memory for it: beside x
#: there are outputs, gradients and operands, all of them several times.
_TIMED_BYTES = 2 << 30
_TIMED_SHARE = 1 / 24

#: The share of true elements in a tensor of flags: few enough that no row is masked whole.
_FLAGGED = 0.2


@dataclasses.dataclass(eq=False)
class Problem:
    """A call on a GPU that is checked and timed under configurations, as a `search.Trial`."""

    name: str  # the op in error messages
    case: str  # the call, for people
    kernel: Kernel | Implementations  # what may be configured, and how it is now
    comparison: Comparison  # the call with fewer rows, and what its results should be
    #: Makes the call that is timed, one for each set of tensors.
    calls: Callable[[], list[clock.Call]]
    draws: bool  # whether the call draws from torch's generator, which no CUDA graph captures
    bytes: int = 0  # the bytes that a call must move; 0 for a product, whose ceiling is arithmetic
    #: Gives the seconds of the fastest plain kernel for as many bytes.
    least_seconds: Callable[[], float] | None = None
    #: Says why a product is run as it is, under the configuration that is forced.
    why: Callable[[], str] | None = None

    def check(self, config: Config) -> None:
        """Compare the results with those in float64; AssertionError beyond the bound.

        Raises:
            UnsupportedError: The call is not run by this implementation.
        """
        with self._forced(config):
            out = [one for one in self.comparison.again() if one.share > 1]
            self._check_ran(config)
        if out:
            raise AssertionError(f"{self.name}: {out[0]} under {config}")

    def seconds(self, config: Config) -> float:
        """Device seconds of one call."""
        with self._forced(config), torch.no_grad():
            calls = self.calls()
            if self.why is not None:
                calls[0]()
                self._check_ran(config)
            return clock.queue_seconds(calls) if self.draws else clock.graph_seconds(calls)

    def percent(self, seconds: float) -> float | None:
        """A call's speed in percent of the ceiling; None of a product."""
        return None if self.least_seconds is None else 100 * self.least_seconds() / seconds

    def _forced(self, config: Config) -> contextlib.AbstractContextManager[None]:
        return force_launch(**{self.kernel.kind: config})  # type: ignore[arg-type]

    def _check_ran(self, config: Config) -> None:
        if self.why is None or not isinstance(config, ProductConfig):
            return
        if implementation_of_last() != config.implementation:
            raise UnsupportedError(
                f"{self.name}: {config.implementation} does not run this call: {self.why()}"
            )


def implementation_of_last() -> str:
    """What ran the last call of a product, one of `IMPLEMENTATIONS`."""
    ran = (last_schedule() or "").partition(",")[0]  # "Together, gradient"
    return ran if ran in IMPLEMENTATIONS else IMPLEMENTATIONS[0]


def of_pass(bound: Bound, kind: str, device: torch.device, options: Mapping[str, Any]) -> Problem:
    """A pass of a row op, timed with as many rows as fit on the device.

    The pass is "forward", or "backward", which computes all gradients. Tensors of the call may have
    no memory.

    Raises:
        UnsupportedError: It has no kernel of its own.
    """
    op = cast("RowOp", bound.op)  # sees x as the kernel does: that of a GroupNorm is a LayerNorm
    columns, draws = bound.columns, bool(bound.dropout_slots)
    kernel = kernel_of(bound, kind, Target.of(device))
    own = {k: v for k, v in options.items() if k != "normalized_shape"}
    own["dim"] = bound.reduced
    x, operands = fewer_rows(bound, CHECKED)
    given = filled({"x": x, **operands}, columns, device)
    comparison = compare_call(op, given.pop("x"), **given, **own)
    free, _ = torch.cuda.mem_get_info(device)
    most = min(_TIMED_BYTES, int(free * _TIMED_SHARE))
    x, operands = fewer_rows(bound, most // bound.x.element_size())
    sets = [filled({"x": x, **operands}, columns, device)]
    moved = _moved(op, kind, sets[0], own)
    for _ in range(clock.sets(moved) - 1):
        sets.append(filled({"x": x, **operands}, columns, device))
    reads = 1 if kind == "forward" else 2
    size = x.numel() * x.element_size()
    dtype = str(bound.x.dtype).removeprefix("torch.")
    return Problem(
        name=op.declaration,
        case=f"{op.name} {dtype} {columns}",
        kernel=kernel,
        comparison=comparison,
        calls=functools.partial(_calls, op, kind, sets, own, draws),
        draws=draws,
        bytes=moved,
        least_seconds=lambda: moved / (size * (reads + 1)) * clock.of_bytes(size, reads),
    )


def kernel_of(bound: Bound, kind: str, target: Target) -> Kernel:
    """The kernel of a pass and its schedule.

    The pass is as for `of_pass`.

    Raises:
        UnsupportedError: It has no kernel of its own.
    """
    op = bound.op
    assert target.gpu is not None
    if not op.has_result:
        raise UnsupportedError(
            f"{op.name}: there is nothing to tune: the launch configuration of an op without y is "
            "a fixed one"
        )
    if not op.reduces:
        raise UnsupportedError(
            f"{op.name}: there is nothing to tune: without a reduction the launch configuration is "
            "a fixed one"
        )
    if placing.columns_apart(bound) or bound.x.numel() == 0:
        raise UnsupportedError(
            f"{op.name}: there is no kernel to tune for x of shape {tuple(bound.x.shape)}: it has "
            "no elements, or its reduced dimensions do not lie in one; give another shape"
        )
    if kind == "forward":
        planned: Planned | None = forward.describe(bound, target)
    else:
        gradient = _gradient(bound)
        planned = gradient.describe(*described(bound, gradient), target)
    assert planned is not None
    assert planned.tile is not None
    return Kernel(planned.tile, target.gpu)


def _gradient(bound: Bound) -> Gradient:
    op = bound.op
    if op.forward_only:
        raise UnsupportedError(
            f"{op.name}: {op.forward_only[0]!r} has no derivative, so there is no backward pass to "
            "tune; leave it out"
        )
    return gradient_of(bound, frozenset({"x", *floating(bound.operands)}), frozenset(op.saves))


def _call(op: RowOp, given: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    operands = {name: value for name, value in given.items() if name != "x"}
    return op(given["x"], **operands, **options)


def _calls(
    op: RowOp, kind: str, sets: Sequence[dict[str, Any]], options: Mapping[str, Any], draws: bool
) -> list[clock.Call]:
    if kind == "forward":
        return [functools.partial(_call, op, given, options) for given in sets]
    torch.cuda.synchronize(sets[0]["x"].device)  # the tensors were filled on another stream
    # The engine runs a backward pass on the stream of its forward pass: that of the capture.
    on = contextlib.nullcontext() if draws else torch.cuda.stream(clock.side_stream())
    with on, torch.enable_grad():
        return [_backward(op, given, options) for given in sets]


def _backward(op: RowOp, given: Mapping[str, Any], options: Mapping[str, Any]) -> clock.Call:
    able = [name for name in floating(given) if name not in op.undifferentiated]
    leaves = {name: given[name].detach().requires_grad_() for name in able}
    found = _call(op, {**given, **leaves}, options)
    result: Any = (found,) if isinstance(found, Tensor) else found
    outputs = dict(zip(op.outputs, result, strict=True))
    arriving = [name for name in ("y", *op.saves) if name in op.able]
    upstream = {name: torch.randn_like(outputs[name]) for name in arriving}
    return functools.partial(
        torch.autograd.grad,
        [outputs[name] for name in upstream],
        list(leaves.values()),
        list(upstream.values()),
        retain_graph=True,
        allow_unused=True,
    )


def _moved(op: RowOp, kind: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """The bytes that a call must move: each element that it touches, once."""
    operands = {name: value for name, value in given.items() if name != "x"}
    bound = op.bind(given["x"], {**operands, **options})
    if kind == "forward":
        with torch.no_grad():
            return explain(bound).bytes
    gradient = _gradient(bound)
    dy, read, _ = described(bound, gradient)
    tensors = [dy, *(value for value in read.values() if isinstance(value, Tensor))]
    return sum(one.nbytes for one in (*tensors, *(given[name] for name in floating(given))))


def fewer_rows(bound: Bound, elements: int) -> tuple[Tensor, dict[str, Any]]:
    """Narrow x and the operands along row dimensions until x has at most so many elements.

    The outermost dimensions are cut first, to halves, and no dimension to less than two: rows that
    share operands go on sharing them. No tile and no launch configuration depends on the number of
    rows. The tensors may have no memory.
    """
    sizes = list(bound.x.shape)
    rows = [dim for dim in range(len(sizes)) if dim not in bound.reduced]
    while math.prod(sizes) > elements and any(sizes[dim] > 3 for dim in rows):
        sizes[next(dim for dim in rows if sizes[dim] > 3)] //= 2
    given = {"x": bound.x, **bound.operands}
    fewer = narrowed(given, bound.x.shape, {dim: sizes[dim] for dim in rows}, bound.op.tables)
    return fewer.pop("x"), fewer


def fewer_rows_of_factor(factor: Tensor, z: Tensor, last: int) -> Tensor:
    """Narrow a factor to the rows of a product that has been narrowed.

    Its `last` dimensions stay as they are.
    """
    for dim in range(-factor.dim(), -last):
        if factor.shape[dim] > 1:  # else it is shared
            factor = factor.narrow(dim, 0, z.shape[dim])
    return factor


def filled(values: Mapping[str, Any], columns: int, device: torch.device) -> dict[str, Any]:
    """Random tensors of the same shapes, strides and dtypes on a device; numbers stay.

    Floating-point elements are normal, flags are true in one of five, counts reach from half of the
    columns to all of them.
    """
    return {
        name: _filled(value, columns, device) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _filled(like: Tensor, columns: int, device: torch.device) -> Tensor:
    sizes = zip(like.shape, like.stride(), strict=True)
    end = 1 + sum((size - 1) * step for size, step in sizes) if like.numel() else 0
    memory = torch.empty(end, dtype=like.dtype, device=device)
    if like.is_floating_point() and like.itemsize == 1:
        memory.copy_(torch.randn(end, device=device))
    elif like.is_floating_point():
        memory.normal_()
    elif like.dtype is torch.bool:
        memory.bernoulli_(_FLAGGED)
    else:
        memory.random_(columns // 2, columns + 1)
    return memory.as_strided(like.shape, like.stride())
