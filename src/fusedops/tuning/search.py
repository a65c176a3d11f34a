# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which launch configurations of a kernel are worth a trial, and the fastest that is right.

Candidates are found one step at a time: a step varies one field, or a few that belong together, of
the best configuration so far. All of them are ones that the kernel templates are tested with. What
checks and times is handed in (`Trial`), so the choice itself needs no GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from fusedops.errors import FusedOpsError
from fusedops.schedule.architectures import Gpu
from fusedops.schedule.features import (
    BackwardFeatures,
    Features,
    ForwardFeatures,
    ProductFeatures,
)
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.schedule.row_schedule import Schedule, reserved_shared

__all__ = ["Config", "Implementations", "Kernel", "Outcome", "Trial", "Tried", "search", "steps"]

Config: TypeAlias = LaunchConfig | ProductConfig

#: Threads per block, where a block holds several rows.
BLOCKS = (32, 64, 128, 192, 256)

#: Occupancy targets in threads per SM; beyond 64 values a thread leaves no choice.
OCCUPANCIES = (0, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)

#: L2 prefetch distances in bytes, on a device with an L2 cache of `DISTANCE_L2` bytes.
DISTANCES = tuple(1 << power for power in range(18, 25))
DISTANCE_L2 = 60 << 20

#: Threads of persistent blocks per SM.
PERSISTENT = (384, 448, 512, 640, 768, 896, 1024, 2048)

#: Rows of a ring in shared memory.
RINGS = (1, 2, 3)

#: Static shared memory of a block, in which sums in registers are combined over its rows.
STATIC_SHARED = 48 << 10

#: Gives configurations that differ in a field, or a few, from the one that it is given.
Step = Callable[[Any], Iterator[Any]]


class Kernel(NamedTuple):
    """A kernel whose launch configuration is searched for."""

    schedule: Schedule  # the schedule that it has now
    gpu: Gpu  # the facts of the GPU

    @property
    def features(self) -> Features:
        """The features by which its configuration is looked up."""
        assert self.schedule.features is not None
        return self.schedule.features

    @property
    def kind(self) -> str:
        """The pass, "forward" or "backward"."""
        return "forward" if isinstance(self.features, ForwardFeatures) else "backward"

    @property
    def now(self) -> LaunchConfig:
        """The configuration that it has now."""
        return self.schedule.launch

    def allows(self, config: LaunchConfig) -> bool:
        """Whether the kernel can be launched so."""
        tile, gpu, features = self.schedule.tile, self.gpu, self.features
        threads = tile.threads * config.rows_per_block
        if threads > 512 or threads % 32:
            return False
        if max(threads, config.min_threads_per_sm) > gpu.threads_per_sm:
            return False
        if not isinstance(features, BackwardFeatures) or not features.sums:
            return True
        own = config.rows_per_block * tile.capacity * features.compute_bytes
        if config.sum_storage == "shared":
            free = gpu.shared_limit - reserved_shared(threads, features.compute_bytes)
            return features.sums * own <= free
        combined = config.sum_storage == "registers" and config.rows_per_block > 1
        return not combined or own <= STATIC_SHARED

    def distinct(self, config: LaunchConfig) -> tuple[object, ...]:
        """The deduplication key: equal for configurations that give the same kernel and launch."""
        threads = self.schedule.tile.threads * config.rows_per_block
        return (
            *config._replace(min_threads_per_sm=0, persistent_threads_per_sm=1),
            config.min_threads_per_sm // threads,
            config.persistent_threads_per_sm // threads if config.persistent else 0,
        )


class Implementations(NamedTuple):
    """The implementations of a matrix product and its functors, the fastest of which is sought."""

    features: ProductFeatures  # the features by which the implementation is looked up
    now: ProductConfig  # what is chosen now
    names: tuple[str, ...]  # those that its kernels can run

    @property
    def kind(self) -> str:
        """What is tuned, as tuning files say it."""
        return "product"

    def allows(self, config: ProductConfig) -> bool:
        """True: what else keeps an implementation from a call is known once it has run."""
        return True

    def distinct(self, config: ProductConfig) -> tuple[object, ...]:
        """The deduplication key: the implementation."""
        return config


