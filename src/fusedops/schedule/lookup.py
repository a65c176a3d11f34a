# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Look up the fastest launch configuration by a kernel's features, in tuning files.

The files of this package are tuning/ARCH.json. A GPU whose architecture has none takes the nearest
older one's, and one that is older than all takes the oldest; in both cases, what the GPU lacks or
has less of is taken from the configuration. A file that was tuned on the device itself (`tuned`) is
asked first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fusedops.schedule.architectures import Gpu, number
from fusedops.schedule.features import (
    BackwardFeatures,
    ForwardFeatures,
    IndependentFeatures,
    LaunchFeatures,
    ProductFeatures,
)
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.schedule.tuning_file import TuningFile, TuningFileError, read

__all__ = [
    "FOLDER",
    "Found",
    "FoundImplementation",
    "builtin",
    "forget",
    "launch_config",
    "nearest",
    "product_config",
    "product_implementations",
    "remembered",
    "use_tuned",
]

#: The folder of the files of this package.
FOLDER = Path(__file__).parent / "tuning"

#: Largest number of threads in a block of several rows.
MOST_THREADS = 512

#: Returns the file that was tuned on a device, by architecture and the device's name, or None.
#: Set by `use_tuned`; this package reads nothing but its own files.
_tuned: Callable[[str, str], TuningFile | None] = lambda arch, name: None  # noqa: E731


#: Functions that forget what they have looked up.
_caches: list[Callable[[], None]] = []

Result = TypeVar("Result")


def remembered(function: Callable[..., Result]) -> functools._lru_cache_wrapper[Result]:
    """Remember the results of a function of features until a tuning file changes (`forget`)."""
    cached = functools.lru_cache(maxsize=4096)(function)
    _caches.append(cached.cache_clear)
    return cached


class Found(NamedTuple):
    """A launch configuration, and the tuning file on this machine that it is from, if any.

    `where` is empty for a configuration from the files of this package.
    """

    config: LaunchConfig
    where: str = ""


class FoundImplementation(NamedTuple):
    """How a product is run, and the tuning file that says so."""

    config: ProductConfig  # what is chosen
    where: str  # the tuning file
    tuned: bool  # whether it was tuned on this machine; else it is the package's


def use_tuned(find: Callable[[str, str], TuningFile | None]) -> None:
    """Ask `find` for the file that was tuned on a device, by architecture and the device's name."""
    global _tuned
    _tuned = find
    forget()


def forget() -> None:
    """Clear cached lookups, after a tuning file has changed."""
    for clear in _caches:
        clear()


@functools.cache
def builtin(arch: str) -> TuningFile:
    """The file of this package that serves an architecture, read and checked once.

    Raises:
        TuningFileError: The file is broken.
    """
    path = FOLDER / f"{nearest(arch, [file.stem for file in FOLDER.glob('sm_*.json')])}.json"
    found = read(path.read_bytes(), str(path.name), total=True)
    if found.arch != path.stem:
        raise TuningFileError(f"{path.name}: arch must be {path.stem}, got {found.arch!r}")
    return found


def nearest(arch: str, known: list[str]) -> str:
    """The newest of the known architectures that is no newer than this one, or else the oldest.

    >>> nearest("sm_103", ["sm_90", "sm_100", "sm_120"]), nearest("sm_80", ["sm_90", "sm_100"])
    ('sm_100', 'sm_90')
    """
    ascending = sorted(known, key=number)
    older = [one for one in ascending if number(one) <= number(arch)]
    return older[-1] if older else ascending[0]


def _files(arch: str, gpu: Gpu) -> list[tuple[TuningFile, bool]]:
    """The files that are asked, in order, and whether each was tuned on the device itself."""
    own = _tuned(arch, gpu.name) if gpu.name else None
    return [(file, file is own) for file in (own, builtin(arch)) if file is not None]


