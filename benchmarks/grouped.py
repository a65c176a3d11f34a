# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of groups of rows with SwiGLU, and whole experts, beside torch's `grouped_mm`.

Sizes of mixtures of experts, each with equal groups and with skewed ones. Against is the product
alone. bfloat16, since torch multiplies groups of no other dtype without waiting for the device.
QuACK's product with SwiGLU has no part of autograd, so it is measured forward alone.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from gemm import Ways, compared, has_quack
from points import Selection
from results import Result
from timing import queue_seconds
from torch import Tensor, nn
from torch.nn import functional
from training import step

import fusedops as fo

HALF = torch.bfloat16
QUACK = "QuACK gemm_gated"
#: So far from torch's result, as a relative norm, is rounding.
NEAR = 0.01


class Size(NamedTuple):
    """Rows of all groups, the columns of x and of either half, groups, and choices of a token."""

    rows: int
    columns: int
    hidden: int
    experts: int
    chosen: int


SIZES = (
    Size(16384, 2048, 1408, 64, 8),
    Size(8192, 4096, 14336, 8, 2),
    Size(512, 2048, 1408, 64, 8),
)
SWIGLU = fo.GroupedLinear([fo.Gate("up", of="value")], halves="up")


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The product, by torch."""
    return functional.grouped_mm(x, w.mT, offs=ends)


def swiglu(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Product and gate in torch."""
    gate, up = grouped(x, w, ends).chunk(2, -1)
    return functional.silu(gate) * up


def block(
    tokens: Tensor, index: Tensor, weight: Tensor, w1: Tensor, w2: Tensor, experts: int
) -> Tensor:
    """Experts in torch, as transformers has them."""
    ordered, order = index.flatten().sort()
    numbers = torch.arange(experts, device=index.device)
    ends = torch.searchsorted(ordered, numbers, right=True, out_int32=True)
    h = swiglu(tokens[order // index.shape[1]], w1, ends)
    y = grouped(h, w2, ends) * weight.flatten()[order, None]
    place = torch.empty_like(order)
    place[order] = torch.arange(order.shape[0], device=order.device)
    return y[place].view(*index.shape, -1).sum(1).to(tokens.dtype)


def skewed(size: Size, device: str) -> Tensor:
    """Scores of experts of which few get most tokens."""
    popular = torch.linspace(3, -3, size.experts, device=device)
    return torch.randn(size.rows // size.chosen, size.experts, device=device) + popular


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Result]:
    """Both products' sizes and whole blocks, forward and steps."""
    for size in SIZES:
        for kind in ("even", "skewed"):
            chosen.told(f"{size}, {kind}")
            yield from _measured(size, kind, device)


def _measured(size: Size, kind: str, device: str) -> Iterator[Result]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    tokens, (rows, columns, hidden, experts, choices) = size.rows // size.chosen, size

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=HALF, device=device) * shape[-1] ** -0.5

    if kind == "even":
        index = torch.arange(rows, device=device).remainder(experts).view(tokens, choices)
    else:
        index = skewed(size, device).topk(choices).indices
    weight = torch.rand(tokens, choices, dtype=HALF, device=device)
    counts = torch.bincount(index.flatten(), minlength=experts)
    ends = counts.cumsum(0).int()
    x, w = randn(rows, columns), randn(experts, 2 * hidden, columns)
    ours = functools.partial(SWIGLU, x, w, offsets=counts)
    compiled = torch.compile(swiglu, dynamic=False)
    ways = {
        "fusedops": ours,
        "torch.compile": functools.partial(compiled, x, w, ends),
        "torch eager": functools.partial(swiglu, x, w, ends),
    }
    alone: dict[str, Callable[[], Tensor]] = {}
    if has_quack(device):
        by_quack, starts = importlib.import_module("quack_gemm").grouped_swiglu, ends.new_zeros(1)
        alone[QUACK] = functools.partial(by_quack, x, w, torch.cat([starts, ends]))
    product = queue_seconds([functools.partial(grouped, x, w, ends)])
    what = f"{rows} rows, {kind}, {experts} experts of {columns} x 2 x {hidden}"
    moved = HALF.itemsize * (x.numel() + w.numel() + rows * hidden)
    yield from _timed(f"SwiGLU, {what}", ways, alone, [x, w], moved, product)

    module = fo.nn.Experts(experts, columns, hidden, device=device, dtype=HALF)
    nn.init.normal_(module.gate_up_proj, std=columns**-0.5)
    nn.init.normal_(module.down_proj, std=hidden**-0.5)
    parameters = [module.gate_up_proj, module.down_proj]
    given = randn(tokens, columns)
    whole = torch.compile(block, dynamic=False)
    plain = (given, index, weight, *parameters, experts)
    ways = {
        "fusedops": functools.partial(module, given, index, weight),
        "torch.compile": functools.partial(whole, *plain),
        "torch eager": functools.partial(block, *plain),
    }
    yield from _timed(f"experts, {what}", ways, {}, [given, weight, *parameters], 0, 0.0)


def _timed(
    name: str,
    calls: dict[str, Callable[[], Tensor]],
    alone: dict[str, Callable[[], Tensor]],
    leaves: list[Tensor],
    moved: int,
    product: float,
) -> Iterator[Result]:
    """Forward and steps of these calls, whose results are compared with eager torch's first.

    Those of `alone` have no step.
    """
    ways, back = Ways(), Ways()
    with torch.no_grad():
        wanted = calls["torch eager"]()
        for by, call in (calls | alone).items():
            ways.prepare(by, call, functools.partial(_check, call, wanted))
        taken = {by: [call] for by, call in ways.calls.items()}
        yield from compared("grouped", f"{name}, forward", taken, ways.failed, moved, product)
    leaves = [one.requires_grad_() for one in leaves]
    with torch.enable_grad():
        for by in [by for by in ways.calls if by in calls]:
            whole = step(ways.calls[by], leaves)
            back.prepare(by, whole, whole)
        steps = {by: [call] for by, call in back.calls.items()}
        yield from compared("grouped", f"{name}, forward and backward", steps, back.failed, 0, 0.0)


def _check(call: Callable[[], Tensor], wanted: Tensor) -> None:
    off = (call().float() - wanted.float()).norm() / wanted.float().norm()
    if not off <= NEAR:
        raise ArithmeticError(f"{off:.3g} from torch's result")
