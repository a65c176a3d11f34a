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
from fusedops.errors import UNFUSED, UnsupportedError
from fusedops.jit.levels import LEVELS, cpu_level
from fusedops.jit.lock import guard
from fusedops.schedule.architectures import GPUS, OLDEST, PORTABLE_CLUSTER, Gpu, number
from fusedops.schedule.lookup import use_tuned

if TYPE_CHECKING:
    from fusedops._runtime import DeviceProperties
    from fusedops.schedule.tuning_file import TuningFile

#: Architectures that can be named.
ARCHS = (*GPUS, *LEVELS)


class Target(NamedTuple):
    """The architecture that a variant is built for."""

    arch: str  # a GPU architecture such as "sm_90", or a level of CPU features
    #: The facts of the GPU that kernels will run on, as far as kernels of `arch` can use them; None
    #: for a CPU.
    gpu: Gpu | None = None
    #: Whether the driver has to translate PTX, since the GPU is of a newer generation than `arch`.
    translated: bool = False

    @property
    def multiprocessors(self) -> int:
        """Number of SMs of the GPU; 0 for a CPU."""
        return 0 if self.gpu is None else self.gpu.multiprocessors

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

        `multiprocessors` takes the place of the usual number of such a GPU.

        Raises:
            ValueError: There is no such architecture.
            UnsupportedError: It is older than every architecture that can be built for.
        """
        if arch == "cpu":
            return _host_target()
        if re.fullmatch(r"sm_\d\d+[af]?", arch):
            _check_age(arch)
        if arch in LEVELS:
            return cls(arch)
        plain = arch[:-1] if arch[-1:] in ("a", "f") else arch
        if plain != arch and plain in GPUS:
            raise ValueError(
                f"arch must be {plain}, got {arch!r}: kernels need nothing that {arch} adds, and "
                f"are looked up as those of {plain}"
            )
        if arch not in GPUS:
            known = f"{', '.join(ARCHS)}, or cpu for this machine's"
            raise ValueError(f"arch must be one of {known}, got {arch!r}")
        gpu = GPUS[arch]
        if multiprocessors is not None:
            gpu = gpu._replace(multiprocessors=multiprocessors)
        return cls(arch, gpu)

    def older(self) -> Iterator[Target]:
        """Older targets whose kernels run here: lower CPU levels, or earlier GPU architectures.

        GPUs of the same generation come first, then PTX of earlier generations.
        """
        if self.gpu is None:
            of_kind = [level for level in LEVELS if level.startswith("x86")]  # ascending
            below = of_kind[: of_kind.index(self.arch)] if self.arch in of_kind else []
            yield from (Target(level) for level in reversed(below))
            return
        own = number(self.arch)
        listed = GPUS.get(self.arch)
        most_blocks = PORTABLE_CLUSTER if listed is None else listed.cluster_limit
        earlier = [arch for arch in GPUS if number(arch) < own]
        for arch in sorted(earlier, key=number, reverse=True):
            limits = GPUS[arch]
            gpu = self.gpu._replace(
                shared_limit=min(limits.shared_limit, self.gpu.shared_limit),
                cluster_limit=min(limits.cluster_limit, most_blocks),
                bulk_copies=limits.bulk_copies,
            )
            yield Target(arch, gpu, translated=number(arch) // 10 != own // 10)


@functools.cache
def device_info(index: int) -> DeviceProperties:
    """The driver's properties of a CUDA device, queried once."""
    return _runtime.device(index)


def _check_age(arch: str, device: str = "") -> None:
    if number(arch) < number(OLDEST):
        raise UnsupportedError(
            f"kernels need a GPU of {OLDEST} or newer (compute capability 8.0, Ampere), got "
            f"{arch}{device}; use a newer GPU, tensors on the CPU, or {UNFUSED}"
        )


@functools.cache
def _host_target() -> Target:
    # Asked once: in a virtual machine each cpuid instruction is a trip to the hypervisor.
    return Target(cpu_level(_runtime.cpu_features()))


@functools.cache
def _cuda_target(index: int) -> Target:
    found = device_info(index)
    arch = "sm_{}{}".format(*found["capability"])
    _check_age(arch, f" (cuda:{index}, {found['name']})")
    # What the driver does not tell is that of the architecture; kernels for one that is not listed
    # use neither clusters nor bulk copies.
    listed = GPUS.get(arch)
    gpu = Gpu(
        shared_limit=found["shared_per_block_optin"],
        multiprocessors=found["multiprocessors"],
        threads_per_sm=found["threads_per_multiprocessor"],
        l2_bytes=found["l2_bytes"],
        cluster_limit=1 if listed is None else listed.cluster_limit,
        bulk_copies=listed is not None and listed.bulk_copies,
        name=found["name"],
    )
    return Target(arch, gpu)


def _tuned(arch: str, device: str) -> TuningFile | None:
    """The tuning file of a device, imported lazily."""
    with guard:
        from fusedops.generate.tuned import find

    return find(arch, device)


use_tuned(_tuned)
