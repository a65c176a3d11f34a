# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products whose STORE is part of their kernel, where that is faster (`choice`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.errors import counted
from fusedops.generate.target import Target
from fusedops.generate.views import STORAGE
from fusedops.map import Map
from fusedops.plan.planner import plan
from fusedops.plan.saved_tensors import needed
from fusedops.product.factors import (
    MULTIPLIED,
    as_factor,
    factor_dtype,
    product_sizes,
    read_dtype,
    torch_copies,
    wants_gradient,
)
from fusedops.product.product_kernel import Product
from fusedops.schedule import override
from fusedops.schedule.architectures import (
    EIGHT_BIT_TILINGS,
    PRODUCT_KERNELS,
    TILINGS,
    ProductTiling,
)
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import ProductConfig
from fusedops.schedule.lookup import product_config, remembered
from fusedops.schedule.waves import quicker

__all__ = [
    "HALVES_ALONE",
    "Choice",
    "able",
    "as_if_cast",
    "as_multiplied",
    "bind_store",
    "choose",
    "chosen",
    "chosen_for",
    "decided",
    "explained",
    "features_of",
    "features_of_sizes",
    "gradient_reads_product",
    "reads_product",
    "why_never",
]

#: Rows of all products, and columns, are numbers of 32 bits, those of one tile more among them.
MOST_ROWS = 2**31 - 256


class Choice(NamedTuple):
    """How a call is run."""

    #: That of one kernel, or None for torch's product and a kernel after it.
    tiling: ProductTiling | None
    why: str  # the reason, in words


def decided(features: ProductFeatures, target: Target, forced: ProductConfig | None) -> Choice:
    """What the tuning files say of a product, whatever its kernel can run.

    The target must be one for which `why_never` gives no reason. `forced` is what tests and the
    tuner choose; None leaves it to the tuning files.
    """
    assert target.gpu is not None
    if forced is None:
        found = product_config(features, target.arch, target.gpu)
        config = found.config
        page = "docs/explanation/products.md"
        said = f"tuned on this device, from {found.where}" if found.tuned else page
        faster, slower = f"faster than two ({said})", f"not faster ({said})"
    else:
        config, faster, slower = forced, "forced", "forced away"
    dtype = getattr(torch, features.dtype)
    tilings = EIGHT_BIT_TILINGS if dtype.itemsize == 1 else TILINGS
    tiling = tilings.get(config.implementation)
    if tiling is None:
        return Choice(None, f"one kernel for both is {slower}")
    why = f"which is {faster}"
    if config.rival in tilings:
        first = tiling
        tiling = quicker(first, tilings[config.rival], features, target.multiprocessors)
        if tiling is not first:
            why += f"; {tiling.name} in place of {first.name}, since its waves take less time"
    return Choice(dataclasses.replace(tiling, dtype=STORAGE[dtype]), why)


def choose(
    features: ProductFeatures, target: Target, forced: ProductConfig | None = None
) -> Choice:
    """How a product and the functors after it are run; the arguments are those of `decided`."""
    tiling, why = decided(features, target, forced)
    if tiling is None:
        return Choice(None, why)
    rows, columns, depth, batches = features[:4]
    if max(rows * batches, columns) >= MOST_ROWS or not batches:
        return Choice(
            None, f"one kernel for both counts from 1 to {MOST_ROWS - 1} rows, and as many columns"
        )
    tiling = tiling.fitted(rows, columns, depth, target.multiprocessors)
    if batches > 1 and not tiling.several:
        return Choice(None, "one kernel for few rows has one product")
    aligned = 16 if tiling.eight_bits else 8
    if columns % 8 or depth % aligned or not depth or not tiling.covers(rows, columns):
        return Choice(
            None,
            f"one kernel for both has tiles of {tiling.rows} x {tiling.cols}, and x and w of "
            f"multiples of {aligned} columns and 8 rows",
        )
    if features.along_k and columns % tiling.cols:
        return Choice(None, f"one kernel for both scales w of multiples of {tiling.cols} rows")
    if not tiling.several:
        blocks = tiling.grid(rows, columns, target.multiprocessors)
        why += f"; {counted(blocks, 'block')} of it read w, in clusters of {tiling.cluster}"
    return Choice(tiling, why)


_remembered = remembered(choose)


def chosen_for(found: ProductFeatures | Choice, target: Target) -> Choice:
    """How a product with these features is run, as `decided` and its kernel have it.

    What `features_of` has chosen whatever the features stays.
    """
    if isinstance(found, Choice):
        return found
    return _remembered(found, target, override.current().product)


def chosen(
    epilogue: Map,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    target: Target | None = None,
    *,
    along_k: bool = False,
) -> Choice:
    """How a call is run, as far as shapes and types decide it; of the rest, `explained` tells.

    The arguments are those of `features_of`, and along_k as in `ProductFeatures`; the target is by
    default x's device.
    """
    target = target or Target.of(x.device)
    found = features_of(epilogue, x, w, arguments, target)
    if isinstance(found, ProductFeatures):
        found = found._replace(along_k=along_k)
    return chosen_for(found, target)


