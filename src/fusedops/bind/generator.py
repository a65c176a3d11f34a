# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Seeds and offsets of dropouts, taken from one of torch's random generators."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

#: The number of Philox streams: a stream, offset + slot, has 48 bits of the counter. csrc/stage.h
#: has the same number.
OFFSETS = 1 << 48


class _Scratch(threading.local):
    """A tensor that each thread reuses to draw CPU seeds: making one costs more than drawing."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # an inference tensor could not be written to outside
            self.seed = torch.empty((), dtype=torch.int64, device="cpu")
        # Half of what Tensor.item() costs.
        self.number = ctypes.c_int64.from_address(self.seed.data_ptr())


_scratch = _Scratch()


def draw(
    device_type: str,
    device_index: int,
    generator: torch.Generator | tuple[int, int] | None,
    count: int,
    op: str = "dropout",
) -> tuple[int, int] | None:
    """Take the seed and the offset for `count` dropouts from one of torch's generators.

    On CUDA that is the seed and the offset of the Philox generator, which moves on by one for each
    dropout (in steps of four, as torch requires). A CPU generator has no offset: a seed is drawn.

    Args:
        device_type: The type of the device on which the dropouts run, "cpu" or "cuda".
        device_index: The index of the CUDA device; a CPU ignores it.
        generator: The generator to take from; None means the device's default generator. A pair
            (seed, offset) was taken before and is returned as it is.
        count: The number of dropouts in the declaration.
        op: The name of the op in an error's message.

    Returns:
        The pair (seed, offset); None while a CUDA graph is captured, all replays of which would
        repeat the pair: use `draw_in_memory` there.

    Raises:
        ValueError: The generator belongs to another device.
    """
    if isinstance(generator, tuple):
        return generator  # drawn before: a backward pass repeats its forward pass
    if generator is not None:
        check_generator(op, generator, device_type, device_index)
    if device_type == "cpu":
        _scratch.seed.random_(generator=generator)
        return _scratch.number.value, 0
    if _is_capturing(device_index):
        return None
    if generator is None:
        seed, get_offset, set_offset = _default_generator(device_index)
    else:
        seed, get_offset, set_offset = _methods(generator)
    offset = get_offset()
    set_offset(offset + (count + 3) // 4 * 4)
    return seed(), offset


def draw_for_call(
    x: Tensor, count: int, generator: torch.Generator | None = None, op: str = "dropout"
) -> tuple[int, int] | Tensor:
    """What the dropouts of a call on x start from, for its forward and its backward pass.

    It is the pair of `draw`, or the tensor of `draw_in_memory` while a CUDA graph is captured. The
    other arguments, and what is raised, are theirs.
    """
    # x.device would make a new object at each access.
    where = ("cuda", x.get_device()) if x.is_cuda else ("cpu", 0)
    drawn = draw(*where, generator, count, op)
    return draw_in_memory(x.device, count, generator, op) if drawn is None else drawn


def draw_in_memory(
    device: torch.device,
    count: int,
    generator: torch.Generator | None = None,
    op: str = "dropout",
) -> Tensor:
    """Draw seed and offset as `draw` does, into an int64 tensor of shape (2,) on the device.

    The host does not wait for the device. While a CUDA graph is captured, a torch operation draws
    the numbers on the device, and draws new ones each time that the graph is replayed.

    The dropouts run on `device`. `count`, `generator` and `op` are as for `draw`, but no pair
    (seed, offset) is taken.

    Returns:
        The tensor [seed, offset]; a seed of 2^63 or more is stored as seed - 2^64.

    Raises:
        ValueError: The generator belongs to another device.
    """
    drawn = draw(device.type, device.index or 0, generator, count, op)
    if drawn is None:
        result = torch.empty(2, dtype=torch.int64, device=device)
        return result.random_(0, OFFSETS // 2, generator=generator)
    seed, offset = drawn
    seed = seed if seed < 1 << 63 else seed - (1 << 64)
    if device.type == "cpu":
        return torch.tensor([seed, offset], device=device)
    step = offset - seed
    if 0 < abs(step) < 1 << 60 and abs(seed) < 1 << 60:  # both in one launch
        return torch.arange(seed, seed + 2 * step, step, dtype=torch.int64, device=device)
    result = torch.empty(2, dtype=torch.int64, device=device)
    result.fill_(seed)
    result[1].fill_(offset)
    return result


def _is_capturing(device_index: int) -> bool:
    """Whether torch's current stream of a device is being captured."""
    # As torch.cuda.is_current_stream_capturing(), without what Python adds: it is asked each call.
    if device_index == torch._C._cuda_getDevice():
        return torch._C._cuda_isCurrentStreamCapturing()
    with torch.cuda.device(device_index):
        return torch._C._cuda_isCurrentStreamCapturing()


def _methods(generator: torch.Generator) -> tuple[Callable[..., Any], ...]:
    return generator.initial_seed, generator.get_offset, generator.set_offset


@functools.cache
def _default_generator(index: int) -> tuple[Callable[..., Any], ...]:
    # Looked up once: the lookups would be a tenth of a call's host time.
    return _methods(torch.cuda.default_generators[index])


def check_generator(
    op: str, generator: torch.Generator, device_type: str, device_index: int
) -> None:
    """Raise ValueError if dropouts on this device cannot draw from the generator."""
    place = generator.device
    of_device = device_type == "cpu" or place.index is None or place.index == device_index
    if place.type == device_type and of_device:
        return
    wanted = device_type if device_type == "cpu" else f"{device_type}:{device_index}"
    raise ValueError(
        f"{op}: generator must be on the device of x, {wanted}, got a generator on "
        f"{place}; make one with torch.Generator({wanted!r})"
    )
