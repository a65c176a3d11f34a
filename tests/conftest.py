# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What every test shares: the devices, and a cache of built variants that outlives a run."""

import contextlib
import os

import hypothesis
import pytest
import torch
from two_gpus import TWO_GPUS

# Load on a shared machine is no property of the code, so no example has a deadline.
hypothesis.settings.register_profile("fusedops", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fusedops")

pytest_plugins = ["costs", "grids"]

#: How many tests were left out because they need a GPU.
NEED_GPU = pytest.StashKey[int]()


def pytest_configure(config):
    # Variants are keyed by content, so what an earlier run built stays right; pytest's own cache
    # folder keeps them out of the user's.
    os.environ.setdefault("FUSEDOPS_CACHE_DIR", str(config.cache.mkdir("fusedops")))
    # Most of the time goes to g++, and no test is timed. One leg of .ci/run has the shipped level.
    level = os.environ.setdefault("FUSEDOPS_OPT_LEVEL", "0")
    if level == "0" and not hasattr(config, "workerinput"):  # Workers inherit what it sets.
        import precompiled

        precompiled.use(config.cache.mkdir("precompiled"))
    # Nothing is built unasked: tests/test_cpp_node.py asks for nodes in C++. With "cpp" here, all
    # tests have them.
    os.environ.setdefault("FUSEDOPS_AUTOGRAD", "python")
    # A pool of processes that compile for Inductor, each with torch, would be one more a worker.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Workers share the cores: more threads than cores would wait for one another.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


@pytest.fixture(
    scope="session", params=[("gloo", 2), ("gloo", 4), TWO_GPUS], ids="{0[0]}-{0[1]}".format
)
def ranks(request):
    """Processes of one process group: each test that asks for them runs on every kind."""
    yield from _started(*request.param)


@pytest.fixture(scope="session")
def four_ranks():
    """Four processes of one process group, by gloo."""
    yield from _started("gloo", 4)


def _started(backend, world):
    from ranks import Ranks

    with contextlib.closing(Ranks(world, backend)) as group:
        yield group


@pytest.hookimpl(trylast=True)  # after -m, so that only what would have run is counted
def pytest_collection_modifyitems(config, items):
    """Without a GPU, what needs one is deselected; the summary says how many tests that were."""
    config.stash[NEED_GPU] = 0
    if torch.cuda.is_available():
        return
    need = [item for item in items if "gpu" in item.keywords]
    if need:
        config.stash[NEED_GPU] = len(need)
        config.hook.pytest_deselected(items=need)
        items[:] = [item for item in items if "gpu" not in item.keywords]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """A worker of pytest-xdist tells the process that writes the summary what it left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["need_gpu"] = session.config.stash.get(NEED_GPU, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """All workers collect the same tests, so each one's number is that of the whole run."""
    node.config.stash[NEED_GPU] = getattr(node, "workeroutput", {}).get("need_gpu", 0)


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(NEED_GPU, 0):
        terminalreporter.write_line(
            f"{count} tests need an NVIDIA GPU that torch can use: deselected"
        )


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """The device that a test runs on: each test that asks for it runs on every one."""
    return request.param


@pytest.fixture(
    params=[
        ("cpu", "two_kernels"),
        *(
            pytest.param(("cuda", name), marks=pytest.mark.gpu)
            for name in ("two_kernels", "Together", "InTurns")
        ),
    ],
    ids="-".join,
)
def product_on(request):
    """A device, on which a product and the functors after it are run by each implementation."""
    from products import forced, needs_hopper

    device, implementation = request.param
    if device == "cuda":
        needs_hopper()
    with forced(implementation):
        yield device


@pytest.fixture(autouse=True)
def memory_is_given_back():
    """After a test with large tensors: other workers share the GPU."""
    yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 1 << 30:
        torch.cuda.empty_cache()


@pytest.fixture(
    params=[
        ("cpu", "host"),
        ("cpu", "streaming"),
        *(
            pytest.param(("cuda", name), marks=pytest.mark.gpu)
            for name in ("register", "shared", "streaming")
        ),
    ],
    ids="-".join,
)
def scheduled(request):
    """A device and one of its row schedules, to be forced."""
    return request.param
