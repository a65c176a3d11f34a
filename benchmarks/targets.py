# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the project promises on one H200: percent of the ceiling, and speed beside the peers.

What a part's rows are held to by themselves stands with that part; each row has its `target`.
"""

import dataclasses
import re

from points import AWKWARD, DTYPES, LONG, MAIN, OPS, SHORT, Point

from fusedops.schedule.launch import IMPLEMENTATIONS

NORMS = ("layer_norm", "rms_norm")


@dataclasses.dataclass(frozen=True)
class Target:
    """At least so many percent of the ceiling, at all of these columns."""

    ops: tuple[str, ...]
    direction: str
    columns: tuple[int, ...]
    percent: float
    dtypes: tuple[str, ...] = tuple(DTYPES)


TARGETS = (
    Target(OPS, "forward", MAIN, 97.0),
    Target(OPS, "forward", LONG, 95.0),
    Target(OPS, "forward", SHORT, 95.0),
    Target(OPS, "forward", AWKWARD, 90.0),
    Target(("softmax",), "backward", (*MAIN, 32768, 65536), 97.0),
    Target(("softmax",), "backward", (131072, 262144, *AWKWARD), 90.0),
    Target(NORMS, "backward", (1024, 2048, 4096, 8192, 16384, 32768, 65536), 90.0),
    Target(NORMS, "backward", (256, 512, *AWKWARD), 80.0),
    Target(("layer_norm",), "backward", (128,), 82.0, ("float16",)),
    Target(("layer_norm",), "backward", (64,), 75.0, ("float16",)),
    Target(("layer_norm",), "backward", (32,), 60.0, ("float16",)),
)

#: The flagship chains forward, by name and dropout.
FLAGSHIPS = {
    ("attention softmax", 0.0): 90.0,
    ("attention softmax", 0.1): 80.0,
    ("residual LayerNorm", 0.1): 85.0,
}

#: Of the speed of every peer that was measured.
BESIDE_PEERS = 0.97
#: Of torch.compile's by norms of so few rows and columns.
FEW_ROWS = {(8, 1024): 1.0}
#: Of the time of the same op unmasked.
CAUSAL = 0.8


@dataclasses.dataclass(frozen=True)
class Product:
    """At least so many times the speed of the fastest of other ways to run a case of `gemm`.

    Attributes:
        store: What follows the product: how the case begins.
        times: The speed.
        beside: The ways, as rows name them.
        depths: K; empty for every one.
    """

    store: str
    times: float
    beside: tuple[str, ...]
    depths: tuple[int, ...] = ()

    def covers(self, case: str) -> bool:
        """Whether this case is meant."""
        depth = re.search(r" x (\d+), forward$", case)
        at = not self.depths or (depth is not None and int(depth[1]) in self.depths)
        return at and case.startswith(self.store)

    def __str__(self) -> str:
        """The target as people read it."""
        beside = (
            self.beside[0] if len(self.beside) == 1 else "any other implementation and cuBLASLt"
        )
        depths = f", K = {' or '.join(map(str, self.depths))}" if self.depths else ""
        return f"{self.store or 'what is chosen'}{depths}: >= {self.times:g} x {beside}"


EPILOGUE, TWO, EAGER = "cuBLASLt's epilogue", "fusedops, two_kernels", "torch eager"
BY_TRIAL = "torch.compile, max-autotune"
SHALLOW, DEEP = (1000, 1024), (4096,)

#: For both halves alike.
PRODUCTS = (
    Product("bias, GELU", 0.95, (EPILOGUE,)),
    Product("bias, GELU", 1.15, (TWO,), SHALLOW),
    Product("bias, dropout, residual", 1.25, (TWO,), SHALLOW),
    Product("bias, dropout, residual", 1.0, (TWO,), DEEP),
    Product("bias, dropout, residual", 2.0, (EAGER,)),
    Product("a softcap of one's own", 1.15, (BY_TRIAL,), SHALLOW),
    Product("a gate of one's own", 1.15, (BY_TRIAL,), SHALLOW),
    Product("block", 1.1, ("torch.compile",)),
    Product("block", 1.3, (EAGER,)),
    Product(
        "", 0.98, (*(f"fusedops, {implementation}" for implementation in IMPLEMENTATIONS), EPILOGUE)
    ),
)

#: Done is at least this share of the cells, and none farther from its target than so many points,
#: or percent of what is promised.
SHARE = 0.9
SHORTFALL = 8.0


def percent(point: Point) -> float | None:
    """The target of a point of the sweep, if it has one."""
    for target in TARGETS:
        if (
            point.op in target.ops
            and point.direction == target.direction
            and point.columns in target.columns
            and point.dtype in target.dtypes
        ):
            return target.percent
    return None


def beside(point: Point, by: str) -> float:
    """The target of a point beside a peer: so many times its speed."""
    of_few = by == "torch.compile" and point.op in NORMS
    return FEW_ROWS.get((point.rows, point.columns), BESIDE_PEERS) if of_few else BESIDE_PEERS
