# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Activations, alone and in gates, and capped logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fusedops.errors import check_flag, shortened
from fusedops.functors.base import Functor
from fusedops.functors.fields import Named, check_arguments, shown
from fusedops.functors.operands import Reads, Role
from fusedops.functors.protocols import Chain, Writer

__all__ = [
    "GELU",
    "Gate",
    "LeakyReLU",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softcap",
    "SquaredReLU",
    "Tanh",
]


def _squared_relu(x: Tensor) -> Tensor:
    return torch.relu(x).square()


# In the steps of the C++, so that `testing.check` sees what each step of them costs.
def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * 0.70710678118654752))


def _gelu_tanh(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x * (1.5957691216057307 + 0.071354816272600248 * x * x))


#: Each activation in torch, and the C++ struct of the same meaning in functor/activation.cuh.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "silu": (_silu, "Silu"),
    "gelu": (_gelu, "Gelu"),
    "gelu_tanh": (_gelu_tanh, "GeluTanh"),
    "sigmoid": (torch.sigmoid, "Sigmoid"),
    "tanh": (torch.tanh, "Tanh"),
    "relu": (torch.relu, "Relu"),
    "squared_relu": (_squared_relu, "SquaredRelu"),
}

#: Those that are made of tanh, for which GPUs have an instruction, and that instruction in C++.
_OF_TANH = ("silu", "gelu_tanh", "sigmoid", "tanh")
_HARDWARE = "pointwise::HardwareTanh"


def _struct(word: str, hardware_tanh: bool) -> str:
    """The C++ struct of an activation."""
    name = ACTIVATIONS[word][1]
    return f"{name}By<{_HARDWARE}>" if hardware_tanh else name


def _check_of_tanh(functor: Functor, word: str) -> None:
    """Raise ValueError for an activation without a tanh that the hardware could compute."""
    if functor.hardware_tanh and word not in _OF_TANH:
        cure = f"those that are: {', '.join(map(repr, _OF_TANH))}"
        if isinstance(functor, GELU):
            cure = "say approximate='tanh'"
        raise ValueError(
            f"{type(functor).__name__}: hardware_tanh must be False here, since {word!r} is not "
            f"computed by a tanh; {cure}"
        )


@dataclasses.dataclass(frozen=True)
class Activation(Functor):
    """Base of the activations without operands. Their classes add no field, or are dataclasses."""

    header: ClassVar[str] = "activation.cuh"
    elementwise: ClassVar[bool] = True
    cancels: ClassVar[bool] = True

    def __new__(cls, *given: object, **options: object) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            check_arguments(cls, given, options)  # __init__ would name the class that defines it
        return super().__new__(cls)

    @property
    def word(self) -> str:
        """What `Gate` and the modules call it."""
        raise NotImplementedError

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        return ACTIVATIONS[self.word][0](x)

    def emit(self, writer: Writer) -> str:
        writer.constant(0)
        return f"Activation<{_struct(self.word, self.hardware_tanh)}>"

    __repr__ = shown


@dataclasses.dataclass(frozen=True, repr=False)
class OfTanh(Activation):
    """Base of the activations that are made of tanh. The field is as of `Softcap`."""

    hardware_tanh: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_flag(type(self).__name__, "hardware_tanh", self.hardware_tanh)


@dataclasses.dataclass(frozen=True, repr=False)
class GELU(OfTanh):
    """The Gaussian error linear unit: ``x * Phi(x)``, Phi the normal distribution's function.

    In a LOAD or a STORE, of any shape and floating dtype. ``fo.nn.Linear(activation="gelu")`` and
    ``Gate(activation="gelu")`` have the same formula, and so has the C++, ``activation<Gelu>()``.

    Args:
        approximate: "none" for Phi by the error function, "tanh" for
            ``(1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2`` in its place, which is faster.
        hardware_tanh: As of `Softcap`; with "tanh" alone.

    Raises:
        TypeError: hardware_tanh is no bool.
        ValueError: approximate is another word, or hardware_tanh is True with "none".

    >>> import torch, fusedops as fo
    >>> op = fo.Linear(store=[fo.Bias("b"), fo.GELU(approximate="tanh")])
    >>> op(torch.ones(1, 2), torch.ones(1, 2), b=-1.0)
    tensor([[0.8412]])
    """

    approximate: str = "none"

    def __post_init__(self) -> None:
        if self.approximate not in ("none", "tanh"):
            raise ValueError(
                "GELU: approximate must be 'none', by the error function, or 'tanh', got "
                f"{shortened(self.approximate)}"
            )
        super().__post_init__()
        _check_of_tanh(self, self.word)

    @property
    def word(self) -> str:
        return "gelu" if self.approximate == "none" else "gelu_tanh"


