# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products with what follows them (`stores`): by one kernel and by two, beside torch's own ways.

The sizes are those of layers of transformers, and awkward ones. Calls are queued, not captured: a
dropout that draws from torch's generator cannot be.

On a GPU kernels are built first, in many processes. Then each size has a process of its own: all
compile side by side, and are timed one after another. So trials of torch.compile and QuACK share
the GPU with one another, and their choices may be a little worse than alone.
"""

import functools
import importlib
import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from models import free, most_gib
from peers import PEERS, SkipError
from points import DTYPES, HALVES, Selection
from results import Result
from stores import STORES, Store, block, block_by_layers, fused_block
from timing import queue_seconds, sets
from torch import Tensor
from torch.nn import functional
from training import step
from turns import Job, in_turns

import fusedops as fo
from fusedops.errors import counted
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.prebuild.build_all import Outcome, build_all, variants
from fusedops.prebuild.recording import Signature, of_call
from fusedops.product import recorded
from fusedops.product.choice import bind_store
from fusedops.schedule.launch import IMPLEMENTATIONS, ProductConfig
from fusedops.testing import force_launch
from fusedops.tuning.problem import implementation_of_last

SIZES = (
    (16384, 1024, 1024),
    (16384, 4096, 1024),
    (16384, 1024, 4096),
    (8192, 12288, 4096),
    (4096, 4096, 4096),
    (512, 4096, 4096),
    (10007, 3000, 1000),
)
#: Rows, and the sizes outside and inside of the feed-forward block.
BLOCK = (16384, 1024, 4096)
QUACK = "QuACK gemm_epilogue"
#: QuACK's GELU and softcap have it too; its SiLU is by an exponential, as fusedops' is.
HARDWARE = "fusedops, hardware_tanh"

ROUNDS = 3  # Of all ways after one another.

#: GiB that a size takes while others compile: a context, and what is tried.
ROOM = 4


def measured(chosen: Selection, device: str = "cuda") -> Iterator[Result]:
    """All STOREs at every size, then whole steps of the block, in both halves."""
    dtypes = [dtype for dtype in chosen.dtypes or HALVES if dtype in HALVES]
    if device != "cpu":
        build(dtypes, torch.device(device, torch.cuda.current_device()), chosen.told)
    jobs: dict[Any, Job] = {}
    for dtype in dtypes:
        jobs[f"block, {dtype}"] = Job(Steps, (BLOCK, dtype, device), 2 * ROOM)
    for size in SIZES:
        for dtype in dtypes:
            jobs[f"{size}, {dtype}"] = Job(Stores, (size, dtype, device), ROOM)
    for name, prepared, found in in_turns(jobs, most_gib(device), chosen.told):
        if found is None:
            yield Result("gemm", name, "all", note=f"not measured: {prepared[:200]}")
        else:
            yield from found


def build(dtypes: Sequence[str], device: torch.device, told: Callable[[str], object]) -> int:
    """Build what the STOREs are run by, in as many processes as there are cores; how many kernels.

    The block's gradients are built where they are called.
    """
    target = Target.of(device)
    wanted: dict[Any, Variant] = {}
    for store, size, dtype in itertools.product(STORES.values(), SIZES, dtypes):
        if store.hardware is not None:
            call = [_signature(store.hardware, store, size, DTYPES[dtype])]
            found = variants(call, target, backward=False) + recorded.variants(call, target)
            wanted.update((one.key, one) for one in found)
        call = [_signature(store.op, store, size, DTYPES[dtype])]
        found = variants(call, target, backward=False)
        for implementation in IMPLEMENTATIONS:
            with force_launch(product=ProductConfig(implementation)):
                found += recorded.variants(call, target)
        wanted.update((one.key, one) for one in found)
    ready: list[Outcome] = []

    def done(outcome: Outcome) -> None:
        ready.append(outcome)
        told(f"{len(ready)} of {len(wanted)} kernels")

    build_all(wanted.values(), os.cpu_count() or 1, done)
    return len(wanted)


def _signature(
    op: fo.Linear, store: Store, size: tuple[int, int, int], dtype: torch.dtype
) -> Signature:
    """A call of a declaration of a STORE as it is built ahead."""
    m, n, k = size

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    factors = {"x": empty(m, k), "w": empty(n, k)}
    operands = {name: empty(n) if name == "b" else empty(m, n) for name in store.operands}
    arguments = {**operands, **store.numbers}
    epilogue = op.that_adds(factors["w"], arguments).epilogue
    return of_call(bind_store(epilogue, *factors.values(), arguments), factors)


class Ways:
    """The ways to run one case by name, those that could be prepared; why others could not."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[..., Any]] = {}
        self.failed: dict[str, str] = {}

    def prepare(self, by: str, call: Callable[..., Any], first: Callable[[], object]) -> None:
        """Take a way once `first` has called it, so that all is built."""
        try:
            first()
        except Exception as error:  # The others are measured all the same.
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            self.failed[by] = f"not measured: {said[:200]}"
        else:
            self.calls[by] = call


