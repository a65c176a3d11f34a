# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run a declaration as a chain of plain torch calls: the same arguments, results and dropout mask.

Arithmetic is in the compute type (float32 for 16-bit inputs), as in the kernels, and each output is
rounded once. torch differentiates the chain as any other, twice if need be. What has left its row
has no gradient, by selection: neither what lies under a mask nor the gradient that arrives there
shows anywhere, be it Inf or NaN.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.bind.dimensions import arranged, restored
from fusedops.bind.generator import draw
from fusedops.bind.shard_offset import drawn_rows, first_rows, shared_dims
from fusedops.errors import UnsupportedError
from fusedops.functors import Functor, TableOf
from fusedops.reference.dropout_mask import keep_mask, keep_scale


def gradients_of(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], upstream: Sequence[Tensor]
) -> list[Tensor]:
    """Gradients of all inputs, zero where no output depends on one; the graph is kept."""
    made = [(one, g) for one, g in zip(outputs, upstream, strict=True) if one.requires_grad]
    able = [one for one in inputs if one.requires_grad]
    found: Iterable[Tensor] = map(torch.zeros_like, able)
    if made and able:
        found = torch.autograd.grad(
            [one for one, _ in made],
            able,
            [g for _, g in made],
            retain_graph=True,
            materialize_grads=True,
        )
    of_able = iter(found)
    return [next(of_able) if one.requires_grad else torch.zeros_like(one) for one in inputs]


