# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Check the numbers that a call is given: integers of any type, probabilities, seeds, offsets."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fusedops.bind.generator import OFFSETS
from fusedops.declare.declaration import Declaration
from fusedops.errors import shortened
from fusedops.functors import Role


def read_int(value: Any) -> int | None:
    """The value as a plain int, from any integer type (numpy's, say); None if it is no integer."""
    if type(value) is int or isinstance(value, torch.SymInt):  # at once, for Dynamo as well
        return value  # type: ignore[return-value]
    # A tensor on a GPU would have to be waited for; of a float, Dynamo of torch 2.11 does not see
    # that index() raises.
    if isinstance(value, (bool, float, Tensor)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def read_ints(name: str, option: str, value: Any) -> tuple[int, ...]:
    """The value of an option that is one int or several, as a tuple of plain ints.

    Integers of any type are taken, numpy's for example.

    Raises:
        TypeError: The value is neither an int nor a sequence of ints.
    """
    if type(value) is int:  # at once; nor could Dynamo follow what is tried below
        return (value,)
    if type(value) is tuple and {*map(type, value)} == {int}:
        return value
    try:
        items = tuple(value)
    except (TypeError, RuntimeError):  # torch's, of tensors that cannot be iterated
        items = (value,)
    try:
        if not any(isinstance(item, bool) for item in items):  # True would pass for 1
            return tuple(operator.index(item) for item in items)
    except TypeError:
        pass
    raise TypeError(
        f"{name}: {option} must be an int or a sequence of ints, got {shortened(value)}"
    )


def check_probability(name: str, what: str, value: Any) -> float:
    """The value as a float in [0, 1]; raises TypeError or ValueError if it is no probability."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: {what} must be {Role.PROBABILITY.value}, got {shortened(value)}")
    try:
        chance = float(value)
    except OverflowError:
        chance = math.inf
    if not 0.0 <= chance <= 1.0:  # false for NaN, too
        raise ValueError(f"{name}: {what} must be a probability in [0, 1], got {shortened(value)}")
    return chance


def check_pair(name: str, draw: tuple[Any, ...]) -> tuple[int, int]:
    """The pair (seed, offset) as plain ints, from any integer type (numpy's, say).

    Raises:
        TypeError: The pair does not consist of two ints.
        ValueError: The seed does not fit 64 bits. The offset's range is `check_offset`'s to check.
    """
    if len(draw) == 2:
        seed, offset = (read_int(one) for one in draw)
        if seed is not None and offset is not None:
            if -(1 << 63) <= seed < 1 << 64:
                return seed, offset
            raise ValueError(
                f"{name}: seed must fit 64 bits, -2**63 <= seed < 2**64 as for torch.manual_seed, "
                f"got {shortened(seed)}; take it modulo 2**64"
            )
    raise TypeError(f"{name}: generator must be (seed, offset), two ints, got {shortened(draw)}")


def check_offset(name: str, offset: int, slots: int) -> None:
    """Raise ValueError unless 0 <= offset and offset + slots <= 2^48, for `slots` dropouts."""
    if not 0 <= offset <= OFFSETS - slots:
        raise ValueError(
            f"{name}: offset must be at least 0 and offset + {slots}, for the dropouts of the "
            f"declaration, at most 2**48, got {shortened(offset)}; pass what get_offset() of a "
            "CUDA generator gives, or count from 0"
        )


def offset_of(generator: Any) -> int | None:
    """The Philox offset given with ``generator=``; None if unknown on the host.

    Reading it from a GPU would wait for the device.
    """
    if isinstance(generator, tuple):
        return generator[1]  # type: ignore[no-any-return]
    readable = type(generator) is Tensor and generator.device.type == "cpu"
    return int(generator[1]) if readable and not torch.compiler.is_compiling() else None


def check_draw(name: str, draw: Tensor, x: Tensor) -> None:
    """Raise ValueError unless `draw` is a contiguous int64 tensor of shape (2,) on x's device."""
    plain = draw.layout is torch.strided and not draw.is_nested
    fits = plain and draw.dtype is torch.int64 and draw.shape == (2,) and draw.device == x.device
    if fits and (draw.is_meta or draw.stride() == (1,)):
        return
    shape = f" of shape {tuple(draw.shape)}" if plain else f", {type(draw).__name__}"
    raise ValueError(
        f"{name}: a tensor given as generator must hold seed and offset, two int64 on x's device "
        f"{x.device}, next to each other, got {draw.dtype}{shape} on {draw.device}; make "
        f"one with torch.tensor([seed, offset], device={str(x.device)!r})"
    )


def read_generator(
    name: str, generator: Any, x: Tensor
) -> torch.Generator | tuple[int, int] | Tensor | None:
    """The option of this name, with a pair (seed, offset) as plain ints.

    Raises:
        TypeError, ValueError: It is no generator, nor what one would have drawn.
    """
    if isinstance(generator, tuple):
        return check_pair(name, generator)
    if isinstance(generator, Tensor):
        check_draw(name, generator, x)
    elif generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"{name}: generator must be a torch.Generator on {x.device}, got "
            f"{type(generator).__name__}; make one with torch.Generator({str(x.device)!r}), or "
            "give the pair of ints (seed, offset)"
        )
    return generator  # type: ignore[no-any-return]


def read_number(name: str, key: str, role: Role, value: Any) -> float:
    """The value of an operand that is no tensor, as a plain number.

    Of roles only a value, a count and a probability are numbers.

    Raises:
        TypeError: It is no number, or none of this role.
        ValueError: It does not fit 64 bits, or is no probability.
    """
    if type(value) is float:  # at once: what follows is slow to ask
        if role is Role.VALUE or role is Role.ROW:
            return value
        if role is Role.PROBABILITY and 0.0 <= value <= 1.0:
            return value
    if (
        role in (Role.FLAGS, Role.IDS, Role.ROW_IDS, Role.KEY_IDS)
        or isinstance(value, bool)
        or not isinstance(value, numbers.Real)
    ):
        raise TypeError(
            f"{name}: operand {key!r} must be {role.value}, got {type(value).__name__}"
            f"{_cure(key, role, value)}"
        )
    if role in (Role.COUNT, Role.INTEGER):
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{name}: operand {key!r} must be {role.value}, got {shortened(value)}")
        count = int(value)
        if not -(2**63) <= count < 2**63:
            raise ValueError(
                f"{name}: operand {key!r} must fit 64 bits as an int, got {shortened(count)}"
            )
        return count
    if role is Role.PROBABILITY:
        return check_probability(name, f"operand {key!r}", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name}: operand {key!r} must fit a double, got {shortened(value)}"
        ) from None


