# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the host pays: for a call that hits its plan, for a new shape, and for a build."""

import dataclasses
import functools
import itertools
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from results import Result
from timing import Call, host_seconds, once_seconds
from torch import Tensor, nn
from torch.nn import functional
from training import inputs_of, step

import fusedops as fo
from fusedops import demo, flagship
from fusedops.run import cpp_library

SHAPES = ((64, 1024), (1, 1024))
BUILD_SECONDS = {"cuda": 0.5, "cpu": 3.0}
LOAD_SECONDS = 20e-3
NEW_SHAPE_SECONDS = 100e-6
IMPORT_SECONDS = 50e-3
MODULE_SHAPE = (8, 1024)
MODULE_RATIO = 1.1
STEP_RATIO = 1.5  # Of layer_norm, forward and backward, with three gradients against our five.


def devices() -> list[torch.device]:
    """The CPU, and the GPU if there is one."""
    return [torch.device(name) for name in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]]


def dtype_of(device: torch.device) -> torch.dtype:
    """What people compute in there."""
    return torch.float16 if device.type == "cuda" else torch.float32


def calls() -> Iterator[Result]:
    """The residual LayerNorm with its five operands, against one eager layer_norm.

    On a CPU a call includes the arithmetic; one row has next to none.
    """
    for device, shape in itertools.product(devices(), SHAPES):
        yield from _beside_layer_norm(f"{shape} on {device}", _rivals(shape, device), device, 1)
    shape = SHAPES[0]
    for device in devices():
        case = f"{shape} on {device}, forward and backward"
        yield from _beside_layer_norm(case, _rival_steps(shape, device), device, STEP_RATIO)
    for device, kind in itertools.product(devices(), ("LayerNorm", "RMSNorm")):
        yield from _modules(kind, device)


def _modules(kind: str, device: torch.device) -> Iterator[Result]:
    """A norm that trains, with either autograd node, beside torch's."""
    rows, columns = MODULE_SHAPE
    settings: dict[str, Any] = {"device": device, "dtype": dtype_of(device)}
    x = torch.randn(rows, columns, **settings).requires_grad_()
    modules = {f"torch's nn.{kind}": getattr(nn, kind)(columns, **settings)}
    # A declaration's calls keep to the node that it was given, and each eps is one of its own.
    for mode, by, eps in (("cpp", "fusedops", 1e-5), ("python", "the same, nodes in Python", 2e-5)):
        with mock.patch.dict(os.environ, FUSEDOPS_AUTOGRAD=mode):
            cpp_library.forget()
            modules[by] = getattr(fo.nn, kind)(columns, eps=eps, **settings)
            modules[by](x)
    cpp_library.forget()
    case = f"nn.{kind} of {MODULE_SHAPE} on {device}"
    for what, named in (
        ("forward with gradients on", {by: functools.partial(m, x) for by, m in modules.items()}),
        (
            "forward and backward",
            {by: step(functools.partial(m, x), [x, *m.parameters()]) for by, m in modules.items()},
        ),
    ):
        yield from _beside(f"{case}, {what}", named, device, MODULE_RATIO, f"torch's nn.{kind}")


def _beside_layer_norm(
    case: str, named: dict[str, Call], device: torch.device, most: float
) -> Iterator[Result]:
    yield from _beside(case, named, device, most, "torch eager layer_norm")


def _beside(
    case: str, named: dict[str, Call], device: torch.device, most: float, rival: str
) -> Iterator[Result]:
    """Our calls may take `most` times as long as the rival's."""
    measured = dict(zip(named, host_seconds(list(named.values()), device), strict=True))
    against = measured[rival]
    for by, seconds in measured.items():
        ours = by.startswith("fusedops")
        yield Result(
            "host",
            case,
            by,
            seconds,
            against=against,
            target=f"<= {most:g} x {rival.removeprefix('torch eager ')}" if ours else "",
            met=seconds <= most * against if ours else None,
        )


