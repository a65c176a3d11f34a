# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of two factors of 8 bits and their scales: one a row, or one for each 128 columns.

torch's product applies them where cuBLAS or CUTLASS does; elsewhere the factors are multiplied by
their scales first, in float32. Scales of 128 columns do not commute with the product, so no functor
after it could apply them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.bind.operands import begins_whole
from fusedops.errors import UnsupportedError, shortened
from fusedops.functors.fields import check_name
from fusedops.product.factors import of_eight_bits, rows_of, wants_gradient

__all__ = ["BLOCK", "FactorScales"]

#: The columns of a factor that one scale is of, and the rows of w, where a scale is of several.
BLOCK = 128
_LAYOUTS = ("rows", "columns")
#: What the rows of x, and the columns of 128 x 128 scales, are a multiple of for cuBLAS.
_STEP = 4
#: Whether torch was built for CUDA 12.9, or later, whose cuBLAS has products with scales of blocks.
_HAS_BLOCKS = tuple(map(int, (torch.version.cuda or "0.0").split(".")[:2])) >= (12, 9)


class FactorScales:
    """The scales that a `Linear` is declared with: what operands they are, and how those of x lie.

    Args:
        op: The op, for messages.
        names: The names of the operands with the scales of x and of w.
        layout: How the scales of x lie, as of `DynamicQuantize`: "rows" or "columns".

    Raises:
        TypeError, ValueError: These are no two names, or layout is another.
    """

    def __init__(self, op: Any, names: Any, layout: Any) -> None:
        kind = type(op).__name__
        if not isinstance(names, (tuple, list)) or len(names) != 2:
            raise TypeError(
                f"{kind}: scales names two operands, the scales of x and of w, got "
                f"{shortened(names)}; write scales=('x_scales', 'w_scales'), say"
            )
        for name in names:
            check_name(op, "scales", name)
        if names[0] == names[1] or {*names} & {"x", "w"}:
            raise ValueError(
                f"{kind}: scales must be two names that differ from one another and from x "
                f"and w, got {shortened(names)}"
            )
        if layout not in _LAYOUTS:
            raise ValueError(
                f"{kind}: layout must be one of {', '.join(map(repr, _LAYOUTS))}, got "
                f"{shortened(layout)}"
            )
        self.names: tuple[str, str] = (names[0], names[1])
        self.layout: str = layout

    def taken(self, arguments: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """The scales of x and of w, and the other arguments of a call."""
        rest = dict(arguments)
        return rest.pop(self.names[0]), rest.pop(self.names[1]), rest

    def check_factors(self, op: str, x: Any, w: Any) -> None:
        """Raise TypeError for a tensor that is no factor of 8 bits."""
        for name, one in (("x", x), ("w", w)):
            if isinstance(one, Tensor) and not of_eight_bits(one):
                raise TypeError(
                    f"{op}: {name} must be float8, as scales={self.names!r} is declared, got "
                    f"{one.dtype}; quantise it with fusedops.DynamicQuantize(torch.float8_e4m3fn)"
                )

    def check(self, op: str, x: Tensor, w: Tensor, of_x: Any, of_w: Any) -> None:
        """Raise TypeError, ValueError or UnsupportedError unless the scales fit the factors."""
        rows, across, n = tuple(x.shape[:-1]), math.ceil(x.shape[-1] / BLOCK), w.shape[0]
        last = self.layout == "rows"
        shapes = [(*rows, count) if last else (count, *rows) for count in (1, across)]
        what = f"a scale for each row of x, or for {BLOCK} of its columns"
        self._check_one(op, self.names[0], of_x, x, shapes, what)
        whole = of_x.shape[-1 if last else 0] == 1
        shapes = [(n, 1)] if whole else []
        if not whole or across == 1:
            shapes += [(math.ceil(n / BLOCK), across), (n, across)]
        what = f"a scale for each {BLOCK} x {BLOCK} or 1 x {BLOCK} of w"
        if whole:
            what = f"a scale for each row of w, as {self.names[0]} has one for each of x"
        self._check_one(op, self.names[1], of_w, x, shapes, what)

    def _check_one(self, op: str, name: str, value: Any, x: Tensor, wanted: Any, what: str) -> None:
        if not isinstance(value, Tensor) or value.dtype is not torch.float32:
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(
                f"{op}: {name} must be a tensor of torch.float32, {what}, got {got}; make one with "
                f"torch.as_tensor({name}, dtype=torch.float32)"
            )
        if value.device != x.device:
            raise ValueError(
                f"{op}: {name} must be on x's device {x.device}, got {value.device}; move it with "
                f".to({str(x.device)!r})"
            )
        if tuple(value.shape) not in wanted:
            cure = ""
            if name == self.names[0] and value.dim() == x.dim():
                other = "columns" if self.layout == "rows" else "rows"
                cure = f"; scales that lie otherwise are declared with layout={other!r}"
            raise ValueError(
                f"{op}: {name} must have shape {' or '.join(map(str, dict.fromkeys(wanted)))}, got "
                f"{shortened(tuple(value.shape))}: {what}{cure}"
            )
        if wants_gradient((value,)):
            raise UnsupportedError(
                f"{op}: {name} wants a gradient, which there is none of; call {name}.detach()"
            )

    def in_store(self, w: Tensor, of_x: Tensor, of_w: Tensor) -> dict[str, Tensor] | None:
        """The scales as operands of a STORE, where each is of a row; None where they are not."""
        last = self.layout == "rows"
        if of_x.shape[-1 if last else 0] != 1 or of_w.shape != (w.shape[0], 1):
            return None
        of_rows = of_x if last else of_x.movedim(0, -1)
        return dict(zip(self.names, (of_rows, of_w[:, 0]), strict=True))

    def of_blocks(
        self, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor
    ) -> tuple[Tensor, ...] | None:
        """The scales of 128 columns of x and of 128 x 128 of w, as matrices; None for others."""
        rows, across = math.prod(x.shape[:-1]), math.ceil(x.shape[-1] / BLOCK)
        if tuple(of_w.shape) != (math.ceil(w.shape[0] / BLOCK), across):
            return None
        try:
            if self.layout == "rows":
                return of_x.view(rows, across), of_w
            return of_x.view(across, rows).t(), of_w
        except RuntimeError:
            return None  # rows that are not evenly apart

    def of_rows(self, x: Tensor, of_x: Tensor) -> Tensor:
        """The scales of x in the shape (rows, blocks)."""
        rows, across = math.prod(x.shape[:-1]), of_x.shape[-1 if self.layout == "rows" else 0]
        if self.layout == "rows":
            return of_x.reshape(rows, across)
        return of_x.reshape(across, rows).t()

    def dequantised(
        self, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """What both factors stand for, in a wider dtype."""
        rows = rows_of(x)
        a = rows.to(dtype) * _spread(self.of_rows(x, of_x).to(dtype), rows.shape)
        return a.view(x.shape), w.to(dtype) * _spread(of_w.to(dtype), w.shape)

    def product(self, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> Tensor:
        """The product of what both factors stand for, in bfloat16."""
        if self.by_torch(x, w, of_x, of_w):
            z = _by_torch(rows_of(x), w, self.of_rows(x, of_x), of_w)
            return z.view(*x.shape[:-1], w.shape[0])
        # Autocast would multiply in 16 bits.
        with torch.autocast(x.device.type, enabled=False):
            a, b = self.dequantised(x, w, of_x, of_w)
            return (a @ b.t()).to(torch.bfloat16)

    def by_torch(self, x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> bool:
        """Whether torch's product takes these factors and scales."""
        of_rows = of_x.shape[-1 if self.layout == "rows" else 0] == 1
        return torch_scales(x, w, of_rows and of_w.shape[0] == w.shape[0])


def torch_scales(x: Tensor, w: Tensor, of_rows: bool) -> bool:
    """Whether torch's product takes these factors with scales of rows, or else of blocks.

    With scales of rows it is CUTLASS's or cuBLAS's, from sm_89 on. With those of blocks it is
    cuBLAS's, which has it on sm_90 from CUDA 12.9 on.
    """
    if not x.is_cuda or not x.dtype is w.dtype is torch.float8_e4m3fn or x.numel() == 0:
        return False
    if x.shape[-1] % 16 or w.shape[0] % 16 or w.numel() == 0:
        return False
    if not x.is_contiguous() or not w.is_contiguous():
        return False
    if not (begins_whole(x) and begins_whole(w)):
        return False
    capability = torch.cuda.get_device_capability(x.device)
    return capability >= (8, 9) if of_rows else _HAS_BLOCKS and capability == (9, 0)


def _by_torch(x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> Tensor:
    """The product by ``torch._scaled_mm``, with scales as it wants them.

    Those of blocks lie along the rows, of x and of w. Those of 128 x 128 lie along K, if their
    columns are a multiple of `_STEP`; cuBLAS reads other ones padded, which torch 2.11 does not
    know and passes on as they are, so each row of w gets its own then.
    """
    half = torch.bfloat16
    if of_x.shape[1] == 1 and of_w.shape[0] == w.shape[0]:
        first, second = _aligned(of_x.contiguous()), _aligned(of_w.contiguous()).t()
        return torch._scaled_mm(x, w.t(), scale_a=first, scale_b=second, out_dtype=half)
    rows, odd = x.shape[0], -x.shape[0] % _STEP
    if odd:
        x = functional.pad(x.view(torch.uint8), (0, 0, 0, odd)).view(x.dtype)
        of_x = functional.pad(of_x, (0, 0, 0, odd))
    first = _aligned(of_x.t().contiguous()).t()
    if of_w.shape[0] != w.shape[0] and of_w.shape[1] % _STEP:
        of_w = of_w.repeat_interleave(BLOCK, 0)[: w.shape[0]]
    of_each_row = of_w.shape[0] == w.shape[0]
    second = _aligned(of_w.t().contiguous() if of_each_row else of_w.contiguous())
    second = second if of_each_row else second.t()
    z = torch._scaled_mm(x, w.t(), scale_a=first, scale_b=second, out_dtype=half)
    return z[:rows] if odd else z


def _aligned(scales: Tensor) -> Tensor:
    """The scales where cuBLAS reads them: it refuses those of one row of several."""
    compiled = torch.compiler.is_compiling()  # where a tensor begins is not known then
    return scales.clone() if compiled or not begins_whole(scales) else scales


def _spread(scales: Tensor, shape: torch.Size) -> Tensor:
    """The scales of a matrix, in a shape that broadcasts against it."""
    rows, columns = shape
    wide = scales
    if scales.shape[1] > 1:
        wide = scales.repeat_interleave(BLOCK, 1)[:, :columns]
    return wide if scales.shape[0] == rows else wide.repeat_interleave(BLOCK, 0)[:rows]
