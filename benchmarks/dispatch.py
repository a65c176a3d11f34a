# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ entry points: what a dispatch takes to compile with nvcc, and device time by columns.

Each part is measured with the LOADs and STOREs of fusedops and with structs of a user's own, which
a dispatch cannot see into, beside the kernel that Python generates for the same work. OneFlow's own
dispatchers take the same structs, where there is a folder with OneFlow's source (`--oneflow`).
"""

import concurrent.futures
import ctypes
import functools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ceiling
import torch
from plain import PLAIN
from points import ROWS, Selection
from results import Result
from timing import graph_seconds, sets, side_stream
from torch import Tensor

from fusedops.jit import env
from fusedops.run import single_length

SOURCE = Path(__file__).with_suffix(".cu")
HALF = torch.float16
GENERATED = "generated"
PARTS = ("softmax", "softmax_gradient", "layer_norm", "layer_norm_dx", "layer_norm_gradient")
COMPILE_SECONDS = 10.0  # With nvcc on two cores.
COLUMNS = (256, 1024, 4096, 5120, 16384, 32768, 50264, 65536, 131072)
MOST = ROWS * 16384  # elements of a tensor: with more columns there are fewer rows


class Dispatcher(NamedTuple):
    """A part of dispatch.cu, whose dispatch it calls, and the flags that choose that."""

    by: str
    part: str
    flags: tuple[str, ...] = ()


def sweeps(chosen: Selection) -> Iterator[Result]:
    """Compile time of each part on two cores, then its percent of the ceiling."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        sources = [Dispatcher("fusedops", part) for part in PARTS]
        # Structs of a user's own have no gradients of gamma and beta, nor have OneFlow's headers.
        sources += [Dispatcher("structs of one's own", part, ("-DOPAQUE",)) for part in PARTS[:-1]]
        if chosen.oneflow is not None:
            flags = ("-DONEFLOW", f"-I{chosen.oneflow}")
            sources += [Dispatcher("OneFlow", part, flags) for part in PARTS[:-1]]
        built = [Path(folder) / f"{number}.so" for number in range(len(sources))]
        yield from _compiled(nvcc, built[0])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = [
                pool.submit(_compile, nvcc, source.part, library, flags=source.flags)
                for source, library in list(zip(sources, built, strict=True))[1:]
            ]
            for each in waiting:
                each.result()
        found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for source, library in zip(sources, built, strict=True):
            found[source.part][source.by] = getattr(ctypes.CDLL(str(library)), source.part)
        for part, functions in found.items():
            for columns in COLUMNS:
                yield from _beside(part, functions, columns)


def _compiled(nvcc: str, library: Path) -> Iterator[Result]:
    begin = time.perf_counter()
    before = ("taskset", "-c", "0,1") if shutil.which("taskset") else ()
    _compile(nvcc, PARTS[0], library, before=before)
    seconds = time.perf_counter() - begin
    target = f"<= {COMPILE_SECONDS:.0f} s"
    yield Result(
        "dispatch", "softmax", "nvcc", seconds, target=target, met=seconds <= COMPILE_SECONDS
    )


def _compile(
    nvcc: str,
    part: str,
    library: Path,
    before: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> None:
    arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    flags = ["-std=c++17", f"-arch={arch}", f"-DPART={PARTS.index(part)}", *flags]
    include = f"-I{env.include_dir()}"
    linked = ["-shared", "-Xcompiler", "-fPIC", include, str(SOURCE), "-o", str(library)]
    subprocess.run([*before, nvcc, *flags, *linked], check=True)


def _beside(part: str, functions: Mapping[str, Any], columns: int) -> Iterator[Result]:
    """The kernel that Python generates, and the dispatches, by the same tensors."""
    reads = 1 if part in ("softmax", "layer_norm") else 2
    rows = min(ROWS, MOST // columns)
    elements = rows * columns
    moved = (reads + 1) * elements * HALF.itemsize
    best = ceiling.seconds(elements, HALF, reads, 1)
    case = f"{part} ({rows}, {columns})"
    given = [tensors(part, rows, columns) for _ in range(sets(moved))]
    torch.cuda.synchronize()  # The calls are captured on another stream.
    calls = [generated(part, each) for each in given]
    with torch.cuda.stream(side_stream()):
        calls[0]()
        single_length.settle(calls[0])
    against = graph_seconds(calls)
    yield Result("dispatch", case, GENERATED, against, moved, best)
    del calls
    for by, function in functions.items():
        seconds = graph_seconds([_call(part, function, each) for each in given])
        yield Result("dispatch", case, by, seconds, moved, best, against)
    del given
    torch.cuda.empty_cache()


def tensors(part: str, rows: int, columns: int) -> list[Tensor]:
    """What one call takes, in the order of dispatch.cu: x or y; the result; dy; and so on."""

    def made(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype)

    found = [made(rows, columns), made(rows, columns)]
    if part == "layer_norm":
        found += [made(columns), made(columns)]
    elif part != "softmax":
        found += [made(rows, columns)]
    if part == "layer_norm_dx":
        found += [made(columns), *(made(rows, dtype=torch.float32) for _ in "mr")]
    if part == "layer_norm_gradient":
        found += [made(columns), made(rows, 3, dtype=torch.float32), made(columns), made(columns)]
    return found


def generated(part: str, given: list[Tensor]) -> Callable[[], object]:
    """The same work by the kernel that Python generates: a forward, or a backward alone."""
    op = PLAIN["softmax" if part.startswith("softmax") else "layer_norm"]
    if part in ("softmax", "layer_norm"):
        return functools.partial(op.fused, given[0], *given[2:])
    with torch.enable_grad(), torch.cuda.stream(side_stream()):  # A backward runs on that stream.
        vectors = [given[3].detach(), torch.zeros_like(given[3])] if len(given) > 3 else []
        x = given[0].detach().requires_grad_()
        wanted = [x, *vectors] if part == "layer_norm_gradient" else [x]
        for each in wanted:
            each.requires_grad_()
        y = op.fused(x, *vectors)
        return functools.partial(torch.autograd.grad, y, wanted, given[2], retain_graph=True)


def _call(part: str, function: Any, given: list[Tensor]) -> Callable[[], None]:
    """One call of a dispatch."""
    rows, columns = given[0].shape
    if part != "layer_norm_gradient":
        return lambda: _check(_run(function, rows, columns, given, []))
    needed = ctypes.c_size_t()
    query = [None, ctypes.c_size_t(0), ctypes.byref(needed)]
    _check(_run(function, rows, columns, given, query))
    workspace = torch.empty(max(1, needed.value), dtype=torch.uint8, device="cuda")
    rest = [ctypes.c_size_t(needed.value), None]
    return lambda: _check(_run(function, rows, columns, [*given, workspace], rest))


def _run(function: Any, rows: int, columns: int, tensors: list[Tensor], rest: list[Any]) -> int:
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    sizes = ctypes.c_int64(rows), ctypes.c_int64(columns)
    result: int = function(stream, *sizes, *pointers, *rest)
    return result


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"a dispatch returned CUDA error {status}")
