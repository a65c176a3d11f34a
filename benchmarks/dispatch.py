# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ entry points: what a dispatch takes to compile with nvcc, and device time by columns."""

import concurrent.futures
import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ceiling
import torch
from points import MAIN, ROWS
from results import Result
from timing import graph_seconds, sets

from fusedops.jit import env

SOURCE = Path(__file__).with_suffix(".cu")
HALF = torch.float16
PARTS = ("softmax", "layer_norm", "layer_norm_gradient")
COMPILE_SECONDS = 10.0  # With nvcc on two cores.


def sweeps() -> Iterator[Result]:
    """Compile time of each part on two cores, then its percent of the ceiling."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        built = [Path(folder) / f"{part}.so" for part in PARTS]
        yield from _compiled(nvcc, built[0])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda i: _compile(nvcc, i, built[i]), range(1, len(PARTS))))
        for part, library in zip(PARTS, built, strict=True):
            yield from _sweep(part, getattr(ctypes.CDLL(str(library)), part))


def _compiled(nvcc: str, library: Path) -> Iterator[Result]:
    begin = time.perf_counter()
    _compile(nvcc, 0, library, *(("taskset", "-c", "0,1") if shutil.which("taskset") else ()))
    seconds = time.perf_counter() - begin
    target = f"<= {COMPILE_SECONDS:.0f} s"
    yield Result(
        "dispatch", "softmax", "nvcc", seconds, target=target, met=seconds <= COMPILE_SECONDS
    )


def _compile(nvcc: str, part: int, library: Path, *before: str) -> None:
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    flags = ["-std=c++17", f"-arch={arch}", f"-DPART={part}", "-shared", "-Xcompiler", "-fPIC"]
    include = f"-I{env.include_dir()}"
    subprocess.run([*before, nvcc, *flags, include, str(SOURCE), "-o", str(library)], check=True)


def _sweep(part: str, function: Any) -> Iterator[Result]:
    reads = 2 if part.endswith("gradient") else 1
    for columns in MAIN:
        elements = ROWS * columns
        moved = (reads + 1) * elements * HALF.itemsize
        best = ceiling.seconds(elements, HALF, reads, 1)
        seconds = graph_seconds([_call(part, function, columns) for _ in range(sets(moved))])
        yield Result("dispatch", f"{part} ({ROWS}, {columns})", "fusedops", seconds, moved, best)
        torch.cuda.empty_cache()


def _call(part: str, function: Any, columns: int) -> Callable[[], None]:
    """One call with tensors of its own."""

    def made(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    tensors = [made(ROWS, columns), made(ROWS, columns)]
    if part != "softmax":
        tensors += [made(columns)]
    if part == "layer_norm":
        tensors += [made(columns)]
    rest: list[Any] = []
    if part.endswith("gradient"):
        tensors += [made(ROWS, columns), made(ROWS, 3, dtype=torch.float32)]
        tensors += [made(columns), made(columns)]
        needed = ctypes.c_size_t()
        _check(_run(function, columns, tensors, [None, ctypes.c_size_t(0), ctypes.byref(needed)]))
        tensors.append(torch.empty(max(1, needed.value), dtype=torch.uint8, device="cuda"))
        rest = [ctypes.c_size_t(needed.value), None]
    return lambda: _check(_run(function, columns, tensors, rest))


def _run(function: Any, columns: int, tensors: list[torch.Tensor], rest: list[Any]) -> int:
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    sizes = ctypes.c_int64(ROWS), ctypes.c_int64(columns)
    result: int = function(stream, *sizes, *pointers, *rest)
    return result


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"a dispatch returned CUDA error {status}")
