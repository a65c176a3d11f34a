# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Batched products with what follows them: `Matmul` by one kernel and by two, beside torch.

Scores of attention, scaled, with a bias and masks, at sizes of models; and layers of experts.
Both factors are new in each call of a round, so that they come from memory, as y goes there.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from gemm import Ways, check, compared
from maps import gelu
from points import DTYPES, HALVES, Selection
from results import Result
from timing import queue_seconds, sets
from torch import Tensor
from torch.nn import functional
from training import step

import fusedops as fo
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch
from fusedops.tuning.problem import implementation_of_last

SCALE = 0.125


class Case(NamedTuple):
    """What follows a product.

    Attributes:
        op: The declaration.
        plain: The same in torch: the product, then the operands.
        operands: The operands of both, in that order: "bias" has the size of a batch element,
            "padding" that of its keys, "b" that of a row, "later" that of a product.
        of_torch: Operands that torch's way alone has.
        numbers: Operands that are numbers.
    """

    op: fo.Matmul
    plain: Callable[..., Tensor]
    operands: tuple[str, ...] = ()
    of_torch: tuple[str, ...] = ()
    numbers: Mapping[str, float] = {}

    def fused(self, given: Mapping[str, Tensor], implementation: str = "") -> Any:
        """A call by some implementation, or by the one that is chosen."""
        operands = {name: given[name] for name in self.operands}
        with force_launch(product=ProductConfig(implementation) if implementation else None):
            return self.op(given["x"], given["other"], **operands, **self.numbers)

    def by_torch(self, call: Callable[..., Any], given: Mapping[str, Tensor]) -> Any:
        """A call of a function of torch's, of both factors and the operands."""
        names = (*self.operands, *self.of_torch)
        return call(given["x"], given["other"], *(given[name] for name in names))

    def in_torch(self, x: Tensor, other: Tensor, *operands: Tensor) -> Tensor:
        """The whole in torch."""
        return self.plain(torch.matmul(x, other), *operands)


SCALED = {"numbers": {"scale": SCALE}}
SCORES = {
    "scale": Case(fo.Matmul(store=[fo.Scale("scale")]), lambda z: z * SCALE, **SCALED),
    "scale, causal": Case(
        fo.Matmul(store=[fo.Scale("scale"), fo.Causal()]),
        lambda z, later: (z * SCALE).masked_fill(later, -math.inf),
        of_torch=("later",),
        **SCALED,
    ),
    "scale, bias, padding": Case(
        fo.Matmul(store=[fo.Scale("scale"), fo.Bias("bias"), fo.Mask("padding")]),
        lambda z, bias, padding: (z * SCALE + bias).masked_fill(padding, -math.inf),
        ("bias", "padding"),
        **SCALED,
    ),
}
EXPERTS = {
    "bias, GELU": Case(
        fo.Matmul(store=[gelu("b")]),
        lambda z, b: functional.gelu(z + b, approximate="tanh"),
        ("b",),
    )
}
#: Batch, heads, queries, keys, depth of a head.
SIZES = (
    (16, 16, 1024, 1024, 64),
    (4, 16, 2048, 2048, 128),
    (1, 32, 4096, 4096, 128),
    (32, 12, 512, 512, 64),
    (64, 4, 384, 384, 64),
    (125, 4, 200, 1000, 64),
    (256, 4, 256, 256, 64),
    (1024, 4, 128, 128, 64),
)
#: Experts, rows of each, columns, depth.
LAYERS = ((8, 2048, 4096, 1024), (8, 2048, 1024, 4096), (16, 256, 4096, 1024))


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Result]:
    """All that follows, at every size: forward, and steps of scores with gradients of all."""
    for dtype in (dtype for dtype in chosen.dtypes or HALVES if dtype in HALVES):
        for size in SIZES:
            for name, case in SCORES.items():
                chosen.told(f"{name}, {dtype}, {size}")
                yield from _measured(name, case, size, dtype, device)
        for experts, *rest in LAYERS:
            for name, case in EXPERTS.items():
                yield from _measured(name, case, (1, experts, *rest), dtype, device)


@torch.enable_grad()
def _measured(
    name: str, case: Case, size: tuple[int, ...], dtype: str, device: str
) -> Iterator[Result]:
    (given,) = _given(size, dtype, device, 1)
    batch, heads, m, n, k = size
    ways, back = Ways(), Ways()
    torch._dynamo.reset()
    compiled = torch.compile(case.in_torch, dynamic=False)
    with torch.no_grad():
        case.fused(given)
        ran = implementation_of_last()
        wanted = case.by_torch(case.in_torch, given)
        for implementation in IMPLEMENTATIONS:
            by = "fusedops" if implementation == ran else f"fusedops, {implementation}"
            call = functools.partial(case.fused, implementation=implementation)
            ways.prepare(by, call, functools.partial(check, call, given, implementation, wanted))
        for by, plain in (("torch eager", case.in_torch), ("torch.compile", compiled)):
            call = functools.partial(case.by_torch, plain)
            ways.prepare(by, call, functools.partial(call, given))
    leaves = [given["x"].requires_grad_(), given["other"].requires_grad_()]
    for by in ("fusedops", "fusedops, two_kernels", "torch eager", "torch.compile"):
        if by in ways.calls:
            call = step(functools.partial(ways.calls[by], given), leaves)
            back.prepare(by, call, call)
    itemsize, y = DTYPES[dtype].itemsize, batch * heads * m * n
    moved = itemsize * (batch * heads * (m + n) * k + y)
    what = f"{dtype}, {batch} x {heads} of {m} x {n} x {k}"
    with torch.no_grad():
        many = _given(size, dtype, device, sets(moved))
        product = queue_seconds(
            [functools.partial(torch.matmul, one["x"], one["other"]) for one in many]
        )
        calls = {
            by: [functools.partial(call, one) for one in many] for by, call in ways.calls.items()
        }
        notes = {"fusedops": f"by {ran}", **ways.failed}
        case_name = f"{name}, {what}, forward"
        yield from compared("scores", case_name, calls, notes, moved, product)
    del many, calls
    steps = {by: [call] for by, call in back.calls.items()}
    case_name = f"{name}, {what}, forward and backward"
    yield from compared("scores", case_name, steps, back.failed, 0, 0.0)


def _given(size: tuple[int, ...], dtype: str, device: str, count: int) -> list[dict[str, Tensor]]:
    """The tensors of so many calls by name; heads lie within rows, as a projection leaves them."""
    batch, heads, m, n, k = size

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=DTYPES[dtype], device=device)

    shared = {
        "bias": randn(heads, m, n),
        "b": randn(n),
        "padding": torch.rand(batch, 1, 1, n, device=device) > 0.8,
        "later": torch.ones(m, n, dtype=torch.bool, device=device).triu(1),
    }
    found = []
    for _ in range(count):
        x, keys = randn(batch, m, heads, k), randn(batch, n, heads, k) * k**-0.5
        found.append({"x": x.transpose(1, 2), "other": keys.transpose(1, 2).mT, **shared})
    return found