def steps(kernel: Kernel | Implementations) -> list[tuple[str, Step]]:
    """The steps of a search by name; each gives configurations that differ in a field or a few."""
    if isinstance(kernel, Implementations):
        return [("implementation", lambda config: _with(config, "implementation", kernel.names))]
    if isinstance(kernel.features, ForwardFeatures):
        found = _forward(kernel, kernel.features)
    else:
        found = _backward(kernel, kernel.features)
    return list(found)


def _forward(kernel: Kernel, features: ForwardFeatures) -> Iterator[tuple[str, Step]]:
    if kernel.gpu.bulk_copies:
        yield "prefetch", lambda config: _prefetched(kernel, config, "bulk", 1)
    yield "occupancy", lambda config: _with(config, "min_threads_per_sm", OCCUPANCIES)
    if features.threads <= 32:
        yield "rows per block", lambda config: _blocks(kernel, config)
    if features.sharing > 1:
        yield "rows abreast", lambda config: _abreast(features, config)
    if features.cluster > 1:
        yield "handshake", lambda config: _with(config, "relay_handshake", (False, True))
    if features.staged_tile and kernel.gpu.bulk_copies:
        yield "staging", lambda config: _with(config, "smem_staged", (False, True))


def _backward(kernel: Kernel, features: BackwardFeatures) -> Iterator[tuple[str, Step]]:
    if features.read_once:
        yield "persistent blocks", lambda config: _persistent(features, config)
    if features.sums == 0 and features.cluster > 1:
        yield "prefetch", lambda config: _across(kernel, config)
    if features.read_once:
        yield "occupancy", lambda config: _with(config, "min_threads_per_sm", OCCUPANCIES)
    if features.threads <= 32:
        yield "rows per block", lambda config: _blocks(kernel, config)
    if features.sharing > 1:
        yield "rows abreast", lambda config: _abreast(features, config)
    if features.read_once and features.sums:
        storages = ("registers", "shared")
        yield "storage of sums", lambda config: _with(config, "sum_storage", storages)
    yield "operand loads", lambda config: _with(config, "eager_operands", (False, True))
    if features.read_once and features.groups == 1 and features.threads > 32:
        yield "rows in turns", lambda config: _with(config, "interleaved", (False, True))
    if features.bulk_rows and features.sums:
        yield "rows ahead", lambda config: _ahead(features, config)
        yield "results", lambda config: _leaving(config)


def _with(config: Any, field: str, values: tuple[object, ...]) -> Iterator[Any]:
    return (config._replace(**{field: value}) for value in values)


