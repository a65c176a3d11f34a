# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A Python function whose tanh is that of a GPU's instruction: its C++, and its steps in torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fusedops.functors.activations import ACTIVATIONS
from fusedops.functors.definition import Program

__all__ = ["InSteps", "with_hardware_tanh"]

_OF_TANH = re.compile(r"\bpointwise::(tanh|sigmoid)\(")


def with_hardware_tanh(program: Program) -> Program:
    """The same with tanh, and sigmoid by it, by the instruction (core/hardware_tanh.cuh)."""

    def by_it(text: str) -> str:
        return _OF_TANH.sub(r"pointwise::HardwareTanh::\1(", text)

    steps = tuple(one._replace(text=by_it(one.text)) for one in program.steps)
    gradients = tuple(map(by_it, program.gradients))
    return program._replace(steps=steps, value=by_it(program.value), gradients=gradients)


class InSteps(TorchFunctionMode):
    """A mode in which a SiLU, and a GELU by tanh, call torch.sigmoid, which may be inexact.

    What it does not know is not inexact, in C++ neither, since that is derived from the same calls.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is functional.silu and len(args) == 1 and not given.get("inplace"):
            return ACTIVATIONS["silu"][0](args[0])
        if func is functional.gelu and len(args) == 1 and given.get("approximate") == "tanh":
            return ACTIVATIONS["gelu_tanh"][0](args[0])
        return func(*args, **given)
