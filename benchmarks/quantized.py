# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Results of 8 bits by scales that are given or found, beside FlashInfer in the same rounds.

Each case is what a function of FlashInfer computes: the same tensors of the same types are read and
written, bfloat16 in, and what each gives is compared with the value before it is rounded. Its sum
of x and a residual goes over the residual, ours to memory of its own.

On Hopper it has no more than these. No norm of it has a scale for each row or exponents as scales;
what gives 4 bits wants Blackwell, and so does `mxfp8_quantize`, whose kernels are empty elsewhere.
Tensors alone are quantized by its CUDA kernel, not by its default, which is cuTile's.
"""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from beside import in_rounds
from dynamic_quantize import gated, layer_norm, rms_norm
from peers import PEERS
from points import Selection
from results import Result
from sweep import attempt, installed
from timing import Captured, copies, sets, side_stream
from torch import Tensor
from torch.nn import functional

import fusedops as fo
from fusedops.run import single_length

PART = "quantized"
ROWS, COLUMNS = 16384, (1024, 4096, 8192, 16384)
KIND, HALF = torch.float8_e4m3fn, torch.bfloat16
RMS_EPS, LAYER_EPS = 1e-6, 1e-5  # the latter is the default of `layer_norm` in torch and here
SCALE = 1 / 16  # FlashInfer divides by it, by a reciprocal that is exact for powers of two.
#: Relative norms, by whether a result has 8 bits, which round by 0.026.
NEAR = {True: 0.04, False: 0.01}

Tensors = Mapping[str, Tensor]
Call = Callable[[], Tensors]


class Case(NamedTuple):
    """What is computed.

    Attributes:
        op: By fusedops.
        operands: The names of its tensors.
        theirs: The same by FlashInfer, for tensors that it may keep.
        plain: x, the residual or gate, gamma and beta in torch: the value, and the sum.
        reads, writes: Bytes an element of x, scales left out.
        per: The columns of a block with a scale of its own; 0 for one given scale or none.
        packed: Whether x and the gate are halves of one tensor.
    """

    op: Any
    operands: tuple[str, ...]
    theirs: Callable[[Tensors], Call]
    plain: Callable[..., tuple[Tensor, ...]]
    reads: int
    writes: int
    per: int = 0
    packed: bool = False


def _theirs(module: str) -> Any:
    return importlib.import_module(f"flashinfer.{module}")


def _quant(given: Tensors) -> Call:
    y, operands = torch.empty_like(given["x"], dtype=KIND), (given["x"], given["g"], given["scale"])

    def call() -> Tensors:
        _theirs("norm").rmsnorm_quant(y, *operands, RMS_EPS)
        return {"y": y}

    return call


def _add_quant(given: Tensors) -> Call:
    y, stream = torch.empty_like(given["x"], dtype=KIND), given["r"].clone()

    def call() -> Tensors:
        _theirs("norm").fused_add_rmsnorm_quant(
            y, given["x"], stream, given["g"], given["scale"], RMS_EPS
        )
        return {"y": y, "stream": stream}

    return call


def _layer_quant(given: Tensors) -> Call:
    y = torch.empty_like(given["x"], dtype=KIND)
    operands = [given[name] for name in ("x", "gamma", "beta", "scale")]

    def call() -> Tensors:
        _theirs("norm").layernorm_quant(y, *operands, LAYER_EPS)
        return {"y": y}

    return call


def _add_block_quant(given: Tensors) -> Call:
    x, stream = given["x"], given["r"].clone()
    y, kept = torch.empty_like(x, dtype=KIND), torch.empty_like(x)
    scales = x.new_empty(x.shape[1] // 128, x.shape[0], dtype=torch.float32)

    def call() -> Tensors:
        _theirs("norm").fused_add_rmsnorm_fp8_block_quant(
            y, scales, kept, x, stream, given["g"], RMS_EPS
        )
        return {"y": y, "stream": stream, "kept": kept, "scales": scales}

    return call


def _blocks(given: Tensors) -> Call:
    quantize = _theirs("quantization.fp8_quantization").per_token_group_quant_8bit
    return lambda: dict(
        zip(("y", "scales"), quantize(given["x"], 128, backend="cuda"), strict=True)
    )


def _gated(given: Tensors) -> Call:
    return lambda: {"y": _theirs("activation").silu_and_mul(given["packed"])}


def _alone(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (functional.rms_norm(x.float(), g.shape, g.float(), RMS_EPS),)


def _value(x: Tensor, r: Tensor, g: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return (x.float(),)


def _norm(*store: fo.Functor, residual: bool) -> Any:
    load = [fo.Residual("r", save="stream")] if residual else []
    return fo.RMSNorm(load=load, store=[fo.Affine("g", None), *store], eps=RMS_EPS)


GIVEN = fo.Quantize("inverse", KIND)
#: As FlashInfer has it: scales and 8 bits are those of the result in 16 bits, which is kept.
KEPT = (
    fo.Cast(HALF),
    fo.Tap("kept", dtype=HALF),
    fo.DynamicQuantize(KIND, per=128, layout="columns"),
)
CASES = {
    "residual, RMSNorm, a given scale": Case(
        _norm(GIVEN, residual=True), ("r", "g", "inverse"), _add_quant, rms_norm, 4, 3
    ),
    "residual, RMSNorm that is kept, scales per 128": Case(
        _norm(*KEPT, residual=True), ("r", "g"), _add_block_quant, rms_norm, 4, 5, 128
    ),
    "RMSNorm, a given scale": Case(
        _norm(GIVEN, residual=False), ("g", "inverse"), _quant, _alone, 2, 1
    ),
    "LayerNorm, a given scale": Case(
        fo.LayerNorm(store=[fo.Affine("gamma", "beta"), GIVEN], eps=LAYER_EPS),
        ("gamma", "beta", "inverse"),
        _layer_quant,
        layer_norm,
        2,
        1,
    ),
    "scales per 128": Case(
        fo.Map(store=[fo.DynamicQuantize(KIND, per=128)]), (), _blocks, _value, 2, 1, 128
    ),
    "SwiGLU, not quantized": Case(
        fo.Map(load=[fo.Gate("r", of="value")]), ("r",), _gated, gated, 4, 2, packed=True
    ),
}


def tensors(case: Case, rows: int, columns: int, device: str) -> dict[str, Tensor]:
    """What both read: parameters of an RMSNorm in x's type, those of a LayerNorm in float32."""
    made = functools.partial(torch.randn, dtype=HALF, device=device)
    wide = functools.partial(torch.randn, dtype=torch.float32, device=device)
    packed = made(rows, 2 * columns) if case.packed else None
    x, r = (made(rows, columns) for _ in "xr") if packed is None else packed.chunk(2, -1)
    found = {"x": x, "r": r, "g": made(columns), "gamma": wide(columns), "beta": wide(columns)}
    for name, scale in (("scale", SCALE), ("inverse", 1 / SCALE)):
        found[name] = torch.full((1,), scale, dtype=torch.float32, device=device)
    return found if packed is None else found | {"packed": packed}


