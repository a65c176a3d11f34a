# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Recognise norm modules by probing their forward, and define their fused replacements."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fusedops import nn as fused
from fusedops import ops
from fusedops.errors import counted
from fusedops.functors import Bias, Dropout, Functor, Residual
from fusedops.functors.fields import is_finite
from fusedops.graph.bytes_moved import LONG
from fusedops.integrations.swap import Replacement, Swapped, ask_ahead, result_dtype
from fusedops.nn.base import acts, declared
from fusedops.nn.norms import affine

#: Forwards are written with float32 within, whose chains for a row of up to 2^15 numbers differ by
#: some 2^-19 of the largest number. What is no rounding differs by more than this: an unbiased
#: variance of 2^15 numbers by 2^-16, a unit offset or another place of eps by about one.
_CLOSE = 2.0**-17


def twin_of(module: nn.Module, **parts: Tensor | nn.Module | None) -> nn.Module:
    """A copy of a module with its settings, but these parameters and submodules."""
    twin: nn.Module = type(module).__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin._parameters = {
        name: None if part is None else nn.Parameter(part)
        for name, part in parts.items()
        if not isinstance(part, nn.Module)
    }
    twin._modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    return twin


def random(generator: torch.Generator, *shape: int) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def parameters_of_forward(module: nn.Module) -> list[str] | None:
    """Parameter names of a module's forward; None if it takes * or ** arguments."""
    found = []
    for parameter in inspect.signature(type(module).forward).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return None
        found.append(parameter.name)
    return found[1:]


@contextlib.contextmanager
def quiet() -> Iterator[torch.Generator]:
    """Isolate a probe: its own random state, gradients on, no autocast or inference mode."""
    with (
        torch.random.fork_rng(devices=[]),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
    ):
        yield torch.Generator().manual_seed(0)


def agree(
    forward: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Mapping[str, Tensor],
    generator: torch.Generator,
) -> bool:
    """Whether a forward and a formula give the same rows, and the same gradients of all tensors.

    Inputs have shape ``[rows, columns]``. The formula is called with these, then with the
    parameters by name; the generator makes the gradient from upstream.
    """
    leaves = [each.detach().clone().requires_grad_() for each in inputs]
    wanted = [*leaves, *parameters.values()]
    got, want = forward(*leaves), formula(*leaves, **parameters)
    if got.shape != want.shape:
        return False
    upstream = random(generator, *want.shape)
    pairs = [(got.double(), want)]
    gradients = (
        torch.autograd.grad(y, wanted, upstream.to(y.dtype), allow_unused=True) for y in (got, want)
    )
    for found, true in zip(*gradients, strict=True):
        if (found is None) != (true is None):
            return False
        if found is not None and true is not None:
            pairs.append((found, true))
    return all(_close(found, true) for found, true in pairs)


def _close(got: Tensor, want: Tensor) -> bool:
    # Row by row: the rows of a probe are of very different sizes.
    size = want.abs().amax(-1, keepdim=True)
    return bool(((got - want).abs() <= _CLOSE * size).all())


#: What models call the number that a variance is added to.
_EPS = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")

#: The longest row that a probe can tell from one with an unbiased variance.
_LONGEST = 1 << 15


