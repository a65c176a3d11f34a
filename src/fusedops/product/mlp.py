# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""MLP: two linear layers declared together, so that less is kept between the passes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops._runtime import Delegate
from fusedops.bind.generator import draw_for_call
from fusedops.bind.scalars import drops
from fusedops.declare.interactive import CallSignature
from fusedops.explain.report import ProductExplanation
from fusedops.functors import Functor
from fusedops.product.autograd import between_products, linear_recomputed, why_kept
from fusedops.product.choice import Choice, as_multiplied
from fusedops.product.declaration import TAKEN, ProductOp
from fusedops.product.epilogue import Epilogue
from fusedops.product.factors import (
    check_factors,
    factor_dtype,
    wants_gradient,
    wrong_shape,
    wrong_weight,
)
from fusedops.product.linear import Linear
from fusedops.product.product_backward import ProductBackward, explained
from fusedops.product.report import explain_layers, explain_product
from fusedops.product.torch_op import (
    are_plain,
    operands_listed,
)
from fusedops.product.torch_op_mlp import linear_in_graph
from fusedops.torch_ops.tracing import draw_for, is_exporting

_APART = Choice(
    None, "its input is made again in the backward pass, so autograd sees the product by itself"
)


class MLP(ProductOp):
    """``y = store(hidden(x @ w1.T) @ w2.T)``: the feed-forward block of a transformer.

    A call is ``op(x, w1, w2, **operands, **options)``: x of shape (..., K), w1 of shape (H, K) and
    w2 of shape (N, H), weights as of `torch.nn.Linear`. Operands belong to the chain that names
    them and broadcast against its product; a name in both is one operand. Outputs, gradients and
    options are those of two `Linear`, and so are the bits of outputs, where the second layer is run
    as that `Linear` would be: dropouts of `hidden` are drawn before those of `store`, and of a
    given (seed, offset) the slots of `store` follow those of `hidden`.

    Between forward and backward pass a block holds two tensors of (..., H) if its layers are called
    one after the other: the product x @ w1.T and what `hidden` makes of it. Where the gradient of
    `hidden` reads the product, this op keeps that alone, and makes the other again for the gradient
    of w2; not where that would take an operand as large, which no gradient reads. On sm_90, in 16
    bits, one kernel does this and all that stands between the products of the backward pass, where
    that was measured to be faster: it multiplies by w2, goes back through `hidden` in its epilogue,
    and adds up the gradients of operands that all rows share, tile by tile in a fixed order
    (docs/explanation/products.md). `explain` says which. Code that torch.compile makes does the
    same; a program of torch.export has two layers, and so have tensors of a class of their own in
    compiled code.

    Args:
        hidden: The functors after the first product, in order: bias and activation, as a rule.
        store: The functors after the second product, in order; none by default.

    Attributes:
        layers: Both layers, each a `Linear`.

    Raises:
        TypeError: hidden or store holds something that is no functor, or an argument is unknown. A
            call: a factor is no floating tensor, or they have two dtypes.
        ValueError: A functor has no meaning where it stands, an output has the name of another, or
            ``hidden`` returns outputs. A call: a shape or a device does not fit.

    >>> import torch, fusedops as fo
    >>> @fo.functor
    ... def relu(v):
    ...     return torch.relu(v)
    >>> op = fo.MLP(hidden=[fo.Bias("b1"), relu()], store=[fo.Bias("b2")])
    >>> x, w1, w2 = torch.tensor([[1.0, -1.0]]), torch.eye(2), torch.ones(1, 2)
    >>> op(x, w1, w2, b1=torch.tensor([1.0, 0.0]), b2=torch.tensor([0.5]))
    tensor([[2.5000]])
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "w1", "w2")
    module: ClassVar[str] = "fusedops.nn.MLP"
    __signature__ = CallSignature(inputs, TAKEN)

    def __init__(self, hidden: Iterable[Functor] = (), store: Iterable[Functor] = ()) -> None:
        super().__init__({"hidden": hidden, "store": store})
        self.hidden, self.store = self.chains["hidden"], self.chains["store"]
        first = self.epilogues[0]
        if len(first.outputs) > 1:
            raise ValueError(
                f"{self.title}: hidden cannot return outputs, got {list(first.outputs[1:])}: it "
                "may be run again in the backward pass; call two Linear, the first of which does"
            )
        self._gradients: dict[tuple[str, frozenset[str]], ProductBackward] = {}
        self.layers = Linear(self.hidden), Linear(self.store)
        for layer, epilogue in zip(self.layers, self.epilogues, strict=True):
            layer.called(epilogue)
        kinds = dict(kind for each in self.epilogues for kind in each.kinds)
        self.dispatch(kinds.items(), None, None)

    def implementation(
        self, x: Tensor, w1: Tensor, w2: Tensor, arguments: dict[str, Any]
    ) -> Delegate:
        """What runs all calls like this one, whose factors have been checked."""
        first, second = self.shared(arguments)
        if not self._recomputes(x, w1, w2, first):
            return Delegate(self._run_layers)
        return Delegate(self._recomputed(x, w1, w2, first, second))

    def _recomputed(
        self,
        x: Tensor,
        w1: Tensor,
        w2: Tensor,
        first: dict[str, Any],
        second: dict[str, Any],
    ) -> Callable[..., Any]:
        """`_run_recomputed` of calls like this one, of the operands and options of both layers."""
        layer = self.layers[0].that_adds(w1, first)
        then = self.layers[1].that_adds(w2, second)
        dtype = factor_dtype(x)
        casts = any(one.dtype is not dtype for one in (x, w1))
        by_one = layer.keeps_by_one_kernel(x, w1, first)
        h = x.new_empty(0, dtype=dtype)
        alone = then.alone(h, second)
        if alone:
            then.check_unread(h.expand(*x.shape[:-1], 0), w2[:, :0], second)
        how = (layer, then, casts, by_one, alone)
        return functools.partial(self._run_recomputed, *how)

    def run(self, x: Tensor, w1: Tensor, w2: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked, in code that torch compiles, or in a mode."""
        first, second = self.shared(arguments)
        if self._recomputes(x, w1, w2, first):
            if torch.compiler.is_compiling():
                return self._recomputed_in_graph(x, w1, w2, first, second)
            return self._recomputed(x, w1, w2, first, second)(x, w1, w2, **arguments)
        return self.layers[1].run(self.layers[0].run(x, w1, first), w2, second)

    def _run_layers(self, x: Tensor, w1: Tensor, w2: Tensor, /, **arguments: Any) -> Any:
        """Run a call as two layers."""
        first, second = self._split(arguments)
        return self.layers[1](self.layers[0](x, w1, **first), w2, **second)

    def _run_recomputed(
        self,
        layer: Linear,
        then: Linear,
        casts: bool,
        by_one: bool,
        alone: bool,
        x: Tensor,
        w1: Tensor,
        w2: Tensor,
        /,
        **arguments: Any,
    ) -> Any:
        """Run a call whose hidden tensor is made again in the backward pass.

        Args:
            layer: The first layer that runs it (`Linear.that_adds`).
            then: The second one.
            casts: Whether autocast casts x or w1.
            by_one: Whether one kernel makes the product and the hidden tensor.
            alone: Whether no kernel follows the second product.
            x: The factor of shape (..., K).
            w1: The weight of shape (H, K).
            w2: The weight of shape (N, H).
            arguments: Operands and options.
        """
        first, second = self._split(arguments)
        epilogue = layer.epilogue
        if epilogue.dropouts and drops(epilogue, first):
            given = first.get("generator")
            if not isinstance(given, (tuple, Tensor)):
                first["generator"] = draw_for_call(x, epilogue.dropouts, given, epilogue.name)
        factors = as_multiplied(x, w1) if casts else (x, w1)
        with torch.no_grad():
            z, h = layer.run_keeping(*factors, first, by_one)
        made_of: dict[str, Tensor] = {"x": z}
        others: dict[str, Any] = {}
        for key, one in first.items():
            (made_of if isinstance(one, Tensor) else others)[key] = one
        gradient = functools.partial(self._product_backward, epilogue)
        between = functools.partial(between_products, epilogue, gradient, others)
        product = functools.partial(linear_recomputed, "MLP", between, factors, made_of)
        if alone:
            return product(h, w2, None if then.has_added is None else second[then.has_added])
        return then.run_store(then.epilogue, then.multiplied(h, w2, second, product), second)

    def _recomputed_in_graph(
        self,
        x: Tensor,
        w1: Tensor,
        w2: Tensor,
        first: dict[str, Any],
        second: dict[str, Any],
    ) -> Any:
        """Trace such a call, of the operands and options of both layers. Dynamo traces this."""
        layer = self.layers[0].that_adds(w1, first)
        epilogue = layer.epilogue
        if drops(epilogue, first):
            first["generator"] = draw_for(epilogue, x, first, first.get("generator"))
        factors = as_multiplied(x, w1)
        with torch.no_grad():
            z, h = layer.run_keeping(*factors, first)
        made_of: dict[str, Tensor] = {"x": z}
        others: dict[str, Any] = {}
        for key, one in first.items():
            (made_of if isinstance(one, Tensor) else others)[key] = one
        numbers = [others[key] for key in epilogue.slots if key in others]
        product = functools.partial(linear_in_graph, epilogue, factors, made_of, numbers)
        then = self.layers[1].that_adds(w2, second)
        if then.alone(h, second):
            then.check_unread(h, w2, second)
            return product(h, w2, None if then.has_added is None else second[then.has_added])
        return then.run_store(then.epilogue, then.multiplied(h, w2, second, product), second)

    def run_unfused(self, x: Tensor, w1: Tensor, w2: Tensor, arguments: dict[str, Any]) -> Any:
        """Run a call whose factors have been checked as torch operations."""
        first, second = self.shared(arguments)
        hidden = self.layers[0].run_unfused(x, w1, first)
        return self.layers[1].run_unfused(hidden, w2, second)

    def explain(
        self,
        x: Tensor | None = None,
        w1: Tensor | None = None,
        w2: Tensor | None = None,
        /,
        **arguments: Any,
    ) -> ProductExplanation:
        """Say what a call with these arguments would run and why, without running it.

        Returns a `ProductExplanation`; print it. It has the report of each of the two layers, and
        what is kept between the passes.

        Raises:
            TypeError, ValueError: An argument does not fit, as in a call.
        """
        x, w1, w2 = self.given((x, w1, w2), arguments)
        first, second = self.shared(arguments)
        shape = self.layers[0].shape(x, w1)
        h = torch.empty(shape, dtype=factor_dtype(x), device=x.device)  # not touched
        h.requires_grad_(wants_gradient((x, w1, *first.values())))
        remakes = self._recomputes(x, w1, w2, first)
        reports = (
            explain_product(self.layers[0], x, w1, first),
            explain_product(self.layers[1], h, w2, second, _APART if remakes else None),
        )
        backward = None
        if remakes:
            dy = h.new_empty(*h.shape[:-1], w2.shape[0])
            wanted = frozenset(key for key, one in first.items() if wants_gradient((one,)))
            w2 = w2 if w2.dtype is h.dtype else torch.empty_like(w2, dtype=h.dtype)
            epilogue = self.layers[0].that_adds(w1, first).epilogue
            backward = explained(epilogue, wanted, dy, w2, h.detach(), first)
        return explain_layers(self, *reports, backward, first)

    def check(self, x: Any, w1: Any, w2: Any) -> None:
        """Raise TypeError or ValueError for factors that do not fit."""
        check_factors(self.name, self.inputs, (x, w1, w2))
        if x.dim() == 0:
            raise wrong_shape(self.name, "x", x, "(..., K)", "use x[None]")
        if w1.dim() != 2 or w1.shape[1] != x.shape[-1]:
            of = f"x of shape {tuple(x.shape)}"
            raise wrong_weight(self.name, "w1", w1, x.shape[-1], of)
        if w2.dim() != 2 or w2.shape[1] != w1.shape[0]:
            of = f"w1 of shape {tuple(w1.shape)}"
            raise wrong_weight(self.name, "w2", w2, w1.shape[0], of)

    def shared(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The operands and options of both layers, of those of a call.

        Raises:
            TypeError: One is unknown, or an operand is missing.
        """
        self.check_names(arguments)
        return self._split(arguments)

    def _split(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The operands and options of both layers, of those of a checked call."""
        first, second = self.epilogues
        own: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, value in arguments.items():  # a loop, which makes no frame
            if key in first.slots or key == "training":
                own[key] = value
            if key in second.slots or key in TAKEN:
                rest[key] = value
        generator = arguments.get("generator")
        if generator is not None and first.dropouts:
            own["generator"] = generator
            rest["generator"] = _later(generator, first.dropouts)
        return own, rest

    def _product_backward(self, epilogue: Epilogue, wanted: frozenset[str]) -> ProductBackward:
        """The gradients of z and of these operands of `hidden`, as a call runs it, made once."""
        key = epilogue.text, wanted
        found = self._gradients.get(key)
        if found is None:
            made = ProductBackward(epilogue, wanted)
            found = self._gradients.setdefault(key, made)  # another thread's, if it was first
        return found

    def _recomputes(self, x: Tensor, w1: Tensor, w2: Tensor, first: dict[str, Any]) -> bool:
        """Whether what `hidden` makes is not kept for the gradient of w2, but made again.

        That takes one tensor less where the gradient of `hidden` reads the product: it is kept in
        any case, and the hidden tensor follows from it. Dynamo traces this.
        """
        epilogue = self.epilogues[0]
        tensors = [one for one in first.values() if isinstance(one, Tensor)]
        if torch.compiler.is_compiling():
            if is_exporting() or not are_plain((x, w1, w2, *tensors)):
                return False
            if operands_listed(epilogue, first) is None:
                return False
        elif torch._C._len_torch_dispatch_stack():
            return False
        if not w2.requires_grad or not wants_gradient((x, w1, *first.values())):
            return False
        if self.layers[0].that_adds(w1, first).alone(x, first):
            return False
        wanted = ["x"] if x.requires_grad or w1.requires_grad else []
        for key, one in first.items():
            if isinstance(one, Tensor) and one.requires_grad:
                wanted.append(key)
        size = None  # which compiled code does not know
        if not torch.compiler.is_compiling():
            size = x.shape[:-1].numel() * w1.shape[0]
        return why_kept(epilogue, tuple(wanted), first, size) is None


def _later(generator: Any, count: int) -> Any:
    """A generator's numbers for the dropouts that follow the first `count`."""
    if isinstance(generator, tuple) and len(generator) == 2:
        return generator[0], generator[1] + count
    if isinstance(generator, Tensor):
        return generator + generator.new_tensor([0, count])
    return generator
