# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`python benchmarks/sharded_estimate.py`: an estimate for 8 and 64 GPUs.

It is arithmetic from the rates below. Where you have measured others, put them in their place,
and the table that this prints into benchmarks/log/2026-11-25-two-gpus.md.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(
    str(Path(__file__).parent.parent / "examples")
)  # Last: its modules go by short names.

from sharded_bytes import collectives_of_block
from sharded_transformer import Sizes


class Rate(NamedTuple):
    """What a GPU does in a second, in units of 10^12, and where that is from."""

    value: float
    unit: str
    source: str


RATES = {
    "matrix products": Rate(
        664, "TFLOP/s", "measured: 8192 x 12288 x 4096, float16, one NVIDIA H200"
    ),
    "memory": Rate(4.28, "TB/s", "measured on one NVIDIA H200"),
    "to GPUs of the same machine": Rate(
        0.24,
        "TB/s each way",
        "[measured](#on-two-gpus): all-gather of 256 MiB between two NVIDIA H200",
    ),
    "to other machines": Rate(
        0.05, "TB/s each way", "assumed: NVIDIA DGX H200 data sheet, 400 Gb/s a GPU"
    ),
}
TENSOR, DATA = 8, 8
#: One sequence for each group of 8 GPUs, which share a machine.
SIZES = Sizes(words=128000, dim=4096, heads=32, tokens=4096, blocks=32, batch=DATA)

ELEMENT = 2  # bytes of bfloat16


class Part(NamedTuple):
    """A part of a step of one block, on each GPU.

    Attributes:
        name: What it is.
        count: Operations or bytes.
        unit: What is counted.
        rate: The name of the rate that bounds it.
    """

    name: str
    count: float
    unit: str
    rate: str

    @property
    def seconds(self) -> float:
        """Of a block."""
        return self.count / (RATES[self.rate].value * 1e12)


def parts(sizes: Sizes = SIZES, tensor: int = TENSOR, data: int = DATA) -> list[Part]:
    """Of a forward and a backward pass of a block, on each of data x tensor GPUs."""
    dim, tokens = sizes.dim, sizes.tokens
    operations = 3 * (2 * 12 * dim**2 * tokens + 4 * tokens**2 * dim) / tensor
    scores = sizes.heads / tensor * tokens**2 * ELEMENT
    stream = tokens * dim * ELEMENT
    moved = collectives_of_block(sizes, data, tensor, ELEMENT)
    inside, between = "to GPUs of the same machine", "to other machines"
    return [
        Part("matrix products, 3 (24 D^2 S + 4 S^2 D)", operations, "FLOP", "matrix products"),
        Part("stream, 4 all-gathers and 4 reduce-scatters", moved.stream, "bytes", inside),
        Part("softmax of the scores: x, y; y, dy, dx", 5 * scores, "bytes", "memory"),
        Part("two residual norms on their rows", 18 * stream / tensor, "bytes", "memory"),
        Part("the same norms on all rows", 18 * stream, "bytes", "memory"),
        Part(
            "parameters, 2 all-gathers and a reduce-scatter over 8 machines",
            moved.parameters,
            "bytes",
            between,
        ),
    ]


def table() -> str:
    """The two tables of the page."""
    return "\n".join((*_rates(), "", *_parts()))


def _rates() -> Iterator[str]:
    yield "| per GPU | rate | source |"
    yield "| --- | --- | --- |"
    for name, rate in RATES.items():
        yield f"| {name} | {rate.value:.4g} {rate.unit} | {rate.source} |"


def _parts() -> Iterator[str]:
    blocks = SIZES.blocks
    yield f"| part, per GPU | of a block | time of a block | of a step of {blocks} blocks |"
    yield "| --- | --- | --- | --- |"
    for one in parts():
        scale, unit = (1e12, "TFLOP") if one.unit == "FLOP" else (1e6, "MB")
        time = one.seconds * 1e3
        counted = f"{one.count / scale:.3g} {unit}"
        yield f"| {one.name} | {counted} | {time:.2f} ms | {time * blocks:.1f} ms |"


if __name__ == "__main__":
    print(table())
