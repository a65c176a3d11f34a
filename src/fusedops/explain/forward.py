# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Find out what a call would run and why, without running, drawing or building anything.

The facts are those that a plan is made of (`plan.planner`); this module words them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusedops._runtime import Reason
from fusedops.bind.bind import Bound, bind
from fusedops.bind.broadcasting import dims_in_words
from fusedops.bind.dimensions import arranged, order
from fusedops.bind.geometry import SHARED_BYTES
from fusedops.errors import counted
from fusedops.explain.backward import GradCall, grad_call
from fusedops.explain.report import CEILINGS, Cached, Explanation, Place
from fusedops.functors import Functor
from fusedops.generate.target import Target, device_info
from fusedops.generate.views import View
from fusedops.plan import placing
from fusedops.plan.planned import Planned
from fusedops.reference.dropout_mask import threshold
from fusedops.run import contiguous, forward
from fusedops.run.refusal import refuse
from fusedops.schedule import override
from fusedops.schedule.forward import HOST_BUFFERED
from fusedops.schedule.row_schedule import Schedule, reserved_shared


def explain(bound: Bound, target: Target | None = None) -> Explanation:
    """Explain a checked call.

    The target is by default that of the tensors' device. `str` of the facts is their text.

    Raises:
        UnsupportedError: The tensors are on a device for which there are no kernels, or x and its
            operands broadcast in too many ways.
        ValueError: A schedule that a test forces cannot hold the row.
    """
    if bound.x.device.type not in ("cpu", "cuda"):
        refuse(bound.op, Reason.DEVICE, bound.x, bound.operands, _options(bound))
    here = target is None
    target = target or Target.of(bound.x.device)
    device = _device_name(bound.x.device) if here else target.arch
    launches = bound.x.numel() > 0
    gradients = grad_call(bound)
    trains = gradients is not None and not gradients.refused
    described = bound._replace(keep=trains)
    copies: tuple[str, ...] = ()
    copied = 0
    if launches and placing.columns_apart(bound):
        described, copies, copied = _with_copies(bound)
        described = described._replace(keep=trains)
    info = forward.resolve(described, target) if launches else None
    operands = {
        name: _place(described, name, info)
        for name, value in {"x": bound.x, **bound.operands}.items()
        if isinstance(value, Tensor)
    }
    outputs = {name: _place(described, name, info, out=True) for name in bound.op.outputs}
    acting = (*bound.load, *bound.store)
    cached, variant, said = _variant(info)
    kept = gradients.kept() if gradients is not None and trains else ()
    moved = copied + sum(place.bytes for place in (*operands.values(), *outputs.values()))
    return Explanation(
        op=bound.op,
        device=device,
        arch=target.arch,
        compute=bound.compute,
        load=bound.load,
        store=bound.store,
        left_out=_left_out(bound),
        rows=math.prod(bound.row_shape),
        columns=bound.columns,
        visited=_visited(described, info),
        schedule=None if info is None else info.call.storage,
        tile=None if info is None else info.tile,
        why=_why(bound, info, target),
        operands=operands,
        numbers={k: v for k, v in bound.operands.items() if not isinstance(v, Tensor)},
        outputs=outputs,
        dropouts=_dropouts(bound),
        kept=kept,
        backward=gradients.how(target) if gradients is not None and trains else None,
        copies=copies,
        cached=cached,
        variant=variant,
        bytes=moved + sum(one.own for one in kept),
        ceiling=CEILINGS.get(device),
        notes=(*_notes(bound, acting, info, gradients, target), *said),
    )


