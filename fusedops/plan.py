# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Make the plan of a call: place the operands, choose the schedule, generate, build, and pack.

A plan belongs to shapes, strides and dtypes; the kernel it launches belongs to its source text alone,
so a new shape of a known pattern finds its kernel by the text and builds nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from fusedops import _runtime, codegen, jit, schedule
from fusedops.binding import Bound, bind
from fusedops.codegen import STORAGE, Arguments, Number, View
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor
from fusedops.geometry import Geometry, Operand, Virtual, place
from fusedops.runtime import device_info
from fusedops.unfused import run

if TYPE_CHECKING:
    from fusedops.ops import RowOp

__all__ = ["Info", "Target", "Variant", "describe", "make_plan", "refuse"]

#: Work that one thread of a CPU takes at a time, in elements: some 20 us, far above a wake-up.
HOST_GRAIN = 16384

_MOST_BLOCKS = 2**31 - 1

#: Kernels in this process, by source text and architecture.
_kernels: dict[tuple[str, str], _runtime.Kernel] = {}

#: Which storage a test wants, or None: fusedops.testing.force_schedule.
forced: str | None = None


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compiled: a source text for an architecture."""

    name: str
    arch: str
    source: str
    declaration: str

    @property
    def loaded(self) -> bool:
        """Whether this process has it."""
        return (self.source, self.arch) in _kernels

    def kernel(self) -> _runtime.Kernel:
        """Load the kernel, building it if the cache does not hold it."""
        known = _kernels.get((self.source, self.arch))
        if known is None:
            built = jit.build(
                self.source, name=self.name, arch=self.arch, declaration=self.declaration
            )
            if self.arch.startswith("sm_"):
                known = _runtime.load_cuda(built.binary.read_bytes(), "fusedops_kernel")
            else:
                known = _runtime.load_host(str(built.binary), "fusedops_rows")
            _kernels[self.source, self.arch] = known
        return known


@dataclasses.dataclass(frozen=True)
class Target:
    """What a variant is built for.

    Attributes:
        arch: "sm_90" and the like, or a level of CPU features.
        shared_limit: Bytes of shared memory that a block can opt in to; None for a CPU.
    """

    arch: str
    shared_limit: int | None

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The target of the machine at hand."""
        if device.type != "cuda":
            return cls(jit.cpu_level(_runtime.cpu_features()), None)
        properties = device_info(device.index)
        return cls(
            "sm_{}{}".format(*properties["capability"]), properties["shared_per_block_optin"]
        )


@dataclasses.dataclass(frozen=True)
class Info:
    """What is known of a call before it runs; `explain` and the test hooks read it."""

    schedule: str
    tile: schedule.Schedule | None
    geometry: Geometry
    operands: Mapping[str, View | Number]
    outputs: Mapping[str, View]
    variant: Variant
    words: bytes
    patches: list[tuple[int, int, int]]
    draws: int


