# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products to tune: a fused GEMM, or torch's product and a kernel of the epilogue.

They are timed at their own sizes, on which the choice depends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.bind import Bound
from fusedops.errors import UnsupportedError
from fusedops.generate.target import Target
from fusedops.product import product_backward
from fusedops.product.autograd import W2, between_products, why_kept
from fusedops.product.choice import Choice, able, choose, features_of
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import of_eight_bits
from fusedops.product.product_backward import ProductBackward
from fusedops.product.single import SingleProduct
from fusedops.schedule.architectures import PRODUCT_KERNELS
from fusedops.schedule.features import ProductFeatures
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing.comparison import Comparison, compare_forward
from fusedops.testing.pairs import compare_backward
from fusedops.tuning import clock
from fusedops.tuning.problem import Problem, fewer_rows, fewer_rows_of_factor, filled
from fusedops.tuning.search import Implementations

__all__ = ["of_gradient", "of_product"]

#: Elements of the product in the call that is checked, since its truth is in float64; and rows that
#: it has in any case, since a tile wants some.
CHECKED, CHECKED_ROWS = 1 << 23, 512

#: What dropouts of a backward pass start from: they are drawn again, not anew.
DRAWN = (5, 64)

#: The gradient of y among the tensors of a backward call; no operand has this name.
DY = "gradient of y"


def of_product(
    op: SingleProduct,
    bound: Bound,
    factors: Mapping[str, Tensor],
    device: torch.device,
    options: Mapping[str, Any],
    *,
    keeps: bool = False,
) -> Problem:
    """A call of a `Linear` or a `Matmul` that wants no gradient, or keeps the product for one.

    Factors, of which w has shape (..., N, K), and tensors of the STORE's call may have no memory;
    with `keeps` the product is kept for a gradient that reads it.

    Raises:
        UnsupportedError: One kernel never runs such a call.
    """
    x, w = factors["x"], factors["w"]
    arguments = {**bound.operands, **options}
    op = op.that_adds(op.turned(w), arguments)
    compared = op.that_keeps() if keeps else op
    call: Any = functools.partial(_keeping, op) if keeps else op
    target = Target.of(device)
    if not able(op.epilogue):
        found: Any = Choice(None, "its functors make 8 bits")
    elif op.alone(x, arguments):
        found = Choice(None, "torch's product alone runs it")
    else:
        found = features_of(compared.epilogue, x, w, arguments, target)
    cure = (
        "one kernel is for functors after a product of 8 or 16 bits on an "
        f"{' or '.join(PRODUCT_KERNELS)} GPU, and what two run needs no tuning"
    )
    first, second = op.inputs
    setting = _Product(op.name, found, second, device, choose, cure)
    z, fewer = setting.checked(bound)
    fewer[first] = fewer_rows_of_factor(x, z, 1)
    fewer[second] = op.turned(fewer_rows_of_factor(w, z, 2))
    comparison = compare_forward(compared, setting.filled(fewer), options, call)
    sets = setting.sets({**bound.operands, first: x, second: op.turned(w)}, bound.x)

    def run(call: Any, given: Mapping[str, Any]) -> Any:
        own = {**given, **options}
        return call(own.pop(first), own.pop(second), **own)

    def why() -> str:
        choice: Choice = run(lambda x, w, **own: compared.choice(x, w, own), sets[0])
        return choice.why

    def calls() -> list[clock.Call]:
        return [functools.partial(run, call, given) for given in sets]

    return setting.problem(comparison, calls, why, draws=bool(bound.dropout_slots))