class SiLU(OfTanh):
    """The sigmoid linear unit, or swish: ``x / (1 + exp(-x))``.

    In a LOAD or a STORE, of any shape and floating dtype. ``fo.nn.Linear(activation="silu")`` and
    ``Gate(activation="silu")`` have the same formula, and so has the C++, ``activation<Silu>()``.

    Args:
        hardware_tanh: As of `Softcap`.

    Raises:
        TypeError: hardware_tanh is no bool.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.SiLU()])(torch.tensor([[-1.0, 0.0, 1.0]]))
    tensor([[-0.2689,  0.0000,  0.7311]])
    """

    word = "silu"


class ReLU(Activation):
    """The rectified linear unit: ``max(x, 0)``, and NaN where x is NaN.

    In a LOAD or a STORE, of any shape and floating dtype. The gradient at 0 is 0, as torch's.
    ``fo.nn.Linear(activation="relu")`` and ``Gate(activation="relu")`` have the same formula, and
    so has the C++, ``activation<Relu>()``.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.ReLU()])(torch.tensor([[-1.0, 0.0, 2.0]]))
    tensor([[0., 0., 2.]])
    """

    word = "relu"


class SquaredReLU(Activation):
    """The square of the rectified linear unit: ``max(x, 0)^2``, as Primer and Nemotron have it.

    In a LOAD or a STORE, of any shape and floating dtype; its gradient is ``2 * max(x, 0)``.
    ``fo.nn.Linear(activation="squared_relu")`` and ``Gate(activation="squared_relu")`` have the
    same formula, and so has the C++, ``activation<SquaredRelu>()``.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.SquaredReLU()])(torch.tensor([[-1.0, 0.5, 2.0]]))
    tensor([[0.0000, 0.2500, 4.0000]])
    """

    word = "squared_relu"


class Sigmoid(OfTanh):
    """The logistic function: ``1 / (1 + exp(-x))``.

    In a LOAD or a STORE, of any shape and floating dtype. ``fo.nn.Linear(activation="sigmoid")``
    and ``Gate(activation="sigmoid")`` have the same formula, and so has the C++,
    ``activation<Sigmoid>()``.

    Args:
        hardware_tanh: As of `Softcap`.

    Raises:
        TypeError: hardware_tanh is no bool.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.Sigmoid()])(torch.tensor([[-1.0, 0.0, 1.0]]))
    tensor([[0.2689, 0.5000, 0.7311]])
    """

    word = "sigmoid"


class Tanh(OfTanh):
    """The hyperbolic tangent.

    In a LOAD or a STORE, of any shape and floating dtype. ``fo.nn.Linear(activation="tanh")`` and
    ``Gate(activation="tanh")`` have the same formula, and so has the C++, ``activation<Tanh>()``.

    Args:
        hardware_tanh: As of `Softcap`.

    Raises:
        TypeError: hardware_tanh is no bool.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.Tanh()])(torch.tensor([[-1.0, 0.0, 1.0]]))
    tensor([[-0.7616,  0.0000,  0.7616]])
    """

    word = "tanh"


@dataclasses.dataclass(frozen=True, repr=False)
class LeakyReLU(Named):
    """The leaky rectified linear unit: ``x`` where x > 0, else ``x * slope``; PReLU's as well.

    In a LOAD or a STORE, of any shape and floating dtype; in C++ ``leaky_relu(slope)``.

    Args:
        slope: The name of an operand: a number, as a rule, or a floating tensor of any dtype that
            broadcasts against x. Both x and a tensor have gradients; at 0 that of x is ``slope``
            times the incoming one, as torch's.
        optional: Whether a call may leave the slope out or give None for it; it then runs without
            the functor.

    Raises:
        TypeError, ValueError: slope cannot be the name of an operand, or optional is no bool.

    >>> import torch, fusedops as fo
    >>> fo.Map(load=[fo.LeakyReLU("slope")])(torch.tensor([[-1.0, 0.0, 2.0]]), slope=0.1)
    tensor([[-0.1000,  0.0000,  2.0000]])
    """

    slope: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"slope": Role.VALUE}
    header: ClassVar[str] = "activation.cuh"
    elementwise: ClassVar[bool] = True

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        slope = torch.as_tensor(chain.value(self.slope), dtype=x.dtype, device=x.device)
        return torch.where(x > 0, x, x * slope)

    def emit(self, writer: Writer) -> str:
        return f"LeakyRelu<{writer.operand(self.slope)}>"


_NAMED = {
    one.word: one
    for one in (SiLU(), GELU(), GELU("tanh"), Sigmoid(), Tanh(), ReLU(), SquaredReLU())
}


