# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings of models: an attention whose forward calls ``apply_rotary_pos_emb``.

Models of transformers, and those that follow them, have a function of this name in the module of
the attention: of queries, keys and tables it gives both rotated. The forward stays as it is and
finds another function under the name, one kernel for queries and one for keys. Whether the model's
function is a rotation of halves or of neighbours is found by running it on random data.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fusedops.bind.operands import FLOATING
from fusedops.functors import Rotate
from fusedops.integrations.norms import quiet, random
from fusedops.integrations.swap import Replacement, Swapped
from fusedops.map import Map

_NAME = "apply_rotary_pos_emb"

Pair = tuple[Tensor, Tensor]


class FusedRotary(Swapped):
    """An attention whose queries and keys are rotated by one kernel each."""

    @classmethod
    def facts(cls, options: tuple[Any, ...]) -> dict[str, Any]:
        """The stock forward with another function under the name; options: class and layout."""
        stock, layout = options
        return {"forward": _with_function(stock.forward, *layout)}


def recognise_rotary(module: nn.Module) -> Replacement | None:
    """The fused attention for a module whose forward rotates pairs that we know; None for others.

    It calls a function `apply_rotary_pos_emb` of its own Python module.
    """
    inner = inspect.unwrap(type(module).forward)
    code = getattr(inner, "__code__", None)
    if code is None or _NAME not in code.co_names or "forward" in module.__dict__:
        return None
    function = inner.__globals__.get(_NAME)
    if function is None or _rebound(type(module).forward, inner, inner) is None:
        return None
    layout = _layout(function)
    if layout is None:
        return None
    return Replacement(FusedRotary, (type(module), layout), "rotary embedding")


@functools.cache
def _layout(function: Callable[..., Pair]) -> tuple[bool, bool] | None:
    """Whether a model's function rotates neighbours, and tables have one number a pair.

    By values and gradients on random data; None if it does neither.
    """
    with quiet() as generator:
        q, k = random(generator, 2, 3, 5, 8), random(generator, 2, 1, 5, 8)
        ups = random(generator, 2, 3, 5, 8), random(generator, 2, 1, 5, 8)
        for shared, interleaved in itertools.product((False, True), repeat=2):
            angle = random(generator, 2, 5, 4)
            if not shared:
                angle = angle.repeat_interleave(2, -1) if interleaved else angle.repeat(1, 1, 2)
            tables = angle.cos(), angle.sin()
            leaves = [one.clone().requires_grad_() for one in (q, k)]
            others = [one.clone().requires_grad_() for one in (q, k)]
            try:
                got = function(*leaves, *tables)
                want = [_op(interleaved).unfused(x, **_shown(tables, 1)) for x in others]
                found = [*got, *torch.autograd.grad(got, leaves, ups)]
                true: list[Any] = [*want, *torch.autograd.grad(want, others, ups)]
                pairs = zip(found, true, strict=True)
                if all(torch.allclose(one, other, 1e-9, 1e-9) for one, other in pairs):
                    return interleaved, shared
            except Exception:  # somebody else's code, which may raise anything
                continue
    return None


@functools.cache
def _op(interleaved: bool) -> Map:
    return Map([Rotate("cos", "sin", interleaved)])


def _shown(tables: Any, dim: int) -> dict[str, Tensor]:
    cos, sin = tables
    return {"cos": cos.unsqueeze(dim), "sin": sin.unsqueeze(dim)}


def _with_function(
    forward: Callable[..., Any], interleaved: bool, shared: bool
) -> Callable[..., Any]:
    """A forward that finds the fused function under the name."""
    inner: Any = inspect.unwrap(forward)
    stock: Callable[..., Pair] = inner.__globals__[_NAME]

    def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *further: Any, **named: Any) -> Any:
        dim = further[0] if further else named.get("unsqueeze_dim", 1)
        known = len(further) <= 1 and not named.keys() - {"unsqueeze_dim"}
        if not known or not _fits((q, k), (cos, sin), shared):
            return stock(q, k, cos, sin, *further, **named)
        dtype, tables = torch.promote_types(q.dtype, cos.dtype), _shown((cos, sin), dim)
        op = _op(interleaved)
        return op(q, **tables, dtype=dtype), op(k, **tables, dtype=dtype)

    # The globals of the model's module, as they are when the model is patched. By their __name__
    # Dynamo would look names up in the module itself, and find the stock function.
    scope = {**inner.__globals__, _NAME: rotated}
    del scope["__name__"]
    made = types.FunctionType(
        inner.__code__, scope, inner.__name__, inner.__defaults__, inner.__closure__
    )
    made.__kwdefaults__ = inner.__kwdefaults__
    made.__qualname__, made.__doc__ = inner.__qualname__, inner.__doc__
    made.__module__ = inner.__module__
    result = _rebound(forward, inner, made)
    assert result is not None, "`recognise_rotary` comes before"
    return result


def _rebound(forward: Any, inner: Any, made: Any) -> Callable[..., Any] | None:
    """A function with `made` in the place of `inner`, which decorators have wrapped."""
    if forward is inner:
        return made  # type: ignore[no-any-return]
    under = forward.__wrapped__
    cells = forward.__closure__ or ()
    held = [cell for cell in cells if cell.cell_contents is under]
    below = _rebound(under, inner, made)
    if len(held) != 1 or below is None:
        return None
    closure = tuple(types.CellType(below) if cell is held[0] else cell for cell in cells)
    result = types.FunctionType(
        forward.__code__, forward.__globals__, forward.__name__, forward.__defaults__, closure
    )
    result.__kwdefaults__ = forward.__kwdefaults__
    return functools.update_wrapper(result, below)


def _fits(values: Pair, tables: Pair, shared: bool) -> bool:
    """Whether a kernel takes the tensors; torch.compile sees into the stock function instead."""
    if torch.compiler.is_compiling():
        return False
    for one in (*values, *tables):
        plain = type(one) is Tensor and one.device.type in ("cpu", "cuda")
        if not plain or one.dtype not in FLOATING or one.device != values[0].device:
            return False
    if torch.is_grad_enabled() and any(one.requires_grad for one in tables):
        return False
    columns = values[0].shape[-1]
    own = columns // 2 if shared else columns
    fit = all(one.shape[-1] == own for one in tables) and values[1].shape[-1] == columns
    return fit and columns % 2 == 0 and all(one.dim() == 3 for one in tables)
