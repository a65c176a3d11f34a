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
from fusedops.plan.planned import Planned
from fusedops.plan.planner import plan
from fusedops.plan.saved_tensors import needed
from fusedops.product.factors import (
    HALVES,
    as_factor,
    factor_dtype,
    product_sizes,
    torch_copies,
    wants_gradient,
)
from fusedops.product.product_kernel import Product
from fusedops.schedule import override
from fusedops.schedule.architectures import PRODUCT_KERNELS, TILINGS, Gpu, ProductTiling
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import ProductConfig
from fusedops.schedule.lookup import product_config, remembered

__all__ = [
    "HALVES_ALONE",
    "Choice",
    "ProductCall",
    "able",
    "as_if_cast",
    "as_multiplied",
    "bind_store",
    "choose",
    "chosen",
    "chosen_for",
    "explained",
    "features_of",
    "features_of_call",
    "filled_percent",
    "gradient_reads_product",
    "plan_product",
    "product_call",
    "reads_product",
    "wave_percent",
    "why_never",
]

#: Rows of all products, and columns, are numbers of 32 bits, those of one tile more among them.
MOST_ROWS = 2**31 - 256


class Choice(NamedTuple):
    """How a call is run.

    Attributes:
        tiling: That of one kernel, or None for torch's product and a kernel after it.
        why: The reason, in words.
    """

    tiling: ProductTiling | None
    why: str


