# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What does a module compute? Its forward is run on random data and held to a formula, in float64.

A probe runs on a twin: an object of the module's class and settings with small random parameters of
its own, on the CPU. Nothing of the module, of torch's random numbers or of its modes is touched.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["agree", "parameters_of_forward", "quiet", "random", "twin_of"]

#: Forwards are written with float32 within, whose chains for a row of up to 2^15 numbers differ by
#: some 2^-19 of the largest number. What is no rounding differs by more than this: an unbiased
#: variance of 2^15 numbers by 2^-16, a unit offset or another place of eps by about one.
_CLOSE = 2.0**-17


def twin_of(module: nn.Module, **parts: Tensor | nn.Module | None) -> nn.Module:
    """An object of the module's class with its settings, and these parameters and submodules."""
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
    """The names of what a call takes, or None if it takes anything by keyword or in a tuple."""
    found = []
    for parameter in inspect.signature(type(module).forward).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            return None
        found.append(parameter.name)
    return found[1:]


@contextlib.contextmanager
def quiet() -> Iterator[torch.Generator]:
    """Random numbers of our own, and none of the modes that a caller may be in."""
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

    Args:
        forward: Called with the inputs.
        formula: Called with the inputs, then with the parameters by name.
        inputs: Of shape ``[rows, columns]``.
        parameters: Those that the forward reads.
        generator: Of the gradient from upstream.
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