class Stores:
    """All STOREs at one size in one dtype, in a process of its own (`turns.Turn`)."""

    def __init__(self, size: tuple[int, int, int], dtype: str, device: str) -> None:
        self.size, self.dtype, self.device = size, dtype, device
        self.ways: dict[str, Ways] = {}
        self.chosen: dict[str, str] = {}

    @torch.no_grad()
    def prepare(self) -> None:
        """Builds and compiles, and compares what each implementation gives with torch's result."""
        torch._dynamo.reset()
        (given,) = self._given(1)
        for name, store in STORES.items():
            ways = self.ways[name] = Ways()
            with torch.random.fork_rng():
                store.fused(given)
            self.chosen[name] = implementation_of_last()
            wanted = store.by_torch(store.plain, given) if store.again else None
            for implementation in IMPLEMENTATIONS:
                chosen = implementation == self.chosen[name]
                by = "fusedops" if chosen else f"fusedops, {implementation}"
                call = functools.partial(store.fused, implementation=implementation)
                checked = functools.partial(check, call, given, implementation, wanted)
                ways.prepare(by, call, checked)
            if store.hardware is not None:
                call = functools.partial(store.by_op, store.hardware)
                ways.prepare(HARDWARE, call, functools.partial(check_values, call, given, wanted))
            of_torch = {"torch eager": store.plain, **store.others}
            by, options = store.compiled
            of_torch[by] = torch.compile(store.plain, dynamic=False, **options)
            for by, plain in of_torch.items():
                call = functools.partial(store.by_torch, plain)
                ways.prepare(by, call, functools.partial(call, given))
            if has_quack(self.device):
                call = functools.partial(by_quack, name, store)
                ways.prepare(QUACK, call, functools.partial(check_values, call, given, wanted))
        del given, wanted, call
        free(torch.device(self.device))

    @torch.no_grad()
    def run(self) -> list[Result]:
        """Times every way of every STORE."""
        m, n, k = self.size
        itemsize = DTYPES[self.dtype].itemsize
        moved = itemsize * (m * k + n * k + m * n)
        given = self._given(sets(moved))
        product = queue_seconds(
            [functools.partial(functional.linear, each["x"], each["w"]) for each in given]
        )
        found: list[Result] = []
        for name, ways in self.ways.items():
            store = STORES[name]
            calls = {
                by: [functools.partial(call, each) for each in given]
                for by, call in ways.calls.items()
            }
            beside = len({*store.operands} - {"b"}) + len(store.op.outputs) - 1
            case = f"{name}, {self.dtype}, {m} x {n} x {k}, forward"
            notes = {"fusedops": f"by {self.chosen[name]}", **ways.failed}
            found += compared(
                "gemm", case, calls, notes, moved + beside * itemsize * m * n, product
            )
        del given, calls
        free(torch.device(self.device))
        return found

    def _given(self, count: int) -> list[dict[str, Tensor]]:
        """The tensors of so many calls by name; each has an x and two of the product's size."""
        m, n, k = self.size
        w, b = _randn(self, n, k, scale=k**-0.5), _randn(self, n)
        found = []
        for _ in range(count):
            x, first, second = _randn(self, m, k), _randn(self, m, n), _randn(self, m, n)
            found.append({"x": x, "w": w, "b": b, "r": first, "g": first, "u": second})
        return found


