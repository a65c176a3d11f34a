# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors with an activation: capped logits, and gated values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fusedops.errors import shortened
from fusedops.functors.base import Functor, Operand, Reads, Role
from fusedops.functors.fields import check_flag, check_name, shown

if TYPE_CHECKING:
    from fusedops.functors.protocols import Chain, Writer

__all__ = ["Gate", "Softcap"]


class _Activation(NamedTuple):
    """An activation in torch, and the C++ struct of the same meaning in functor/gate.cuh."""

    function: Callable[[Tensor], Tensor]
    struct: str


_ACTIVATIONS = {
    "silu": _Activation(functional.silu, "Silu"),
    "gelu": _Activation(functional.gelu, "Gelu"),
    "gelu_tanh": _Activation(functools.partial(functional.gelu, approximate="tanh"), "GeluTanh"),
    "sigmoid": _Activation(torch.sigmoid, "Sigmoid"),
}


@dataclasses.dataclass(frozen=True)
class Softcap(Functor):
    """Cap smoothly: ``cap * tanh(x / cap)``, as the logits of Gemma 2 and Grok are.

    An element of value -inf becomes -cap, so where a row is masked, let a mask of the LOAD do it,
    which acts after all other functors.

    Args:
        cap: The name of an operand: a number, as a rule, or a floating tensor of any dtype that
            broadcasts against x. It is finite and not 0. Both x and a tensor have gradients.
        optional: Whether a call may leave the cap out or give None for it; it then runs without the
            functor.

    Raises:
        TypeError, ValueError: cap cannot be the name of an operand, or optional is no bool.

    >>> import torch, fusedops as fo
    >>> op = fo.Softmax(load=[fo.Softcap("cap")])
    >>> op(torch.tensor([[0.0, 1000.0]]), cap=1.0)
    tensor([[0.2689, 0.7311]])
    """

    cap: str
    optional: bool = dataclasses.field(default=False, kw_only=True)
    header: ClassVar[str] = "softcap.cuh"
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "cap", self.cap)
        check_flag(self, "optional")

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.cap, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        cap = chain.value(self.cap)
        return cap * torch.tanh(x / cap)

    def emit(self, writer: Writer) -> str:
        return f"Softcap<{writer.operand(self.cap)}>"

    __repr__ = shown


@dataclasses.dataclass(frozen=True)
class Gate(Functor):
    """Gate: ``x * act(gate)``, or ``act(x) * gate`` with ``of="value"``.

    In a LOAD or a STORE of RMSNorm this is the gated norm of Mamba 2, before or after the norm.

    Args:
        gate: The name of an operand: a floating tensor of any dtype that broadcasts against x, or a
            number. Both x and a tensor have gradients.
        activation: "silu", "gelu" (by the error function), "gelu_tanh" (its approximation by tanh)
            or "sigmoid".
        of: What the activation is of: "gate" or "value".
        optional: Whether a call may leave the gate out or give None for it; it then runs without
            the functor, the activation included.

    Raises:
        TypeError, ValueError: gate cannot be the name of an operand, activation or of is another
            word, or optional is no bool.

    >>> import torch, fusedops as fo
    >>> op = fo.RMSNorm(store=[fo.Gate("g", activation="sigmoid")])
    >>> op(torch.tensor([[1.0, -1.0]]), g=0.0)
    tensor([[ 0.5000, -0.5000]])
    """

    gate: str
    activation: str = "silu"
    of: str = "gate"
    optional: bool = dataclasses.field(default=False, kw_only=True)
    header: ClassVar[str] = "gate.cuh"
    elementwise: ClassVar[bool] = True
    cancels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_name(self, "gate", self.gate)
        check_flag(self, "optional")
        for field, known in (("activation", tuple(_ACTIVATIONS)), ("of", ("gate", "value"))):
            if getattr(self, field) not in known:
                cure = "; any other activation is a functor of your own, by fusedops.functor"
                raise ValueError(
                    f"Gate: {field} must be one of {', '.join(map(repr, known))}, got "
                    f"{shortened(getattr(self, field))}{cure if field == 'activation' else ''}"
                )

    def operands(self) -> tuple[Operand, ...]:
        return (Operand(self.gate, Role.VALUE),)

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        function = _ACTIVATIONS[self.activation].function
        gate = torch.as_tensor(chain.value(self.gate), dtype=x.dtype, device=x.device)
        return function(x) * gate if self.of == "value" else x * function(gate)

    def reads(self, wanted: Collection[str]) -> Reads:
        return Reads(self.of == "value" or self.gate in wanted, (self.gate,))

    def emit(self, writer: Writer) -> str:
        of_value = str(self.of == "value").lower()
        gate = writer.operand(self.gate)
        return f"Gate<{gate}, {_ACTIVATIONS[self.activation].struct}, {of_value}>"

    __repr__ = shown
