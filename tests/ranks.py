# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of one process group, started once for all tests of a file: they run functions by name.

A rank that fails, dies or hangs fails the test, which then says what each rank said; the group is
started anew for the next test.
"""

import contextlib
import functools
import os
import time
import traceback

import cases
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.torch_version import TorchVersion

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
)

#: Dynamo of torch 2.11 gathers shards of a sequence or of columns, or breaks off.
compiles_shards = pytest.mark.skipif(
    TorchVersion(torch.__version__) < (2, 13), reason="seen to fail with torch 2.11"
)

#: How long a test's function may take, in seconds. A rank that waits for another never returns.
LIMIT = 120


def device():
    """Where the tensors of this process group's ranks are: GPUs by NCCL, else the CPU."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def randn(*shape, **options):
    """Normal numbers that depend on the arguments alone, on the ranks' device."""
    return cases.randn(*shape, device=device(), **options)


@functools.cache
def mesh_of(*shape):
    """A mesh of all ranks, made once in each: every mesh has connections of its own."""
    return init_device_mesh(device(), shape)


def line():
    """A mesh of one dimension."""
    return mesh_of(dist.get_world_size())


def rows_mesh():
    """A mesh of two dimensions; of two ranks, the first has both."""
    return mesh_of(2, dist.get_world_size() // 2)


def columns_mesh():
    """A mesh of two dimensions; of two ranks, the second has both."""
    return mesh_of(dist.get_world_size() // 2, 2)


class Ranks:
    """Processes that wait for a function, run it, and answer with what it raised."""

    def __init__(self, world, backend="gloo"):
        self.world, self.backend = world, backend
        self._processes, self._pipes, self._store = [], [], None

    def run(self, function, *arguments, environment=None):
        """Run `function(*arguments)` on every rank; `environment` is a dict for each rank."""
        if not self._processes:
            self._start()
        for rank, pipe in enumerate(self._pipes):
            with contextlib.suppress(BrokenPipeError):  # it has ended; what it said is read below
                pipe.send((function, arguments, (environment or {}).get(rank, {})))
        failed, waiting = {}, set(range(self.world))
        until = time.monotonic() + LIMIT
        while waiting and time.monotonic() < until:
            for rank in [*waiting]:
                if self._pipes[rank].poll(0.02):
                    waiting.remove(rank)
                    if (answer := self._answer(rank)) is not None:
                        failed[rank] = answer
                        # The others, who may wait for this one, see that it has ended.
                        until = min(until, time.monotonic() + 20)
        failed |= dict.fromkeys(waiting, "has not answered")
        if failed:
            self.close()
            pytest.fail("\n".join(f"rank {rank}: {text}" for rank, text in failed.items()))

    def _answer(self, rank):
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):  # the latter where it has not read all
            self._processes[rank].join(1)
            return f"ended with status {self._processes[rank].exitcode}"

    def _start(self):
        # The store is here, where its port is chosen: one that is found and let go for a rank to
        # take is taken by another process now and then.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        # Forked from a process that has imported what takes seconds, and has used no GPU.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed.tensor", "fusedops"])
        for rank in range(self.world):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(there, rank, self.world, self._store.port, self.backend, {**os.environ}),
                daemon=True,
            )
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)

    def close(self):
        """End the processes."""
        for process in self._processes:
            process.terminate()
            process.join(10)
        self._processes, self._pipes, self._store = [], [], None


def _serve(pipe, rank, world, port, backend, environment):
    os.environ.update(environment)  # the server's is that of when it was started
    try:
        torch.set_num_threads(1)
        if backend == "nccl":
            torch.cuda.set_device(rank)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        while True:
            function, arguments, environment = pipe.recv()
            os.environ.update(environment)
            function(*arguments)
            dist.barrier()
            pipe.send(None)
    except BaseException:  # a failed assertion or a skip is an answer, and so is a failed start
        pipe.send(traceback.format_exc())
