# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Linear and MLP: linear layers with the activation, dropout and residual that follow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops import product
from fusedops.errors import UnsupportedError, check_flag, shortened
from fusedops.functors import Bias, Dropout, Functor, Residual
from fusedops.functors.activations import activation_named
from fusedops.functors.suggestions import made_into_functor
from fusedops.nn.base import Declares, acts, check_dtype, check_probability, shared
from fusedops.product.factors import factor_dtype

if TYPE_CHECKING:

    class _Activation:
        """The type of a module's activation, which may be set by its name and is then a functor."""

        def __get__(self, module: nn.Module, kind: type | None = None) -> Functor | None: ...
        def __set__(self, module: nn.Module, activation: Functor | str | None) -> None: ...


def check_activation(module: str, activation: Functor | str | None) -> Functor | None:
    """A functor without operands, or None; raises TypeError or ValueError for anything else."""
    if isinstance(activation, str):
        activation = activation_named(activation) or activation
    if isinstance(activation, type) and issubclass(activation, Functor):
        raise TypeError(
            f"{module}: activation must be a functor or None, got the class "
            f"{activation.__name__}; call it: write {activation.__name__}()"
        )
    if activation is not None and not isinstance(activation, Functor):
        raise TypeError(
            f"{module}: activation must be a functor, its name or None, got "
            f"{shortened(activation)}; "
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
        activation: "gelu", "gelu_tanh", "silu", "relu", "squared_relu", "sigmoid" or "tanh"; or a
            functor without operands, of your own say (`fusedops.functor`); None for none.
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

    if TYPE_CHECKING:
        activation: _Activation

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Functor | str | None = None,
        p: float = 0.0,
    ) -> None:
        check_flag("Linear", "bias", bias)
        check_dtype("Linear", dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.p = check_probability("Linear", p)
        self._settle()

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

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run `forward` as a chain of torch calls: same results, same dropout mask."""
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
        activation = self.__dict__["activation"] = check_activation("Linear", self.activation)
        for residual in (False, True):
            store = tuple(tail(bias, activation, p, "residual" if residual else None))
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
        """The settings for the module's repr: torch's, then the epilogue's."""
        said = super().extra_repr()
        said += "" if self.activation is None else f", activation={self.activation!r}"
        return said + (f", p={self.p}" if self.p else "")


_BIASES = ("bias1", "bias2")


def _check_layer(name: str, layer: nn.Module) -> None:
    """Raise UnsupportedError for a layer that does more than hold parameters."""
    own = type(layer).forward is not nn.Linear.forward or "forward" in layer.__dict__
    forward_hooks = layer._forward_hooks or layer._forward_pre_hooks
    if own or forward_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        what = f"the forward of this {type(layer).__name__}" if own else "hooks of it"
        raise UnsupportedError(
            f"MLP: {name} holds parameters and is not called, so {what} would not run; use two "
            "fusedops.nn.Linear in place of the MLP, which are called"
        )


class MLP(Declares):
    r"""``dropout(linear2(dropout(activation(linear1(x))))) + residual``: a feed-forward block.

    `linear1` and `linear2` are layers of torch, named as those of
    `torch.nn.TransformerEncoderLayer`, from which a ``state_dict`` can be loaded. They hold the
    parameters, which may be parametrized (`torch.nn.utils.parametrize`), and are not called: a
    layer with a forward or with hooks of its own is refused. One kernel follows each product, or
    multiplies as well, and one of the two tensors of hidden_features columns is not kept for the
    backward pass (`fusedops.MLP`).

    Args:
        in_features: The size of x's last dimension.
        hidden_features: The size between the two layers.
        out_features: The size of y's last dimension; None for in_features.
        bias: False leaves both biases out.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.
        activation: "gelu", "gelu_tanh", "silu", "relu", "squared_relu", "sigmoid" or "tanh"; or a
            functor without operands, of your own say (`fusedops.functor`).
        p: The probability with which dropout zeroes elements of y in training.
        p_hidden: That with which it zeroes elements of the hidden tensor.

    Raises:
        TypeError: If dtype is none of the four, or activation no functor.
        ValueError: If p or p_hidden is no probability, or activation takes operands.

    Attributes:
        linear1, linear2: The layers, of `torch.nn.Linear`.

    >>> import torch, fusedops as fo
    >>> block = fo.nn.MLP(8, 32, activation="gelu", p=0.1)
    >>> x = torch.randn(4, 8)
    >>> block(x, x).shape
    torch.Size([4, 8])
    """

    _settings = frozenset({"activation", "p", "p_hidden"})

    if TYPE_CHECKING:
        activation: _Activation

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Functor | str,
        p: float = 0.0,
        p_hidden: float = 0.0,
    ) -> None:
        check_flag("MLP", "bias", bias)
        check_dtype("MLP", dtype)
        super().__init__()
        outer = in_features if out_features is None else out_features
        self.linear1 = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.linear2 = nn.Linear(hidden_features, outer, bias, device, dtype)
        self.activation = activation
        self.p = check_probability("MLP", p)
        self.p_hidden = check_probability("MLP", p_hidden)
        self._settle()

    def reset_parameters(self) -> None:
        """Draw weights and biases anew, as torch's layers draw them."""
        self.linear1.reset_parameters()
        self.linear2.reset_parameters()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run the block.

        Args:
            x: ``[..., in_features]``.
            residual: Added in the end; broadcasts against y. None for none.

        Returns:
            y, ``[..., out_features]``, of the dtype of the products' sum with the residual.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
            UnsupportedError: A layer has a forward or hooks of its own.
        """
        op = self.op(residual=residual is not None)
        weights = self.linear1.weight, self.linear2.weight
        y: Tensor = op(x, *weights, **self._arguments(x, residual))
        return y

    if TYPE_CHECKING:
        __call__ = forward

    def unfused(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Run `forward` as a chain of torch calls: same results, same dropout mask."""
        op = self.op(residual=residual is not None)
        weights = self.linear1.weight, self.linear2.weight
        y: Tensor = op.unfused(x, *weights, **self._arguments(x, residual))
        return y

    def op(self, *, residual: bool = False) -> product.MLP:
        """The declaration that a call runs, with a residual or without.

        Raises:
            UnsupportedError: A layer has a forward or hooks of its own.
        """
        for name, layer in (("linear1", self.linear1), ("linear2", self.linear2)):
            _check_layer(name, layer)
        biased = self.linear1.bias is not None, self.linear2.bias is not None
        if biased != self._biased:  # the layers have been changed since
            self._declare()
        return self._ops[residual]

    def _declare(self) -> None:
        self._biased = self.linear1.bias is not None, self.linear2.bias is not None
        names = [name if there else None for name, there in zip(_BIASES, self._biased, strict=True)]
        p_hidden, p = "p_hidden" if acts(self.p_hidden) else None, "p" if acts(self.p) else None
        activation = self.__dict__["activation"] = check_activation("MLP", self.activation)
        hidden = tuple(tail(names[0], activation, p_hidden, None))
        self._ops: dict[bool, product.MLP] = {}
        for residual in (False, True):
            store = tuple(tail(names[1], None, p, "residual" if residual else None))
            settings = ("MLP", hidden, store)
            self._ops[residual] = shared.get(settings) or product.MLP(hidden, store)
            shared[settings] = self._ops[residual]

    def _arguments(self, x: Tensor, residual: Tensor | None) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if self.linear1.bias is not None:
            arguments["bias1"] = self.linear1.bias
        if self.linear2.bias is not None:
            arguments["bias2"] = self.linear2.bias
        if acts(self.p):
            arguments.update(p=self.p, training=self.training)
        if acts(self.p_hidden):
            arguments.update(p_hidden=self.p_hidden, training=self.training)
        if residual is not None:
            arguments.update(residual=residual, **dtype_of_sum(x, residual))
        return arguments

    def extra_repr(self) -> str:
        """The epilogue's settings for the module's repr."""
        return f"activation={self.activation!r}, p={self.p}, p_hidden={self.p_hidden}"