def activation_named(word: str) -> Functor | None:
    """The functor of an activation that `Gate` calls so; None where there is none."""
    return _NAMED.get(word)


@dataclasses.dataclass(frozen=True, repr=False)
class Softcap(Named):
    """Cap smoothly: ``cap * tanh(x / cap)``, as the logits of Gemma 2 and Grok are.

    An element of value -inf becomes -cap, so where a row is masked, let a mask of the LOAD do it,
    which acts after all other functors.

    Args:
        cap: The name of an operand: a number, as a rule, or a floating tensor of any dtype that
            broadcasts against x. It is finite and not 0. Both x and a tensor have gradients.
        optional: Whether a call may leave the cap out or give None for it; it then runs without the
            functor.
        hardware_tanh: Whether a GPU computes tanh by its own instruction, of 11 bits, forward and
            backward. It takes fewer instructions, and these are what there is too little of after
            products. Results are off by up to 2^-11 of the cap; docs/explanation/arithmetic.md has
            the bound, which `testing.check` knows. A CPU, and a call that computes in float64, are
            as precise as without. False by default.

    Raises:
        TypeError, ValueError: cap cannot be the name of an operand, or optional or hardware_tanh is
            no bool.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(load=[fo.Softcap("cap")])
    >>> op(torch.tensor([[0.0, 1000.0]]), cap=1.0)
    tensor([[0.2689, 0.7311]])
    """

    cap: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    hardware_tanh: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"cap": Role.VALUE}
    header: ClassVar[str] = "softcap.cuh"
    elementwise: ClassVar[bool] = True

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        cap = chain.value(self.cap)
        return cap * torch.tanh(x / cap)

    def emit(self, writer: Writer) -> str:
        by = f", {_HARDWARE}" if self.hardware_tanh else ""
        return f"Softcap<{writer.operand(self.cap)}{by}>"


@dataclasses.dataclass(frozen=True, repr=False)
class Gate(Named):
    """Gate: ``x * act(gate)``, or ``act(x) * gate`` with ``of="value"``.

    In a LOAD or a STORE of RMSNorm this is the gated norm of Mamba 2, before or after the norm.

    Args:
        gate: The name of an operand: a floating tensor of any dtype that broadcasts against x, or a
            number. Both x and a tensor have gradients.
        activation: "silu", "gelu" (by the error function), "gelu_tanh" (its approximation by tanh),
            "relu", "squared_relu", "sigmoid" or "tanh". With a slope: ``LeakyReLU("slope")``,
            then ``Scale("gate")``.
        of: What the activation is of: "gate" or "value".
        optional: Whether a call may leave the gate out or give None for it; it then runs without
            the functor, the activation included.
        hardware_tanh: As of `Softcap`; with "silu", "gelu_tanh", "sigmoid" or "tanh".

    Raises:
        TypeError, ValueError: gate cannot be the name of an operand, activation or of is another
            word, optional or hardware_tanh is no bool, or the activation has no tanh.

    >>> import torch, fusedops as fo
    >>> op = fo.RMSNorm(store=[fo.Gate("g", activation="sigmoid")])
    >>> op(torch.tensor([[1.0, -1.0]]), g=0.0)
    tensor([[ 0.5000, -0.5000]])
    """

    gate: str
    activation: str = "silu"
    of: str = "gate"
    optional: bool = dataclasses.field(default=False, kw_only=True)
    hardware_tanh: bool = dataclasses.field(default=False, kw_only=True)
    roles: ClassVar[Mapping[str, Role]] = {"gate": Role.VALUE}
    header: ClassVar[str] = "gate.cuh"
    elementwise: ClassVar[bool] = True
    cancels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, known in (("activation", tuple(ACTIVATIONS)), ("of", ("gate", "value"))):
            if getattr(self, field) not in known:
                cure = "; any other gate is a fusedops.functor of yours, such as f(x, up)"
                raise ValueError(
                    f"Gate: {field} must be one of {', '.join(map(repr, known))}, got "
                    f"{shortened(getattr(self, field))}{cure if field == 'activation' else ''}"
                )
        _check_of_tanh(self, self.activation)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        function = ACTIVATIONS[self.activation][0]
        gate = torch.as_tensor(chain.value(self.gate), dtype=x.dtype, device=x.device)
        return function(x) * gate if self.of == "value" else x * function(gate)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(self.of == "value" or self.gate in wanted, (self.gate,))

    def emit(self, writer: Writer) -> str:
        of_value = str(self.of == "value").lower()
        gate = writer.operand(self.gate)
        return f"Gate<{gate}, {_struct(self.activation, self.hardware_tanh)}, {of_value}>"
