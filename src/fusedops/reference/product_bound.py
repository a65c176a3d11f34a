# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Error bounds of torch's matrix products and of their gradients.

docs/explanation/products.md derives the bound. All is computed from the product as a function, so
it holds for any that is linear in both factors: batched, broadcast, with a factor transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from fusedops.reference.error_bound import Expected, independent, ulp

__all__ = ["expected_product", "gradients_of_factors"]

Product: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_HALVES = (torch.float16, torch.bfloat16)


def expected_product(
    product: Product,
    first: Tensor,
    second: Tensor,
    added: Tensor | None = None,
    eight_bits: bool = False,
    scaled: bool = False,
) -> tuple[Tensor, Tensor]:
    """The product in double, and how far torch's product in the factors' dtype may be off.

    Half an ulp of the dtype for its rounding, and what summing the terms costs (`_summing`). Where
    torch's product adds a bias, it is one more term of what is summed and rounded, and yet not part
    of the product that is returned. With `eight_bits` the factors are what some of 8 bits stand
    for, whose product is rounded to bfloat16, and whose partial sums a GPU may keep in 13 bits.
    With `scaled` they are so by multiplications with scales, which may follow the rounding.
    """
    dtype = torch.bfloat16 if eight_bits else first.dtype
    value = product(first.double(), second.double())
    size = product(first.double().abs(), second.double().abs())
    squares = product(first.double().square(), second.double().square())
    count, summed = first.shape[-1], value
    if added is not None:
        bias = added.double()
        count, summed = count + 1, value + bias
        size, squares = size + bias.abs(), squares + bias.square()
    off = _summing(dtype, first.device, count, summed, size, squares)
    if eight_bits and first.device.type == "cuda":
        off = off + 2.0**-12 * size
    rounded = summed.abs() * torch.finfo(dtype).eps if scaled else ulp(summed, dtype)
    return value, off + rounded / 2


def gradients_of_factors(
    product: Product, first: Tensor, second: Tensor, upstream: Expected
) -> tuple[Expected, Expected]:
    """Expected gradients of both factors of a GEMM, from the gradient of its result.

    `product` is the function of both factors; `upstream` what the gradient of its result should be,
    and how exactly.
    """
    factors = [one.detach().double() for one in (first, second)]
    off = upstream.allowed(first.dtype)

    def back(of: Callable[[Tensor], Tensor], incoming: Tensor) -> list[Tensor]:
        leaves = [of(one).requires_grad_() for one in factors]
        with torch.enable_grad():
            made = product(*leaves)
        return list(torch.autograd.grad(made, leaves, incoming))

    def same(one: Tensor) -> Tensor:
        return one.clone()

    values, sizes = back(same, upstream.value), back(torch.abs, upstream.value.abs())
    squares = back(torch.square, upstream.value.square())
    totals, spreads = back(torch.abs, off), back(torch.square, off.square())
    found = []
    for at, factor in enumerate((first, second)):
        count = upstream.value.numel() * first.shape[-1] // max(1, factor.numel())
        summed = _summing(first.dtype, first.device, count, values[at], sizes[at], squares[at])
        inherited = independent(totals[at], spreads[at]) + summed
        found.append(Expected(values[at], torch.zeros_like(values[at]), inherited))
    return found[0], found[1]


def _summing(
    dtype: torch.dtype,
    device: torch.device,
    count: int,
    value: Tensor,
    size: Tensor,
    squares: Tensor,
) -> Tensor:
    """How far sums of products may be off before they are rounded to the dtype.

    `count` is the number of terms in each sum; `size` and `squares` are the sums of the terms'
    sizes, and of their squares.
    """
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    # Roundings of a sum in any order are independent enough to add up as the root of their number
    # does (Higham and Mary 2019); an eps is two of them.
    off = math.sqrt(max(1, count)) * torch.finfo(compute).eps * size
    if compute is torch.float64:
        return torch.maximum(off, 2.0**-44 * size)  # the truth is no more exact
    read = _read_as(dtype)
    if read:
        off = off + 2 * read * independent(size, squares)
    if device.type == "cuda" and dtype in _HALVES and _reduces_in_halves(dtype):
        # Each partial sum of a product that is split along the terms is rounded to the dtype.
        half = torch.finfo(dtype).eps / 2
        off = off + half * torch.minimum(size, 8 * torch.maximum(squares.sqrt(), value.abs()))
    return off


def _read_as(dtype: torch.dtype) -> float:
    """The relative rounding of the factors as torch's settings let it read them."""
    precision = torch.get_float32_matmul_precision() if dtype is torch.float32 else "highest"
    return {"highest": 0.0, "high": 2.0**-11, "medium": 2.0**-9}[precision]


def _reduces_in_halves(dtype: torch.dtype) -> bool:
    """Whether torch lets partial sums of a product be rounded to its dtype."""
    settings = torch.backends.cuda.matmul
    if dtype is torch.float16:
        return bool(settings.allow_fp16_reduced_precision_reduction)
    return bool(settings.allow_bf16_reduced_precision_reduction)