def _rival_steps(shape: tuple[int, int], device: torch.device) -> dict[str, Call]:
    dropped, kept = (
        flagship.add_norm(shape, p=p, dtype=dtype_of(device), device=device) for p in (0.1, 0.0)
    )
    x, gamma, beta = dropped.x, dropped.operands["gamma"], dropped.operands["beta"]
    return {
        "fusedops, p = 0.1": step(dropped.fused, inputs_of(dropped)),
        "fusedops, p = 0": step(kept.fused, inputs_of(kept)),
        "torch eager layer_norm": step(
            lambda: functional.layer_norm(x, shape[1:], gamma, beta), [x, gamma, beta]
        ),
        "torch eager chain": step(kept.unfused, inputs_of(kept)),
        "an autograd.Function that does nothing": step(
            lambda: _Nothing.apply(kept.x, *kept.operands.values()), inputs_of(kept)
        ),
    }


class _Nothing(torch.autograd.Function):
    """The same tensors in and out as the residual LayerNorm: what torch takes for its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *operands: Any) -> tuple[Tensor, Tensor]:
        ctx.tensors = [isinstance(each, Tensor) for each in operands]
        ctx.save_for_backward(*(each for each in operands if isinstance(each, Tensor)))
        return torch.empty_like(x), torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, of_stream: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        return dy, *(next(saved) if one else None for one in ctx.tensors)


def _rivals(shape: tuple[int, int], device: torch.device) -> dict[str, Call]:
    dropped, kept = (
        flagship.add_norm(shape, p=p, dtype=dtype_of(device), device=device) for p in (0.1, 0.0)
    )
    x, gamma, beta = dropped.x, dropped.operands["gamma"], dropped.operands["beta"]
    return {
        "fusedops, p = 0.1": dropped.fused,
        "fusedops, p = 0": kept.fused,
        "torch eager layer_norm": lambda: functional.layer_norm(x, shape[1:], gamma, beta),
        "torch eager chain": kept.unfused,
        "torch.empty_like": lambda: torch.empty_like(x),
    }


IMPORT = """
import time, torch
begin = time.perf_counter()
import fusedops
print(time.perf_counter() - begin)
"""
IMPORTS = 3  # A process each: after a fork it would pay for the parent's pages as well.


def _import_seconds() -> float:
    """What `import fusedops` takes where torch is there."""
    command = [sys.executable, "-c", IMPORT]
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    _, *samples = (float(subprocess.check_output(command, env=own)) for _ in range(1 + IMPORTS))
    return statistics.median(samples)  # The first may have compiled bytecode.


def builds() -> Iterator[Result]:
    """An import; variants built cold and from the disk; new shapes and numbers of one known."""
    yield _at_most("build", "import fusedops", "beside torch", _import_seconds(), IMPORT_SECONDS)
    for device in devices():
        make_case = {"p": 0.1, "dtype": dtype_of(device), "device": device}
        flagship_cases = [
            flagship.attention((2, 4, 32, 128), **make_case),
            flagship.add_norm(SHAPES[0], **make_case),
        ]
        with demo.empty_cache() as folder:
            for case in flagship_cases:
                built = demo.first_build(case, folder)
                for by, seconds, most in (
                    ("cold", built.cold, BUILD_SECONDS[device.type]),
                    ("from the cache", built.cached, LOAD_SECONDS),
                ):
                    yield _at_most("build", f"{case.title} on {device}", by, seconds, most)
            yield from _new_shapes(device)


def _new_shapes(device: torch.device) -> Iterator[Result]:
    """What the first call with a new shape, or a new number, costs more than another one.

    Rows are short, so that the work of the call itself is little.
    """
    known, *fresh = [
        flagship.add_norm((rows, 64), p=0.1, dtype=dtype_of(device), device=device)
        for rows in range(65, 129)
    ]
    known.fused()  # Builds the variant.
    new_numbers = [
        dataclasses.replace(known, operands={**known.operands, "p": 0.2 + number / 256})
        for number in range(64)
    ]
    hit = statistics.median(once_seconds(known.fused, device) for _ in fresh)
    for by, cases in (("new shape", fresh), ("new number", new_numbers)):
        first = statistics.median(once_seconds(case.fused, device) for case in cases)
        yield _at_most("build", f"(..., 64) on {device}", by, first - hit, NEW_SHAPE_SECONDS)


def _at_most(part: str, case: str, by: str, seconds: float, most: float) -> Result:
    return Result(part, case, by, seconds, target=f"<= {most * 1e3:g} ms", met=seconds <= most)
