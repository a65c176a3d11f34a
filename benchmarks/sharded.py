# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Distributed tensors on several GPUs of one machine, by NCCL: bandwidths, columns, whole steps.

Each row is the slowest rank's. Bytes are those that one rank receives: as torch.profiler has them
from NCCL (`wire`), and beside that what `explain` says or what arithmetic gives (`sharded_bytes`).
"""

import contextlib
import datetime
import queue
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from points import DTYPES
from results import Result
from timing import synchronize
from torch import Tensor, multiprocessing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional
from wire import traced

import fusedops as fo

sys.path.append(
    str(Path(__file__).parent.parent / "examples")
)  # Last: its modules go by short names.

from sharded_bytes import of_a_step
from sharded_transformer import Model, Sizes, batch, loss_of, parallelize


class Measured(NamedTuple):
    """What is measured, by sizes.

    Attributes:
        dtype: Of all tensors.
        messages: Bytes of a tensor that collectives move.
        words, norms: Rows and columns of a log-softmax over a vocabulary and of a LayerNorm.
        model: Of the example's transformer.
        samples: Of which the median counts.
    """

    dtype: str = "bfloat16"
    messages: tuple[int, ...] = (2**10, 2**20, 2**24, 2**26, 2**28, 2**30)
    words: tuple[int, int] = (8192, 128256)
    norms: tuple[int, int] = (16384, 8192)
    model: Sizes = Sizes(words=32768, dim=2048, heads=16, tokens=1024, blocks=4, batch=8)
    samples: int = 7


LARGE = Measured()


def measured(sizes: Measured = LARGE, device: str = "cuda", ranks: int = 2) -> Iterator[Result]:
    """The rows of all that is measured, as ranks that are started here find them."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        yield Result("sharded", "all", "fusedops", note=f"not measured: needs {ranks} GPUs")
        return
    # Here, where its port is chosen: nobody else can take it before a rank does.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found = multiprocessing.get_context("spawn").Queue()
    given = ranks, store.port, device, sizes, found
    running = multiprocessing.spawn(_work, given, nprocs=ranks, join=False)
    ended = False
    try:
        while not ended:
            with contextlib.suppress(queue.Empty):
                while (result := found.get(timeout=0.2)) is not None:
                    yield result
                ended = True
            running.join(timeout=10 if ended else 0)  # raises what a rank raised
    finally:
        for process in running.processes:
            process.terminate()


