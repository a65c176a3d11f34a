# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is exported for: an architecture by its name, and how its compiler is to be called."""

from __future__ import annotations

import torch

from fusedops.generate.target import ARCHS, Target
from fusedops.jit import host, nvrtc

#: What makes a library of it decides no bit of its results.
_LIBRARY = frozenset({"-fPIC", "-shared", "-fvisibility=hidden"})


def target_of(arch: str | None, device: torch.device, multiprocessors: int | None) -> Target:
    """The target of this name; by default the device's own.

    Args:
        arch: "sm_90" and the like, a level of CPU features, or "cpu" for this machine's.
        device: Of the example tensors.
        multiprocessors: In place of the usual number.

    Raises:
        ValueError: There is no such architecture, or none is given where the device has none.
    """
    if multiprocessors is not None and multiprocessors < 1:
        raise ValueError(f"export: multiprocessors must be positive, got {multiprocessors}")
    if arch is None and device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"export: tensors on {device} do not say what to export for: pass arch=, one of "
            f"{', '.join(ARCHS)}, or cpu for this machine's"
        )
    if arch is not None:
        try:
            return Target.named(arch, multiprocessors)
        except ValueError as error:
            raise ValueError(f"export: {error}") from None
    target = Target.of(device)
    if target.gpu is not None:  # the text shall not depend on what has been tuned on this machine
        target = target._replace(gpu=target.gpu._replace(name=""))
    if multiprocessors is None or target.gpu is None:
        return target
    return target._replace(gpu=target.gpu._replace(multiprocessors=multiprocessors))


def command(target: Target) -> tuple[str, ...]:
    """The compiler and the flags under which the bits are those of the op, without include path."""
    if target.gpu is None:
        kept = [flag for flag in host.flags(target.arch) if flag not in _LIBRARY]
        return ("g++", *kept, *host.GCC)
    # NVRTC's other flags say what nvcc does anyway; it builds for the one architecture alone.
    standard = next(flag for flag in nvrtc.flags(target.arch) if flag.startswith("-std"))
    virtual = target.arch.replace("sm_", "compute_")
    return ("nvcc", standard, "-gencode", f"arch={virtual},code={target.arch}")
