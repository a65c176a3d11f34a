# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is exported for: an architecture by its name, and how its compiler is to be called."""

from __future__ import annotations

import re

import torch

from fusedops import _runtime
from fusedops.jit import cpu_level, host, nvrtc
from fusedops.variant import Target

__all__ = ["command", "target_of"]

#: Shared memory that a block can opt in to, and multiprocessors: A100, A40, L40, H100 and H200,
#: B200, B300, RTX 5090.
_GPUS = {
    "sm_80": (166912, 108),
    "sm_86": (101376, 84),
    "sm_89": (101376, 142),
    "sm_90": (232448, 132),
    "sm_100": (232448, 148),
    "sm_103": (232448, 148),
    "sm_120": (101376, 170),
}

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
    known = f"{', '.join(_GPUS)}, {', '.join(host.LEVELS)}, or cpu for this machine's"
    if arch is None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"export: tensors on {device} do not say what to export for: pass arch=, one of "
                f"{known}"
            )
        target = Target.of(device)
    elif arch == "cpu":
        target = Target(cpu_level(_runtime.cpu_features()), None)
    elif arch in host.LEVELS:
        target = Target(arch, None)
    else:
        found = re.fullmatch(r"(sm_\d+)[af]?", arch)
        if found is None or found[1] not in _GPUS:
            raise ValueError(f"export: arch must be one of {known}, got {arch!r}")
        target = Target(arch, *_GPUS[found[1]])
    if multiprocessors is None or target.shared_limit is None:
        return target
    if multiprocessors < 1:
        raise ValueError(f"export: multiprocessors must be positive, got {multiprocessors}")
    return target._replace(multiprocessors=multiprocessors)


def command(target: Target) -> tuple[str, ...]:
    """The compiler and the flags under which the bits are those of the op, without include path."""
    if target.shared_limit is None:
        kept = [flag for flag in host.flags(target.arch) if flag not in _LIBRARY]
        return ("g++", *kept, *host.GCC)
    # NVRTC's other flags say what nvcc does anyway; it builds for the one architecture alone.
    standard = next(flag for flag in nvrtc.flags(target.arch) if flag.startswith("-std"))
    virtual = target.arch.replace("sm_", "compute_")
    return ("nvcc", standard, "-gencode", f"arch={virtual},code={target.arch}")
