# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of an exported function, and how they fill the kernel's argument.

The runtime patches words at each call (csrc/stage.cpp); here each patch becomes an expression.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fusedops import _runtime
from fusedops.bind.dimensions import contiguous
from fusedops.generate.views import STORAGE

Patch: TypeAlias = "tuple[int, int, int]"

#: Names that the generated functions use themselves, or C++ does.
_TAKEN = frozenset(
    re.findall(
        r"\w+",
        """
    and asm auto begin bool break case catch char class const continue cuda_stream
    default delete do double else end enum explicit export exported extern false float for
    fusedops goto if inline int int64_t long mutable namespace new not offset operator or private
    protected public register return rows seed short signed sizeof slices stage static status std
    struct switch template this throw true try typedef typename uint64_t union unsigned using
    virtual void volatile while words workspace xor
    """,
    )
)

_FLOATS = (_runtime.FLOAT32, _runtime.KEEP_SCALE32)


class Parameter(NamedTuple):
    """One parameter of a function."""

    kind: str  # its C++ type
    name: str
    about: str  # what it is, in words
    role: str  # "tensor", "number", "probability" or "draw"


class Parameters:
    """Collects the parameters of a function by the numbers that patches give them."""

    def __init__(self) -> None:
        self._taken = set(_TAKEN)
        self._inputs: dict[int, Parameter] = {}
        self._outputs: dict[int, Parameter] = {}
        self._scratch: dict[int, str] = {}

    def tensor(self, slot: int, name: str, like: Tensor) -> None:
        """An input."""
        about = _said(like.dtype, like.shape)
        if like.stride() != contiguous(like.shape):
            about += f", strides {_tuple(like.stride())}"
        kind = f"const {_element(like.dtype)}*"
        self._inputs[slot] = Parameter(kind, self._name(name), about, "tensor")

    def number(self, slot: int, name: str, *, integer: bool, probability: bool) -> None:
        """A number that is given at each call."""
        kind = "int64_t" if integer else "double"
        about = "0 < p <= 1: the share that is dropped" if probability else "a number"
        role = "probability" if probability else "number"
        self._inputs[slot] = Parameter(kind, self._name(name), about, role)

    def output(
        self,
        number: int,
        name: str,
        dtype: torch.dtype,
        shape: Sequence[int],
        note: str = "",
    ) -> None:
        """A dense output tensor; `note` is what a caller has to know of it."""
        kind, about = f"{_element(dtype)}*", _said(dtype, shape) + note
        self._outputs[number] = Parameter(kind, self._name(name), about, "tensor")

    def scratch(self, number: int, name: str) -> None:
        """An output that is a piece of the workspace."""
        self._scratch[number] = name

    def used(self, patches: Collection[Patch]) -> tuple[Parameter, ...]:
        """The parameters that patches refer to: inputs as they came, the draw, outputs."""
        drawn = any(kind == _runtime.SEED for _, kind, _ in patches)
        others = (_runtime.OUTPUT, _runtime.SEED, _runtime.OFFSET)
        read = {source for _, kind, source in patches if kind not in others}
        draw = [
            Parameter("uint64_t", "seed", "of the dropout mask", "draw"),
            Parameter("uint64_t", "offset", "of the dropout mask", "draw"),
        ]
        inputs = [parameter for slot, parameter in self._inputs.items() if slot in read]
        return (*inputs, *(draw if drawn else []), *self._outputs.values())

    def writes(self, patches: Collection[Patch]) -> tuple[tuple[int, str], ...]:
        """Which word gets which value."""
        return tuple((word, self._value(kind, source)) for word, kind, source in patches)

    def _value(self, kind: int, source: int) -> str:
        if kind == _runtime.SEED:
            return "seed"
        if kind == _runtime.OFFSET:
            return f"offset + {source}" if source else "offset"
        if kind == _runtime.OUTPUT:
            scratch = self._scratch.get(source)
            return self._outputs[source].name if scratch is None else scratch
        name = self._inputs[source].name
        if kind == _runtime.THRESHOLD:
            return f"fusedops::drop_below({name})"
        if kind in (_runtime.KEEP_SCALE32, _runtime.KEEP_SCALE64):
            name = f"fusedops::keep_scale({name})"
        return f"static_cast<float>({name})" if kind in _FLOATS else name

    def _name(self, name: str) -> str:
        """An identifier that C++ takes, and nothing else has."""
        name = re.sub(r"[^A-Za-z0-9_]", lambda found: f"u{ord(found[0]):04x}", name)
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _element(dtype: torch.dtype) -> str:
    storage = "bool" if dtype is torch.bool else STORAGE[dtype]
    own = ("half", "bfloat16", "float8_e4m3", "float8_e5m2")
    return f"fusedops::{storage}" if storage in own else storage


def _said(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {_tuple(shape)}"


def _tuple(numbers: Sequence[int]) -> str:
    return str(tuple(numbers))
