# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A linear layer whose input is made again, and the gradient before it, where torch compiles.

- ``fusedops::linear_recomputed(h, w2, bias, x, w1, tensors, names, numbers, op)`` is that function
  of `product.autograd`: autograd sees y as a function of all but h. ``tensors`` are z, by the name
  "x", operands, and what dropouts start from, by the name "generator"; ``op`` is the text of what
  made h of z.
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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.declare.text import read
from fusedops.product.autograd import W2, between_products, linear_recomputed
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import linear
from fusedops.product.product_backward import ProductBackward
from fusedops.torch_ops.calls import numbers_of, schema
from fusedops.torch_ops.known_calls import drawn_for
from fusedops.torch_ops.lowering import enter, lower
from fusedops.torch_ops.operators import define, define_gradient, namespace

_NAME = "MLP"
_RECORDS = torch._C.DispatchKey.AutogradFunctionality


class _Linear(NamedTuple):
    """The arguments of ``linear_recomputed``."""

    h: Tensor
    w2: Tensor
    bias: Tensor | None
    x: Tensor
    w1: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    op: str


class _Backward(NamedTuple):
    """The arguments of ``product_backward``."""

    dy: Tensor
    w2: Tensor
    tensors: Sequence[Tensor]
    names: Sequence[str]
    numbers: Sequence[float]
    op: str
    wanted: Sequence[str]


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


def _differentiable(*arguments: Any) -> Tensor:
    call = _Linear(*arguments)

    def between(
        dy: Tensor, w2: Tensor, tensors: dict[str, Tensor], wanted: list[str]
    ) -> Sequence[Tensor]:
        results: Sequence[Tensor] = torch.ops.fusedops.product_backward(
            dy, w2, [*tensors.values()], [*tensors], call.numbers, call.op, wanted
        )
        return results

    made_of = dict(zip(call.names, call.tensors, strict=True))
    return linear_recomputed(_NAME, between, (call.x, call.w1), made_of, call.h, call.w2, call.bias)


define("linear_recomputed", schema(_Linear), _layer, _layer, results="Tensor", title=_NAME)
namespace.impl("linear_recomputed", _differentiable, "Autograd")


# ------------------------------------------------------------------------------------- the gradient


@functools.cache
def _epilogue(op: str) -> Epilogue:
    made = read(op)
    return Epilogue(_NAME, (*made.load, *made.store))


@functools.cache
def _by_one(op: str, wanted: frozenset[str]) -> ProductBackward:
    return ProductBackward(_epilogue(op), wanted)


def _run(*arguments: Any) -> list[Tensor]:
    call = _Backward(*arguments)
    epilogue, given = _epilogue(call.op), dict(zip(call.names, call.tensors, strict=True))
    draw = given.pop("generator", None)
    others = numbers_of(epilogue, call.names, call.numbers, [])
    others |= {"training": draw is not None, "generator": drawn_for(draw)}
    by_one = functools.partial(_by_one, call.op)
    # Two kernels are differentiated by autograd, below which the dispatcher calls operators.
    recorded = torch._C._SetExcludeDispatchKeyGuard(_RECORDS, False)
    with torch.no_grad(), recorded:
        made = between_products(epilogue, by_one, others, call.dy, call.w2, given, [*call.wanted])
    # Two residuals have one gradient, but results of an operator are memory of their own.
    results: list[Tensor] = []
    for one in made:
        twice = any(one is other for other in results)
        results.append(one.clone() if twice else one.contiguous())
    return results


def _fake(*arguments: Any) -> list[Tensor]:
    lower()
    call = _Backward(*arguments)
    known = {W2: call.w2, **dict(zip(call.names, call.tensors, strict=True))}
    return [known[key].new_empty(known[key].shape) for key in call.wanted]


define_gradient("product_backward", schema(_Backward), _run, _fake, _NAME)


def _entry(*arguments: Any) -> Any:
    """What Inductor's code calls: without torch's dispatcher, unless a mode of torch's is on."""
    if torch._C._len_torch_dispatch_stack():  # as where new code runs for the first time
        return torch.ops.fusedops.product_backward.default(*arguments)
    return _run(*arguments)


enter("product_backward", _entry)