class _SwappedNorm(Swapped):
    """A norm whose result has the dtype that it had in the stock module."""

    adds = ("_settled",)

    def _run(self, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Run the fused forward; under Dynamo's trace, the stock module's code.

        The compiler fuses the stock code with the sum before it and the cast after it; it cannot
        see into an operator. Long rows on a GPU are faster by an op all the same. torch.export
        traces without Dynamo, unless it is told to be strict.
        """
        if torch.compiler.is_dynamo_compiling() and not (x.is_cuda and self._is_long()):
            return cast(Tensor, self.stock.forward(self, x))
        return own(x)

    def _is_long(self) -> bool:
        return math.prod(self._row) >= LONG

    @classmethod
    def facts(cls, options: tuple[Any, ...]) -> dict[str, Any]:
        """Attributes for a norm whose author did not derive it from torch's."""
        if not options:
            return {}
        eps, bias, unit_offset = options
        facts: dict[str, Any] = {"unit_offset": property(lambda self: unit_offset)}
        if not bias:
            facts["bias"] = None
        facts["normalized_shape"] = property(lambda self: tuple(self.weight.shape))
        if eps != "eps":
            facts["eps"] = property(
                lambda self: getattr(self, eps), lambda self, value: setattr(self, eps, value)
            )
            facts["_settings"] = frozenset({"weight", "bias", eps})
        return facts

    @property
    def _row(self) -> tuple[int, ...]:
        """The shape of the least x, a row."""
        return self.normalized_shape  # type: ignore[return-value]

    def _arguments(self, x: Tensor) -> dict[str, Any]:
        arguments: dict[str, Any] = super()._arguments(x)  # type: ignore[misc]
        dtype = result_dtype(self, self._row, x.dtype, x.device)
        if dtype != x.dtype:
            arguments["dtype"] = dtype
        return arguments

    def _declare(self) -> None:
        super()._declare()  # type: ignore[misc]
        ask_ahead(self, self._row)


class FusedLayerNorm(_SwappedNorm, fused.LayerNorm):
    """A LayerNorm that was another module."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise, with the dtype that the stock module's result has."""
        return self._run(super().forward, input)

    def _declare(self) -> None:
        super()._declare()
        for bias in (False, True):
            for dropout in (False, True):
                self._add_norm(bias, dropout)

    def _add_norm(self, input_bias: bool, dropout: bool) -> ops.LayerNorm:
        weight, bias = self.weight is not None, self.bias is not None
        settings = ("FusedLayerNorm", input_bias, dropout, weight, bias, self.eps)
        op: ops.LayerNorm | None = declared.get(settings)
        if op is None:
            load: list[Functor] = [Bias("input_bias")] if input_bias else []
            load += [Dropout("p")] if dropout else []
            load.append(Residual("residual"))
            op = declared[settings] = ops.LayerNorm(load, affine(weight, bias), eps=self.eps)
        return op

    def add_norm(self, x: Tensor, residual: Tensor, input_bias: Tensor | None, p: float) -> Tensor:
        """``self(dropout(x + input_bias, p) + residual)`` in one kernel; 0 is no dropout."""
        total = torch.promote_types(x.dtype, residual.dtype)
        arguments = fused.LayerNorm._arguments(self, x)
        arguments["dtype"] = result_dtype(self, self.normalized_shape, total, x.device)
        arguments["residual"] = residual
        if input_bias is not None:
            arguments["input_bias"] = input_bias
        dropout = acts(p)
        if dropout:
            arguments["p"] = p
        y: Tensor = self._add_norm(input_bias is not None, dropout)(x, **arguments)
        return y


class FusedRMSNorm(_SwappedNorm, fused.RMSNorm):
    """An RMSNorm that was another module."""

    bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, with the dtype that the stock module's result has."""
        return self._run(super().forward, x)


class FusedGroupNorm(_SwappedNorm, fused.GroupNorm):
    """A GroupNorm that was torch's."""

    @property
    def _row(self) -> tuple[int, ...]:
        return (1, self.num_channels, 2)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise, with the dtype that the stock module's result has."""
        return self._run(super().forward, input)

    def _is_long(self) -> bool:
        return False  # Its length is x's, and a question about that would guard the graph.


#: Torch's own, which need no probe where their forward is inherited.
_TORCHS: dict[type[nn.Module], Replacement] = {
    nn.LayerNorm: Replacement(FusedLayerNorm, (), "LayerNorm"),
    nn.RMSNorm: Replacement(FusedRMSNorm, (), "RMSNorm"),
    nn.GroupNorm: Replacement(FusedGroupNorm, (), "GroupNorm"),
}


def recognise_norm(module: nn.Module) -> Replacement | str | None:
    """The fused norm for a module, or why it is left; None for a module that is no norm."""
    cls = type(module)
    said = re.search("norm", cls.__name__, re.IGNORECASE) or isinstance(module, tuple(_TORCHS))
    if not said or isinstance(module, Swapped):
        return None
    if any(True for _ in module.children()):
        # What contains a norm is none; what torch parametrizes is one, and changes it.
        return "its weight is parametrized" if hasattr(module, "parametrizations") else None
    if "forward" in module.__dict__ or cls.__call__ is not nn.Module.__call__:
        return "its forward has been replaced"
    parameters = [each for each in module.parameters() if not each.dtype.is_floating_point]
    if parameters:
        return f"it has parameters of {parameters[0].dtype}"
    for stock, norm in _TORCHS.items():
        if isinstance(module, stock) and cls.forward is stock.forward:
            eps: Any = module.eps
            usable = (eps is None and stock is nn.RMSNorm) or (is_finite(eps) and eps >= 0)
            return norm if usable else f"its eps is {eps!r}"
    return _recognise_by_probe(module)


def _recognise_by_probe(module: nn.Module) -> Replacement | str:
    found = {name: each for name, each in module._parameters.items() if each is not None}
    weight = found.get("weight")
    if weight is None or weight.dim() != 1 or not found.keys() <= {"weight", "bias"}:
        names = ", ".join(found) or "none"
        return f"its parameters are not those of a norm, weight and bias of one dimension: {names}"
    if any(True for _ in module.buffers(recurse=False)):
        return "it has buffers"
    if not 1 < weight.numel() <= _LONGEST:
        return f"its rows have {counted(weight.numel(), 'column')}; a probe tells up to {_LONGEST}"
    taken = parameters_of_forward(module)
    if taken is None or len(taken) != 1:
        return "its forward takes more than one tensor"
    numbers = [name for name in _EPS if isinstance(module.__dict__.get(name), float)]
    if len(numbers) != 1:
        return f"it has no eps, by one of the names {', '.join(_EPS)}"
    bias = "bias" in found
    for label, kind, unit_offset in (
        ("LayerNorm", FusedLayerNorm, False),
        ("RMSNorm", FusedRMSNorm, False),
        ("RMSNorm of 1 + weight", FusedRMSNorm, True),
    ):
        if bias and kind is FusedRMSNorm:
            continue
        try:
            same = _computes(module, numbers[0], kind is FusedLayerNorm, unit_offset, bias)
        except Exception as error:  # somebody else's code, which may raise anything
            return f"its forward failed on a probe: {type(error).__name__}"
        if same:
            return Replacement(kind, (numbers[0], bias, unit_offset), label)
    return "its forward computes something else than LayerNorm or RMSNorm"


def _computes(
    module: nn.Module, eps_name: str, centred: bool, unit_offset: bool, bias: bool
) -> bool:
    """Whether a module's forward is this norm, in training and in evaluation."""
    eps = float(getattr(module, eps_name))
    columns = sum(each.numel() for each in module.parameters()) // (2 if bias else 1)

    def formula(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if centred else x
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        y = y * (1 + weight if unit_offset else weight)
        return y if bias is None else y + bias

    with quiet() as generator:
        normal = random(generator, 4, columns)
        # Rows near one, rows as small as eps, rows far from zero, and large ones.
        sizes = torch.tensor([[1.0], [max(eps, 1e-30) ** 0.5], [1.0], [1e3]], dtype=torch.float64)
        x = normal * sizes + torch.tensor([[0.0], [0.0], [4.0], [0.0]], dtype=torch.float64)
        parameters = {"weight": random(generator, columns)}
        if bias:
            parameters["bias"] = random(generator, columns)
        for training in (False, True):
            twin = twin_of(module, **parameters)
            twin.training = training
            own = dict(twin.named_parameters())
            if not agree(twin.forward, formula, [x], own, generator):
                return False
    return True
