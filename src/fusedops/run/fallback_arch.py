# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run a call with the variant for its device's architecture, else with one for an older one.

A cache that was filled before this GPU existed, or a compiler that does not know it, can still be
used: machine code of the same generation runs as it is, and PTX of earlier ones is translated by
the driver. A warning says so once, since an older variant may be slower.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from fusedops.declare.text import modules
from fusedops.errors import (
    CompilerNotFound,
    MissingVariantError,
    UnknownArchError,
    UnsupportedError,
)
from fusedops.generate.target import ARCHS, Target

if TYPE_CHECKING:
    from fusedops.run.observer import CallText

_T = TypeVar("_T")
_LACKING = (MissingVariantError, CompilerNotFound, UnknownArchError)


def serve(device: torch.device, make: Callable[[Target], _T], call: Callable[[], CallText]) -> _T:
    """Return `make(target)` for the device's target, or for the newest older one where it succeeds.

    `make` raises if its variant cannot be had; `call` gives the text of the call, which errors
    quote.

    Raises:
        MissingVariantError, CompilerNotFound, UnknownArchError: No target has a variant; the
            message says how to fill the cache.
        UnsupportedError: The device is too old for any target.
    """
    try:
        own = Target.of(device)
    except UnsupportedError as error:
        raise UnsupportedError(f"{call().op.partition('(')[0]}: {error}") from None
    try:
        return make(own)
    except _LACKING as error:
        if own.gpu is not None and own.gpu.name:
            # What was built ahead has the package's launch configuration, not one tuned here.
            with contextlib.suppress(*_LACKING):
                return make(own._replace(gpu=own.gpu._replace(name="")))
        for target in own.older():
            try:
                made = make(target)
            except _LACKING:
                continue
            _say_once(own.arch, target.arch, target.translated, str(error))
            return made
        if own.arch not in ARCHS:
            raise
        raise type(error)(f"{error}; {_cure(own.arch, call())}") from None


def _cure(arch: str, call: CallText) -> str:
    """The command that builds a call's variant into a cache, or why there is no such command."""
    needed = modules(call.op)
    if needed is None:
        return (
            "no `fusedops build` makes it, for it has a functor that no module has at its top "
            "level: define the functor in a module that can be imported"
        )
    imports = "".join(f" --import {module}" for module in needed)
    command = f"fusedops build --arch {arch}{imports} --call {shlex.quote(str(call))}"
    return f"or build it where there is a compiler:\n  {command}"


@functools.cache
def _say_once(own: str, older: str, translated: bool, why: str) -> None:
    how = "translated by the driver from PTX" if translated else "as machine code"
    warnings.warn(
        f"on {own} runs what was built for {older}, {how}; it is right, and may be slower. {why}",
        RuntimeWarning,
        stacklevel=2,
    )
