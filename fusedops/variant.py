# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is compiled: a variant for a target, and the kernels of this process.

The types of its kernel's argument tell a variant from others. The source text follows from them and
is written only where there is no such kernel yet, since a new shape of a known pattern has to be
quick.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from fusedops import _runtime, codegen, jit
from fusedops.functors import Functor
from fusedops.runtime import device_info
from fusedops.schedule import CLUSTERS, Schedule

__all__ = ["Target", "Variant"]

#: Kernels in this process, by Variant.key.
_kernels: dict[tuple[object, ...], _runtime.Kernel] = {}


class Target(NamedTuple):
    """What a variant is built for.

    Attributes:
        arch: "sm_90" and the like, or a level of CPU features.
        shared_limit: Bytes of shared memory that a block can opt in to; None for a CPU.
        multiprocessors: Of a GPU.
    """

    arch: str
    shared_limit: int | None
    multiprocessors: int = 0

    @property
    def cluster_limit(self) -> int:
        """Blocks of a cluster at most; 1 where there are none."""
        return CLUSTERS.get(self.arch, 1)

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The target of the machine at hand."""
        return _cuda_target(device.index) if device.type == "cuda" else _host_target()


@functools.cache
def _host_target() -> Target:
    # Asked once: in a virtual machine each cpuid instruction is a trip to the hypervisor.
    return Target(jit.cpu_level(_runtime.cpu_features()), None)


@functools.cache
def _cuda_target(index: int) -> Target:
    found = device_info(index)
    return Target(
        "sm_{}{}".format(*found["capability"]),
        found["shared_per_block_optin"],
        found["multiprocessors"],
    )


class Variant(NamedTuple):
    """A kernel that is or could be compiled.

    Attributes:
        arch: As in `Target`.
        schedule: "host" and the like.
        tile: Of a GPU.
        members: Type and name of each member of the kernel's argument, in order.
        words: The argument's size in words of 8 bytes.
        op, header, load, store, dtype, definitions: Of the call, without its tensors.
        declaration: What messages name.
        entry: Which kernel: "forward", "gradient" or "sums", the second stage of a gradient.
    """

    arch: str
    schedule: str
    tile: Schedule | None
    members: tuple[tuple[str, str], ...]
    words: int
    op: str
    header: str
    load: tuple[Functor, ...]
    store: tuple[Functor, ...]
    dtype: torch.dtype
    declaration: str
    definitions: tuple[str, ...]
    entry: str = "forward"

    @property
    def key(self) -> tuple[object, ...]:
        """What tells variants apart: all that the source text is made of."""
        tile = self.schedule if self.tile is None else self.tile.cpp
        asked = self.tile is not None and (self.tile.asks, self.tile.blocks)
        return (self.arch, tile, asked, self.entry, self.members, self.definitions)

    @property
    def name(self) -> str:
        """What the cache's folder begins with."""
        functors = [type(functor).__name__.lower() for functor in (*self.load, *self.store)]
        dtype = str(self.dtype).removeprefix("torch.")
        entry = [] if self.entry == "forward" else [self.entry]
        return "-".join([self.op.lower(), *functors, dtype, *entry, self.schedule])

    @property
    def source(self) -> str:
        """The C++ text, as it is compiled."""
        return str(self.text)

    @property
    def text(self) -> codegen.Text:
        """The C++ text in its parts."""
        functors = (*self.load, *self.store)
        of_functors = [header for functor in functors for header in functor.headers]
        headers = ["functor/compose.cuh", *of_functors, self.header, "row/statistics.cuh"]
        definitions = self.definitions
        if self.entry == "sums":
            headers, definitions = [], ()
        if self.tile is None:
            return codegen.host_source(
                self.entry, self.members, self.words, self.schedule, headers, definitions
            )
        return codegen.cuda_source(
            self.entry, self.members, self.words, self.tile, headers, definitions
        )

    @property
    def loaded(self) -> bool:
        """Whether this process has it."""
        return self.key in _kernels

    def kernel(self) -> _runtime.Kernel:
        """Load the kernel, building it if the cache does not hold it."""
        key = self.key
        known = _kernels.get(key)
        if known is None:
            built = jit.build(
                self.source, name=self.name, arch=self.arch, declaration=self.declaration
            )
            if self.tile is None:
                known = jit.load_host(built, "fusedops_rows")
            else:
                known = _runtime.load_cuda(built.content, "fusedops_kernel", waits=True)
            _kernels[key] = known
        return known