def make_plan(bound: Bound) -> Any:
    """The plan of a call that the C++ path has not seen."""
    if bound.x.numel() and _columns_apart(bound):
        return _run_with_copies(bound)
    outputs = [
        (*_dlpack(bound.output_dtype(name)), bound.output_shape(name)) for name in bound.op.outputs
    ]
    if bound.x.numel() == 0:  # nothing to launch: the chain allocates what there is to return
        return bound.op.wrap(run(bound))
    info = describe(bound)
    count = info.geometry.rows
    tile = info.tile
    return _runtime.Plan(
        info.variant.kernel(),
        info.words,
        info.patches,
        outputs,
        count,
        max(1, HOST_GRAIN // info.geometry.columns),
        1 if tile is None else min(-(-count // tile.rows), _MOST_BLOCKS),
        1 if tile is None else tile.block,
        0 if tile is None else tile.shared,
        info.draws,
        info,
    )


def describe(bound: Bound, target: Target | None = None) -> Info:
    """Place, choose and generate, without building anything; for x's own device by default."""
    op, x = bound.op, bound.x
    target = target or Target.of(x.device)
    geometry, names = _placed(bound)
    columns = max(geometry.columns, 1)
    tile = None
    width = 0
    if target.shared_limit is not None:
        tile = schedule.choose(
            columns,
            x.element_size(),
            bound.compute.itemsize,
            bool(bound.slots),
            target.shared_limit,
            forced,
        )
        kind, width = tile.kind, tile.width
    else:
        kind = schedule.choose_host(columns, forced)

    operands: dict[str, View | Number] = {}
    outs: dict[str, View] = {}
    slots = {operand.name: slot for slot, operand in enumerate(op.operands, 1)}
    for name, where in zip(names, geometry.placed, strict=True):
        assert where is not None
        if name.startswith("\0"):
            continue
        patch, tensor, dtype = _source_of(bound, name, slots)
        aligned = 16 if tensor is None else math.gcd(tensor.data_ptr(), 16) or 16
        size = dtype.itemsize
        widest = 0 if tile is None else _width(where, size, aligned, width)
        view = View(STORAGE[dtype], where, widest, patch, _shared(bound, name))
        if name.startswith("out:"):
            outs[name[4:]] = view
        else:
            operands[name] = view
    for name, value in bound.operands.items():
        if not isinstance(value, Tensor):
            operands[name] = Number(slots[name], isinstance(value, int))

    virtual = {
        name: where.row_strides
        for name, where in zip(names, geometry.placed, strict=True)
        if where is not None and name.startswith("\0")
    }
    rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
    write = Arguments(
        compute="double" if bound.compute is torch.float64 else "float",
        sizes=geometry.sizes,
        columns=geometry.columns,
        queries=x.shape[rows[-1]] if rows else 1,
        operands=operands,
        outputs=outs,
        query=virtual["\0query"],
        logical_row=virtual["\0row"],
        slots=slots,
    )
    source = _generate(bound, write, geometry, kind, tile)
    return Info(
        schedule=kind,
        tile=tile,
        geometry=geometry,
        operands=operands,
        outputs=outs,
        variant=Variant(_name(bound, kind), target.arch, source, repr(op)),
        words=write.pack(),
        patches=write.patches,
        draws=_draws(bound),
    )


def refuse(
    op: RowOp, reason: str, x: Any, operands: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Raise what the gate's reason means for these arguments; return if it means nothing bad."""
    name = type(op).__name__
    if reason in ("arguments", "device", "overlap"):
        bound = bind(op, x, operands, options)
        if reason == "overlap":
            raise ValueError(
                f"{name}: out must overlap neither an input nor another output nor itself, but "
                f"{_overlap(bound)}; pass other memory, or leave out= away and get a new tensor"
            )
        if reason == "device":
            raise UnsupportedError(
                f"{name}: x must be on the CPU or a CUDA device, got {bound.x.device}; op.unfused runs "
                "on any device"
            )
        return
    meaning = {
        "subclass": "x and its operands must be plain torch.Tensor or Parameter, got {kinds}; pass "
        "x.as_subclass(torch.Tensor), or use op.unfused",
        "neg": "a tensor has its negative bit set, so its memory holds other numbers; use "
        ".resolve_neg()",
        "conj": "a tensor has its conjugate bit set, so its memory holds other numbers; use "
        ".resolve_conj()",
        "mode": "a torch dispatch or function mode is active, which a fused kernel would bypass; use "
        "op.unfused under it",
        "functorch": "torch.func transforms (vmap, grad, jvp) do not see into a fused kernel; use "
        "op.unfused under them",
        "tracing": "tracing (torch.compile, torch.export, torch.jit) does not see into a fused kernel; "
        "use op.unfused there",
        "layout": "tensors must be dense and strided, got {layouts}; use .to_dense() or .dequantize()",
        "grad": "gradients are not available yet and {grads} requires grad; call it under "
        "torch.no_grad(), detach() what needs no gradient, or use op.unfused, which differentiates",
        "dual": "forward-mode derivatives do not reach into a fused kernel; use op.unfused",
        "storage": "a tensor has no memory of its own (fake, meta, zero or functional tensors); pass "
        "plain tensors, or use op.unfused",
    }
    named = {"x": x, **operands}
    tensors = [value for value in (x, *operands.values()) if isinstance(value, Tensor)]
    text = meaning.get(reason, f"the call cannot take the fused path: {reason}").format(
        kinds=", ".join(sorted({type(value).__name__ for value in tensors})),
        layouts=", ".join(sorted({str(value.layout) for value in tensors})),
        grads=" and ".join(
            repr(key)
            for key, value in named.items()
            if isinstance(value, Tensor) and value.requires_grad
        )
        or "out",
    )
    _raise_unsupported(name, text)


def _overlap(bound: Bound) -> str:
    """Which output overlaps what, by the bytes between their first and last elements."""
    inputs = {"x": bound.x, **bound.operands}
    for name, out in bound.out.items():
        for key, value in inputs.items():
            if isinstance(value, Tensor) and _share(out, value):
                return f"the out for {name!r} overlaps {key!r}"
        for key, value in bound.out.items():
            if key != name and _share(out, value):
                return f"the out for {name!r} overlaps that for {key!r}"
    return "an out has elements that share memory"


def _share(a: Tensor, b: Tensor) -> bool:
    def extent(tensor: Tensor) -> tuple[int, int]:
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((size - 1) * step for size, step in steps)
        return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

    (a_begin, a_end), (b_begin, b_end) = extent(a), extent(b)
    return a.numel() > 0 and b.numel() > 0 and a_begin < b_end and b_begin < a_end


def _raise_unsupported(name: str, text: str) -> NoReturn:
    raise UnsupportedError(f"{name}: {text}")


def _placed(bound: Bound) -> tuple[Geometry, list[str]]:
    """Everything that is addressed, by name; names with a NUL are made from indices."""
    x = bound.x
    shape = tuple(x.shape)
    names = ["x"]
    operands: list[Operand] = [(shape, x.stride())]
    sizes = [x.element_size()]
    for name, value in bound.operands.items():
        if isinstance(value, Tensor):
            names.append(name)
            operands.append((tuple(value.shape), value.stride()))
            sizes.append(value.element_size())
    for name in bound.op.outputs:
        own = bound.output_shape(name)
        if name in bound.out:
            strides: Sequence[int] = bound.out[name].stride()
        else:
            strides = _contiguous(own)
        if len(own) != len(shape):
            own, strides = _widened(own, strides, bound)
        names.append(f"out:{name}")
        operands.append((own, strides))
        sizes.append(bound.output_dtype(name).itemsize)
    rows = [dim for dim in range(x.dim()) if dim not in bound.reduced]
    query = [0] * x.dim()
    if rows:
        query[rows[-1]] = 1
    logical = [0] * x.dim()
    for dim, step in zip(rows, _contiguous([shape[dim] for dim in rows]), strict=True):
        logical[dim] = step
    names += ["\0query", "\0row"]
    operands += [Virtual(query), Virtual(logical)]
    sizes += [0, 0]
    try:
        return place(shape, bound.reduced, operands, sizes), names
    except ValueError as error:
        _raise_unsupported(
            type(bound.op).__name__,
            f"x of shape {shape} and its operands broadcast in too many ways: {error}; make an operand "
            "contiguous with .expand(...).contiguous(), or use op.unfused",
        )


def _source_of(
    bound: Bound, name: str, slots: Mapping[str, int]
) -> tuple[tuple[int, int], Tensor | None, torch.dtype]:
    """Where a view's pointer comes from, the tensor if there is one, and the dtype."""
    if name == "x":
        return (_runtime.POINTER, 0), bound.x, bound.x.dtype
    if name.startswith("out:"):
        output = name[4:]
        index = bound.op.outputs.index(output)
        return (_runtime.OUTPUT, index), bound.out.get(output), bound.output_dtype(output)
    value = bound.operands[name]
    return (_runtime.POINTER, slots[name]), value, value.dtype


def _generate(
    bound: Bound,
    write: Arguments,
    geometry: Geometry,
    kind: str,
    tile: schedule.Schedule | None,
) -> str:
    """Walk the declaration once: the text comes out, the words stay in `write`."""
    op = bound.op
    members = [(write.rows(geometry.rows, geometry.sizes), "rows")]
    write.constant(geometry.columns)
    members.append(("int64_t", "cols"))
    if op.eps is None:
        write.constant(0)
    else:
        write.number(op.eps)
    members.append((op.cpp(write.compute), "op"))
    members.append((write.operand("x"), "x"))
    load, store = ["a.x"], ["a.y"]
    for side, chain, names in (("load", bound.load, load), ("store", bound.store, store)):
        for position, functor in enumerate(chain):
            write.dropout_slot = bound.slots.get((side, position), -1)
            members.append((functor.spell(write), f"{side}{position}"))
            names.append(f"a.{side}{position}")
    members.append((write.output("y"), "y"))
    if "mean" in op.outputs:
        kinds = f"Statistics<{write.output('mean')}, {write.output('rstd')}>"
        members.append((kinds, "statistics"))
    else:
        write.constant(0)
        members.append(("NoStatistics", "statistics"))
    functors: tuple[Functor, ...] = (*bound.load, *bound.store)
    headers = [
        "functor/compose.cuh",
        *codegen.functor_headers(functors),
        op.header,
        "row/statistics.cuh",
    ]
    words = len(write.words)
    if tile is None:
        text = f"HostSchedule<{'Streamed' if kind == 'streaming' else 'InRegisters'}>"
        return codegen.host_source(
            members, words, text, schedule.HOST_BUFFERED, headers, load, store
        )
    return codegen.cuda_source(members, words, tile.cpp, tile.block, headers, load, store)


def _shared(bound: Bound, name: str) -> bool:
    """Whether an operand has no row dimensions at all, whatever the number of rows.

    Judged by its dimensions, not by strides: with a batch of one every stride is 0, and a last batch
    of one must not build a variant of its own.
    """
    value = bound.operands.get(name)
    own = value.dim() if isinstance(value, Tensor) else bound.x.dim()
    return own <= len(bound.reduced) < bound.x.dim() and bound.reduced[0] == bound.x.dim() - len(
        bound.reduced
    )


def _width(where: Any, size: int, aligned: int, width: int) -> int:
    """Elements that can be read at once: what pointer and strides allow, 16 bytes at most."""
    if where.column_stride != 1:
        return 1
    while width > 1 and (
        width * size > 16
        or aligned % (width * size)
        or any(step % width for step in where.row_strides)
    ):
        width //= 2
    return width


def _columns_apart(bound: Bound) -> bool:
    """Whether some operand's reduced dimensions do not merge into one: then the call needs copies."""
    if len(bound.reduced) == 1:
        return False
    return any(where is None for where in _placed(bound)[0].placed)


def _run_with_copies(bound: Bound) -> Any:
    """Run a call on copies whose reduced dimensions are last and dense; `explain` says so."""
    x = bound.x
    order = [dim for dim in range(x.dim()) if dim not in bound.reduced] + list(bound.reduced)
    last = len(bound.reduced)

    def dense(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        full = value[(None,) * (x.dim() - value.dim())]
        wide = [
            x.shape[dim] if dim in bound.reduced and full.shape[dim] != 1 else full.shape[dim]
            for dim in range(x.dim())
        ]
        if any(wide[dim] != 1 for dim in bound.reduced):
            for dim in bound.reduced:
                wide[dim] = x.shape[dim]
        return full.expand(wide).permute(order).contiguous()

    results = bound.op(
        dense(x),
        **{name: dense(value) for name, value in bound.operands.items()},
        dim=tuple(range(x.dim() - last, x.dim())),
        dtype=bound.dtype,
        training=bool(bound.slots),
        generator=bound.generator,
    )
    names = bound.op.outputs
    tensors = dict(zip(names, [results] if len(names) == 1 else results, strict=True))
    back = [order.index(dim) for dim in range(x.dim())]
    for name, tensor in tensors.items():
        if tensor.dim() == x.dim():
            tensors[name] = tensor.permute(back).contiguous()
        if name in bound.out:
            tensors[name] = bound.out[name].copy_(tensors[name])
    return bound.op.wrap(tensors)


def _draws(bound: Bound) -> int:
    from fusedops.functors import Dropout

    if not bound.slots:
        return 0
    return sum(isinstance(f, Dropout) for f in (*bound.op.load, *bound.op.store))


def _name(bound: Bound, kind: str) -> str:
    parts = [type(bound.op).__name__.lower()]
    parts += [type(functor).__name__.lower() for functor in (*bound.load, *bound.store)]
    parts += [str(bound.x.dtype).removeprefix("torch."), kind]
    return "-".join(parts)


def _dlpack(dtype: torch.dtype) -> tuple[int, int]:
    return (4 if dtype is torch.bfloat16 else 2), dtype.itemsize * 8


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    return strides


def _widened(
    shape: Sequence[int], strides: Sequence[int], bound: Bound
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A statistic's shape and strides with the reduced dimensions back, as size 1."""
    own, steps = list(shape), list(strides)
    for dim in bound.reduced:
        own.insert(dim, 1)
        steps.insert(dim, 0)
    return tuple(own), tuple(steps)