def ours(case: Case, given: Tensors) -> Call:
    """The op, with its results by name."""
    operands = {name: given[name] for name in case.operands}

    def call() -> Tensors:
        found = case.op(given["x"], **operands)
        return {"y": found} if isinstance(found, Tensor) else found._asdict()

    return call


def check(case: Case, found: Tensors, given: Tensors) -> None:
    """ValueError where a result is farther from the value than rounding takes it."""
    named = ("gamma", "beta") if case.plain is layer_norm else ("g", "g")
    value, *streams = case.plain(given["x"], given["r"], *(given[name] for name in named))
    wanted = {"y": value, "kept": value, **dict(zip(("stream",), streams, strict=False))}
    for name in found.keys() - {"scales"}:
        result = read(case, found) if name == "y" else found[name]
        off = torch.linalg.vector_norm(result.float() - wanted[name].float())
        off /= torch.linalg.vector_norm(wanted[name].float())
        if not off <= NEAR[found[name].dtype is KIND]:  # not a number is no rounding either
            raise ValueError(f"{name} is off by {float(off):.2g}, as a relative norm")


def read(case: Case, found: Tensors) -> Tensor:
    """What y stands for."""
    y = found["y"]
    if not case.per:
        return y.float() * SCALE if y.dtype is KIND else y
    blocks, scales = y.float().view(y.shape[0], -1, case.per), found["scales"]
    if "kept" in found:  # Its scales lie by columns.
        scales = scales.t()
    scaled: Tensor = blocks * scales.reshape(*blocks.shape[:-1], 1)
    return scaled.flatten(-2)


def measured(chosen: Selection) -> Iterator[Result]:
    """Every case and length."""
    rivals, rows = installed([name for name in chosen.peers if name == "flashinfer"], PART)
    yield from rows
    ways: dict[str, Callable[[Case, Tensors], Call]] = {"fusedops": ours}
    if rivals:
        ways[PEERS["flashinfer"].by] = lambda case, given: case.theirs(given)
    for name, case in CASES.items():
        for columns in COLUMNS:
            if columns in (chosen.columns or COLUMNS):
                yield from _case(name, columns, case, ways)


def _case(
    name: str, columns: int, case: Case, ways: Mapping[str, Callable[[Case, Tensors], Call]]
) -> Iterator[Result]:
    elements = ROWS * columns
    moved = elements * (case.reads + case.writes) + (elements // case.per * 4 if case.per else 0)
    given = [tensors(case, ROWS, columns, "cuda") for _ in range(sets(moved))]
    made = {by: attempt(functools.partial(_captured, way, case, given)) for by, way in ways.items()}
    graphs = {by: graph for by, (graph, _) in made.items() if graph}
    plain = [Captured(each) for each in copies(elements, case.reads, case.writes)]
    taken = in_rounds([*graphs.values(), *plain])
    seconds, best = dict(zip(graphs, taken, strict=False)), min(taken[len(graphs) :])
    for by, (_, reason) in made.items():
        time, beside = seconds.get(by, 0.0), seconds.get("fusedops", 0.0)
        rival = by != "fusedops" and time > 0 and beside > 0
        yield Result(
            PART,
            f"{name}, {columns} columns",
            by,
            time,
            moved,
            best,
            beside=beside if rival else 0.0,
            target=">= 1 x" if rival else "",
            met=time >= beside if rival else None,
            note=reason,
        )
    del graphs, made, plain, given
    torch.cuda.empty_cache()


def _captured(
    way: Callable[[Case, Tensors], Call], case: Case, given: list[dict[str, Tensor]]
) -> Captured:
    torch.cuda.synchronize()  # They were filled on another stream.
    with torch.cuda.stream(side_stream()):  # where the graph is captured, too
        calls = [way(case, one) for one in given]
        check(case, calls[0](), given[0])
        if way is ours:
            single_length.settle(calls[0])
    return Captured(calls)