def _blocks(kernel: Kernel, config: LaunchConfig) -> Iterator[LaunchConfig]:
    threads = kernel.features.threads
    counts = dict.fromkeys(max(1, block // threads) for block in BLOCKS)
    return _with(config, "rows_per_block", tuple(counts))


def _abreast(
    features: ForwardFeatures | BackwardFeatures, config: LaunchConfig
) -> Iterator[LaunchConfig]:
    counts = [2**power for power in range(features.sharing.bit_length())]
    return _with(config, "abreast", tuple(counts))


def _prefetched(
    kernel: Kernel, config: LaunchConfig, prefetch: str, streams: int
) -> Iterator[LaunchConfig]:
    yield config._replace(prefetch="never", prefetch_distance=0)
    sizes = (size * kernel.gpu.l2_bytes // DISTANCE_L2 for size in DISTANCES)
    rows = [size // (streams * kernel.features.row_bytes) for size in sizes]
    for distance in dict.fromkeys(max(1, count) for count in rows):
        yield config._replace(prefetch=prefetch, prefetch_distance=distance)


def _across(kernel: Kernel, config: LaunchConfig) -> Iterator[LaunchConfig]:
    """Prefetch by blocks that have one row each."""
    if not config.persistent:
        yield from _prefetched(kernel, config, "across_rows", 2)


def _persistent(features: BackwardFeatures, config: LaunchConfig) -> Iterator[LaunchConfig]:
    for threads, prefetch in itertools.product(PERSISTENT, ("per_thread", "bulk", "per_line")):
        if threads >= features.threads:
            yield config._replace(
                persistent=True,
                persistent_threads_per_sm=threads,
                prefetch=prefetch,
                prefetch_distance=1,
            )
    yield config._replace(persistent=False, prefetch="never", prefetch_distance=0)


def _ahead(features: BackwardFeatures, config: LaunchConfig) -> Iterator[LaunchConfig]:
    """Rows that bulk copies bring ahead, for one persistent block of an SM or two."""
    for blocks, stages, sums in itertools.product((1, 2), RINGS, ("registers", "shared")):
        threads = blocks * features.threads
        yield config._replace(
            min_threads_per_sm=threads,
            persistent=True,
            persistent_threads_per_sm=threads,
            prefetch="never",
            prefetch_distance=0,
            sum_storage=sums,
            ring_stages=stages,
        )


def _leaving(config: LaunchConfig) -> Iterator[LaunchConfig]:
    """How the gradient of x leaves a block that has rows ahead."""
    if config.ring_stages:
        yield from _with(config, "smem_staged", (False, True))


#: How often all steps are gone through, unless one round finds nothing faster.
ROUNDS = 2

#: The share of the time that a configuration must save to be taken: below it, two runs of the same
#: kernel differ as much.
GAIN = 0.005


class Trial(Protocol):
    """Checks and times a call under a launch configuration."""

    def check(self, config: Any) -> None:
        """Compare the results with those in float64; AssertionError where one is out of bounds."""

    def seconds(self, config: Any) -> float:
        """Device seconds of one call."""


class Tried(NamedTuple):
    """One trial: the field that was varied, the configuration, its time, or why it has none."""

    step: str
    config: Config
    seconds: float | None
    reason: str = ""


class Outcome(NamedTuple):
    """What a search found."""

    #: The configuration at the beginning and the fastest one.
    before: Config
    after: Config
    #: Device seconds of one call with each, timed in turn.
    seconds_before: float
    seconds_after: float
    tried: tuple[Tried, ...]  # every trial, in order

    @property
    def faster(self) -> float:
        """How many times as fast the kernel has become."""
        return self.seconds_before / self.seconds_after


def search(
    kernel: Kernel | Implementations,
    trial: Trial,
    done: Callable[[Tried], None] = lambda tried: None,
) -> Outcome:
    """Find the fastest launch configuration of a kernel, or implementation of a product.

    Each configuration is checked before it is timed; one that is wrong, or that cannot be built or
    launched, is passed over. The tile stays as it is, and with it the bits of the results.

    `kernel` says what is configured, and how it is now; `trial` checks and times; `done` is called
    after each trial.

    Raises:
        AssertionError: The configuration that it has now gives wrong results.
        FusedOpsError: It cannot be built.
    """
    before: Any = kernel.now
    best = before
    trial.check(before)
    tried = [Tried("as it is", before, trial.seconds(before))]
    done(tried[-1])
    least = tried[-1].seconds or 0.0
    known = {kernel.distinct(before)}
    for _ in range(ROUNDS):
        found = best
        for name, step in steps(kernel):
            for config in step(best):
                if kernel.distinct(config) in known or not kernel.allows(config):
                    continue
                known.add(kernel.distinct(config))
                tried.append(_try(name, config, trial))
                done(tried[-1])
                seconds = tried[-1].seconds
                if seconds is not None and seconds < least * (1 - GAIN):
                    best, least = config, seconds
        if best == found:
            break
    if best == before:
        return Outcome(before, before, least, least, tuple(tried))
    # Once more in turn: a clock that has changed meanwhile would favour one of them.
    first, second = trial.seconds(before), trial.seconds(best)
    if second >= first * (1 - GAIN):
        return Outcome(before, before, first, first, tuple(tried))
    return Outcome(before, best, first, second, tuple(tried))


def _try(name: str, config: Config, trial: Trial) -> Tried:
    try:
        trial.check(config)
        return Tried(name, config, trial.seconds(config))
    except AssertionError:
        return Tried(name, config, None, "its results are wrong")
    except (FusedOpsError, RuntimeError, ValueError) as error:
        return Tried(name, config, None, str(error).partition("\n")[0])