def wave_percent(
    rows: int, columns: int, multiprocessors: int, batches: int = 1, arch: str = ""
) -> int:
    """The waves of so many products in large tiles on a GPU, in percent.

    >>> wave_percent(16384, 1024, 132)
    387
    """
    clusters = max(1, multiprocessors // _counted(arch).cluster)
    return 100 * batches * _pairs(rows, columns, arch) // clusters


def filled_percent(rows: int, columns: int, arch: str = "") -> int:
    """Tile utilisation: the elements of a product in percent of those of its clusters' tiles.

    >>> filled_percent(384, 384)
    56
    """
    tile = _counted(arch)
    covered = _pairs(rows, columns, arch) * tile.cluster * tile.rows * tile.cols
    return 100 * rows * columns // max(1, covered)


def _pairs(rows: int, columns: int, arch: str) -> int:
    """The clusters' tiles that cover a product."""
    tile = _counted(arch)
    return -(-rows // (tile.cluster * tile.rows)) * -(-columns // tile.cols)


def _counted(arch: str) -> ProductTiling:
    """The tiling by which features are counted, of the first kernel where there is none."""
    kernels = PRODUCT_KERNELS
    return (kernels.get(arch) or next(iter(kernels.values()))).counted


def choose(
    features: ProductFeatures, arch: str, gpu: Gpu, forced: ProductConfig | None = None
) -> Choice:
    """How a product and the functors after it are run on a GPU.

    Args:
        features: The product and what its functors move.
        arch: The architecture of the GPU.
        gpu: Its facts.
        forced: What tests and the tuner choose; None leaves it to the tuning files.
    """
    if forced is None:
        found = product_config(features, arch, gpu)
        config = found.config
        page = "docs/explanation/products.md"
        said = f"tuned on this device, from {found.where}" if found.tuned else page
        faster, slower = f"faster than two ({said})", f"not faster ({said})"
    else:
        config, faster, slower = forced, "forced", "forced away"
    tiling = TILINGS.get(config.implementation)
    if tiling is None:
        return Choice(None, f"one kernel for both is {slower}")
    rows, columns, depth, batches = features[:4]
    if max(rows * batches, columns) >= MOST_ROWS or not batches:
        return Choice(
            None, f"one kernel for both counts from 1 to {MOST_ROWS - 1} rows, and as many columns"
        )
    tiling = tiling.fitted(rows, columns, depth, gpu.multiprocessors)
    if batches > 1 and not tiling.several:
        return Choice(None, "one kernel for few rows has one product")
    if columns % 8 or depth % 8 or not depth or not tiling.covers(rows, columns):
        return Choice(
            None,
            f"one kernel for both has tiles of {tiling.rows} x {tiling.cols}, and x and w of "
            "multiples of 8 columns and rows",
        )
    why = f"which is {faster}"
    if not tiling.several:
        blocks = tiling.grid(rows, columns, gpu.multiprocessors)
        why += f"; {counted(blocks, 'block')} of it read w, {tiling.cluster} for each tile"
    return Choice(tiling, why)


def chosen(
    epilogue: Map,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    target: Target | None = None,
) -> Choice:
    """How a call is run, as far as shapes and types decide it; of the rest, `explained` tells.

    The arguments are those of `features_of`.
    """
    call = _call_of(epilogue, x, w, arguments)
    if isinstance(call, Choice):
        return call
    return chosen_for(call, target or Target.of(x.device))


def features_of(
    epilogue: Map,
    x: Tensor,
    w: Tensor,
    arguments: Mapping[str, Any],
    target: Target | None = None,
) -> tuple[ProductFeatures, Target] | Choice:
    """The features of a call and what runs it; or two kernels, whatever the features.

    Args:
        epilogue: The STORE, which is `able`.
        x: The left factor, which has been checked; under autocast it is yet to be cast.
        w: The right one, of shape (N, K), or (..., N, K) of many products, likewise.
        arguments: Operands and options.
        target: What runs it, by default x's device.
    """
    call = _call_of(epilogue, x, w, arguments)
    if isinstance(call, Choice):
        return call
    target = target or Target.of(x.device)
    return features_of_call(call, target), target


HALVES_ALONE = "one kernel for both multiplies float16 and bfloat16 alone"

#: Text of the epilogue; rows, columns, depth, batches; copies, masked; reads, writes, draws; dtype.
ProductCall = tuple[str, int, int, int, int, bool, bool, int, int, bool, torch.dtype]


def chosen_for(call: ProductCall, target: Target) -> Choice:
    """How a product with these features is run."""
    return _chosen(call, target, override.current().product)


def _call_of(
    epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]
) -> ProductCall | Choice:
    """What the features follow from; it is found out at each call."""
    dtype = factor_dtype(x)
    if dtype not in HALVES or factor_dtype(w) is not dtype:
        return Choice(None, HALVES_ALONE)
    n, k = w.shape[-2:]
    copies = False
    if w.dim() == 2:  # as in each call of a layer
        batches, rows = 1, math.prod(x.shape[:-1])
    else:
        _, batches, rows = product_sizes(x, w)
        copies = torch_copies(x, w)
    if not type(rows) is type(batches) is type(n) is type(k) is int:
        return Choice(None, "the sizes are those of a tracer")
    sizes, writes = (rows, n, k, batches), len(epilogue.outputs) - 1
    return product_call(epilogue, epilogue.text, sizes, dtype, arguments, 0, writes, copies)


def product_call(
    epilogue: Map,
    text: str,
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype,
    arguments: Mapping[str, Any],
    reads: int,
    writes: int,
    copies: bool = False,
) -> ProductCall:
    """What the features of a product with the functors of an epilogue follow from.

    Args:
        epilogue: The functors.
        text: What runs after the product, as text.
        sizes: The rows, columns and depth of a product, and how many there are.
        dtype: That of the factors.
        arguments: Operands and options of the epilogue.
        reads: The tensors of the product's size that are read beside operands.
        writes: The outputs beside the first one.
        copies: Whether torch's product would copy a factor.
    """
    slots, columns = epilogue.slots, sizes[1]
    for key, value in arguments.items():
        if key in slots and isinstance(value, Tensor) and value.numel() > columns:
            reads += 1
    draws = epilogue.dropouts > 0 and arguments.get("training") is not False
    return (text, *sizes, copies, epilogue.masked, reads, writes, draws, dtype)


def features_of_call(call: ProductCall, target: Target) -> ProductFeatures:
    """The features of such a call on what runs it."""
    store, rows, columns, depth, batches, copies, masked, reads, writes, draws, dtype = call
    return ProductFeatures(
        rows=rows,
        columns=columns,
        depth=depth,
        batches=batches,
        wave_percent=wave_percent(rows, columns, target.multiprocessors, batches, target.arch),
        filled_percent=filled_percent(rows, columns, target.arch),
        copies=copies,
        masked=masked,
        reads=reads,
        writes=writes,
        draws=draws,
        dtype=str(dtype).removeprefix("torch."),
        store=store,
    )


def why_never(dtype: torch.dtype, target: Target) -> str:
    """Why one kernel runs no product of a dtype on a target; empty if it runs some."""
    kernel = PRODUCT_KERNELS.get(target.arch)
    if kernel is None or target.gpu is None:
        return (
            f"one kernel for both needs {' or '.join(PRODUCT_KERNELS)}, and this is {target.arch}"
        )
    return "" if dtype in kernel.dtypes else HALVES_ALONE


@remembered
def _chosen(call: ProductCall, target: Target, forced: ProductConfig | None) -> Choice:
    never = why_never(call[-1], target)
    if never or target.gpu is None:
        return Choice(None, never)
    choice = choose(features_of_call(call, target), target.arch, target.gpu, forced)
    if choice.tiling is None:
        return choice
    return choice._replace(tiling=dataclasses.replace(choice.tiling, dtype=STORAGE[call[-1]]))


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


def explained(epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> Choice:
    """How a call is run, and why, strides and alignment included; nothing is built."""
    if not able(epilogue):
        return Choice(None, "amax and 8-bit outputs are not supported in the epilogue of a GEMM")
    choice = chosen(epilogue, x, w, arguments)
    if choice.tiling is None:
        return choice
    if epilogue.lacking(dict(arguments)):
        return Choice(None, "one kernel for both leaves out no operand")
    dtype = factor_dtype(x)
    x, w = (t if t.dtype is dtype else torch.empty_like(t, dtype=dtype) for t in (x, w))
    arguments = as_if_cast(epilogue, arguments, dtype)
    bound = bind_store(epilogue, x, w, arguments)
    if plan(Product(bound, x, w, choice.tiling)) is None:
        return Choice(
            None,
            "one kernel for both reads x and w by bulk copies, from rows that begin at multiples "
            "of 16 bytes, a bias that its sums begin with in the same way, and operands whose rows "
            "are less than 2^29 elements apart, which these do not allow",
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


def plan_product(epilogue: Map, x: Tensor, w: Tensor, arguments: dict[str, Any]) -> Planned | None:
    """A call as one kernel, which `chosen` has found to be faster; None where it cannot run it."""
    tiling = chosen(epilogue, x, w, arguments).tiling
    if tiling is None:
        return None
    bound = bind_store(epilogue, x, w, arguments)
    return plan(Product(bound, x, w, tiling))
