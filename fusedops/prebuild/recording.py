# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Write down which calls a program makes: what `fusedops build` later builds for.

With ``FUSEDOPS_RECORD`` set to a file, every process adds a line for each call that needs a kernel
which those before did not, on any architecture: what differs on a GPU may be one kernel of a CPU.
Lines are added whole, so that any number of processes may share the file.

This module is the `run.observer.Observer` that every op has. Signatures are seldom asked for, so
`signature` is imported only then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fusedops.errors import UnsupportedError
from fusedops.generate.target import ARCHS, Target
from fusedops.jit import env
from fusedops.jit.lock import guard

if TYPE_CHECKING:
    from fusedops.bind.bind import Bound
    from fusedops.generate.variant import Variant
    from fusedops.prebuild.signature import Signature
    from fusedops.run.wanted_gradients import WantedGradients

__all__ = ["notify", "of_call", "of_gradient"]

_seen: set[tuple[object, ...]] = set()


def notify(
    call: Callable[[], object],
    variants: Callable[[Target], Iterable[Variant]],
    own: Target,
) -> None:
    """Add a line for a call that runs `variants` on a target, if a recording is wanted: its text.

    Nothing is asked for where none is wanted. A line that differs in the number of rows alone says
    nothing new, unless that number makes a difference somewhere.

    Raises:
        OSError: The file cannot be written to.
    """
    file = env.record_file()
    if file is None:
        return
    if _known(file, *_keys(variants, own)) or _known(file, line := str(call())):
        return
    target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(target, f"{line}\n".encode())
    finally:
        os.close(target)


def of_call(bound: Bound) -> Signature:
    """The signature of a checked call."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_call(bound)


def of_gradient(
    gradient: WantedGradients, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Signature:
    """The signature of a backward pass."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_gradient(gradient, dy, given, options)


def _keys(
    variants: Callable[[Target], Iterable[Variant]], own: Target
) -> Iterator[tuple[object, ...]]:
    """What is run here, and what a build for any other architecture would have to make."""
    for target in (own, *map(Target.named, ARCHS)):
        # Some hold no such row, or not in the storage that is forced here.
        with contextlib.suppress(UnsupportedError, ValueError):
            yield from [one.key for one in variants(target)]


def _known(*key: object) -> bool:
    """Whether that has been asked before."""
    known = key in _seen
    _seen.add(key)
    return known
