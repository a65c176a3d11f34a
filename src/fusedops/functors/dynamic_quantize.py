# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 8 bits whose scales the kernel finds. Imported when it is first asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.errors import check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import check_name, check_stream, shown
from fusedops.functors.operands import (
    BLOCK_LAYOUTS,
    EIGHT_BITS,
    WHOLE_ROW,
    Operand,
    Reads,
    Role,
    Stream,
)
from fusedops.functors.protocols import Chain, Writer

_BLOCKS = (16, 32, 64, 128)


@dataclasses.dataclass(frozen=True)
class DynamicQuantize(Functor):
    """``round(v / scale)`` in 8 or 4 bits, with a scale for each row or block that the call finds.

    The last functor of a STORE. `Quantize` multiplies by a scale that the caller has; here the
    scale follows from the largest ``abs(v)`` of a row, or of each 16, 32, 64 or 128 neighbouring
    columns, in the same kernel:

    ======================  ================================================================
    ``scale_dtype``         scale of a block whose largest magnitude is a, where M is the
                            largest number of `dtype`
    ======================  ================================================================
    float32                 ``a / M``, rounded to float32, and 2^-126 at least
    float32, powers_of_two  that, rounded up to a power of two
    float8_e8m0fnu          ``2 ** (floor(log2(a)) - floor(log2(M)))``, as OCP's MX
                            specification has it, and 2^-127 at least; what is then beyond
                            M saturates
    float8_e4m3fn           ``a / M / t``, rounded to that dtype, and 2^-9 at least, t being
                            the call's `tensor_scale`; v is divided by scale times t
    ======================  ================================================================

    A block of zeros has the scale 1. A block that holds Inf or NaN has the scale NaN, and all of it
    is NaN. y is ``round(v * (1 / scale))``, with ``1 / scale`` rounded to float32: to nearest even,
    saturating. So ``y.float() * scale`` is v to half a step of the dtype at that scale. For the
    same v the bits are the same on every device, whatever the schedule.

    `scales` is a further output. With rows for x's dimensions that are not reduced, and blocks for
    1 or ``ceil(columns / per)``, it has the shape

    - ``(rows..., blocks)`` with the layout "rows": ``scale_a`` of ``torch._scaled_mm`` for scales
      per row;
    - ``(blocks, rows...)`` with "columns": ``scales.t()`` is its ``scale_a`` per 128;
    - one dimension with "tiles": tiles of 128 rows by 4 blocks, all of 512 numbers, as products
      with block scales read them from sm_100 on. In a tile, row r and block b are at
      ``16 * (r % 32) + 4 * (r // 32) + b``. What no row or block has is zero.

    NVFP4 is float4_e2m1fn_x2 per 16 with scales of float8_e4m3fn, MXFP4 the same dtype per 32 with
    float8_e8m0fnu, and MXFP8 float8_e4m3fn per 32 with float8_e8m0fnu. A y of float4_e2m1fn_x2 has
    two columns a byte, the first in the lower bits, so half of x's columns; these are x's last
    dimension, and a multiple of 16. It has no NaN, which becomes 6; the scale says that it was one.
    Memory that ``out=`` gives it begins at a multiple of 4 bytes.

    As of `Quantize`, y has no gradient; put a `Tap` before it for one of the value. For training
    that knows of the rounding, ``gradient="straight_through"`` makes y what the 8 bits stand for,
    ``round(v / scale) * scale``, in the dtype of the call in place of 8 bits, and its gradient dy
    that of v: ``dv = dy``. No element is left out, since none is clipped: the largest magnitude of
    a block is the largest number of `dtype` times its scale. What depends on v through the scale
    has no gradient. The backward pass is that of the op without the functor, and keeps no more.

    Args:
        dtype: torch.float8_e4m3fn, torch.float8_e5m2 or torch.float4_e2m1fn_x2.
        scales: The name of the output with the scales.
        per: "row", or the columns of a block: 16, 32, 64 or 128.
        scale_dtype: torch.float32, torch.float8_e8m0fnu, or of a y of 4 bits torch.float8_e4m3fn.
        tensor_scale: With float8_e4m3fn, the name of a float32 factor of all scales: a tensor of
            one element or a number, such as the largest ``abs(v)`` of the tensor / (6 * 448). None
            stands for 1.
        powers_of_two: Whether scales of float32 are powers of two.
        layout: How scales lie: "rows", "columns" or "tiles".
        gradient: None, or "straight_through" for a y of floats with a gradient. It goes with scales
            of float32, by which nothing saturates, and a dtype of 8 bits.

    Raises:
        TypeError, ValueError: A name cannot be that of a result, or another argument is none of
            those above.

    >>> import torch, fusedops as fo
    >>> op = fo.Map(store=[fo.DynamicQuantize(torch.float8_e4m3fn)])
    >>> y, scales = op(torch.tensor([[1.0, -224.0], [0.0, 0.0]]))
    >>> y.float(), scales
    (tensor([[   2., -448.],
            [   0.,    0.]]), tensor([[0.5000],
            [1.0000]]))
    """

    dtype: torch.dtype
    scales: str = "scales"
    _: dataclasses.KW_ONLY
    per: str | int = "row"
    scale_dtype: torch.dtype = torch.float32
    powers_of_two: bool = False
    layout: str = "rows"
    tensor_scale: str | None = None
    gradient: str | None = None
    header: ClassVar[str] = "dynamic_quantize.cuh"
    differentiable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        four = self.dtype is torch.float4_e2m1fn_x2
        if not isinstance(self.dtype, torch.dtype) or not (four or self.dtype in EIGHT_BITS):
            allowed = " or ".join(map(str, (*EIGHT_BITS, torch.float4_e2m1fn_x2)))
            raise TypeError(
                f"DynamicQuantize: dtype must be {allowed}, got {shortened(self.dtype)}"
            )
        check_stream(self, "scales", self.scales)
        if self.per != "row" and (type(self.per) is not int or self.per not in _BLOCKS):
            raise ValueError(
                f"DynamicQuantize: per must be 'row' or the columns of a block, one of "
                f"{', '.join(map(str, _BLOCKS))}, got {shortened(self.per)}"
            )
        known = [torch.float32, torch.float8_e8m0fnu, *([torch.float8_e4m3fn] if four else [])]
        if self.scale_dtype not in known:
            raise TypeError(
                f"DynamicQuantize: scale_dtype must be {' or '.join(map(str, known))}, got "
                f"{shortened(self.scale_dtype)}"
            )
        if self.tensor_scale is not None:
            check_name(self, "tensor_scale", self.tensor_scale)
            if self.scale_dtype is not torch.float8_e4m3fn:
                raise ValueError(
                    "DynamicQuantize: tensor_scale is for scales of torch.float8_e4m3fn, got "
                    f"{self.scale_dtype}; leave tensor_scale out"
                )
            if self.tensor_scale == self.scales:
                raise ValueError(
                    f"DynamicQuantize: scales, a result, and tensor_scale, an operand, are both "
                    f"named {self.scales!r}; use two names"
                )
        check_flag(type(self).__name__, "powers_of_two", self.powers_of_two)
        if self.layout not in BLOCK_LAYOUTS:
            raise ValueError(
                f"DynamicQuantize: layout must be one of {', '.join(map(repr, BLOCK_LAYOUTS))}, "
                f"got {shortened(self.layout)}"
            )
        if self.powers_of_two and self.scale_dtype is not torch.float32:
            raise ValueError(
                f"DynamicQuantize: powers_of_two=True is for scales of torch.float32, got "
                f"{self.scale_dtype}, which has no other numbers; leave powers_of_two out"
            )

        if self.gradient not in (None, "straight_through"):
            raise ValueError(
                "DynamicQuantize: gradient must be None or 'straight_through', got "
                f"{shortened(self.gradient)}"
            )
        if self.gradient is not None and (four or self.scale_dtype is not torch.float32):
            raise ValueError(
                "DynamicQuantize: gradient='straight_through' is for a dtype of 8 bits and scales "
                f"of torch.float32, by which nothing saturates, got {self.dtype} and "
                f"{self.scale_dtype}; put a Tap before it and differentiate the value"
            )

    @property
    def quantizes(self) -> torch.dtype | None:
        return self.dtype if self.gradient is None else None

    @property
    def straight_through(self) -> bool:
        return self.gradient is not None

    @property
    def block(self) -> int:
        return self.per if isinstance(self.per, int) else WHOLE_ROW

    @property
    def of_blocks(self) -> Stream:
        return Stream(self.scales, None, self.scale_dtype)

    @property
    def block_layout(self) -> str:
        return self.layout

    def operands(self) -> tuple[Operand, ...]:
        return () if self.tensor_scale is None else (Operand(self.tensor_scale, Role.VALUE),)

    def gradients(self) -> tuple[str | None, ...]:
        return (None,) * len(self.operands())

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(False, ())

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        columns, most = x.shape[-1], self._most
        size = self.block or max(columns, 1)
        blocks = -(-columns // size) if self.block else 1
        padded = torch.nn.functional.pad(x.detach(), (0, blocks * size - columns))
        amax = padded.reshape(*x.shape[:-1], blocks, size).abs().amax(-1).float()
        scale, inverse = self._scales(amax, most, chain)
        chain.keep_blocks(self.scales, scale)
        wide = inverse.repeat_interleave(size, -1)[..., :columns].to(x.dtype)
        made = (x * wide).clamp(-most, most)
        if self.gradient is None:
            return made
        scales = scale.repeat_interleave(size, -1)[..., :columns].to(x.dtype)
        made = _rounded(made.detach(), self.dtype) * scales
        return made - (x.detach() - x)  # less a zero that has v's gradient; NaN is less NaN

    @property
    def _most(self) -> float:
        """The largest number of the dtype."""
        return 6.0 if self.dtype is torch.float4_e2m1fn_x2 else torch.finfo(self.dtype).max

    def _scales(self, amax: Tensor, most: float, chain: Chain) -> tuple[Tensor, Tensor]:
        """The scales of blocks with these largest magnitudes, and their reciprocals, as floats."""
        bits = amax.view(torch.int32)
        # By a tensor: torch multiplies by the reciprocal of a number, on a GPU.
        largest = torch.full_like(amax, most)
        if self.scale_dtype is torch.float8_e8m0fnu:
            exponent = ((bits >> 23) - int(math.log2(most))).clamp(min=0)
            exponent = exponent.masked_fill(amax == 0, 127)
            inverse = ((254 - exponent) << 23).view(torch.float32)
            inverse = inverse.masked_fill(~amax.isfinite(), torch.nan)
            code = exponent.masked_fill(~amax.isfinite(), 255)
            # Exact: the number of this exponent, and NaN where it has all bits.
            least = torch.where(code > 0, code << 23, 1 << 22)
            scale = least.int().view(torch.float32).masked_fill(code == 255, torch.nan)
            return scale, inverse
        if self.scale_dtype is torch.float8_e4m3fn:
            factor: Any = 1.0 if self.tensor_scale is None else chain.value(self.tensor_scale)
            factor = torch.as_tensor(factor, dtype=torch.float32, device=amax.device)
            wanted = (amax / largest / factor).clamp(max=448).to(self.scale_dtype).float()
            scale = wanted.masked_fill(wanted == 0, 2.0**-9).masked_fill(amax == 0, 1)
            inverse = (1 / (scale * factor)).masked_fill(amax == 0, 1)
            bad = ~amax.isfinite()
            return scale.masked_fill(bad, torch.nan), inverse.masked_fill(bad, torch.nan)
        scale = (amax / largest).clamp(min=torch.finfo(torch.float32).tiny)
        if self.powers_of_two:
            scale = ((scale.view(torch.int32) + 0x7FFFFF) >> 23 << 23).view(torch.float32)
        scale = scale.masked_fill(amax == 0, 1).masked_fill(~amax.isfinite(), torch.nan)
        return scale, 1 / scale

    def emit(self, writer: Writer) -> str:
        scales = writer.of_blocks(self.scales, self.layout)
        kind = "kPower" if self.powers_of_two else "kNearest"
        if self.scale_dtype is not torch.float32:
            kind = "kE8M0" if self.scale_dtype is torch.float8_e8m0fnu else "kE4M3"
        factor = writer.absent() if self.tensor_scale is None else writer.operand(self.tensor_scale)
        rounded = "" if self.gradient is None else f", {writer.storage(self.dtype)}"
        return (
            f"DynamicQuantize<{scales}, {self.block}, {int(self._most)}, Scaling::{kind}, {factor}"
            f"{rounded}>"
        )

    __repr__ = shown


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Values to nearest even in a dtype of 8 bits, which holds them: once, those of double too."""
    digits, least = (3, -6) if dtype is torch.float8_e4m3fn else (2, -14)
    exponent = (torch.frexp(value).exponent - 1).clamp(min=least)
    step = (exponent - digits + 127 << 23).view(torch.float32).to(value.dtype)
    return (value / step).round() * step
