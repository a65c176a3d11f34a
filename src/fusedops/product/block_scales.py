# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of two factors of 8 bits with scales along K: one for each 128 columns of a factor.

Such scales do not commute with the product, so no functor after it can apply them. torch's product
does where cuBLAS has it; elsewhere the factors are multiplied by their scales first, in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.errors import UnsupportedError, shortened
from fusedops.functors.fields import check_name
from fusedops.product.factors import of_eight_bits, rows_of, wants_gradient

__all__ = ["BLOCK", "BlockScales"]

#: The columns of a factor that one scale is of, and the rows of w, where a scale is of several.
BLOCK = 128
_LAYOUTS = ("rows", "columns")
#: The blocks of K at whose multiples cuBLAS lets the rows of 128x128 scales begin, and the rows of
#: x and its scales.
_STEP = 4


class BlockScales:
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
                f"{kind}: block_scales names two operands, the scales of x and of w, got "
                f"{shortened(names)}; write block_scales=('x_scales', 'w_scales'), say"
            )
        for name in names:
            check_name(op, "block_scales", name)
        if names[0] == names[1] or {*names} & {"x", "w"}:
            raise ValueError(
                f"{kind}: block_scales must be two names that differ from one another and from x "
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

    def check(self, op: str, x: Tensor, w: Tensor, of_x: Any, of_w: Any) -> None:
        """Raise TypeError, ValueError or UnsupportedError unless the scales fit the factors."""
        if not of_eight_bits(x):
            raise TypeError(
                f"{op}: x must be float8, as block_scales is given, got {x.dtype}; quantise it "
                f"with fusedops.DynamicQuantize(torch.float8_e4m3fn, per={BLOCK})"
            )
        across = math.ceil(x.shape[-1] / BLOCK)
        rows = tuple(x.shape[:-1])
        wanted_x = (*rows, across) if self.layout == "rows" else (across, *rows)
        n, down = w.shape[0], math.ceil(w.shape[0] / BLOCK)
        wanted_w = ((down, across), (n, across))
        for name, value, wanted, what in (
            (self.names[0], of_x, (wanted_x,), f"a scale for each row and {BLOCK} columns of x"),
            (
                self.names[1],
                of_w,
                wanted_w,
                f"a scale for each {BLOCK} x {BLOCK} or 1 x {BLOCK} of w",
            ),
        ):
            self._check_one(op, name, value, x, wanted, what)

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
            if name == self.names[0]:
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
        if torch_scales(x, w):
            z = _by_torch(rows_of(x), w, self.of_rows(x, of_x), of_w)
            return z.view(*x.shape[:-1], w.shape[0])
        # Autocast would multiply in 16 bits.
        with torch.autocast(x.device.type, enabled=False):
            a, b = self.dequantised(x, w, of_x, of_w)
            return (a @ b.t()).to(torch.bfloat16)


def torch_scales(x: Tensor, w: Tensor) -> bool:
    """Whether torch's product takes these factors with scales of blocks.

    It is cuBLAS's, which has it on sm_90 from CUDA 12.9 on.
    """
    if not x.is_cuda or not x.dtype is w.dtype is torch.float8_e4m3fn:
        return False
    if x.numel() == 0 or x.shape[-1] % BLOCK or w.shape[0] % BLOCK:
        return False
    if not x.is_contiguous() or not w.is_contiguous():
        return False
    version = tuple(map(int, (torch.version.cuda or "0.0").split(".")[:2]))
    return version >= (12, 9) and torch.cuda.get_device_capability(x.device) == (9, 0)


def _by_torch(x: Tensor, w: Tensor, of_x: Tensor, of_w: Tensor) -> Tensor:
    """The product by ``torch._scaled_mm``, whose scales lie as cuBLAS wants them.

    Those of x along the rows, and so do those of w for each of its rows. Those of 128 x 128 lie
    along K, where rows begin at multiples of `_STEP`. The rows of x are a multiple of `_STEP`.
    """
    rows, odd = x.shape[0], -x.shape[0] % _STEP
    if odd:
        x = functional.pad(x.view(torch.uint8), (0, 0, 0, odd)).view(x.dtype)
        of_x = functional.pad(of_x, (0, 0, 0, odd))
    of_x = of_x.t().contiguous().t()
    if of_w.shape[0] == w.shape[0]:
        of_w = of_w.t().contiguous()
    else:
        across = of_w.shape[1]
        short = -across % _STEP
        of_w = functional.pad(of_w, (0, short))[:, :across].t() if short else of_w.contiguous().t()
    z = torch._scaled_mm(x, w.t(), scale_a=of_x, scale_b=of_w, out_dtype=torch.bfloat16)
    return z[:rows] if odd else z


def _spread(scales: Tensor, shape: torch.Size) -> Tensor:
    """The scale of each element of a matrix."""
    rows, columns = shape
    wide = scales.repeat_interleave(BLOCK, 1)[:, :columns]
    return wide if scales.shape[0] == rows else wide.repeat_interleave(BLOCK, 0)[:rows]
