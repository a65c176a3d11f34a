# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Record the calls of a program as lines of text, from which `fusedops build` builds their kernels.

If ``FUSEDOPS_RECORD`` names a file, every process appends a line for each call that needs a kernel
that its earlier calls did not need, on any architecture: calls that differ on a GPU may share one
kernel on a CPU. Each line is written at once, so any number of processes may share the file. This
module is the `run.observer.Observer` of every op.

A line is a JSON object. A tensor is written as its dtype and sizes; if it is not contiguous, its
strides follow after an ``@``, and if its pointer is not a multiple of 16, the remainder in bytes
follows after a ``+``: ``"float16:8,1024@2048,1+2"``. A tensor of which only dtype and shape are
known begins with ``~``. Reading evaluates no code, and a line holds no contents of tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fusedops.bind.dimensions import contiguous
from fusedops.declare.text import read
from fusedops.errors import UnsupportedError, counted
from fusedops.jit import env
from fusedops.jit.lock import guard

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.generate.target import Target
    from fusedops.generate.variant import Variant
    from fusedops.plan.wanted_gradients import WantedGradients

#: Compiled where it is used, so that no import waits for it.
_TENSOR = r"(~?)(\w+):([\d,]*)(?:@([-\d,]*))?(?:\+(\d+))?"
_ALIGNED = 16

_seen: set[tuple[object, ...]] = set()


class Signature(NamedTuple):
    """One forward or backward call as text: declaration, and tensors' dtypes and layouts."""

    op: str  # the text of the declaration (`fusedops.declare.text`)
    x: str  # the input as text; in a backward pass, the gradient of y
    #: The operands by name; in a backward pass, all its tensors and numbers by keyword. Tensors are
    #: texts.
    values: Mapping[str, Any]
    options: Mapping[str, Any] = {}  # the options of the call by name; dtypes and tensors are texts
    #: The names whose gradients a backward pass computes; empty for a call.
    wanted: tuple[str, ...] = ()
    #: The results besides y that have a gradient in a backward pass; empty for a call.
    joining: tuple[str, ...] = ()
    #: Of a call that follows a matrix product, which x is, the factors by name; as texts. With
    #: `wanted` it is the gradient of the call that follows one, that of y.
    factors: Mapping[str, str] = {}

    @classmethod
    def parse(cls, line: str) -> Signature:
        """Read the line of text that `str` made of a signature.

        Raises:
            ValueError: The line is not the text of a signature.
        """
        try:
            found = json.loads(line)
            made = cls(
                found["op"],
                found["x"],
                dict(found["values"]),
                dict(found.get("options", {})),
                tuple(found.get("wanted", ())),
                tuple(found.get("joining", ())),
                dict(found.get("factors", {})),
            )
            texts = (made.op, made.x, *made.wanted, *made.joining, *made.factors.values())
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"not all text: {texts}")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not the signature of a call: {line[:200]!r} ({error!r})") from error
        return made

    def __str__(self) -> str:
        content: dict[str, Any] = {"op": self.op, "x": self.x, "values": dict(self.values)}
        for name in ("options", "wanted", "joining", "factors"):
            if value := getattr(self, name):
                content[name] = value
        return json.dumps(content)

    @property
    def backward(self) -> bool:
        """Whether this is a backward pass that is not fused with a matrix product."""
        return bool(self.wanted) and not self.factors

    @property
    def of_loss(self) -> bool:
        """Whether it is a loss whose logits are in no memory: they are in one kernel's alone."""
        return bool(self.factors) and bool(read(self.op).reduces)

    @property
    def rows(self) -> tuple[str, str, str]:
        """A key that a call and its backward pass share: op, x's sizes, reduced dimensions."""
        _, _, shape = self.x.partition(":")
        return self.op, re.split("[@+]", shape)[0], str(self.options.get("dim"))

    def read(self) -> tuple[Tensor, dict[str, Any], dict[str, Any]]:
        """Parse x, the values and the options; tensors become meta tensors.

        Raises:
            ValueError: A text stands for no tensor and no dtype.
        """
        options = {name: read_value(value) for name, value in self.options.items()}
        if isinstance(out := self.options.get("out"), list):
            options["out"] = [read_value(one) for one in out]
        x = read_value(self.x)
        if not isinstance(x, Tensor):
            raise ValueError(f"x must be written as DTYPE:SIZES, got {self.x!r}")
        return x, {k: read_value(v) for k, v in self.values.items()}, options

    def read_factors(self) -> dict[str, Tensor]:
        """Parse the factors of the matrix product, as meta tensors.

        Raises:
            ValueError: A text stands for no tensor.
        """
        found = {name: read_value(text) for name, text in self.factors.items()}
        if found.keys() != {"x", "w"} or not all(isinstance(t, Tensor) for t in found.values()):
            raise ValueError(f"factors must be x and w, as DTYPE:SIZES, got {dict(self.factors)}")
        return found


