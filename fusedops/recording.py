# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Write down which calls a program makes: what `fusedops build` later builds for.

With ``FUSEDOPS_RECORD`` set to a file, every process adds a line for each call whose kernels it has
not seen before. Lines are added whole, so that any number of processes may share the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fusedops.jit import env

if TYPE_CHECKING:
    from fusedops.signature import Signature
    from fusedops.variant import Variant

__all__ = ["record"]

_seen: set[tuple[object, ...]] = set()


def record(signature: Callable[[], Signature], variants: Callable[[], Iterable[Variant]]) -> None:
    """Add a line for a call that runs `variants`, if a recording is wanted.

    Raises:
        OSError: The file cannot be written to.
    """
    file = env.record_file()
    if file is None:
        return
    if _known(file, *(one.key for one in variants())) or _known(file, line := str(signature())):
        return
    target = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(target, f"{line}\n".encode())
    finally:
        os.close(target)


def _known(*key: object) -> bool:
    """Whether that has been asked before."""
    known = key in _seen
    _seen.add(key)
    return known