class Chain:
    """The state of a chain of torch calls. Tensors have the reduced dimensions last, as one."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self.columns = bound.columns
        self._rows = bound.rows
        self.queries = bound.queries
        self.saved: dict[str, Tensor] = {}
        self._dropout_slot = -1
        self._drawn: tuple[int, int] | None = None
        if isinstance(bound.generator, tuple):
            self._drawn = bound.generator
        elif isinstance(bound.generator, Tensor):
            seed, offset = bound.generator.tolist()
            self._drawn = seed, offset
        self._gone: Tensor | None = None

    def arrange(self, tensor: Tensor) -> Tensor:
        """Move the reduced dimensions to the end and make them one."""
        bound, rank = self._bound, len(self._rows)
        seen = arranged(tensor, bound.x.shape, bound.reduced)
        if any(size != 1 for size in seen.shape[rank:]):
            columns = [bound.x.shape[dim] for dim in bound.reduced]
            seen = seen.expand(*seen.shape[:rank], *columns)
        return seen.flatten(rank)

    def restore(self, tensor: Tensor) -> Tensor:
        """Undo `arrange` for a tensor of x's size."""
        bound = self._bound
        sizes = [bound.x.shape[dim] for dim in bound.reduced]
        return restored(tensor.reshape(*tensor.shape[:-1], *sizes), bound.reduced)

    def tensor(self, name: str) -> Any:
        """An operand as given, arranged; numbers as they are."""
        value = self._bound.operands[name]
        return self.arrange(value) if isinstance(value, Tensor) else value

    def value(self, name: str) -> Tensor | float:
        """A floating operand in the compute type."""
        value: Tensor | float = self.tensor(name)
        return self._kept(value.to(self._bound.compute)) if isinstance(value, Tensor) else value

    def as_given(self, name: str) -> Tensor:
        """A tensor operand, its dimensions arranged and not expanded."""
        bound = self._bound
        return arranged(bound.operands[name], bound.x.shape, bound.reduced)

    def column(self) -> Tensor:
        """The number of each column."""
        return torch.arange(self.columns, device=self._bound.x.device)

    def query(self) -> Tensor:
        """The number of each row's query, as a column."""
        x, first = self._bound.x, self._bound.first_query
        return torch.arange(first, first + x.shape[self._rows[-1]], device=x.device)[:, None]

    def position(self, dim: int) -> Tensor:
        """The coordinates along a dimension of x, arranged."""
        x = self._bound.x
        sizes = [1] * x.dim()
        sizes[dim] = -1
        return self.arrange(torch.arange(x.shape[dim], device=x.device).view(sizes))

    def gathered(self, table: TableOf) -> Tensor:
        """Values looked up in a table; NaN for indices out of range."""
        given = self._bound.operands[table.table].to(self._bound.compute)
        index = self.tensor(table.indices).long()
        known = (index >= 0) & (index < given.shape[0])
        at: tuple[Tensor, ...] = (torch.where(known, index, 0),)
        if table.dim is not None:
            place = self.position(table.dim)
            at = (*at, place if given.shape[1] > 1 else torch.zeros_like(place))
        found = given[at]
        return self._kept(torch.where(known, found, torch.nan))

    def nothing(self) -> Tensor:
        """One element that stands for any value."""
        return torch.zeros((), dtype=self._bound.compute, device=self._bound.x.device)

    def save(self, name: str, value: Tensor) -> Tensor:
        """Keep a value as an output; the chain continues with the rounded value."""
        rounded = self.rounded(name, value)
        if self._gone is None:  # else it was saved before
            self.saved[name] = self.restore(rounded)
        return rounded

    def tap(self, name: str, value: Tensor) -> None:
        """Keep a value of the STORE as an output."""
        self.saved[name] = self.restore(self._kept(value))

    def maximum(self, name: str, value: Tensor) -> None:
        """Keep the largest magnitude of a value as an output; of no elements that is 0."""
        found = value.detach().abs()
        self.saved[name] = found.amax() if found.numel() else found.new_zeros(())

    def keep_blocks(self, name: str, values: Tensor) -> None:
        """Keep a number of each block as an output."""
        found = values.detach()
        layout = self._bound.op.store[-1].block_layout
        if layout == "tiles":
            found = found.reshape(-1, found.shape[-1])
            rows, blocks = (-size % part for size, part in zip(found.shape, (128, 4), strict=True))
            found = torch.nn.functional.pad(found, (0, blocks, 0, rows))
            found = found.reshape(-1, 4, 32, found.shape[-1] // 4, 4)
            found = found.permute(0, 3, 2, 1, 4).flatten()
        self.saved[name] = found.movedim(-1, 0) if layout == "columns" else found

    def rounded(self, name: str, value: Tensor) -> Tensor:
        """A value as the stream of this name holds it; its gradient passes as it is."""
        dtype = self._bound.output_dtype(name)
        if dtype == value.dtype:
            return value
        # Whether torch types apply() depends on its version.
        result: Tensor = cast(Any, _Round).apply(value, dtype)
        return result

    def dropout(self, functor: Functor) -> tuple[Tensor, float]:
        """The elements that a functor which draws keeps, of x's shape, and their scale."""
        bound, x = self._bound, self._bound.x
        if self._drawn is None:
            generator = None if isinstance(bound.generator, (tuple, Tensor)) else bound.generator
            self._drawn = draw(x.device.type, x.device.index or 0, generator, bound.op.dropouts)
        if self._drawn is None:
            raise UnsupportedError(
                f"{bound.op.name}: op.unfused cannot draw a dropout mask while a CUDA graph is "
                "captured; capture the op itself"
            )
        seed, offset = self._drawn
        assert functor.draws is not None, f"{functor!r} says that it does not draw"
        p = bound.operands[functor.draws]
        maps = drawn_rows(bound.counted, bound.reduced, [shared_dims(functor, x.dim())])
        first = first_rows(bound.whole, maps) or {}
        ((shared, strides),) = maps.items()
        kept = keep_mask(
            tuple(x.shape),
            bound.reduced,
            seed=seed,
            offset=offset + self._dropout_slot,
            p=p,
            shared=shared,
            strides=strides,
            first=first.get(shared, 0),
            device=x.device,
        )
        return self.arrange(kept), keep_scale(p)

    def apply(self, side: str, value: Tensor, places: range) -> Tensor:
        """Run the functors at these places, without the masks."""
        functors = self._bound.chains[side]
        for place in places:
            self._dropout_slot = self._bound.dropout_slots.get((side, place), -1)
            if not functors[place].masks:
                value = functors[place].apply(self._kept(value), self)
        return self._kept(value)

    def outputs(self) -> dict[str, Tensor]:
        """Every result before it is rounded to its dtype, by name."""
        bound, op = self._bound, self._bound.op
        value = self._load()
        result, statistics = self._reduced(value)
        # A logarithm of -inf is a constant, whatever the store makes of it; so is what is masked in
        # a norm.
        gone = value == -torch.inf if op.zeroes else None
        if op.logarithmic and self._differentiable():
            gone = (value == -torch.inf) | (result == -torch.inf)  # of an empty row it may be NaN
        with self._without(gone):
            result = self.apply("store", result, range(len(bound.store)))
        if op.zeroes and gone is not None:
            result = result.masked_fill(gone, 0.0)
        return {"y": self.restore(result), **self.saved, **statistics}

    def _reduced(self, value: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The operator's result, and the statistics that the call returns, by name."""
        op = self._bound.op
        operands = self._row_operands(value)
        if self.columns == 0:
            known: Mapping[str, Tensor] = op.reference_of_nothing(value, *operands)
            # Made of x, if by adding nothing: a rank without columns goes back as others do.
            result, known = value, {name: one + value.sum(-1) for name, one in known.items()}
        else:
            result, known = op.reference(value, *operands)
        returned = {name: known[name] for name in op.outputs if name in op.statistics}
        constant = returned.keys() - {*op.joining}
        return result, {k: v.detach() if k in constant else v for k, v in returned.items()}

    def _row_operands(self, value: Tensor) -> list[Tensor]:
        """The operands of the operator itself."""
        op = self._bound.op
        return [
            self.tensor(name)
            if name in op.row_roles
            else torch.as_tensor(self.value(name), dtype=value.dtype, device=value.device)
            for name in op.row_operands
        ]

    def _load(self) -> Tensor:
        """Apply the LOAD; masked elements are -inf."""
        bound = self._bound
        shared, end = self._shared(), len(bound.load)
        start = self.apply("load", self.arrange(bound.x).to(bound.compute), range(shared))
        value = self.apply("load", start, range(shared, end))
        masks = [f.masked(self) for f in bound.load if f.masks]
        if bound.op.zeroes:
            value = _without_infinity(value)
        if masks:
            # Their union, last: a masked element leaves the row whatever stands after its mask.
            value = value.masked_fill(functools.reduce(operator.or_, masks), -torch.inf)
        leaves = bool(masks) or (bound.op.masks and bound.op.reduces and not bound.op.zeroes_masked)
        if not (leaves and self._differentiable()):
            return value
        # In a map, what is -inf by itself is a value like any other.
        gone = value == -torch.inf if bound.op.reduces else functools.reduce(operator.or_, masks)
        ignored = bound.op.ignored(*self._row_operands(value)) if bound.op.row_roles else None
        if ignored is not None:
            gone = gone | ignored
        with self._without(gone):
            # Once more, since a stream's own gradient goes to masked elements as well.
            value = self.apply("load", start, range(shared, end))
            if bound.op.zeroes:
                value = _without_infinity(value)
            return value.masked_fill(gone, -torch.inf)

    def _shared(self) -> int:
        """The number of functors run once for y and streams: casts round the sum of the gradients.

        Otherwise none, so that nothing leaks from under a mask where a stream has no gradient.
        """
        load = self._bound.load
        saving = [i for i, f in enumerate(load) if f.saves is not None]
        saved = saving[-1] + 1 if saving else 0
        return saved if any(functor.rounds for functor in load[:saved]) else 0

    def _differentiable(self) -> bool:
        tensors = (self._bound.x, *self._bound.operands.values())
        return torch.is_grad_enabled() and any(
            isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors
        )

    @contextlib.contextmanager
    def _without(self, gone: Tensor | None) -> Iterator[None]:
        """In the block, nothing gets a gradient from these elements."""
        self._gone = gone
        try:
            yield
        finally:
            self._gone = None

    def _kept(self, value: Tensor) -> Tensor:
        """The value unchanged; masked elements get no gradient."""
        return value if self._gone is None else torch.where(self._gone, value.detach(), value)


class _Round(torch.autograd.Function):
    """Rounds to a dtype and back; a gradient passes as it is, forward and backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, dtype: torch.dtype) -> Tensor:
        return value.to(dtype).to(value.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return tangent


def _without_infinity(value: Tensor) -> Tensor:
    """Replace -inf, by which masks mark elements of a norm's row, by NaN."""
    return value.where(value != -torch.inf, value - value)


def _once(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A value in a dtype, rounded once: torch makes a float of a double before it makes 8 bits."""
    if dtype is torch.float4_e2m1fn_x2:
        return _four_bits(value)
    if dtype.itemsize == 1 and value.dtype is torch.float64:
        made: Tensor = cast(Any, _ToOdd).apply(value)
        return made.to(dtype)
    return value.to(dtype)


def _four_bits(value: Tensor) -> Tensor:
    """Values to nearest even in 4 bits, two in a byte, without a gradient; NaN becomes 6."""
    value = value.detach()
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], device=value.device)
    size = value.abs().unsqueeze(-1)
    up = torch.arange(7, device=value.device) % 2 == 1  # a tie goes to the even code
    above = (size > middles) | ((size == middles) & up)
    codes = above.sum(-1) + 8 * torch.signbit(value)
    codes = codes.masked_fill(value.isnan(), 7).to(torch.uint8)
    return (codes[..., ::2] | codes[..., 1::2] << 4).view(torch.float4_e2m1fn_x2)


class _ToOdd(torch.autograd.Function):
    """Round double to float with round-to-odd, so that a second rounding is exact."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        nearest = value.float()
        back = nearest.double()
        bits = nearest.view(torch.int32) - (back.abs() > value.abs()).int()
        exact = (back == value) | value.isnan()
        return torch.where(exact, nearest, (bits | 1).view(torch.float32))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.double()


def run(bound: Bound) -> dict[str, Tensor]:
    """The outputs of a call, by name."""
    outputs = Chain(bound).outputs()
    results = {}
    for name in bound.op.outputs:
        result = _once(outputs[name], bound.output_dtype(name))
        results[name] = bound.out[name].copy_(result) if name in bound.out else result.contiguous()
    return results
