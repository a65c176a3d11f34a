# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The architecture of a variant: this machine's, a named one, or a compatible older one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from fusedops import _runtime
from fusedops.errors import UnsupportedError
from fusedops.jit.levels import LEVELS, cpu_level
from fusedops.schedule.forward import CLUSTERS

if TYPE_CHECKING:
    from fusedops._runtime import DeviceProperties

__all__ = ["ARCHS", "Target", "device_info"]

#: Bytes of shared memory that a thread block can opt in to, and number of SMs: A100, A40, L40, H100
#: and H200, B200, B300, RTX 5090.
_GPUS = {
    "sm_80": (166912, 108),
    "sm_86": (101376, 84),
    "sm_89": (101376, 142),
    "sm_90": (232448, 132),
    "sm_100": (232448, 148),
    "sm_103": (232448, 148),
    "sm_120": (101376, 170),
}

#: The oldest architecture supported: every kernel may use the features that came with it.
OLDEST = "sm_80"

#: Portable cluster size: thread blocks that every GPU with clusters can schedule together.
PORTABLE = 8

#: Architectures that can be named.
ARCHS = (*_GPUS, *LEVELS)


class Target(NamedTuple):
    """The architecture that a variant is built for.

    Attributes:
        arch: A GPU architecture such as "sm_90", or a level of CPU features.
        shared_limit: Bytes of shared memory that a thread block can opt in to; None for a CPU.
        multiprocessors: Number of SMs of the GPU; 0 for a CPU.
        translated: Whether the driver has to translate PTX, since the GPU is of a newer generation
            than `arch`.
        most_blocks: Largest number of thread blocks in a cluster, where the GPU has fewer than
            `arch`.
    """

    arch: str
    shared_limit: int | None
    multiprocessors: int = 0
    translated: bool = False
    most_blocks: int = 16

    @property
    def cluster_limit(self) -> int:
        """Largest number of thread blocks in a cluster; 1 without clusters."""
        return min(CLUSTERS.get(self.arch, 1), self.most_blocks)

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The target of a device of this machine.

        Raises:
            UnsupportedError: The GPU is older than every architecture that can be built for.
        """
        return _cuda_target(device.index) if device.type == "cuda" else _host_target()

    @classmethod
    def named(cls, arch: str, multiprocessors: int | None = None) -> Target:
        """The target of this name; "cpu" is this machine's CPU.

        Args:
            arch: One of `ARCHS`, or "cpu".
            multiprocessors: Number of SMs, in place of the usual number of such a GPU.

        Raises:
            ValueError: There is no such architecture.
            UnsupportedError: It is older than every architecture that can be built for.
        """
        if arch == "cpu":
            return _host_target()
        if re.fullmatch(r"sm_\d\d+[af]?", arch):
            _check_age(arch)
        if arch in LEVELS:
            return cls(arch, None)
        plain = arch[:-1] if arch[-1:] in ("a", "f") else arch
        if plain != arch and plain in _GPUS:
            raise ValueError(
                f"arch must be {plain}, got {arch!r}: kernels need nothing that {arch} adds, and "
                f"are looked up as those of {plain}"
            )
        if arch not in _GPUS:
            known = f"{', '.join(ARCHS)}, or cpu for this machine's"
            raise ValueError(f"arch must be one of {known}, got {arch!r}")
        shared, usual = _GPUS[arch]
        return cls(arch, shared, usual if multiprocessors is None else multiprocessors)

    def older(self) -> Iterator[Target]:
        """Older targets whose kernels run here: lower CPU levels, or earlier GPU architectures.

        GPUs of the same generation come first, then PTX of earlier generations.
        """
        if self.shared_limit is None:
            of_kind = [level for level in LEVELS if level.startswith("x86")]  # ascending
            below = of_kind[: of_kind.index(self.arch)] if self.arch in of_kind else []
            yield from (Target(level, None) for level in reversed(below))
            return
        own, most_blocks = _number(self.arch), CLUSTERS.get(self.arch, PORTABLE)
        earlier = [arch for arch in _GPUS if _number(arch) < own]
        for arch in sorted(earlier, key=_number, reverse=True):
            shared = min(_GPUS[arch][0], self.shared_limit)
            translated = _number(arch) // 10 != own // 10
            yield Target(arch, shared, self.multiprocessors, translated, most_blocks)


@functools.cache
def device_info(index: int) -> DeviceProperties:
    """The driver's properties of a CUDA device, queried once."""
    return _runtime.device(index)


def _check_age(arch: str, device: str = "") -> None:
    if _number(arch) < _number(OLDEST):
        raise UnsupportedError(
            f"kernels need a GPU of {OLDEST} or newer (compute capability 8.0, Ampere), got "
            f"{arch}{device}; use a newer GPU, tensors on the CPU, or op.unfused, which runs on "
            "any device"
        )


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


@functools.cache
def _host_target() -> Target:
    # Asked once: in a virtual machine each cpuid instruction is a trip to the hypervisor.
    return Target(cpu_level(_runtime.cpu_features()), None)


@functools.cache
def _cuda_target(index: int) -> Target:
    found = device_info(index)
    arch = "sm_{}{}".format(*found["capability"])
    _check_age(arch, f" (cuda:{index}, {found['name']})")
    return Target(
        arch,
        found["shared_per_block_optin"],
        found["multiprocessors"],
    )
