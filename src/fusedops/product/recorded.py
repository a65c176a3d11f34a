# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Record the calls that a fused GEMM runs, and list the kernels that recorded calls need."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fusedops.bind.bind import Bound
from fusedops.declare.text import read
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.plan.planner import plan
from fusedops.product import product_backward
from fusedops.product.choice import able, as_if_cast, bind_store, chosen
from fusedops.product.factors import read_dtype
from fusedops.product.linear_loss_kernel import pass_of
from fusedops.product.product_backward import ProductGradient, may_fuse
from fusedops.product.product_kernel import Product
from fusedops.run.autograd import without_memory

if TYPE_CHECKING:
    from fusedops.map import Map
    from fusedops.ops.losses import CrossEntropy
    from fusedops.prebuild.recording import Signature


def record(epilogue: Map, x: Tensor, w: Tensor, arguments: Mapping[str, Any]) -> None:
    """Record a call of a layer, if one kernel would run product and STORE on some GPU.

    Two kernels are recorded where the second is planned, as of any op.

    The STORE is `able`, and its gradient does not read the product; factors have been checked.
    """
    if _is_odd(epilogue, (x, w), arguments):
        return
    dtype = read_dtype(x)
    try:
        bound = bind_store(epilogue, x, w, as_if_cast(epilogue, arguments, dtype))
    except (TypeError, ValueError):
        return  # which the call itself says in its own words
    factors = {"x": x, "w": w}
    for name, one in factors.items():
        if one.dtype is not dtype:
            factors[name] = torch.empty_like(one, dtype=dtype)  # of which the text is needed alone
    _notify(epilogue, bound, factors, frozenset())


def record_gradient(
    epilogue: Map,
    wanted: frozenset[str],
    dy: Tensor,
    w: Tensor,
    z: Tensor,
    arguments: Mapping[str, Any],
) -> None:
    """Record a call of `ProductBackward`, if one kernel would run it on some GPU."""
    if may_fuse(epilogue) and not _is_odd(epilogue, (dy, w, z), arguments):
        bound = epilogue.bind(z, dict(arguments))
        _notify(epilogue, bound, {"x": dy.contiguous(), "w": w}, wanted | {"x"})


def record_loss(part: CrossEntropy, x: Tensor, w: Tensor, operands: Mapping[str, Any]) -> None:
    """Record a call of `LossOfTiles`, if one kernel would run it on some GPU."""
    tensors = [x, w, *(one for one in operands.values() if isinstance(one, Tensor))]
    if part.lacking(dict(operands)) or any(type(t) not in (Tensor, Parameter) for t in tensors):
        return
    z = without_memory(x, (*operands["target"].shape[:-1], w.shape[0]))
    bound, factors, observer = part.bind(z, dict(operands)), {"x": x, "w": w}, part.observer
    told = bound._replace(x=torch.empty(z.shape, dtype=z.dtype, device="meta"))
    observer.notify(
        functools.partial(observer.of_call, told, factors),
        lambda target: _variants(bound, factors, target, frozenset()),
        Target.of(x.device),
    )


def _is_odd(epilogue: Map, factors: Iterable[Tensor], arguments: Mapping[str, Any]) -> bool:
    """True if a fused GEMM cannot record this call: traced, of mixed dtypes, or with no operand."""
    tensors = [*factors, *(one for one in arguments.values() if isinstance(one, Tensor))]
    if any(type(one) not in (Tensor, torch.nn.Parameter) for one in tensors):
        return True
    return bool(epilogue.lacking(dict(arguments))) or len({*map(read_dtype, factors)}) > 1


def _notify(
    epilogue: Map, bound: Bound, factors: Mapping[str, Tensor], wanted: frozenset[str]
) -> None:
    observer = epilogue.observer
    observer.notify(
        functools.partial(observer.of_call, bound, factors, wanted),
        lambda target: _variants(bound, factors, target, wanted),
        Target.of(bound.x.device),
    )


def _variants(
    bound: Bound, factors: Mapping[str, Tensor], target: Target, wanted: frozenset[str]
) -> Iterator[Variant]:
    """The kernels of a call on a target if a fused GEMM runs it; with `wanted`, of a gradient."""
    x, w, op = factors["x"], factors["w"], bound.op
    if op.reduces:
        of_loss = pass_of(op, x, w, bound.operands, target)  # type: ignore[arg-type]
        planned = None if of_loss is None else plan(of_loss, target)
        if planned is not None:
            yield from planned.variants
        return
    arguments = {**bound.operands, "training": bool(bound.dropout_slots)}
    choose = product_backward.chosen if wanted else chosen
    tiling = choose(op, x, w, arguments, target).tiling  # type: ignore[arg-type]
    if tiling is None:
        return
    one = ProductGradient(bound, wanted, x, w, tiling) if wanted else Product(bound, x, w, tiling)
    planned = plan(one, target)
    if planned is not None:
        yield from planned.variants


def variants(signatures: Iterable[Signature], target: Target) -> list[Variant]:
    """List the fused GEMM kernels that recorded calls need on a target, each once.

    Signatures without factors need no such kernel. The target's device need not be present, and
    what was tuned on it does not count.

    Raises:
        TypeError, ValueError, UnsupportedError: A signature is that of a call that would raise so.
    """
    found: dict[tuple[object, ...], Variant] = {}
    for one in signatures:
        if not one.factors:
            continue
        epilogue = read(one.op)
        factors = one.read_factors()
        if not (may_fuse if one.wanted else able)(epilogue):
            continue
        z, operands, options = one.read()
        for training in (True, False) if epilogue.dropouts else (True,):
            bound = epilogue.bind(z, {**operands, **options, "training": training})
            made = _variants(bound, factors, target, frozenset(one.wanted))
            found.update((each.key, each) for each in made)
    return list(found.values())
