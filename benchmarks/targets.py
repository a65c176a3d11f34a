# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the project promises on one H200: percent of the ceiling, and speed beside the peers."""

import dataclasses

from points import AWKWARD, LONG, MAIN, OPS, SHORT, Point

NORMS = ("layer_norm", "rms_norm")


@dataclasses.dataclass(frozen=True)
class Target:
    """At least so many percent of the ceiling, at all of these columns."""

    ops: tuple[str, ...]
    direction: str
    columns: tuple[int, ...]
    percent: float


#: For each dtype alike.
TARGETS = (
    Target(OPS, "forward", MAIN, 97.0),
    Target(OPS, "forward", LONG, 95.0),
    Target(OPS, "forward", SHORT, 95.0),
    Target(OPS, "forward", AWKWARD, 90.0),
    Target(("softmax",), "backward", (*MAIN, 32768, 65536), 97.0),
    Target(("softmax",), "backward", (131072, 262144, *AWKWARD), 90.0),
    Target(NORMS, "backward", (1024, 2048, 4096, 8192, 16384, 32768, 65536), 90.0),
    Target(NORMS, "backward", (256, 512, *AWKWARD), 80.0),
)

#: The flagship chains forward, by name and dropout.
FLAGSHIPS = {
    ("attention softmax", 0.0): 90.0,
    ("attention softmax", 0.1): 80.0,
    ("residual LayerNorm", 0.1): 85.0,
}

#: Of the speed of every peer that was measured.
BESIDE_PEERS = 0.97
#: Of the time of the same op unmasked.
CAUSAL = 0.8

#: Done is at least this share of the cells, and none farther from its target than so many points.
SHARE = 0.9
SHORTFALL = 8.0


def percent(point: Point) -> float | None:
    """The target of a point of the sweep, if it has one."""
    for target in TARGETS:
        if (
            point.op in target.ops
            and point.direction == target.direction
            and point.columns in target.columns
        ):
            return target.percent
    return None