def features_of(
    epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any], target: Target
) -> ProductFeatures | Choice:
    """The features of a call; or two kernels, whatever the features.

    Args:
        epilogue: The STORE, which is `able`.
        x: The left factor, which has been checked; under autocast it is yet to be cast.
        w: The right one, of shape (N, K), or (..., N, K) of many products, likewise.
        arguments: Operands and options.
        target: What runs it.
    """
    dtype = read_dtype(x)
    if dtype not in MULTIPLIED:
        return Choice(None, HALVES_ALONE)
    if read_dtype(w) is not dtype:
        return Choice(None, "one kernel for both multiplies factors of one dtype")
    n, k = w.shape[-2:]
    copies = False
    if w.dim() == 2:  # as in each call of a layer
        batches, rows = 1, math.prod(x.shape[:-1])
    else:
        _, batches, rows = product_sizes(x, w)
        copies = torch_copies(x, w)
    sizes = rows, n, k, batches
    return features_of_sizes(epilogue, sizes, dtype, arguments, target, copies=copies)


def features_of_sizes(
    epilogue: Map,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    arguments: Mapping[str, Any],
    target: Target,
    *,
    grouped: bool = False,
    copies: bool = False,
) -> ProductFeatures | Choice:
    """The features of a product and an epilogue; or two kernels, whatever the features.

    `sizes` are the rows, columns and depth of a product, and how many there are; grouped and copies
    are as in `ProductFeatures`.
    """
    never = why_never(dtype, target)
    if never:
        return Choice(None, never)
    if not all(type(size) is int for size in sizes):
        return Choice(None, "the sizes are those of a tracer")
    rows, columns, depth, batches = sizes
    tile = PRODUCT_KERNELS[target.arch].counted
    pairs = -(-rows // (tile.cluster * tile.rows)) * -(-columns // tile.cols)
    covered = pairs * tile.cluster * tile.rows * tile.cols
    products = 1 if grouped else batches
    clusters = max(1, target.multiprocessors // tile.cluster)
    large = [
        isinstance(value, Tensor) and value.numel() > columns
        for name, value in arguments.items()
        if name in epilogue.slots
    ]
    return ProductFeatures(
        rows=rows,
        columns=columns,
        depth=depth,
        batches=batches,
        grouped=grouped,
        wave_percent=100 * products * pairs // clusters,
        filled_percent=100 * rows * columns // max(1, covered),
        copies=copies,
        masked=epilogue.masked,
        reads=sum(large),
        writes=len(epilogue.outputs) - 1,
        draws=epilogue.dropouts > 0 and arguments.get("training") is not False,
        dtype=str(dtype).removeprefix("torch."),
        store=epilogue.text,
    )


HALVES_ALONE = "one kernel for both multiplies float16 and bfloat16 alone, and 8 bits in a Linear"


def why_never(dtype: torch.dtype, target: Target) -> str:
    """Why one kernel runs no product of a dtype on a target; empty if it runs some."""
    if target.arch not in PRODUCT_KERNELS or target.gpu is None:
        archs = " or ".join(PRODUCT_KERNELS)
        return f"one kernel for both needs {archs}, and this is {target.arch}"
    return "" if dtype in MULTIPLIED else HALVES_ALONE


def able(epilogue: Map) -> bool:
    """Whether a tile of a product can run the functors, each element by itself."""
    return epilogue.quantized is None and not epilogue.maxima and epilogue.block is None


def reads_product(epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> bool:
    """Whether the gradient of a call reads the product."""
    wanted = {name for name in epilogue.slots if wants_gradient((arguments.get(name),))}
    if wants_gradient((x, w)):
        wanted.add("x")
    return gradient_reads_product(epilogue, wanted)


def gradient_reads_product(epilogue: Map, wanted: Collection[str]) -> bool:
    """Whether the gradients of these names, "x" for the product, read the product."""
    return bool(wanted) and needed(epilogue, wanted).x


def explained(
    epilogue: Map,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    scales: tuple[Tensor, ...] = (),
) -> Choice:
    """How a call is run, and why, strides and alignment included; nothing is built.

    The scales are those of `Product`.
    """
    if not able(epilogue):
        return Choice(None, "amax and 8-bit outputs are not supported in the epilogue of a GEMM")
    choice = chosen(epilogue, x, w, arguments, along_k=bool(scales))
    if choice.tiling is None:
        return choice
    if epilogue.lacking(dict(arguments)):
        return Choice(None, "one kernel for both leaves out no operand")
    dtype = read_dtype(x)
    x, w = (t if t.dtype is dtype else torch.empty_like(t, dtype=dtype) for t in (x, w))
    arguments = as_if_cast(epilogue, arguments, dtype)
    bound = bind_store(epilogue, x, w, arguments)
    if plan(Product(bound, x, w, choice.tiling, scales)) is None:
        return Choice(
            None,
            "one kernel for both reads x and w by bulk copies, from rows that begin at multiples "
            "of 16 bytes, a bias that its sums begin with in the same way, and operands whose rows "
            "are less than 2^28 elements apart, which these do not allow",
        )
    return choice


def as_if_cast(
    epilogue: Map, arguments: Mapping[str, Any], dtype: torch.dtype
) -> Mapping[str, Any]:
    """The arguments with what the product adds in its dtype, without contents if it has another."""
    added = epilogue.load[0].has_added if epilogue.load else None
    if added is None or arguments[added].dtype is dtype:
        return arguments
    return {**arguments, added: torch.empty_like(arguments[added], dtype=dtype)}


def as_multiplied(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The factors in the dtype of the product, to which autocast casts them."""
    dtype = factor_dtype(x)
    return x.to(dtype), as_factor(w, dtype)


def bind_store(epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Bound:
    """The call of the STORE on a product, which is there for its shape alone."""
    z = torch.empty(product_sizes(x, w)[0], dtype=factor_dtype(x), device=x.device)
    return epilogue.bind(z, dict(arguments))