def of_gradient(
    epilogue: Epilogue,
    bound: Bound,
    factors: Mapping[str, Tensor],
    wanted: Collection[str],
    device: torch.device,
    options: Mapping[str, Any],
) -> Problem:
    """The gradient of what stands between the products of an `MLP`.

    The gradient of w2 is checked, since it is made of the hidden tensor, and not timed: it is one
    product more, whatever runs the rest.

    The epilogue makes the hidden tensor of the first product, z, on which `bound` is its checked
    call. The factors are the gradient of y as "x", of shape (..., N), and w2 as "w", of shape (N,
    H).

    Raises:
        UnsupportedError: One kernel never runs such a call.
    """
    dy, w = factors["x"], factors["w"]
    arguments = {**bound.operands, **options}
    names = sorted({"x", *wanted})
    epilogue.check_differentiable()
    if kept := why_kept(epilogue, tuple(names), bound.operands, bound.x.numel()):
        found: ProductFeatures | Choice = Choice(None, kept)
    else:
        found = product_backward.features_of(epilogue, dy, w, arguments, Target.of(device))
    cure = "tune the layers alone, with --no-backward"
    setting = _Product(epilogue.name, found, "w", device, product_backward.choose, cure)
    others = {k: v for k, v in arguments.items() if not isinstance(v, Tensor)}
    if bound.dropout_slots:
        others["generator"] = DRAWN
    backward = ProductBackward(epilogue, frozenset(wanted))
    between = functools.partial(between_products, epilogue, lambda _: backward, others)

    def split(given: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The gradient of y, w2, and z and what else the hidden tensor is made of."""
        tensors = {k: v for k, v in given.items() if isinstance(v, Tensor)}
        return tensors.pop(DY), tensors.pop("w"), tensors

    z, operands = setting.checked(bound)
    fewer = {DY: fewer_rows_of_factor(dy, z, 1), "w": w, "x": z, **operands}
    call = split(setting.filled(fewer))
    comparison = compare_backward(epilogue, between, others, *call, [W2, *names])
    like = {DY: dy, "w": w, "x": bound.x, **bound.operands}
    sets = [split(one) for one in setting.sets(like, bound.x, bound.x)]  # it writes dz and h

    def calls() -> list[clock.Call]:
        return [functools.partial(between, *one, names) for one in sets]

    def why() -> str:
        if not backward.able:
            return "one kernel for both could not be had, as a warning said"
        dy, w, tensors = sets[0]
        own = {**{k: v for k, v in tensors.items() if k != "x"}, **others}
        of = frozenset(names) - {"x"}
        return product_backward.explained(epilogue, of, dy, w, tensors["x"], own).why

    return setting.problem(comparison, calls, why, draws=False)


class _Product:
    """A matrix product to tune: its features, and random tensors for its calls.

    `found` are the features of the call, or why one kernel never runs such a one, and `cure` is
    what to give then in place of it; `weight` names the right factor.
    """

    def __init__(
        self,
        name: str,
        found: ProductFeatures | Choice,
        weight: str,
        device: torch.device,
        choose: Callable[..., Choice],
        cure: str,
    ) -> None:
        self._weight, self._choose = weight, choose
        self._name, self._device, self._target = name, device, Target.of(device)
        if isinstance(found, Choice):
            raise UnsupportedError(f"{name}: there is nothing to tune, {found.why}; {cure}")
        self._features = found

    def checked(self, bound: Bound) -> tuple[Tensor, dict[str, Any]]:
        """The product and the operands with the rows that are checked."""
        return fewer_rows(bound, max(CHECKED, CHECKED_ROWS * bound.columns))

    def filled(self, like: Mapping[str, Any]) -> dict[str, Any]:
        """Random tensors; the right factor is scaled so that the product is of unit size.

        Of 8 bits it is not: it would have few numbers left.
        """
        given = filled(like, self._features.columns, self._device)
        if not of_eight_bits(given[self._weight]):
            given[self._weight] *= self._features.depth**-0.5
        return given

    def sets(self, like: Mapping[str, Any], *written: Tensor) -> list[dict[str, Any]]:
        """Sets of random tensors for a call that writes these: more than the L2 cache holds."""
        tensors = [one for one in (*like.values(), *written) if isinstance(one, Tensor)]
        count = clock.sets(sum(one.nbytes for one in tensors))
        return [self.filled(like) for _ in range(count)]

    def problem(self, comparison: Comparison, calls: Any, why: Any, *, draws: bool) -> Problem:
        """The problem: the implementations that can run it, beginning with the one chosen now."""
        features = self._features

        def runs(forced: ProductConfig | None = None) -> ProductConfig:
            tiling = self._choose(features, self._target, forced).tiling
            return ProductConfig(IMPLEMENTATIONS[0] if tiling is None else tiling.name)

        every = dict.fromkeys(runs(ProductConfig(name)).implementation for name in IMPLEMENTATIONS)
        rows, columns, depth, batches, *_ = features
        many = f"{batches} x " if batches > 1 else ""
        return Problem(
            name=self._name,
            case=f"{self._name} {features.dtype} {many}{rows} x {columns} x {depth}",
            kernel=Implementations(features, runs(), tuple(every)),
            comparison=comparison,
            calls=calls,
            draws=draws,
            why=why,
        )


def _keeping(op: SingleProduct, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
    """A forward call that returns the product, too, which the backward pass reads."""
    z, made = op.run_keeping(first, second, arguments)
    y, *others = (made,) if isinstance(made, Tensor) else made
    return (y, z, *others)