def drops(op: Declaration, arguments: Mapping[str, Any]) -> bool:
    """Whether a call with these arguments draws random numbers."""
    if arguments.get("training", True):
        for p in op.probabilities:
            value = arguments.get(p, 0)
            if (value if isinstance(value, (float, int)) else check_number(op, p, value)) > 0:
                return True
    return False


def check_number(op: Declaration, key: str, value: Any) -> float:
    """An operand that is no tensor as a plain number; raises TypeError or ValueError."""
    return read_number(op.name, key, op.operands[op.slots[key] - 1].role, value)


def _cure(key: str, role: Role, value: Any) -> str:
    """A suggestion for an invalid number, if a valid one is near."""
    floats = role in (Role.VALUE, Role.ROW, Role.PROBABILITY)
    counts = role in (Role.COUNT, Role.INTEGER)
    if isinstance(value, (str, bytes)):
        return f"; use {'float' if floats else 'int'}({key})" if floats or counts else _TEXT
    if role is Role.PROBABILITY and isinstance(value, (list, tuple)):  # which is no tensor
        return f"; use {key}[0], one number"
    if hasattr(value, "__len__"):
        return "" if role is Role.PROBABILITY else f"; make a tensor with torch.as_tensor({key})"
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        return f"; take what is real of it: {key}.real or abs({key})"
    if isinstance(value, bool) and (floats or counts):
        return f"; use {'float' if floats else 'int'}({key})"
    return f"; make a tensor with torch.tensor({key})" if isinstance(value, numbers.Real) else ""


_TEXT = "; text is no tensor"
