# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear and Matmul: a product with a weight, or of two activations, and a STORE after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.declare.interactive import CallSignature
from fusedops.functors import AddedBias, Functor, Operand, Role, Scale
from fusedops.product.choice import Choice, explained
from fusedops.product.declaration import TAKEN
from fusedops.product.epilogue import Epilogue
from fusedops.product.factor_scales import FactorScales
from fusedops.product.factors import (
    check_factors,
    linear,
    wants_gradient,
    wrong_shape,
    wrong_weight,
)
from fusedops.product.report import with_scales
from fusedops.product.single import SingleProduct

if TYPE_CHECKING:
    from fusedops.explain.report import ProductExplanation


class Matmul(SingleProduct):
    """``y = store(x @ other)``: batches of matrix products with all that follows elementwise.

    A call is ``op(x, other, **operands, **options)``: x of shape (..., M, K) and other of shape
    (..., K, N), as for `torch.matmul`; batch dimensions broadcast. Scores of attention are
    ``op(q, k.mT)``: a transposed view is read in place. Both are float16, bfloat16, float32 or
    float64, of one dtype unless torch.autocast is on, and on one device. y has shape (..., M, N).

    All that is said of a `Linear` holds here: of the kernels, the product's among them where that
    was measured to be faster, of operands, dropouts, outputs, gradients and options. Masks set
    elements to -inf by selection, and these have no gradient; queries are the rows of y, keys its
    columns. One kernel neither reads nor multiplies for a tile all of which a `Causal` or a
    `Window` masks.

    Args:
        store: The functors applied to the product, in order; none by default.

    Raises:
        TypeError: store holds something that is no functor, or an argument is unknown. A call: a
            factor is no floating tensor, or they have two dtypes.
        ValueError: A functor has no meaning in a STORE, or stands behind a Tap and may not. A call:
            a shape or a device does not fit.

    >>> import torch, fusedops as fo
    >>> scores = fo.Matmul(store=[fo.Scale("scale"), fo.Causal()])
    >>> q, k = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 4.0], [6.0, 8.0]])
    >>> scores(q, k.mT, scale=0.5)
    tensor([[1., -inf],
            [2., 4.]])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "other")
    formula: ClassVar[str] = "x @ other"
    __signature__ = CallSignature(inputs, TAKEN)

    def __init__(self, store: Iterable[Functor] = ()) -> None:
        super().__init__(store)

    def check(self, first: Any, second: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        check_factors(self.name, self.inputs, (first, second))
        for key, factor in zip(self.inputs, (first, second), strict=True):
            if factor.dim() < 2:
                cure = f"a vector is a matrix of one row or column: {key}[None], {key}[:, None]"
                raise wrong_shape(self.name, key, factor, "(..., rows, columns)", cure)
        columns = first.shape[-1]
        if second.shape[-2] != columns:
            cure = "K is the number of x's columns"
            if second.shape[-1] == columns:
                cure = "pass other.mT, as of keys for scores of attention"
            wanted = f"(..., {columns}, N) for x of shape {tuple(first.shape)}"
            raise wrong_shape(self.name, "other", second, wanted, cure)
        mine, others = first.shape[:-2], second.shape[:-2]
        for at in range(1, min(len(mine), len(others)) + 1):
            if mine[-at] != others[-at] and 1 not in (mine[-at], others[-at]):
                raise ValueError(
                    f"{self.name}: the batch dimensions of x and other must broadcast, got "
                    f"{tuple(mine)} and {tuple(others)}; add or expand dimensions"
                )

    @staticmethod
    def turned(second: Tensor) -> Tensor:
        """The second factor in the shape (..., N, K), and from there as it was."""
        return second.mT

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])  # type: ignore[no-untyped-call]
        return (*batch, first.shape[-2], second.shape[-1])

    def product(self, first: Tensor, second: Tensor, operand: Tensor | None = None, /) -> Tensor:
        """The product, by torch."""
        return torch.matmul(first, second)


class Linear(SingleProduct):
    """``y = store(x @ w.T)``: a linear layer with all that follows it elementwise.

    A call is ``op(x, w, **operands, **options)``: x of shape (..., K), and w of shape (N, K) as the
    weight of `torch.nn.Linear` is. Both are float16, bfloat16, float32 or float64, of one dtype
    unless torch.autocast is on, and on one device. y has shape (..., N) and the dtype of the
    product, unless ``dtype=`` says another.

    Both may be float8_e4m3fn or float8_e5m2. Then the product is in bfloat16, and neither has a
    gradient. ``scales`` names the operands with the scales of x and of w, which are multiplied by,
    ``z[i, j] = sum over k of x[i, k] * x_scale(i, k) * w[j, k] * w_scale(j, k)``, rounded once.
    They are float32, without gradients, and either of rows or of blocks:

    - one a row: x's of shape (..., 1), w's of shape (N, 1), as `DynamicQuantize` returns them;
    - one for each 128 columns, the last of which may be fewer: x's of shape (..., ceil(K / 128)),
      as it returns them per 128; w's of shape (ceil(N / 128), ceil(K / 128)), for 128 x 128, or
      (N, ceil(K / 128)).

    With ``layout="columns"`` the last dimension of x's scales is the first one. torch multiplies
    dense factors of float8_e4m3fn whose K and N are multiples of 16 with their scales: on GPUs from
    sm_89 on with those of rows; on sm_90, from CUDA 12.9 on, with those of blocks, of which it
    copies those of x unless they lie in columns. Elsewhere the factors are multiplied by them
    first, in float32. Where that was measured to be faster, one kernel on sm_90 runs the product
    and the STORE; it rounds before it applies scales of rows.

    Without ``scales`` the product is of the numbers as they are, and rounded: scales of a tensor or
    of rows may be functors of the STORE, ``Scale("x_scale")`` of shape (..., 1) and
    ``Scale("w_scale")`` of shape (N,). torch multiplies by its instructions for 8 bits from sm_89
    on, unless both are float8_e5m2, or else in bfloat16, which has all numbers of 8 bits.

    The product is torch's, by cuBLAS on a GPU. The functors of the STORE are one kernel, which gets
    the product rounded to its dtype (docs/explanation/products.md has the bound that follows). A
    ``Bias`` of shape (N,) and w's dtype with which the STORE begins is added by the product, before
    it is rounded; if that is all, no kernel follows. On sm_90 one kernel runs product and STORE
    where that was measured to be faster. `explain` says which. Operands broadcast against (..., N),
    as those of a `Map` against its x; masks set elements to -inf; dropouts draw as in any op,
    elements being counted along the last dimension (docs/explanation/dropout.md).

    Gradients of x, w and every floating operand: one kernel goes back through the STORE, draws
    dropout masks again and sums the gradients of biases in a fixed order, then there are two
    products. Kept for them are x, w, and the product only if a functor's gradient reads it.

    Options are those of `Map`, but for ``dim``: a row is the last dimension of y.

    Args:
        store: The functors applied to the product, in order; none by default. `Residual` and `Save`
            with a name, and `Tap`, return further outputs: a call then returns a named tuple.
        scales: The names of the operands with the scales of x and of w, if these have 8 bits; None
            for none.
        layout: How the scales of x lie: "rows" or "columns", as of `DynamicQuantize`.

    Raises:
        TypeError: store holds something that is no functor, or an argument is unknown. A call: a
            factor is no floating tensor, or they have two dtypes.
        ValueError: A functor has no meaning in a STORE, or stands behind a Tap and may not. A call:
            a shape or a device does not fit.

    >>> import torch, fusedops as fo
    >>> op = fo.Linear(store=[fo.Bias("b"), fo.Residual("r")])
    >>> x, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0], [0.0, 3.0]])
    >>> op(x, w, b=torch.tensor([0.5, 0.0]), r=torch.tensor([[10.0, 20.0]]))
    tensor([[13.5000, 26.0000]])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "w")
    module: ClassVar[str] = "fusedops.nn.Linear"
    formula: ClassVar[str] = "x @ w.T"
    product = staticmethod(linear)
    __signature__ = CallSignature(inputs, TAKEN)

    def __init__(
        self,
        store: Iterable[Functor] = (),
        *,
        scales: tuple[str, str] | None = None,
        layout: str = "rows",
    ) -> None:
        #: The operand that the product adds where it can, and the layer that runs such a call.
        self._bias: str | None = None
        self._that_adds: Linear | None = None
        self.scales: FactorScales | None = None
        #: The layer that runs such a call by one kernel, with scales of rows in its STORE.
        self._that_scales: Linear | None = None
        constants: dict[str, Any] = {}
        if scales is not None:
            self.scales = FactorScales(self, scales, layout)
            constants["scales"] = self.scales.names
        if layout != "rows":
            if scales is None:
                raise ValueError(
                    f"Linear: layout is that of scales, which is not given, got {layout!r}; "
                    "leave layout out"
                )
            constants["layout"] = layout
        super().__init__(store, **constants)
        if self.scales is not None:
            self._add_scales(self.scales.names)
            self._that_scales = Linear([*map(Scale, self.scales.names), *self.store])
            return
        self._bias = _leading_bias(self.store)
        if self._bias is not None:
            # Here, not in a call, which compiled code may make.
            self._that_adds = Linear([AddedBias(self._bias), *self.store[1:]])

    def _add_scales(self, names: tuple[str, str]) -> None:
        """Make the scales operands of the op, beside those of its STORE."""
        for name in names:
            if name in self.slots or name in self.outputs:
                raise ValueError(
                    f"Linear: scales={names!r} names an operand or a result of the STORE; "
                    f"choose another name than {name!r}"
                )
        self.operands += tuple(Operand(name, Role.VALUE) for name in names)
        self.slots = {one.name: number for number, one in enumerate(self.operands, 1)}

    def check(self, first: Any, second: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        if self.scales is not None:
            self.scales.check_factors(self.name, first, second)
        check_factors(self.name, self.inputs, (first, second), eight_bits=True)
        if first.dim() == 0:
            raise wrong_shape(self.name, "x", first, "(..., K)", "use x[None]")
        columns = first.shape[-1]
        if second.dim() != 2 or second.shape[1] != columns:
            raise wrong_weight(self.name, "w", second, columns, f"x of shape {tuple(first.shape)}")

    def shape(self, first: Tensor, second: Tensor) -> tuple[int, ...]:
        """The shape of the product of checked factors."""
        return (*first.shape[:-1], second.shape[0])

    def that_adds(self, second: Tensor, arguments: dict[str, Any]) -> Linear:
        """The variant that runs a call: with `AddedBias` if the GEMM adds the leading bias.

        The latter of a bias of shape (N,) and w's dtype with which the STORE begins.
        """
        if self._bias is None or self._that_adds is None:
            return self
        bias = arguments.get(self._bias)
        if not isinstance(bias, Tensor) or bias.dim() != 1 or bias.shape[0] != second.shape[0]:
            return self
        same = bias.dtype is second.dtype and bias.device == second.device
        return self._that_adds if same else self

    def called(self, epilogue: Epilogue) -> None:
        """Run calls by this epilogue, whose op's name errors and profilers give."""
        super().called(epilogue)
        for one in (self._that_adds, self._that_scales):
            if one is not None:
                one.called(epilogue.of((), one.store))

    @property
    def called_with(self) -> list[tuple[str, int]]:
        """The operands of a call, each with the flags of what it may be given."""
        kinds = super().called_with
        if self.scales is None:
            return kinds
        return [*kinds, *((name, _runtime.SLOT_TENSOR) for name in self.scales.names)]

    # ------------------------------------------------------------------------- factors with scales

    @property
    def undifferentiated(self) -> frozenset[str]:
        """The operands that have no gradient beside those of the STORE that have none."""
        return frozenset(() if self.scales is None else self.scales.names)

    def with_rows(self, arguments: Mapping[str, Any]) -> tuple[Linear, dict[str, Any]]:
        """The op whose scales of x lie in rows, and its operands, for a call of this one's."""
        if self.scales is None or self.scales.layout == "rows":
            return self, {**arguments}
        name = self.scales.names[0]
        turned = {**arguments, name: arguments[name].movedim(0, -1)}
        return Linear(self.store, scales=self.scales.names), turned

    def implementation(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> _runtime.Plan | _runtime.Delegate:
        """What runs all calls like this one, whose factors have been checked."""
        if self.scales is None:
            return super().implementation(first, second, arguments)
        of_x, of_w, rest = self._split(first, second, arguments)
        store = self.scales.in_store(second, of_x, of_w)
        if store is not None and not self.alone(first, rest):
            assert self._that_scales is not None
            if self._that_scales.by_one_kernel(first, second, {**store, **rest}) is not None:
                return _runtime.Delegate(self._run_by_one_kernel)
        elif store is None and self._fuses_blocks(first, rest):
            scales = self.scales.of_blocks(first, second, of_x, of_w)
            planned = None if scales is None else self._plan(first, second, rest, scales)
            if planned is not None:
                return planned
        return _runtime.Delegate(self._run_scaled)

    def run(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked, in code that torch compiles, or in a mode."""
        if self.scales is None:
            return super().run(first, second, arguments)
        self._split(first, second, arguments)
        return self._run_scaled(first, second, **arguments)

    def run_unfused(self, first: Tensor, second: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked as torch operations."""
        if self.scales is None:
            return super().run_unfused(first, second, arguments)
        self._split(first, second, arguments)
        return self._run_scaled(first, second, "unfused", **arguments)

    def _split(
        self, first: Tensor, second: Tensor, arguments: dict[str, Any]
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """The scales of a call, checked, and its other arguments."""
        assert self.scales is not None
        self.check_names(arguments)
        of_x, of_w, rest = self.scales.taken(arguments)
        self.scales.check(self.name, first, second, of_x, of_w)
        return of_x, of_w, rest

    def _run_scaled(
        self, first: Tensor, second: Tensor, way: str = "__call__", /, **arguments: Any
    ) -> Any:
        """Run a call with scales by a product and a kernel of the functors."""
        assert self.scales is not None
        of_x, of_w, rest = self.scales.taken(arguments)
        z = self.scales.product(first, second, of_x, of_w)
        return z if self.alone(first, rest) else self.run_store(self.epilogue, z, rest, way)

    def _fuses_blocks(self, first: Tensor, arguments: dict[str, Any]) -> bool:
        """Whether one kernel may apply scales of blocks, which no gradient goes back through."""
        if not self._able or not self.available or not first.is_cuda:
            return False
        return not self.epilogue.lacking(arguments) and not wants_gradient(arguments.values())

    def _run_by_one_kernel(self, first: Tensor, second: Tensor, /, **arguments: Any) -> Any:
        """Run a call with scales of rows by one kernel, whose STORE begins with them."""
        assert self.scales is not None
        assert self._that_scales is not None
        of_x, of_w, rest = self.scales.taken(arguments)
        store = self.scales.in_store(second, of_x, of_w)
        assert store is not None
        return self._that_scales(first, second, **store, **rest)

    def explain(
        self, first: Tensor | None = None, second: Tensor | None = None, /, **arguments: Any
    ) -> ProductExplanation:
        """As `SingleProduct.explain`; scales are among the tensors that are read.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        if self.scales is None:
            return super().explain(first, second, **arguments)
        first, second = self.given((first, second), arguments)
        of_x, of_w, rest = self._split(first, second, arguments)
        scales = dict(zip(self.scales.names, (of_x, of_w), strict=True))
        by_torch = self.scales.by_torch(first, second, of_x, of_w)
        choice = Choice(None, "one kernel for both applies scales of rows, or of 128 x 128 of w")
        store = self.scales.in_store(second, of_x, of_w)
        blocks = self.scales.of_blocks(first, second, of_x, of_w)
        if store is not None:
            assert self._that_scales is not None
            choice = self._that_scales.choice(first, second, {**store, **rest})
        elif wants_gradient(rest.values()):
            choice = Choice(None, "one kernel for both has no gradient with scales of blocks")
        elif blocks is not None:
            choice = explained(self.epilogue, first, second, rest, blocks)
        return with_scales(self, first, second, rest, scales, by_torch, choice)


def _leading_bias(chain: Sequence[Functor]) -> str | None:
    """The operand that the first functor adds, if no other one reads it."""
    if not chain:
        return None
    first, *others = chain
    bias = first.adds
    twice = any(operand.name == bias for one in others for operand in one.operands())
    return None if twice else bias