def _place(bound: Bound, name: str, info: Planned | None, *, out: bool = False) -> Place:
    tensor: Tensor | None
    if out:
        tensor = bound.out.get(name)
        shape, dtype = bound.output_shape(name), bound.output_dtype(name)
    else:
        tensor = bound.x if name == "x" else bound.operands[name]
        shape, dtype = tuple(tensor.shape), tensor.dtype
    touched = math.prod(shape) if tensor is None else _touched(tensor)
    if info is None:
        return Place(dtype, shape, "not touched", None, "nothing is launched", 0)
    view = info.call.views["out", name] if out else info.call.views[name]
    lies = ["one value" if name in bound.op.maxima else _columns_lie(view)]
    if name in bound.op.of_blocks:
        lies = ["one value a block" if bound.op.block else "one value a row"]
    if tensor is not None and not out and name in bound.tables:
        lies = ["looked up by an index"]
    elif tensor is not None and not out and name != "x":
        lies += _rows_lie(bound, tensor, view)
    width, limit = _width(view, dtype.itemsize, tensor, info.tile)
    return Place(dtype, shape, ", ".join(lies), width, limit, touched * dtype.itemsize)


def _touched(tensor: Tensor) -> int:
    """The number of elements in memory that a tensor addresses, each counted once."""
    if tensor.numel() == 0:
        return 0
    steps = list(zip(tensor.shape, tensor.stride(), strict=True))
    own = math.prod([size for size, step in steps if step])
    return min(own, 1 + sum((size - 1) * step for size, step in steps))  # less if they overlap


def _columns_lie(view: View) -> str:
    step, repeats = view.placed.column_stride, view.placed.repeats
    if repeats > 1:
        return f"one value for each {repeats} neighbouring columns"
    return {0: "one value a row", 1: "contiguous columns"}.get(
        step, f"strided columns, {counted(step, 'element')} apart"
    )


def _rows_lie(bound: Bound, tensor: Tensor, view: View) -> list[str]:
    dims = _shared_dims(bound, tensor)
    rows = [dim for dim in range(bound.x.dim()) if dim not in bound.reduced]
    if view.shared:
        return ["no row dimensions: shared by all rows"]
    if not dims:
        return []
    if all(dim in dims or bound.x.shape[dim] == 1 for dim in rows):
        return ["shared by all rows"]
    return [f"shared along x's {dims_in_words(dims)}"]


def _shared_dims(bound: Bound, tensor: Tensor) -> tuple[int, ...]:
    """The row dimensions of x along which an operand is broadcast."""
    missing = bound.x.dim() - tensor.dim()
    return tuple(
        dim
        for dim, size in enumerate(bound.x.shape)
        if dim not in bound.reduced
        and size > 1
        and (dim < missing or tensor.shape[dim - missing] == 1 or not tensor.stride(dim - missing))
    )


def _width(
    view: View, size: int, tensor: Tensor | None, tile: Schedule | None
) -> tuple[int | None, str]:
    if tile is None:
        return None, "vectors of the compiler's choice"
    if view.placed.repeats > 1:
        shared = f"a pack of {counted(tile.width, 'column')} shares it"
        if view.width < tile.width:
            shared = f"{counted(view.width, 'column')} of a pack share it for certain"
        return 1, f"1 at a time: {shared}"
    if view.placed.column_stride != 1:
        return 1, "1 at a time: " + (
            "the columns are not contiguous" if view.placed.column_stride else "it is one value"
        )
    width = view.width
    text = f"{width} at a time ({counted(width * size, 'byte')})"
    if width == tile.width:
        return width, f"{text}: the pack"
    if width * size == 16:
        return width, f"{text}: the widest access"
    limits = []
    if tensor is not None and tensor.data_ptr() % (2 * width * size):
        aligned = math.gcd(tensor.data_ptr(), 16)
        limits.append(f"its pointer is aligned to {counted(aligned, 'byte')}")
    odd = [step for step in view.placed.row_strides if step % (2 * width)]
    if odd:
        limits.append(f"a row stride is {counted(odd[-1], 'element')}")
    return width, f"{text}: {' and '.join(limits)}"