def _work(rank: int, ranks: int, port: int, device: str, sizes: Measured, found: Any) -> None:
    """What each rank does; the first hands out the rows."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    # A rank that waits in vain shall not keep the GPUs for long.
    limit = datetime.timedelta(seconds=100)
    backend = "nccl" if device == "cuda" else "gloo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
    here = Ranks(ranks, torch.device(device, rank) if device == "cuda" else torch.device(device))
    for part in (bandwidths, columns, losses, steps):
        try:
            for result in part(sizes, here):
                if rank == 0:
                    found.put(result)
        except Exception as error:  # All ranks make the same calls; the other parts go on.
            said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            print(f"rank {rank}: {part.__name__}: {said}", flush=True)
            if rank == 0:
                found.put(Result("sharded", part.__name__, "fusedops", note=f"failed: {said}"))
        if device == "cuda":
            torch.cuda.empty_cache()
    if rank == 0:
        found.put(None)
    dist.destroy_process_group()


class Ranks(NamedTuple):
    """The ranks of the run: how many there are, and this one's device."""

    count: int
    device: torch.device

    @property
    def name(self) -> str:
        """What they are."""
        return f"{self.count} {'GPUs' if self.device.type == 'cuda' else 'CPU processes'}"

    def mesh(self, *shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """A mesh of all of them."""
        return init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    def seconds(self, call: Callable[[], object], samples: int, least: float = 5e-3) -> float:
        """Of one call among calls one after another: the median of samples, on the slowest rank."""
        repeats = 1
        for attempt in range(3):  # kernels are built, connections are opened
            once = self._sample(call, repeats)
            if attempt:
                repeats = max(1, min(100, round(least / once)))
        return statistics.median(self._sample(call, repeats) for _ in range(samples))

    def _sample(self, call: Callable[[], object], repeats: int) -> float:
        dist.barrier()
        synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        synchronize(self.device)
        once = (time.perf_counter() - begin) / repeats
        slowest = torch.tensor(once, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)


def bandwidths(sizes: Measured, ranks: Ranks) -> Iterator[Result]:
    """Of collectives over all ranks: the bytes that each receives, by the time that takes."""
    dtype, others = DTYPES[sizes.dtype], (ranks.count - 1) / ranks.count
    for message in sizes.messages:
        whole = torch.zeros(message // dtype.itemsize, dtype=dtype, device=ranks.device)
        part = torch.zeros(whole.numel() // ranks.count, dtype=dtype, device=ranks.device)

        calls: dict[str, tuple[Callable[[], object], float]] = {
            "all-reduce": (lambda x=whole: dist.all_reduce(x), 2 * others),
            "all-gather": (lambda x=whole, y=part: dist.all_gather_into_tensor(x, y), others),
            "reduce-scatter": (lambda x=whole, y=part: dist.reduce_scatter_tensor(y, x), others),
        }
        for name, (call, share) in calls.items():
            yield Result(
                "sharded",
                f"{name} of {message} bytes, {ranks.name}",
                dist.get_backend(),
                ranks.seconds(call, sizes.samples),
                round(message * share),
                note="TB/s are those that each rank receives",
            )
        del whole, part


def columns(sizes: Measured, ranks: Ranks) -> Iterator[Result]:
    """Rows whose columns are sharded, forward and forward with backward, beside gathering them."""
    mesh = ranks.mesh(ranks.count)
    for op, (rows, width) in ((fo.LogSoftmax(), sizes.words), (fo.LayerNorm(), sizes.norms)):
        x, dy = (_columns_of(rows, width, mesh, sizes, seed) for seed in (1, 2))
        x.requires_grad_()
        told = op.explain(x).redistributed[0]
        ways: dict[str, Callable[[Any], Any]] = {
            "columns stay sharded": op,
            "columns gathered": lambda x, op=op: op(x.redistribute(placements=[Replicate()])),
        }
        against = [0.0, 0.0]
        case = f"{op.name} of ({rows}, {width}), {sizes.dtype}, columns over {ranks.name}"
        for by, call in ways.items():
            forward = torch.no_grad()(lambda x=x, call=call: call(x))
            step = _step(call, x, dy)
            for at, (name, each) in enumerate((("forward", forward), ("a step", step))):
                seconds = ranks.seconds(each, sizes.samples)
                against[at] = against[at] or seconds
                note = str(traced(each))
                if at == 0:
                    note += f"; explain: {_bytes(told) if call is op else _gathered(x)} bytes"
                yield Result(
                    "sharded",
                    f"{case}: {name}",
                    by,
                    seconds,
                    beside=0.0 if call is op else against[at],
                    note=note,
                )


def losses(sizes: Measured, ranks: Ranks) -> Iterator[Result]:
    """The loss of logits whose classes are sharded, forward with backward, beside gathering them.

    Of torch it is what `loss_parallel` makes of its `cross_entropy`.
    """
    mesh = ranks.mesh(ranks.count)
    rows, words = sizes.words
    x = _columns_of(rows, words, mesh, sizes, 1).requires_grad_()
    labels = torch.arange(rows, device=ranks.device) % words
    target, op = DTensor.from_local(labels, mesh, [Replicate()], run_check=False), fo.CrossEntropy()

    def stays() -> None:
        op(x, target=target).backward()

    def gathers() -> None:
        op(x.redistribute(placements=[Replicate()]), target=target).backward()

    def of_torch() -> None:
        with loss_parallel():
            functional.cross_entropy(x, target).backward()

    against = 0.0
    case = f"{op.name} of ({rows}, {words}), {sizes.dtype}, classes over {ranks.name}: a step"
    for by, call in (
        ("classes stay sharded", stays),
        ("logits gathered", gathers),
        ("torch, loss_parallel", of_torch),
    ):

        def step(call: Callable[[], None] = call) -> None:
            x.grad = None
            call()

        seconds = ranks.seconds(step, sizes.samples)
        against = against or seconds
        beside = 0.0 if call is stays else against
        yield Result("sharded", case, by, seconds, beside=beside, note=str(traced(step)))


def _columns_of(rows: int, width: int, mesh: DeviceMesh, sizes: Measured, seed: int) -> DTensor:
    generator = torch.Generator(mesh.device_type).manual_seed(seed)
    here = width // mesh.size()
    if here * mesh.size() != width:
        raise ValueError(f"{width} columns are not the same number on {mesh.size()} ranks")
    part = torch.randn(rows, here, generator=generator, device=mesh.device_type)
    return DTensor.from_local(part.to(DTYPES[sizes.dtype]), mesh, [Shard(1)], run_check=False)


def _step(call: Callable[[Any], Any], x: DTensor, dy: DTensor) -> Callable[[], None]:
    def step() -> None:
        x.grad = None
        y = call(x)
        y.backward(dy.redistribute(placements=y.placements))

    return step


def _bytes(told: str) -> int:
    found = re.search(r"(\d+) bytes", told)
    assert found, told
    return int(found[1])


def _gathered(x: DTensor) -> int:
    """What `explain` says of an op whose columns are gathered."""
    dropped = fo.Softmax(store=[fo.Dropout("p")])
    return _bytes(dropped.explain(x, p=0.5).redistributed[0])


def steps(sizes: Measured, ranks: Ranks) -> Iterator[Result]:
    """Steps of training of the example's model: on one rank, and on all of them in two ways."""
    model, dtype = sizes.model, DTYPES[sizes.dtype]
    case = (
        f"a step of {model.blocks} blocks of {model.dim}, {model.heads} heads, {model.batch} x "
        f"{model.tokens} tokens of {model.words}, {sizes.dtype}, AdamW"
    )
    against = 0.0
    for by, shape in (
        ("unsharded, one of the ranks", None),
        ("tensor and sequence parallel", (1, ranks.count)),
        ("data parallel, FSDP", (ranks.count, 1)),
    ):
        torch.manual_seed(0)
        with ranks.device:
            made = Model(model).to(dtype)
        tokens, wanted = batch(0, model)
        if shape:
            mesh = ranks.mesh(*shape, names=("data", "tensor"))
            made = parallelize(made, mesh)
            at = mesh["data"].get_local_rank()
            tokens, wanted = (one.chunk(shape[0])[at] for one in (tokens, wanted))
        step = Training(made, tokens.to(ranks.device), wanted.to(ranks.device))
        if ranks.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = ranks.seconds(step, sizes.samples)
        against = against or seconds
        note = str(traced(step))
        if shape:
            counted = of_a_step(model, *shape, dtype.itemsize)
            note += f"; arithmetic: {counted.all} bytes {tuple(counted)}"
        if ranks.device.type == "cuda":
            note += f"; peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        where = f" {shape[0]} x {shape[1]}" if shape else ""
        name = f"{by}{where}"
        yield Result("sharded", case, name, seconds, against=against, note=note)
        del made, step


class Training:
    """A model in training, on one batch."""

    def __init__(self, model: Model, tokens: Tensor, wanted: Tensor) -> None:
        self.model, self.tokens, self.wanted = model, tokens, wanted
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def __call__(self) -> None:
        """A step."""
        loss_of(self.model(self.tokens), self.wanted).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
