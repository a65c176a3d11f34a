# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Trace a Python function of torch operations: it and its derivative as programs for one element.

torch traces the function together with its ``torch.func.vjp``, so the derivatives are torch's own,
with its conventions at kinks and its care for large arguments. The samples have shapes and dtypes
but no values: nothing can depend on those. They are traced twice, in another shape and dtype, since
nothing may depend on these either. `op.unfused` runs what was traced, not the function: what this
reads from outside may change later.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from fusedops.errors import UnsupportedError
from fusedops.functors.definition import GRADIENT, VALUE, Program
from fusedops.functors.frozen import freeze
from fusedops.functors.lowering import lower

_SAMPLES = (((2, 3), torch.float64), ((5,), torch.float32))


class Traced(NamedTuple):
    """A function as it was traced.

    Attributes:
        program: What it and its derivative do to an element.
        forward: The same of tensors, by the dtype of the arithmetic. None where torch could not
            differentiate it as the function itself (a `torch.autograd.Function`, a part under
            `torch.no_grad()`), or where C++ was given.
    """

    program: Program
    forward: Mapping[torch.dtype, Callable[..., Tensor]] | None


def trace(title: str, function: Callable[..., Tensor], operands: int) -> Traced:
    """Trace the value of ``function(x, *operands)`` for one element, and its gradients.

    Raises:
        UnsupportedError: It uses an operation that is not pointwise, or depends on values, shapes
            or dtypes; the message names the operation.
        TypeError: It does not return one floating-point tensor of x's shape.
    """
    names = tuple(f"a{k}" for k in range(operands))

    def program(graph: fx.GraphModule, shape: tuple[int, ...], rounds: bool) -> Program:
        inputs = (GRADIENT, VALUE, *names)
        steps, results = lower(title, graph, inputs, shape, rounds=rounds)
        return Program(names, steps, results[0], results[1:])

    (shape, dtype), (other_shape, other_dtype) = _SAMPLES
    graph = _graph(title, function, operands, shape, dtype)
    result = program(graph, shape, rounds=True)
    other = _graph(title, function, operands, other_shape, other_dtype)
    if program(graph, shape, rounds=False) != program(other, other_shape, rounds=False):
        raise UnsupportedError(
            f"{title}: what it computes depends on x's shape or dtype (x.shape, x.numel(), "
            "torch.finfo(x.dtype), say), but a functor sees one element at a time, in the compute "
            "type; pass such a number as an operand"
        )
    frozen = _freeze(title, function, operands)
    try:
        again = program(_graph(title, frozen[dtype], operands, shape, dtype), shape, rounds=True)
    except UnsupportedError:  # of what the function keeps from autograd
        return Traced(result, None)
    return Traced(result, frozen if again == result else None)


def _freeze(
    title: str, function: Callable[..., Tensor], operands: int
) -> dict[torch.dtype, Callable[..., Tensor]]:
    """The value of the function as torch operations, by dtype."""
    found = {}
    for shape, dtype in _SAMPLES:
        traced = _traced(title, function, 1 + operands, shape, dtype)
        found[dtype] = freeze(traced, shape)
    return found


def _graph(
    title: str,
    function: Callable[..., Tensor],
    operands: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> fx.GraphModule:
    """The function's value and gradients as a graph, of the upstream gradient and the inputs."""

    def checked(x: Tensor, *values: Tensor) -> Tensor:
        result = function(x, *values)
        _check_result(title, result, shape)
        return result

    def both(upstream: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        value, pull = torch.func.vjp(checked, *inputs)[:2]
        with torch.no_grad():  # else its formulas are those that can be differentiated again
            return (value, *pull(upstream.to(value.dtype)))

    return _traced(title, both, 2 + operands, shape, dtype)


def _traced(
    title: str,
    function: Callable[..., Any],
    inputs: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> fx.GraphModule:
    """The operations of a function of so many samples, as a graph."""
    # Imported here: it takes a second, and only functors of the user's own need it.
    from torch.fx.experimental.proxy_tensor import make_fx

    samples = [torch.empty(shape, dtype=dtype, device="cpu") for _ in range(inputs)]
    # A table of one's own, though empty: by default torch makes x.detach() a plain view.
    maker = make_fx(
        function, decomposition_table={}, tracing_mode="fake", _allow_non_fake_inputs=True
    )
    with _plain_modes(), _explained(title):
        return maker(*samples)


def _check_result(title: str, result: Any, shape: Sequence[int]) -> None:
    if not isinstance(result, Tensor):
        raise TypeError(f"{title}: it must return a tensor, got {type(result).__name__}")
    if tuple(result.shape) != tuple(shape):
        raise TypeError(
            f"{title}: it must return a value for each element of x, a tensor of x's shape; "
            f"got shape {tuple(result.shape)} for x of shape {tuple(shape)}"
        )
    if not result.dtype.is_floating_point:
        raise TypeError(
            f"{title}: it must return floating point, got {result.dtype}; "
            "convert it with .to(x.dtype)"
        )


@contextlib.contextmanager
def _plain_modes() -> Any:
    """A context in which no mode of the surrounding program has an effect on the trace."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        warnings.catch_warnings(),
    ):
        # Of a number made from a tensor, which is refused in words of our own.
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True")
        yield


_ON_A_VALUE = (
    "Python control flow or a number depends on a value (if, while, float(), .item(), math.exp(), "
    ".any(), say), but one kernel serves all values; choose with torch.where, and compute with "
    "torch's functions of tensors, such as torch.exp"
)

#: What torch says where a tensor is to be a number of Python's.
_NUMBERS = (
    "can be converted to Python scalars",
    "cannot be converted to Scalar",
    "can be converted to an index",
    "tolist()",
    "numpy()",
)


def _line_of(error: Exception) -> str:
    """The line of the functor's own text at which torch failed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))
    lines = [one.line for one in frames if one.line and not one.filename.startswith(own)]
    return f"its line {lines[-1]!r}" if lines else "its gradient"


@contextlib.contextmanager
def _explained(title: str) -> Any:
    """A context that explains errors of torch's tracing; errors of the function itself pass."""
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    torchs_own = logging.getLogger("torch._subclasses.fake_tensor")  # prints a stack beside
    before, torchs_own.disabled = torchs_own.disabled, True
    try:
        yield
    except (GuardOnDataDependentSymNode, DataDependentOutputException) as error:
        raise UnsupportedError(f"{title}: {_ON_A_VALUE}") from error
    except UnsupportedError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = str(error)
        if "value of Tensor" in said:
            raise UnsupportedError(
                f"{title}: Python control flow (if, while, and, or) depends on a value, but one "
                "kernel serves all values; choose with torch.where"
            ) from error
        if any(text in said for text in _NUMBERS):
            raise UnsupportedError(f"{title}: {_ON_A_VALUE}") from error
        if not isinstance(error, (RuntimeError, IndexError)):
            raise
        first = said.strip().splitlines()[0] if said.strip() else repr(error)
        raise UnsupportedError(
            f"{title}: torch cannot trace {_line_of(error)}: {first.rstrip('.')}; a functor is "
            "made of pointwise operations on tensors of x's shape: compute what is none outside "
            "and pass the result as an operand, or give the functor as C++ with "
            "fusedops.cpp_functor"
        ) from error
    finally:
        torchs_own.disabled = before