def _visited(bound: Bound, info: Planned | None) -> tuple[tuple[int, ...], str]:
    if info is None:
        return (), "none is visited"
    geometry = info.geometry
    order = geometry.order
    walked = f"walked as {' x '.join(map(str, geometry.sizes))}"
    if list(order) == sorted(order):
        return order, f"in the order of x's dimensions, {walked}"
    sharers = []
    for name, view in info.call.views.items():
        tensor = bound.operands.get(name)
        if not isinstance(tensor, Tensor):
            continue
        dims = _shared_dims(bound, tensor)
        large = _touched(tensor) * tensor.element_size() >= SHARED_BYTES
        if large and dims and view.placed.column_stride and any(view.placed.row_strides):
            sharers.append(f"{name!r} is shared along {dims_in_words(dims)}")
    return order, (
        f"dimensions visited in the order {', '.join(map(str, order))}, the last innermost, "
        f"{walked}: {' and '.join(sharers)}, and neighbours that share it read it once"
    )


def _why(bound: Bound, info: Planned | None, target: Target) -> str:
    if info is None:
        return "nothing is launched: x has no elements"
    columns, tile = info.geometry.columns, info.tile
    forced = "forced by fusedops.testing; " if override.current() != override.Override() else ""
    if tile is None and not bound.op.reduces:
        return f"{forced}nothing is reduced: rows are read and written piece by piece"
    if tile is None and not bound.op.has_result:
        return f"{forced}rows are read piece by piece, each once, and nothing of them is kept"
    if tile is None:
        if info.call.storage == "streaming":
            return f"{forced}rows are read twice (the buffer has room for {HOST_BUFFERED} columns)"
        most = info.variant.most_columns
        return f"{forced}rows stay in a buffer (of {most} columns) until they are written"
    abreast = tile.launch.abreast
    rows = tile.rows_per_block * abreast
    parts = [
        f"{forced}{tile.extent}",
        f"{counted(tile.chunks, 'chunk')} a row",
        f"{counted(rows, 'row')} a block of {tile.threads_per_block} threads",
        f"{counted(tile.packs * tile.width, 'value')} a thread for {counted(columns, 'column')}",
        tile.served,
        "every pack is full"
        if tile.exact
        else f"the tile of {tile.chunks * tile.tile.capacity} is not full",
    ]
    if abreast > 1:
        parts.append(f"{abreast} rows at a time, which share all operands but x")
    in_shared = dataclasses.replace(tile, storage="shared", staged_bytes=0).shared_bytes
    shared_limit = 0 if target.gpu is None else target.gpu.shared_limit
    limit = shared_limit - reserved_shared(tile.threads_per_block, tile.compute_bytes)
    if tile.staged_bytes:
        parts.append(f"rows go through {tile.shared_bytes} bytes of shared memory, as they are")
    if tile.storage == "chunks":
        parts.append("nothing is reduced: each chunk has a block of its own")
    elif tile.chunks == 1:
        parts.append("the row fits the registers")
    elif not bound.op.has_result and tile.storage == "streaming":
        parts.append("its chunks are read one after another, each once, and nothing is kept")
    elif tile.storage == "cluster":
        share = "one each" if tile.one_tile else "some each, read twice"
        parts.append(f"{tile.cluster} blocks of a cluster share the chunks, {share}")
    else:
        fits = "fits" if in_shared <= limit else "does not fit"
        parts.append(f"the row of {in_shared} bytes {fits} the block's {limit} of shared memory")
    if tile.launch.prefetch != "never":
        distance = tile.launch.prefetch_distance
        parts.append(f"rows are prefetched into the L2 cache {distance} ahead")
    if tile.tuned:
        parts.append(f"launch configuration tuned on this device, from {tile.tuned}")
    return "; ".join(parts)


def _variant(info: Planned | None) -> tuple[Cached | None, str, tuple[str, ...]]:
    """The variant's state, its name and place in words, and remarks on how it was built."""
    if info is None:
        return None, "none is needed", ()
    variant = info.variant
    found = variant.cached()
    said = () if found is None else found.remarks
    if variant.loaded:
        return "loaded", f"{variant.name}, in this process", said
    if found is not None:
        return "on disk", f"{variant.name}, in {found.folder}", said
    builder = "NVRTC" if variant.arch.startswith("sm_") else "the host's C++ compiler"
    return "to be built", f"{variant.name}, by {builder} for {variant.arch}", ()


