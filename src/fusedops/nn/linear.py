# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear: a linear layer with the activation, dropout and residual connection that follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops import product
from fusedops.errors import shortened
from fusedops.functors import Bias, Dropout, Functor, Residual
from fusedops.functors.from_torch import made_into_functor
from fusedops.nn.declares import Declares, acts, check_dtype, check_flag, check_probability, shared
from fusedops.product.factors import factor_dtype

__all__ = ["Linear", "check_activation", "dtype_of_sum", "tail"]


def check_activation(module: str, activation: Functor | None) -> Functor | None:
    """A functor without operands, or None; raises TypeError or ValueError for anything else."""
    if isinstance(activation, type) and issubclass(activation, Functor):
        raise TypeError(
            f"{module}: activation must be a functor or None, got the class "
            f"{activation.__name__}; call it: write {activation.__name__}()"
        )
    if activation is not None and not isinstance(activation, Functor):
        raise TypeError(
            f"{module}: activation must be a functor or None, got {shortened(activation)}; "
            f"{made_into_functor(activation)}"
        )
    if activation is not None and activation.operands():
        names = [operand.name for operand in activation.operands()]
        raise ValueError(
            f"{module}: activation must take no operands, got {activation!r}, which takes {names}; "
            "declare a fusedops.Linear with it"
        )
    return activation


def tail(
    bias: str | None, activation: Functor | None, p: str | None, residual: str | None
) -> list[Functor]:
    """The functors after a product, by the names of the operands that there are."""
    chain: list[Functor | None] = [
        None if bias is None else Bias(bias),
        activation,
        None if p is None else Dropout(p),
        None if residual is None else Residual(residual),
    ]
    return [functor for functor in chain if functor is not None]


def dtype_of_sum(x: Tensor, residual: Tensor) -> dict[str, torch.dtype]:
    """The option ``dtype`` of a call whose residual has another dtype than its product, as torch's.

    A stream in float32 so stays what it is under autocast.
    """
    if not isinstance(x, Tensor) or not isinstance(residual, Tensor):
        return {}  # which the op refuses
    dtype = factor_dtype(x)
    if residual.dtype is dtype:
        return {}
    return {"dtype": torch.promote_types(dtype, residual.dtype)}


class Linear(Declares, nn.Linear):
    r"""``dropout(activation(x @ weight.T + bias)) + residual``: `torch.nn.Linear` and its epilogue.

    Arguments, parameters, ``state_dict`` and initial values are torch's, and the module is an
    instance of torch's class. The product is torch's, what follows it is one kernel, and without
    activation, dropout and residual there is none. Under torch.autocast the product is computed as
    torch's layer would be.

    Args:
        in_features: K, the size of x's last dimension.
        out_features: N, that of y.
        bias: False leaves the bias out.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.
        activation: A functor without operands, of your own as a rule (`fusedops.functor`); None for
            none.
        p: The probability with which dropout zeroes elements in training.

    Raises:
        TypeError: If dtype is none of the four, or activation no functor.
        ValueError: If p is no probability, or activation takes operands.

    Attributes:
        weight, bias: Parameters of shapes (N, K) and (N,); bias may be None.

    >>> import torch, fusedops as fo
    >>> layer = fo.nn.Linear(2, 1, bias=False)
    >>> layer.load_state_dict({"weight": torch.tensor([[1.0, 2.0]])})
    <All keys matched successfully>
    >>> layer(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.5]])).detach()
    tensor([[11.5000]])
    """

    _settings = frozenset({"bias", "activation", "p"})

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Functor | None = None,
        p: float = 0.0,
    ) -> None:
        check_flag("Linear", "bias", bias)
        check_dtype("Linear", dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = check_activation("Linear", activation)
        self.p = check_probability("Linear", p)
        self._settle()

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
            """As `forward`."""

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Multiply, and do what follows.

        Args:
            input: x, ``[..., in_features]``.
            residual: Added in the end; broadcasts against y. None for none.

        Returns:
            y, ``[..., out_features]``, of the dtype of the product's sum with the residual.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
        """
        op = self.op(residual=residual is not None)
        y: Tensor = op(input, self.weight, **self._arguments(input, residual))
        return y

    def unfused(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The same as a chain of torch calls: same arguments, same results, same dropout mask."""
        op = self.op(residual=residual is not None)
        y: Tensor = op.unfused(input, self.weight, **self._arguments(input, residual))
        return y

    def op(self, *, residual: bool = False) -> product.Linear:
        """The declaration that a call runs, with a residual or without.

        >>> import fusedops as fo
        >>> fo.nn.Linear(8, 8).op()
        Linear(store=[Bias(bias='bias')])
        """
        return self._ops[residual]

    def _declare(self) -> None:
        bias = None if self.bias is None else "bias"
        p = "p" if acts(self.p) else None
        self._ops: dict[bool, product.Linear] = {}
        for residual in (False, True):
            store = tuple(tail(bias, self.activation, p, "residual" if residual else None))
            settings = ("Linear", store)
            self._ops[residual] = shared.get(settings) or product.Linear(store)
            shared[settings] = self._ops[residual]

    def _arguments(self, x: Tensor, residual: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if self.bias is not None:
            arguments["bias"] = self.bias
        if acts(self.p):
            arguments.update(p=self.p, training=self.training)
        if residual is not None:
            arguments.update(residual=residual, **dtype_of_sum(x, residual))
        return arguments

    def extra_repr(self) -> str:
        """The settings: torch's, then those of what follows."""
        said = super().extra_repr()
        said += "" if self.activation is None else f", activation={self.activation!r}"
        return said + (f", p={self.p}" if self.p else "")
