# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels are built before ranks wait for one another, and a rank that cannot build says so.

The first call of each kind on a mesh in which ranks exchange anything builds all its kernels,
forward and backward; then the ranks agree, by the largest of one number from each, that all have
them. Otherwise every rank raises, and none is left waiting in a collective. Whether ranks agree
follows from what is the same on all of them, never from what a cache holds. A compiled call does
the same where its operator first runs (`agreed`), after what moves before that and ahead of all
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fusedops.bind.bind import Bound, bind
from fusedops.distributed.classes import sharded_classes
from fusedops.distributed.columns import sharded_columns
from fusedops.distributed.local_calls import call_of_rows, calls_of_columns
from fusedops.errors import FusedOpsError
from fusedops.run.prepare import build_kernels
from fusedops.run.runnable import Runnable
from fusedops.torch_ops.calls import ForwardCall, OpCall

#: The kinds of calls that all ranks of a mesh, or of some process groups, are ready for. They make
#: the same calls in the same order, so they forget alike, too.
_ready: dict[DeviceMesh | tuple[str, ...], set[tuple[Any, ...]]] = {}

#: The most kinds that are remembered for a mesh.
_MOST_KINDS = 4096


def make_ready(call: OpCall) -> None:
    """Build the kernels of a call and agree with the other ranks that all have theirs.

    Raises:
        FusedOpsError: Some rank could not build; on that rank its own error.
    """
    x: DTensor = call.x
    mesh = x.device_mesh
    if mesh.get_coordinate() is None:
        return
    kinds = _ready.setdefault(mesh, set())
    kind = _kind(call)
    if kind in kinds:
        return
    calls: Iterable[Bound] = ()
    exchanged = True
    if sharded_classes(call) or sharded_columns(call) is not None:
        calls = calls_of_columns(call)
    else:
        drawn = call.draws and call.options.get("generator") is None
        if call.draws:  # where it lies makes a kernel; its numbers do not
            here = x.to_local().device
            seeds = torch.zeros(2, dtype=torch.int64, device=here)
            generator = (0, 0) if here.type == "cpu" else seeds
            call = call._replace(options={**call.options, "generator": generator})
        of_rows = call_of_rows(call)
        calls = (of_rows.bound,)
        exchanged = bool(of_rows.moves) or of_rows.summed or drawn
    if exchanged:
        _build(call.op.name, mesh, x.to_local().device, lambda: calls)
    _remember(kinds, kind)


def make_all_ready(
    name: str,
    mesh: DeviceMesh,
    kind: tuple[Any, ...],
    device: torch.device,
    calls: Callable[[], Iterable[Bound]],
) -> None:
    """Build the kernels of these plain calls, and agree with the other ranks that all have theirs.

    `kind` decides which kernels there are, and is the same on all ranks.

    Raises:
        FusedOpsError: Some rank could not build; on that rank its own error.
    """
    kinds = _ready.setdefault(mesh, set())
    if mesh.get_coordinate() is None or kind in kinds:
        return
    _build(name, mesh, device, calls)
    _remember(kinds, kind)


def _build(
    name: str, mesh: DeviceMesh, device: torch.device, calls: Callable[[], Iterable[Bound]]
) -> None:
    error: Exception | None = None
    try:
        for bound in calls():
            build_kernels(cast("Runnable", bound.op), bound)
    except Exception as caught:  # whatever it is, the others wait to hear of it
        error = caught
    _agree(name, [mesh.get_group(dim) for dim in range(mesh.ndim)], device, error)


def make_operator_ready(
    op: Runnable,
    call: ForwardCall,
    x: Tensor,
    operands: Mapping[str, Any],
    options: Mapping[str, Any],
    agreement: Sequence[str] | None,
    trains: Sequence[str] | None,
    sizes: Sequence[int] | None,
) -> None:
    """Build the kernels of an operator in a graph, and agree with the other ranks, as `make_ready`.

    The last three arguments are those of ``fusedops::forward_agreed``.

    Raises:
        FusedOpsError: Some rank could not build; on that rank its own error.
    """
    said, *names = agreement or ("",)
    kinds = _ready.setdefault(tuple(names), set())
    dtypes = tuple(one.dtype for one in (x, *operands.values()) if isinstance(one, Tensor))
    lists = (call.names, call.dim, trains or (), sizes or ())
    drawn, part = call.draw is not None, call.part_of is not None
    kind = said, call.dtype, call.keep, drawn, part, dtypes, *map(tuple, lists)
    if kind in kinds:
        return
    error: Exception | None = None
    try:
        named = {
            # Whether a gradient is wanted is all that is looked at.
            name: one.detach().requires_grad_() if name in (trains or ()) else one
            for name, one in {"x": x, **operands}.items()
        }
        with torch.set_grad_enabled(call.keep):
            bound = bind(op, named.pop("x"), named, options)
            build_kernels(op, bound)
    except Exception as caught:  # whatever it is, the others wait to hear of it
        error = caught
    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]
    groups = [resolve(name) for name in names]
    _agree(op.name, groups, x.device, error)
    _remember(kinds, kind)


def _remember(kinds: set[tuple[Any, ...]], kind: tuple[Any, ...]) -> None:
    if len(kinds) >= _MOST_KINDS:
        kinds.clear()
    kinds.add(kind)


def _agree(
    name: str,
    groups: Sequence[dist.ProcessGroup],
    device: torch.device,
    error: Exception | None,
) -> None:
    """Raise on every rank of a mesh, of these groups, if one has an error."""
    failed = torch.tensor([0 if error is None else 1 + dist.get_rank()], device=device)
    for group in groups:
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=group)
    if error is not None:
        raise error
    if rank := int(failed.item()):
        raise FusedOpsError(
            f"{name}: rank {rank - 1} could not build its kernels for this call on distributed "
            "tensors, so no rank runs it; that rank's own error says why. Build them on every "
            "machine beforehand with `fusedops build`, or let the machines share a "
            "FUSEDOPS_CACHE_DIR"
        )


def _kind(call: OpCall) -> tuple[Any, ...]:
    """What decides which kernels a call has and whether ranks exchange anything, on all ranks."""
    tensors = kinds_of({"x": call.x, **call.operands})
    draws = call.draws
    drawn_here = draws and call.options.get("generator") is None
    grad = torch.is_grad_enabled()
    return call.text, tuple(call.reduced), call.dtype, draws, drawn_here, grad, tensors


def kinds_of(tensors: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of the tensors among these values decides which kernels a call has, on all ranks."""
    return tuple(
        (name, one.dtype, tuple(one.shape), getattr(one, "placements", ()), one.requires_grad)
        for name, one in tensors.items()
        if isinstance(one, Tensor)
    )
