# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose input is made again, and the gradient before it, where torch compiles.

- ``fusedops::linear_recomputed(h, w2, bias, x, w1, tensors, names, numbers, op)`` is the layer of
  `recomputed`: autograd sees y as a function of all but h. ``tensors`` are z, by the name "x",
  operands, and what dropouts start from, by the name "generator"; ``op`` is the text of what made
  h of z.
- ``fusedops::product_backward(dy, w2, tensors, names, numbers, op, wanted)`` gives the gradients
  between the products: those named in ``wanted``, "w2" and "x" (for z) among them.

The first is there for autograd alone, and AOTAutograd sees what is in it: torch's product, and in
the backward pass the second one, then products. So z is what a compiler's graphs keep, and h is no
part of the backward graph. The second runs the eager call, and chooses one kernel or two by the
sizes at hand. It makes the gradient of w2 itself, so that h is not there any more when two kernels
make that of h.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, library

from fusedops.declare.text import read
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.product.autograd import W2, between_products, linear_recomputed
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import linear
from fusedops.product.product_backward import ProductBackward
from fusedops.product.torch_op_arguments import operands_by_name
from fusedops.run.first_derivative import refuse_second
from fusedops.torch_ops.lowering import enter, lower
from fusedops.torch_ops.operators import drawn_for

__all__ = ["linear_in_graph"]

_NAME = "MLP"
_RECORDS = torch._C.DispatchKey.AutogradFunctionality

_namespace: Any = library.Library("fusedops", "FRAGMENT")  # type: ignore[no-untyped-call]
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
_namespace.define(
    "linear_recomputed(Tensor h, Tensor w2, Tensor? bias, Tensor x, Tensor w1, Tensor[] tensors, "
    "str[] names, float[] numbers, str op) -> Tensor",
    tags=_TAGS,
)
_namespace.define(
    "product_backward(Tensor dy, Tensor w2, Tensor[] tensors, str[] names, float[] numbers, "
    "str op, str[] wanted) -> Tensor[]",
    tags=_TAGS,
)
for _key in ("AutocastCPU", "AutocastCUDA"):
    for _name in ("linear_recomputed", "product_backward"):
        _namespace.impl(_name, library.fallthrough_kernel, _key)


def linear_in_graph(
    epilogue: Epilogue,
    factors: tuple[Tensor, Tensor],
    made_of: Mapping[str, Tensor],
    numbers: Sequence[Any],
    h: Tensor,
    w2: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """`linear_recomputed` as an operator: of the same arguments, and the operands that are numbers.

    Dynamo traces this.
    """
    y: Tensor = torch.ops.fusedops.linear_recomputed(
        h,
        w2.to(h.dtype),
        None if bias is None else bias.to(h.dtype),
        factors[0],
        factors[1],
        list(made_of.values()),
        list(made_of.keys()),
        numbers,
        epilogue.text,
    )
    return y


# ---------------------------------------------------------------------------------------- the layer


def _layer(h: Tensor, w2: Tensor, bias: Tensor | None, *others: Any) -> Tensor:
    return linear(h, w2, bias)


def _differentiable(
    h: Tensor,
    w2: Tensor,
    bias: Tensor | None,
    x: Tensor,
    w1: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    numbers: Sequence[float],
    op: str,
) -> Tensor:
    def between(
        dy: Tensor, w2: Tensor, tensors: dict[str, Tensor], wanted: list[str]
    ) -> Sequence[Tensor]:
        results: Sequence[Tensor] = torch.ops.fusedops.product_backward(
            dy, w2, [*tensors.values()], [*tensors], numbers, op, wanted
        )
        return results

    made_of = dict(zip(names, tensors, strict=True))
    return linear_recomputed(_NAME, between, (x, w1), made_of, h, w2, bias)


_namespace.impl("linear_recomputed", _layer, "CompositeExplicitAutograd")
_namespace.impl("linear_recomputed", _differentiable, "Autograd")
library.register_fake("fusedops::linear_recomputed", _layer, lib=_namespace)


# ------------------------------------------------------------------------------------- the gradient


@functools.cache
def _epilogue(op: str) -> Epilogue:
    made = read(op)
    return Epilogue(_NAME, (*made.load, *made.store))


@functools.cache
def _by_one(op: str, wanted: frozenset[str]) -> ProductBackward:
    return ProductBackward(_epilogue(op), wanted)


def _run(
    dy: Tensor,
    w2: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    numbers: Sequence[float],
    op: str,
    wanted: Sequence[str],
) -> list[Tensor]:
    epilogue, given = _epilogue(op), dict(zip(names, tensors, strict=True))
    draw = given.pop("generator", None)
    own = operands_by_name(epilogue, tensors, names, numbers)
    others = {key: one for key, one in own.items() if key not in given}
    others |= {"training": draw is not None, "generator": drawn_for(draw)}
    by_one = functools.partial(_by_one, op)
    # Two kernels are differentiated by autograd, below which the dispatcher calls operators.
    recorded = torch._C._SetExcludeDispatchKeyGuard(_RECORDS, False)
    with torch.no_grad(), recorded:
        made = between_products(epilogue, by_one, others, dy, w2, given, [*wanted])
    # Two residuals have one gradient, but results of an operator are memory of their own.
    results: list[Tensor] = []
    for one in made:
        twice = any(one is other for other in results)
        results.append(one.clone() if twice else one.contiguous())
    return results


def _fake(
    dy: Tensor,
    w2: Tensor,
    tensors: Sequence[Tensor],
    names: Sequence[str],
    numbers: Sequence[Any],
    op: str,
    wanted: Sequence[str],
) -> list[Tensor]:
    lower()
    known = {W2: w2, **dict(zip(names, tensors, strict=True))}
    return [known[key].new_empty(known[key].shape) for key in wanted]


def _note_name(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.name = _NAME


_namespace.impl("product_backward", _run, "CompositeExplicitAutograd")
library.register_fake("fusedops::product_backward", _fake, lib=_namespace)
library.register_autograd(
    "fusedops::product_backward", refuse_second, setup_context=_note_name, lib=_namespace
)


def _refuse_vmap(*arguments: Any) -> Any:
    raise UnsupportedError(
        f"{_NAME}: torch.func.vmap does not see into a fused kernel; under it use {UNFUSED}"
    )


for _name in ("linear_recomputed", "product_backward"):
    library.register_vmap(f"fusedops::{_name}", _refuse_vmap, lib=_namespace)


def _entry(*arguments: Any) -> Any:
    """What Inductor's code calls: without torch's dispatcher, unless a mode of torch's is on."""
    if torch._C._len_torch_dispatch_stack():  # as where new code runs for the first time
        return torch.ops.fusedops.product_backward.default(*arguments)
    return _run(*arguments)


enter("product_backward", _entry)