def check(
    call: Callable[..., Any],
    given: Mapping[str, Tensor],
    implementation: str,
    wanted: Tensor | None,
) -> None:
    """Call it; ValueError where another implementation ran, or its result is far from torch's."""
    result = call(given)
    if implementation_of_last() != implementation:
        raise ValueError("it cannot run this call")
    if wanted is not None:
        compare(result, wanted)


def compare(result: Tensor, wanted: Tensor) -> None:
    """Raise ValueError where a result is far from torch's."""
    near = 8 * torch.finfo(wanted.dtype).eps
    off = (result.float() - wanted.float()).abs() > near * (1 + wanted.float().abs())
    off |= result.isinf() != wanted.isinf()
    if bool(off.any()):
        raise ValueError(f"wrong in {counted(int(off.sum()), 'element')}")


def has_quack(device: str) -> bool:
    """Whether QuACK is there, which runs on a GPU alone."""
    if device == "cpu":
        return False
    try:
        PEERS["quack"].version()
    except SkipError:
        return False
    return True


def by_quack(name: str, store: Store, given: Mapping[str, Tensor]) -> Any:
    """A call of QuACK's; SkipError if it does not do this."""
    if not store.again:
        raise SkipError("QuACK's epilogues have no dropout")
    return store.by_torch(importlib.import_module("quack_gemm").FUNCTIONS[name], given)


def check_values(call: Callable[..., Any], given: Mapping[str, Tensor], wanted: Tensor) -> None:
    """Call it and compare: QuACK's tiles are found by trial and built here, before it is timed."""
    compare(call(given), wanted)


class Steps:
    """Whole steps of the block in one dtype, likewise."""

    def __init__(self, size: tuple[int, int, int], dtype: str, device: str) -> None:
        self.size, self.dtype, self.device = size, dtype, device
        self.ways = Ways()

    @torch.enable_grad()
    def prepare(self) -> None:
        """Builds and compiles."""
        torch._dynamo.reset()
        of: dict[str, Callable[..., Any]] = {
            "fusedops": fused_block,
            "fusedops, two layers": block_by_layers,
            "fusedops, two layers, compiled": torch.compile(block_by_layers, dynamic=False),
            "torch.compile": torch.compile(block, dynamic=False),
            "torch eager": block,
        }
        inputs = self._inputs()
        for by, call in of.items():
            self.ways.prepare(by, call, step(functools.partial(call, *inputs), inputs))
        del inputs
        free(torch.device(self.device))

    def run(self) -> list[Result]:
        """Times a step of each way."""
        rows, outer, inner = self.size
        inputs = self._inputs()
        calls = {
            by: [step(functools.partial(call, *inputs), inputs)]
            for by, call in self.ways.calls.items()
        }
        case = (
            f"block {outer} -> {inner} -> {outer}, {self.dtype}, {rows} rows, forward and backward"
        )
        found = [*compared("gemm", case, calls, self.ways.failed, 0, 0.0)]
        del inputs, calls
        free(torch.device(self.device))
        return found

    def _inputs(self) -> list[Tensor]:
        """x, and weights and biases of both layers, which all have gradients."""
        rows, outer, inner = self.size
        found = [
            _randn(self, rows, outer),
            _randn(self, inner, outer, scale=outer**-0.5),
            _randn(self, inner),
            _randn(self, outer, inner, scale=inner**-0.5),
            _randn(self, outer),
        ]
        return [one.requires_grad_() for one in found]


def _randn(of: Stores | Steps, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, dtype=DTYPES[of.dtype], device=of.device) * scale


def compared(
    part: str,
    case: str,
    calls: Mapping[str, Sequence[Callable[[], Any]]],
    notes: Mapping[str, str],
    moved: int,
    product: float,
) -> Iterator[Result]:
    # In turn, since a chip at its power limit clocks down by the heat of what ran before.
    samples = [{by: queue_seconds(each) for by, each in calls.items()} for _ in range(ROUNDS)]
    seconds = {by: statistics.median([one[by] for one in samples]) for by in calls}
    ours = seconds.get("fusedops", 0.0)
    for by, taken in seconds.items():
        beside = 0.0 if by == "fusedops" else ours
        note = notes.get(by, "")
        yield Result(part, case, by, taken, moved, against=product, beside=beside, note=note)
    for by in [by for by in notes if by not in seconds]:
        yield Result(part, case, by, note=notes[by])