def _dropouts(bound: Bound) -> tuple[str, ...]:
    chains = bound.chains
    texts = []
    for (side, place), slot in bound.dropout_slots.items():
        functor = chains[side][place]
        assert functor.draws is not None
        p = bound.operands[functor.draws]
        texts.append(
            f"slot {slot}, {functor!r} in {side.upper()}: drops {threshold(p)} in 65536 elements"
        )
    return tuple(texts)


def _left_out(bound: Bound) -> tuple[Functor, ...]:
    acting, declared = (*bound.load, *bound.store), (*bound.op.load, *bound.op.store)
    return tuple(f for f in declared if f.draws is not None and not any(f is g for g in acting))


def _notes(
    bound: Bound,
    acting: Sequence[Functor],
    info: Planned | None,
    gradients: GradCall | None,
    target: Target,
) -> tuple[str, ...]:
    notes = []
    last = max((i for i, f in enumerate(bound.load) if not f.masks), default=-1)
    if any(functor.masks for functor in bound.load[: max(last, 0)]):
        notes.append("masks are applied last, whatever stands after them")
    rank = bound.x.dim()
    bounded = [functor for functor in acting if functor.bounds_along(rank, bound.reduced)]
    if bounded:
        notes.append("columns that indices mask out are not loaded: the bytes are an upper bound")
    for functor in acting:
        if functor.masks and functor.positions and functor not in bounded:
            notes.append(f"no range of columns follows from {functor!r}: all columns are loaded")
    on_gpu = target.gpu is not None
    notes += notes_of_tanh(acting, on_gpu and bound.compute is torch.float32)
    twice = bound.op.reduces and bound.op.has_result
    if info is not None and info.call.storage == "streaming" and twice:
        notes.append("the row is read twice: the second time from a cache, where it is still there")
    if gradients is not None and gradients.refused:
        notes.append(f"a call in grad mode raises: {gradients.refused}")
    return tuple(notes)


def notes_of_tanh(functors: Sequence[Functor], by_gpu: bool) -> list[str]:
    """Where functors have `hardware_tanh`, what computes it, in words: `by_gpu` in float32."""
    what = "the GPU's instruction, within 2^-11 of itself" if by_gpu else "as precise as without"
    asked = any(functor.hardware_tanh for functor in functors)
    return [f"hardware_tanh: tanh is {what}"] * asked


def _with_copies(bound: Bound) -> tuple[Bound, tuple[str, ...], int]:
    """The call on contiguous copies (tensors without memory), the copies in words, their bytes.

    The bytes are those that copying moves.
    """
    x = bound.x
    there = order(x.dim(), bound.reduced)
    names: list[str] = []
    moved = 0

    def copied(name: str, value: Any) -> Any:
        nonlocal moved
        if not isinstance(value, Tensor) or name in bound.tables:
            return value
        seen = arranged(value, x.shape, bound.reduced)
        if not seen.is_contiguous():
            names.append(f"{name!r} to {tuple(seen.shape)}, dense")
            moved += (_touched(value) + seen.numel()) * value.element_size()
        return torch.empty(seen.shape, dtype=value.dtype, device="meta")

    dense_x = copied("x", x)
    operands = {name: copied(name, value) for name, value in bound.operands.items()}
    for name in bound.op.outputs:
        shape = bound.output_shape(name)
        turned = len(shape) == x.dim() and there != sorted(there)
        if turned or name in bound.out:
            names.append(f"the output {name!r} back to {shape}")
            times = 2 * (int(turned) + int(name in bound.out))
            moved += times * math.prod(shape) * bound.output_dtype(name).itemsize
    return bind(bound.op, dense_x, operands, contiguous.options(bound)), tuple(names), moved


def _device_name(device: torch.device) -> str:
    return device_info(device.index)["name"] if device.type == "cuda" else str(device)


def _options(bound: Bound) -> dict[str, Any]:
    dim = bound.reduced if len(bound.reduced) > 1 else bound.reduced[0]
    return {"dim": dim, "dtype": bound.dtype}
