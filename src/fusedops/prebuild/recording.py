# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Record the calls that a program makes, for which `fusedops build` later builds kernels.

If ``FUSEDOPS_RECORD`` names a file, every process appends a line for each call that needs a kernel
that its earlier calls did not need, on any architecture: calls that differ on a GPU may share one
kernel on a CPU. Each line is written at once, so any number of processes may share the file.

This module is the `run.observer.Observer` of every op. Signatures are seldom needed, so the module
`signature` is imported only when one is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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

_seen: set[tuple[object, ...]] = set()


def notify(
    call: Callable[[], object],
    variants: Callable[[Target], Iterable[Variant]],
    own: Target,
) -> None:
    """Append the text of a call to the recording, if there is one and the call needs new kernels.

    Neither `call` nor `variants` is called if nothing is recorded. A call that differs only in the
    number of rows adds no line, unless that number changes a kernel on some architecture.

    Args:
        call: Makes the text of the call.
        variants: Lists the variants that the call needs on a target.
        own: The target that the call is about to run on.

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
    """Return the signature of a checked call."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_call(bound)


def of_product(
    bound: Bound, factors: Mapping[str, Tensor], wanted: Collection[str] = ()
) -> Signature:
    """Return the signature of a checked call on a matrix product, with the factors by name."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_product(bound, factors, wanted)


def of_gradient(
    gradient: WantedGradients, dy: Tensor, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Signature:
    """Return the signature of a backward call; the arguments are those of `Gradient.describe`."""
    with guard:
        from fusedops.prebuild import signature

    return signature.of_gradient(gradient, dy, given, options)


def _keys(
    variants: Callable[[Target], Iterable[Variant]], own: Target
) -> Iterator[tuple[object, ...]]:
    """The keys of the variants that a call needs here, and on every other architecture."""
    for target in (own, *map(Target.named, ARCHS)):
        # Some hold no such row, or not in the storage that is forced here.
        with contextlib.suppress(UnsupportedError, ValueError):
            yield from [one.key for one in variants(target)]


def _known(*key: object) -> bool:
    """Whether this key has been seen before; it has from now on."""
    known = key in _seen
    _seen.add(key)
    return known
