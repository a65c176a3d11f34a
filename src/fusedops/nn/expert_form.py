# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the experts of a mixture compute and how their weights lie; both found of a module."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fusedops.functors import Bias, Functor, Gate, Scale, functor
from fusedops.functors.activations import ACTIVATIONS
from fusedops.nn.base import declared
from fusedops.nn.linear import check_activation
from fusedops.product import GroupedLinear
from fusedops.product.group_checks import check_groups
from fusedops.product.grouped_product import summed_product
from fusedops.product.routing import combine, route

#: The parameters of a module of experts, as transformers 5 names them.
WEIGHTS = ("gate_up_proj", "down_proj")
BIASES = ("gate_up_proj_bias", "down_proj_bias")


@functor
def times_sum(value: Tensor, up: Tensor, bias: Tensor) -> Tensor:
    """A gated value, of which the other half has a bias."""
    return value * (up + bias)


@functor
def clamped_glu(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    """The gated unit of gpt-oss."""
    gate = torch.clamp(gate, max=limit)
    return (torch.clamp(up, -limit, limit) + 1) * gate * torch.sigmoid(alpha * gate)


@functor
def clamped_glu_of_sum(
    gate: Tensor, up: Tensor, gate_bias: Tensor, up_bias: Tensor, alpha: float, limit: float
) -> Tensor:
    """The gated unit of gpt-oss, of products that lack their biases."""
    gate = torch.clamp(gate + gate_bias, max=limit)
    return (torch.clamp(up + up_bias, -limit, limit) + 1) * gate * torch.sigmoid(alpha * gate)


class ExpertsForm(NamedTuple):
    """What the experts compute, and how their weights lie.

    Attributes:
        activation: That of the gate, a name that `fusedops.Gate` knows; None for clamped halves.
        bias: Whether both products have a bias.
        transposed: Whether weights are (experts, in, out), not (experts, out, in).
        interleaved: Whether gate and up alternate.
        alpha: What the sigmoid's argument is multiplied by, of clamped halves.
        limit: Where halves are clamped.
    """

    activation: str | None = "silu"
    bias: bool = False
    transposed: bool = False
    interleaved: bool = False
    alpha: float = 1.702
    limit: float = 7.0

    def layers(self) -> tuple[GroupedLinear, GroupedLinear]:
        """Both declarations, the same ones wherever the forms are equal."""
        settings = ("Experts", *self)
        if settings not in declared:
            # Where the second product has no bias it is linear in what is scaled: nothing has to be
            # read and written for the router's weights, and that product is not kept.
            scale, biases = [Scale("router")], ["gate_bias", "up_bias"] * self.bias
            after = [] if self.bias else scale
            up = GroupedLinear([*self._hidden(), *after], biases, "up", self.interleaved)
            down = GroupedLinear([Bias("bias"), *scale], ["bias"]) if self.bias else None
            declared[settings] = up, down or GroupedLinear()
        layers: tuple[GroupedLinear, GroupedLinear] = declared[settings]
        return layers

    def _hidden(self) -> list[Functor]:
        if self.activation is None:
            numbers = self.alpha, self.limit
            if self.bias:
                return [clamped_glu_of_sum("up", "gate_bias", "up_bias", *numbers)]
            return [clamped_glu("up", *numbers)]
        if not self.bias:
            return [Gate("up", self.activation, of="value")]
        activation = check_activation("Experts", self.activation)
        assert activation is not None
        return [Bias("gate_bias"), activation, times_sum("up", "up_bias")]


class Parameters(NamedTuple):
    """The weights and biases of all experts, in the form that they have."""

    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def run_experts(
    form: ExpertsForm,
    given: Parameters,
    hidden_states: Tensor,
    expert: Tensor,
    weight: Tensor,
    unfused: bool = False,
) -> Tensor:
    """The weighted sum of each token's experts, in the dtype of the products.

    Args:
        form: What the experts compute.
        given: Their parameters.
        hidden_states: The tokens, of shape (tokens, in).
        expert: The chosen experts of each token, of shape (tokens, choices).
        weight: Their weights, of the same shape.
        unfused: Whether the chains of torch calls are run, not the kernels.
    """
    up, down = form.layers()
    check_parameters(form, given, hidden_states.shape[-1])
    experts = given.gate_up.shape[0]
    found, router, rows = route(expert, weight, hidden_states, experts, unfused)
    of_up: dict[str, Tensor] = {}
    of_down: dict[str, Tensor] = {}
    (of_down if form.bias else of_up)["router"] = router
    if given.gate_up_bias is not None and given.down_bias is not None:
        bias = given.gate_up_bias
        gate = bias[:, ::2] if form.interleaved else bias.chunk(2, 1)[0]
        of_up["gate_bias"] = gate
        of_up["up_bias"] = bias[:, 1::2] if form.interleaved else bias.chunk(2, 1)[1]
        of_down["bias"] = given.down_bias
    weights = [one.mT if form.transposed else one for one in given[:2]]
    calls = [one.unfused if unfused else one for one in (up, down)]
    eager = not (unfused or torch.compiler.is_compiling())
    hidden = None
    if eager:
        hidden = up.with_gradients.of_tokens(hidden_states, rows, weights[0], found, of_up)
    if hidden is None:
        hidden = calls[0](rows, weights[0], offsets=found.offsets, **of_up)
    if eager and not form.bias:
        down.check(hidden, weights[1])
        check_groups(down, hidden, weights[1], {"offsets": found.offsets})
        return summed_product(hidden, weights[1], found, hidden_states.shape[0])
    rows = calls[1](hidden, weights[1], offsets=found.offsets, **of_down)
    return combine(rows, found, hidden_states.shape[0], unfused)


def check_parameters(form: ExpertsForm, given: Parameters, features: int) -> None:
    """Raise ValueError for parameters that do not fit one another; Dynamo traces it.

    Args:
        form: The form that they should have.
        given: The parameters.
        features: The size of a token.
    """
    if given.gate_up.dim() != 3:
        layout = "(experts, in, 2 hidden)" if form.transposed else "(experts, 2 hidden, in)"
        raise _wrong(WEIGHTS[0], layout, given.gate_up)
    experts, columns = given.gate_up.shape[0], given.gate_up.shape[2 if form.transposed else 1]
    up, down = (columns, features), (features, columns // 2)
    if form.transposed:
        up, down = up[::-1], down[::-1]
    if columns % 2 or not experts or given.gate_up.shape[1:] != up:
        wanted = f"(experts, {', '.join(map(str, up))}), with gate and up for each hidden feature"
        raise _wrong(WEIGHTS[0], wanted, given.gate_up)
    for name, one, sizes in (
        (WEIGHTS[1], given.down, down),
        (BIASES[0], given.gate_up_bias, (columns,)),
        (BIASES[1], given.down_bias, (features,)),
    ):
        if one is None and not form.bias and name in BIASES:
            continue
        shape = (experts, *sizes)
        if one is None or one.shape != shape:
            raise _wrong(name, f"{shape} beside {WEIGHTS[0]} of {experts} experts", one)


def _wrong(name: str, wanted: str, got: Tensor | None) -> ValueError:
    said = "none" if got is None else str(tuple(got.shape))
    return ValueError(f"Experts: {name} must have shape {wanted}, got {said}")


def parameters_of(module: nn.Module) -> Parameters:
    """The parameters of a module that has a form (`form_of`)."""
    own: Any = module
    biases = getattr(own, BIASES[0], None), getattr(own, BIASES[1], None)
    return Parameters(own.gate_up_proj, own.down_proj, *biases)


def _gated(form: ExpertsForm, z: Tensor) -> Tensor:
    """What becomes of a product with its biases, by torch."""
    up, _ = form._replace(bias=False).layers()
    value, arguments = up.read_by_store(z, {"router": 1.0})
    result: Tensor = up.epilogue.unfused(value, **arguments)
    return result


def form_of(module: nn.Module) -> ExpertsForm | str:
    """The form of the experts in a module like those of transformers 5; or why it has none.

    Its gate is run, so this is not for code that torch compiles.
    """
    own: Any = module
    parts: list[Any] = [getattr(own, name, None) for name in WEIGHTS]
    if any(not isinstance(one, Tensor) or one.dim() != 3 for one in parts):
        return "it has no gate_up_proj and down_proj of three dimensions"
    if not getattr(own, "has_gate", True) or getattr(own, "has_post_expert_norm", False):
        return "its experts have no gate, or a norm"
    biases = [getattr(own, name, None) for name in BIASES]
    bias = any(one is not None for one in biases)
    if bias and any(one is None for one in biases):
        return "one product has a bias, the other has none"
    first, second = (one.shape for one in parts)
    transposed = bool(getattr(own, "is_transposed", False))
    width, hidden = (first[2], second[1]) if transposed else (first[1], second[2])
    if width != 2 * hidden:
        return (
            f"gate_up_proj and down_proj do not fit, of shapes {tuple(first)} and {tuple(second)}"
        )
    apply_gate = getattr(own, "_apply_gate", None)
    if apply_gate is None:
        return "it has no _apply_gate"
    form = ExpertsForm(None, bias, transposed, not getattr(own, "is_concatenated", True))
    numbers: dict[str, Any] = {
        ours: float(getattr(own, ours))
        for ours in ("alpha", "limit")
        if isinstance(getattr(own, ours, None), (int, float))
    }
    form = form._replace(**numbers)
    generator = torch.Generator().manual_seed(0)
    z = 8 * torch.randn(64, 6, generator=generator, dtype=torch.float64)
    try:
        with torch.no_grad():
            made = apply_gate(z.clone())
    except Exception as error:  # somebody else's code, which may raise anything
        return f"its gate raises {type(error).__name__}"
    for word in (None, *ACTIVATIONS):
        asked = form._replace(activation=word)
        if made.shape == (64, 3) and torch.allclose(made, _gated(asked, z), rtol=1e-9, atol=1e-12):
            return asked
    return "its gate is none that is known"
