# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""User-defined functors, given as C++ expressions."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from fusedops.errors import UnsupportedError
from fusedops.functors.definition import GRADIENT, RESERVED, VALUE, Program, names
from fusedops.functors.protocols import Chain
from fusedops.functors.trace import Traced
from fusedops.functors.user import UserFunctor, make_class

__all__ = ["cpp_functor"]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class CppFunctor(UserFunctor):
    """Base of the functors that `cpp_functor` makes."""

    program: ClassVar[Program]

    def apply(self, x: Tensor, chain: Chain) -> Tensor:
        if type(self).function is None:
            raise UnsupportedError(
                f"{self!r} is given as C++ alone, so there is no unfused chain of it; "
                "cpp_functor(..., apply=...) takes the same as a Python function"
            )
        return super().apply(x, chain)

    def _takes_numbers(self) -> bool:
        return False

    def _names(self) -> list[str]:
        return [one for one in self.arguments if isinstance(one, str)]  # as the expressions do

    def _derive(self) -> Traced:
        return Traced(self.program, None)

    def _check_unchanged(self) -> None:
        """The function and the C++ are both as they were given."""


def cpp_functor(
    name: str,
    *,
    forward: str,
    derivative: str | None = None,
    operands: Sequence[str] = (),
    operand_derivatives: Mapping[str, str] | None = None,
    apply: Callable[..., Tensor] | None = None,
) -> type[UserFunctor]:
    """Make a functor of C++ expressions over one element.

    In the expressions ``v`` is the value, ``g`` the gradient of what the functor makes of it, and
    operands go by their names; all are of the type ``Compute``, float or double. The functions of
    include/fusedops/core/pointwise.cuh are at hand as ``pointwise::tanh(v)``, and ``Compute(0.5)``
    keeps a number from turning the expression into double.

    >>> import torch, fusedops as fo
    >>> cubed = fo.cpp_functor(
    ...     "cubed",
    ...     forward="a * v * v * v",
    ...     derivative="Compute(3) * a * v * v * g",
    ...     operands=["a"],
    ...     operand_derivatives={"a": "v * v * v * g"},
    ...     apply=lambda x, a: a * x**3,
    ... )
    >>> fo.Softmax(load=[cubed("alpha")])(torch.tensor([[0.0, 1.0]]), alpha=2.0)
    tensor([[0.1192, 0.8808]])

    Args:
        name: What it is called; to be pickled, it must be bound to this name in its module.
        forward: The value it makes.
        derivative: The gradient of ``v``. Without it the functor is forward-only.
        operands: What the expressions call the operands; a declaration names them for its calls.
        operand_derivatives: The gradient of each operand, with the derivative.
        apply: The same in torch, for `op.unfused`: of the value and the operands.
    """
    for one in (name, *operands):
        if not isinstance(one, str) or not one.isidentifier():
            raise ValueError(f"cpp_functor: a name must be an identifier, got {one!r}")
    for one in operands:
        if one in RESERVED or list(operands).count(one) > 1:
            raise ValueError(
                f"{name}: an operand cannot be called {one!r}: each has its own name, and "
                f"{', '.join(sorted(RESERVED))} have a meaning already"
            )
    of_operands = dict(operand_derivatives or {})
    if derivative is None and of_operands:
        raise ValueError(f"{name}: operand_derivatives= also needs derivative=, that of the value")
    if derivative is not None and set(of_operands) != set(operands):
        raise ValueError(
            f"{name}: operand_derivatives must have an expression for each of {list(operands)}, "
            f"got {list(of_operands)}"
        )
    if GRADIENT in names(forward):
        raise ValueError(f"{name}: forward has no {GRADIENT!r}, the gradient; got {forward!r}")
    gradients = () if derivative is None else (derivative, *(of_operands[one] for one in operands))
    parameters = inspect.Signature(
        [inspect.Parameter(one, inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in operands]
    )
    attributes = {
        "program": Program(tuple(operands), (), forward, gradients),
        "function": None if apply is None else staticmethod(apply),
        "differentiable": derivative is not None,
        "__doc__": f"``{forward}``, of the value ``{VALUE}``.",
    }
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return make_class(name, CppFunctor, parameters, module, attributes)
