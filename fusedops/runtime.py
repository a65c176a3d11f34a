# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the compiled runtime leaves to Python: random numbers, and facts that are asked for once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from fusedops import _runtime

if TYPE_CHECKING:
    from fusedops._runtime import DeviceProperties

__all__ = ["device_info", "draw"]


def draw(
    device_type: str, device_index: int, generator: torch.Generator | None, count: int
) -> tuple[int, int]:
    """Take from torch's generator what `count` dropouts start from.

    On CUDA that is the seed and the offset of the Philox generator, which moves on by one for each
    dropout (in steps of four, as torch requires). A CPU generator has no offset: a seed is drawn.

    Args:
        device_type: "cpu" or "cuda": where the dropouts run.
        device_index: Which CUDA device.
        generator: The generator to take from; the device's default generator if None.
        count: How many dropouts.

    Returns:
        The seed and the offset.

    Raises:
        ValueError: If the generator belongs to another device.
    """
    if generator is not None and not _belongs(generator.device, device_type, device_index):
        raise ValueError(
            f"generator must be on the device of x, {_name(device_type, device_index)}, "
            f"got a generator on {generator.device}: "
            f'make one with torch.Generator("{_name(device_type, device_index)}")'
        )
    if device_type == "cpu":
        seed = torch.empty((), dtype=torch.int64).random_(generator=generator)
        return int(seed.item()), 0
    if generator is None:
        generator = torch.cuda.default_generators[device_index]
    offset = generator.get_offset()
    generator.set_offset(offset + (count + 3) // 4 * 4)
    return generator.initial_seed(), offset


@functools.cache
def device_info(index: int) -> DeviceProperties:
    """What the driver says of a CUDA device, asked for once."""
    return _runtime.device(index)


def _belongs(place: torch.device, device_type: str, device_index: int) -> bool:
    if place.type != device_type:
        return False
    return device_type == "cpu" or place.index is None or place.index == device_index


def _name(device_type: str, device_index: int) -> str:
    return device_type if device_type == "cpu" else f"{device_type}:{device_index}"