def of_call(
    bound: Bound, factors: Mapping[str, Tensor] | None = None, wanted: Collection[str] = ()
) -> Signature:
    """Return the signature of a checked forward call, as `Observer.of_call` says."""
    values = {name: _text(value) for name, value in bound.operands.items()}
    options: dict[str, Any] = {}
    if bound.reduced != (bound.x.dim() - 1,):
        options["dim"] = list(bound.reduced)
    if bound.dtype != bound.x.dtype:
        options["dtype"] = _dtype(bound.dtype)
    if bound.out:
        options["out"] = [_text(bound.out[name]) for name in bound.op.outputs]
    if isinstance(bound.generator, Tensor):
        options["generator"] = _text(bound.generator)
    if bound.whole is not None:
        options["part_of"] = [list(one) for one in bound.whole]
    multiplied = {name: _text(value) for name, value in (factors or {}).items()}
    of_gradients = tuple(sorted(wanted))
    return Signature(bound.op.text, _text(bound.x), values, options, of_gradients, (), multiplied)


def of_gradient(
    gradient: WantedGradients, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Signature:
    """Return the signature of a backward call, which has the arguments of `Gradient.describe`."""
    values = {name: _text(value) for name, value in given.items()}
    kept = {
        name: _text(value)
        for name, value in options.items()
        if value is not None and (name != "generator" or isinstance(value, Tensor))
    }
    wanted, joining = sorted(gradient.wanted), sorted(gradient.joining)
    return Signature(gradient.op.text, _text(dy), values, kept, tuple(wanted), tuple(joining))


def _text(value: Any) -> Any:
    """A value as written in JSON: a tensor or its (dtype, shape) as text, a tuple as a list."""
    if isinstance(value, Tensor):
        sizes = ",".join(map(str, value.shape))
        text = f"{_dtype(value.dtype)}:{sizes}"
        if not value.is_contiguous():
            text += "@" + ",".join(map(str, value.stride()))
        behind = value.data_ptr() % _ALIGNED
        return f"{text}+{behind}" if behind else text
    if isinstance(value, tuple) and value and isinstance(value[0], torch.dtype):
        return f"~{_dtype(value[0])}:{','.join(map(str, value[1]))}"
    return list(value) if isinstance(value, tuple) else value


def read_value(text: Any) -> Any:
    """Parse a value; a tensor becomes a meta tensor.

    Raises:
        ValueError: There is no such value.
    """
    if isinstance(text, list):
        return tuple(text)
    if not isinstance(text, str):
        return text
    alone = getattr(torch, text, None)
    if isinstance(alone, torch.dtype):
        return alone
    found = re.fullmatch(_TENSOR, text)
    dtype = getattr(torch, found[2], None) if found is not None else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise ValueError(f"a tensor must be written as DTYPE:SIZES, got {text!r}")
    shape = _numbers(found[3])
    if found[1]:
        return dtype, torch.Size(shape)
    strides = contiguous(shape) if found[4] is None else _numbers(found[4])
    if len(strides) != len(shape):
        raise ValueError(
            f"{text!r} has {counted(len(shape), 'size')} and {counted(len(strides), 'stride')}"
        )
    behind = int(found[5] or 0) // dtype.itemsize
    end = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if size)
    if any(step < 0 for step in strides):  # which some releases of torch take for a meta tensor
        raise ValueError(f"there is no tensor {text!r}: a stride is negative")
    try:
        memory = torch.empty(max(end, 1) + behind, dtype=dtype, device="meta")
        return memory.as_strided(shape, strides, behind)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"there is no tensor {text!r}") from error


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def notify(
    call: Callable[[], object],
    variants: Callable[[Target], Iterable[Variant]],
    own: Target,
) -> None:
    """Append the text of a call to the recording, if there is one and the call needs new kernels.

    Neither `call` nor `variants` is called if nothing is recorded. A call that differs only in the
    number of rows adds no line, unless that number changes a kernel on some architecture; nor does
    a call that needs no kernel on any.

    `own` is the target that the call is about to run on.

    Raises:
        OSError: The file cannot be written to.
    """
    file = env.record_file()
    if file is None:
        return
    if _known(file, line := str(call())):
        return
    keys = [*_keys(variants, own)]
    if not keys or _known(file, *keys):
        return
    target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(target, f"{line}\n".encode())
    finally:
        os.close(target)


def _keys(
    variants: Callable[[Target], Iterable[Variant]], own: Target
) -> Iterator[tuple[object, ...]]:
    """The keys of the kernels that a call needs on this GPU and on every other architecture."""
    with guard:
        from fusedops.generate.target import ARCHS, Target

    for target in (own, *map(Target.named, ARCHS)):
        # Some hold no such row, or not in the storage that is forced here.
        with contextlib.suppress(UnsupportedError, ValueError):
            yield from [one.key for one in variants(target)]


def _known(*key: object) -> bool:
    """Whether this process has seen the key before; it is remembered."""
    known = key in _seen
    _seen.add(key)
    return known