@remembered
def launch_config(features: LaunchFeatures, arch: str, gpu: Gpu) -> Found:
    """The launch configuration of a kernel with these features on a GPU.

    The GPU's facts limit the configuration.
    """
    where = ""
    values: dict[str, Any] = {}
    for file, tuned in _files(arch, gpu):
        for rule in file.matching(features):
            fields = _in_rows(rule.fields, features, gpu, file)
            values = {**fields, **values}
            if tuned:
                where = file.where
    return Found(_within(LaunchConfig(**values), features, gpu, builtin(arch)), where)


@remembered
def product_config(features: ProductFeatures, arch: str, gpu: Gpu) -> FoundImplementation:
    """How a product with these features is run on a GPU; the arguments are as above."""
    for file, tuned in _files(arch, gpu):
        for rule in file.matching(features):
            return FoundImplementation(ProductConfig(**rule.fields), file.where, tuned)
    raise AssertionError(f"a file of the package lacks a row without conditions: {features}")


@remembered
def product_implementations(arch: str, gpu: Gpu, **known: Any) -> frozenset[str]:
    """How GEMMs may be run of which only these features are known."""
    found: set[str] = set()
    for file, _ in _files(arch, gpu):
        for rule in file.rules["product"]:
            if all(known[name] in wanted for name, wanted in rule.when.items() if name in known):
                names = (rule.fields.get(name) for name in ("implementation", "rival"))
                found.update(filter(None, names))
                if rule.when.keys() <= known.keys():
                    return frozenset(found)
    return frozenset(found)


def _in_rows(
    fields: Mapping[str, Any], features: LaunchFeatures, gpu: Gpu, file: TuningFile
) -> dict[str, Any]:
    """The fields in the units of `LaunchConfig`."""
    found = dict(fields)
    if (threads := found.pop("threads_per_block", None)) is not None:
        found["rows_per_block"] = threads // features.threads
    if (size := found.pop("prefetch_bytes", None)) is not None:
        assert not isinstance(features, IndependentFeatures)
        # What is prefetched has to stay in the L2 cache until its turn.
        size = size * gpu.l2_bytes // file.device.l2_bytes
        streams = 1 if isinstance(features, ForwardFeatures) else 2  # x; or x and the gradient of y
        found["prefetch_distance"] = max(1, size // (streams * features.row_bytes))
    return found


def _within(
    config: LaunchConfig, features: LaunchFeatures, gpu: Gpu, file: TuningFile
) -> LaunchConfig:
    """Restrict a configuration to what the GPU has, and to the limits of GPU and kernel."""
    changed: dict[str, Any] = {}
    if not gpu.bulk_copies:
        changed["smem_staged"] = False
        if isinstance(features, ForwardFeatures):  # which has no other prefetch
            changed.update(prefetch="never", prefetch_distance=0)
    if not isinstance(features, ForwardFeatures) or features.cluster == 1:
        changed["relay_handshake"] = False
    if isinstance(features, BackwardFeatures):
        persistent = config.persistent and features.read_once
        changed["persistent"] = persistent
        if config.prefetch == "across_rows" and (persistent or features.sums):
            changed["prefetch"] = "never"  # no later block takes the row
        if not features.bulk_rows:
            changed["ring_stages"] = 0
    if changed.get("prefetch", config.prefetch) == "never":
        changed["prefetch_distance"] = 0
    changed["rows_per_block"] = _whole_warps(config.rows_per_block, features.threads)
    if config.min_threads_per_sm > gpu.threads_per_sm:
        changed["min_threads_per_sm"] = gpu.threads_per_sm
    # As many waves of persistent blocks as on the device that was measured.
    waves = -(-config.persistent_threads_per_sm // file.device.threads_per_sm)
    if config.persistent_threads_per_sm > waves * gpu.threads_per_sm:
        changed["persistent_threads_per_sm"] = waves * gpu.threads_per_sm
    return config._replace(**changed)


def _whole_warps(rows: int, threads: int) -> int:
    """Rows per block of which blocks are whole warps and not too large, near the given number.

    `threads` is the number of threads per row. All lanes of a warp take part in its shuffles.
    """
    if threads > 32:
        return 1
    return max(32, min(MOST_THREADS, rows * threads) // 32 * 32) // threads
