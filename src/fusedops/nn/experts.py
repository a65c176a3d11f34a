# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Experts: the feed-forward blocks of a mixture of experts, of which a router chooses some."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fusedops.errors import check_flag, shortened
from fusedops.functors import plain_number
from fusedops.functors.activations import ACTIVATIONS
from fusedops.functors.operands import IDS
from fusedops.nn.base import Declares, check_dtype, check_finite
from fusedops.nn.expert_form import (
    BIASES,
    WEIGHTS,
    ExpertsForm,
    form_of,
    parameters_of,
    run_experts,
)
from fusedops.product import GroupedLinear
from fusedops.product.routing import check_experts
from fusedops.torch_ops.tracing import check_transforms

#: The names of gate, up and down of a single expert, in checkpoints.
_NAMES_OF_SINGLE = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))


class Experts(Declares):
    r"""``sum_k weight_k * down_e(act(gate_e(x)) * up_e(x))`` for the experts e that a router chose.

    The feed-forward blocks of a mixture of experts, without the router: no token is dropped, an
    expert may get none, and nothing waits for the device. Tokens are sorted by expert and copied,
    there are two grouped products (`fusedops.GroupedLinear`) and one kernel after the first, for
    activation, gate and router's weight; then a token's rows are summed in the order of its
    choices. On a GPU one small kernel sorts and copies, and one sums. With
    biases, a kernel after the second product adds its bias, and has the weight. Gradients have a
    fixed order of sums, too.

    Parameters have the names and layouts of the modules of transformers 5: those of Mixtral and
    Qwen by default, those of gpt-oss with ``bias=True, activation="clamped", transposed=True,
    interleaved=True``. A ``state_dict`` with a weight for each expert is put together as it is
    loaded: ``0.w1.weight``, ``0.w3.weight``, ``0.w2.weight`` as in Mixtral's files, or
    ``0.gate_proj.weight``, ``0.up_proj.weight``, ``0.down_proj.weight`` as in Qwen's. `from_module`
    takes a module's parameters.

    Args:
        num_experts: E.
        features: H, the size of a token, in and out.
        hidden_features: I, the size between both products.
        bias: Whether each product has a bias for each expert.
        device: Of the parameters.
        dtype: Of the parameters: half, bfloat16, float or double.
        activation: That of the gate, as of `fusedops.Gate`: "silu" (SwiGLU), "gelu", "gelu_tanh",
            "sigmoid" and others. "clamped" is gpt-oss's:
            ``(clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g)``, g being the gate, at most
            limit.
        transposed: Whether weights are (E, in, out), not (E, out, in).
        interleaved: Whether gate and up alternate in the first product, not one behind the other.
        alpha: As above.
        limit: As above.

    Raises:
        TypeError: dtype is none of the four, or a setting is of another type.
        ValueError: A size is below 1, activation is another word, or a number is not finite.

    Attributes:
        gate_up_proj: Of shape (E, 2 I, H), or (E, H, 2 I).
        down_proj: Of shape (E, H, I), or (E, I, H).
        gate_up_proj_bias: Of shape (E, 2 I), or None.
        down_proj_bias: Of shape (E, H), or None.

    >>> import torch, fusedops as fo
    >>> experts = fo.nn.Experts(num_experts=4, features=8, hidden_features=16)
    >>> tokens = torch.randn(5, 8)
    >>> weight, index = torch.randn(5, 4).softmax(-1).topk(2)
    >>> experts(tokens, index, weight).shape
    torch.Size([5, 8])
    """

    _settings = frozenset({"form"})

    def __init__(
        self,
        num_experts: int,
        features: int,
        hidden_features: int,
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "silu",
        transposed: bool = False,
        interleaved: bool = False,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> None:
        super().__init__()
        num_experts, features, hidden_features = map(
            plain_number, (num_experts, features, hidden_features)
        )
        sizes = {"num_experts": num_experts, "features": features}
        for name, size in {**sizes, "hidden_features": hidden_features}.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"Experts: {name} must be an int of at least 1, got {size!r}")
        flags = {"bias": bias, "transposed": transposed, "interleaved": interleaved}
        for name, flag in flags.items():
            check_flag("Experts", name, flag)
        check_dtype("Experts", dtype)
        words = (*ACTIVATIONS, "clamped")
        if not isinstance(activation, str) or activation not in words:
            raise (ValueError if isinstance(activation, str) else TypeError)(
                f"Experts: activation must be one of {', '.join(map(repr, words))}, got "
                f"{shortened(activation)}; with a functor of your own declare two "
                "fusedops.GroupedLinear"
            )
        self.form = ExpertsForm(
            None if activation == "clamped" else activation,
            **flags,
            alpha=check_finite("Experts", "alpha", alpha),
            limit=check_finite("Experts", "limit", limit),
        )
        made = {"device": device, "dtype": dtype}
        up, down = (2 * hidden_features, features), (features, hidden_features)
        if transposed:
            up, down = (features, 2 * hidden_features), (hidden_features, features)
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, *up, **made))
        self.down_proj = nn.Parameter(torch.empty(num_experts, *down, **made))
        of_up = of_down = None
        if bias:
            of_up = nn.Parameter(torch.empty(num_experts, 2 * hidden_features, **made))
            of_down = nn.Parameter(torch.empty(num_experts, features, **made))
        self.register_parameter("gate_up_proj_bias", of_up)
        self.register_parameter("down_proj_bias", of_down)
        self._settle()
        self.reset_parameters()

    @classmethod
    def from_module(cls, module: nn.Module) -> Experts:
        """The experts of a module that has such parameters, which are shared with it.

        A module of transformers 5 says how its weights lie, and its gate is run on random numbers
        in float64, to be held to the formulas that there are.

        Raises:
            ValueError: The module has other parameters, or another gate.
        """
        found = form_of(module)
        if isinstance(found, str):
            raise ValueError(f"Experts: {type(module).__name__} does not fit: {found}")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.form = found
        for name in (*WEIGHTS, *BIASES):
            made.register_parameter(name, getattr(module, name, None))
        made._settle()
        return made

    def reset_parameters(self) -> None:
        """Draw weights and biases anew, as `torch.nn.Linear` draws those of each expert."""
        down = self.down_proj.mT if self.form.transposed else self.down_proj
        features, hidden = down.shape[1:]
        sizes = (features, hidden, features, hidden)
        with torch.no_grad():
            for one, size in zip(parameters_of(self), sizes, strict=True):
                if one is not None:
                    one.uniform_(-1 / math.sqrt(size), 1 / math.sqrt(size))

    if TYPE_CHECKING:

        def __call__(
            self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
        ) -> Tensor:
            """As `forward`."""

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Run the experts of each token, and sum what they give.

        Args:
            hidden_states: ``[..., features]``.
            top_k_index: The experts of each token, ``[..., k]``, or ``[tokens, k]``; the number of
                experts stands for none, and its weight must be 0.
            top_k_weights: Their weights, of the same shape.

        Returns:
            y, of the shape of hidden_states, in the dtype of the products.

        Raises:
            TypeError, ValueError: A tensor does not fit; the message says how to mend it.
            IndexError: On a CPU, a number is no expert's, unless the call is in compiled code.
                Elsewhere the first or the last expert gets the token.
        """
        return self._run(hidden_states, top_k_index, top_k_weights, unfused=False)

    def unfused(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Run `forward` with products and functors as torch calls: same results."""
        return self._run(hidden_states, top_k_index, top_k_weights, unfused=True)

    def op(self, *, down: bool = False) -> GroupedLinear:
        """The declaration of the first product, or of the second.

        >>> import fusedops as fo
        >>> fo.nn.Experts(4, 8, 16, bias=True).op(down=True)
        GroupedLinear(store=[Bias(bias='bias'), Scale(scale='router')], by_expert=('bias',))
        """
        return self._ops[down]

    def _declare(self) -> None:
        self._ops = self.form.layers()

    def _run(self, hidden_states: Tensor, index: Tensor, weights: Tensor, unfused: bool) -> Tensor:
        tensors = {"hidden_states": hidden_states, "top_k_index": index, "top_k_weights": weights}
        for name, one in tensors.items():
            if not isinstance(one, Tensor):
                raise TypeError(f"Experts: {name} must be a tensor, got {type(one).__name__}")
        if not unfused:
            check_transforms("Experts")
        given = parameters_of(self)
        features = hidden_states.shape[-1]
        wanted = given.gate_up.shape[-2:][0 if self.form.transposed else -1]
        if features != wanted and given.gate_up.dim() == 3:
            raise ValueError(
                f"Experts: hidden_states must have {wanted} features, got shape "
                f"{tuple(hidden_states.shape)}"
            )
        tokens = hidden_states.reshape(-1, features)
        choices = index.shape[-1] if index.dim() > 0 else 0
        if index.dtype not in IDS or index.numel() != tokens.shape[0] * choices or not choices:
            raise ValueError(
                f"Experts: top_k_index must hold integers, k for each of the {tokens.shape[0]} "
                f"tokens, got {index.dtype} of shape {tuple(index.shape)}; torch.topk gives "
                "weights first, then these"
            )
        if weights.shape != index.shape or not weights.is_floating_point():
            raise ValueError(
                "Experts: top_k_weights must have floating numbers and the shape of top_k_index, "
                f"{tuple(index.shape)}, got {weights.dtype} of shape {tuple(weights.shape)}"
            )
        check_experts(index, given.gate_up.shape[0])
        chosen = index.reshape(-1, choices)
        y = run_experts(self.form, given, tokens, chosen, weights, unfused)
        return y.view(hidden_states.shape)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load, after weights of single experts have been put together."""
        for gate, up, down in _NAMES_OF_SINGLE:
            experts = range(self.gate_up_proj.shape[0])
            names = [
                [f"{prefix}{expert}.{part}.weight" for expert in experts]
                for part in (gate, up, down)
            ]
            if any(one not in state_dict for each in names for one in each):
                continue
            gates, ups, downs = (
                torch.stack([state_dict.pop(one) for one in each]) for each in names
            )
            both = torch.stack([gates, ups], 2 if self.form.interleaved else 1).flatten(1, 2)
            for name, one in zip(WEIGHTS, (both, downs), strict=True):
                state_dict[prefix + name] = one.mT if self.form.transposed else one
        super()._load_from_state_dict(state_dict, prefix, *others)

    def extra_repr(self) -> str:
        """The settings for the module's repr."""
        down = self.down_proj.mT if self.form.transposed else self.down_proj
        experts, features, hidden = down.shape
        word = self.form.activation or "clamped"
        said = f"{experts}, features={features}, hidden_features={hidden}, activation={word!r}"
        for name in ("bias", "transposed", "interleaved"):
            said += f", {name}=True" * getattr(self.form, name)
        return said
