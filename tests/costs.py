# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What each test file costs: a pytest plugin that `conftest.py` registers.

Every run ends with its ten most expensive files; `pytest --costs FILE` writes the table as CSV:

======== ==========================================================================================
tests    how many ran
wall     seconds of wall time in tests and their fixtures, added up over pytest-xdist's workers
own      seconds of CPU time in the worker itself
children seconds of CPU time in processes that tests started and waited for: compilers above all
kernels  compilations of one kernel for the CPU by the host's compiler
inductor compilations by the host's compiler for Inductor
nvcc     runs of nvcc
python   Python processes
others   processes of other programs
======== ==========================================================================================

Programs that child processes start are in `children`, and are not counted one by one.
"""

from __future__ import annotations

import csv
import itertools
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SECONDS = ("wall", "own", "children")
COUNTS = ("kernels", "inductor", "nvcc", "python", "others")
DEFAULT_RUN_SECONDS = (
    360  # More than this and the default run is no longer what a person waits for.
)

#: Files with tests of ten seconds and more, on some device. These begin first: else a worker has
#: one left at the end, for which the others wait.
LONGEST = {
    "test_cutlass.py",
    "test_dispatch_spills.py",
    "test_building.py",
    "test_examples.py",
    "test_cmake.py",
    "test_dispatch.py",
    "test_dispatch_losses.py",
    "test_foreign.py",
    "test_cpp_training.py",
    "test_sanitized.py",
    "test_sharded.py",
    "test_sharded_columns.py",
    "test_compiled_numbers.py",
}

#: Tests that take long on GPUs, and about how many seconds with 30 workers on 32 cores. Tests
#: that take much memory are not among them: one worker has these, one after another.
SECONDS_ON_A_GPU = {
    "test_sharded.py::test_flagships": 50,
    "test_sharded.py::test_each_functor": 20,
    "test_tuning_products.py::TestOnAGpu::test_every_part_of_a_block": 20,
    "test_user_functors.py::test_gradients_in_load_and_store": 20,
    "test_activations.py::test_each_on_a_gpu": 15,
    "test_check.py::test_flagships": 15,
    "test_check.py::test_terms_cancel_in_functors_of_ones_own": 15,
    "test_operator_contract.py::test_what_is_kept_is_what_python_says": 15,
    "test_check.py::test_an_operator_that_declares_no_statistics": 10,
    "test_check.py::test_other_declarations": 10,
    "test_gradients.py::test_chains_of_many": 10,
    "test_gradients.py::test_every_ordered_pair": 10,
    "test_map_taps.py::test_check": 10,
    "test_product_of_eight_bits.py::TestOnAGpu::test_against_float64": 10,
    "test_rotate.py::test_every_norm": 10,
    "test_rotate.py::test_norms_within_their_bounds": 10,
    "test_rows_abreast.py::test_they_have_the_bits_of_single_rows": 10,
    "test_gradients.py::test_flagships_on_every_schedule": 8,
    "test_remade.py::test_the_result": 8,
    "test_user_functors.py::test_every_operation_in_load_and_store": 8,
    "test_foreign.py::test_loads": 2,
}

#: How many neighbours among these one worker has: they share a library that nvcc builds, or a group
#: of processes, which each worker starts for itself.
TOGETHER = {
    "test_foreign.py::test_loads": 9,
    "test_sharded.py::test_each_functor": 5,
    "test_sharded.py::test_flagships": 2,
}

_started: Counter[str] = Counter()  # processes by kind


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist is not told by itself how tests are given out."""
    node.workerinput["dist"] = node.config.getoption("dist")


@pytest.hookimpl(trylast=True)  # after -m, so that shares are those of what will run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)
    worker = getattr(config, "workerinput", {})
    if worker.get("dist") == "worksteal":
        items[:] = deal(items, worker["workercount"])


def deal(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order tests so that with ``--dist worksteal`` each worker begins with its part of long ones.

    There a worker begins with an equal share of the tests as they were collected, and one that has
    no more takes the last half of another's. So the long tests of a file would be one worker's, and
    run when the others have little left.
    """
    long = filter(seconds_on_a_gpu, items)
    parts: list[list[pytest.Item]] = []
    for name, same in itertools.groupby(long, key=name_of):
        neighbours = [*same]
        size = TOGETHER.get(name, 1)
        parts += [neighbours[at : at + size] for at in range(0, len(neighbours), size)]
    hands: list[list[pytest.Item]] = [[] for _ in range(workers)]
    seconds = [0] * workers
    for part in sorted(parts, key=lambda part: -sum(map(seconds_on_a_gpu, part))):
        least = seconds.index(min(seconds))
        hands[least] += part
        seconds[least] += sum(map(seconds_on_a_gpu, part))
    short = itertools.filterfalse(seconds_on_a_gpu, items)
    dealt: list[pytest.Item] = []
    for worker, hand in enumerate(hands):
        share = (len(items) - len(dealt)) // (workers - worker)
        dealt += [*hand, *itertools.islice(short, max(0, share - len(hand)))]
    return [*dealt, *short]


def name_of(item: pytest.Item) -> str:
    """File, class and function of a test, without folders and parameters."""
    file, _, name = item.nodeid.partition("::")
    return f"{Path(file).name}::{name.partition('[')[0]}"


def seconds_on_a_gpu(item: pytest.Item) -> int:
    """What `SECONDS_ON_A_GPU` says of a test; 0 of a short one."""
    return SECONDS_ON_A_GPU.get(name_of(item), 0)


def pytest_addoption(parser):
    parser.addoption("--costs", metavar="FILE", help="write what each test file costs, as CSV")


def _kind(command: list[str]) -> str:
    program = Path(command[0]).name
    if program.startswith("python"):
        return "python"
    if program == "nvcc":
        return "nvcc"
    if any("torchinductor" in word for word in command):
        return "inductor"
    return "kernels" if "kernel.cpp" in command else "others"


def _note(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        command = arguments[1]
        words = [command] if isinstance(command, (str, bytes, Path)) else command
        _started[_kind([str(word) for word in words])] += 1


def _now() -> dict[str, float]:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "wall": time.monotonic(),
        "own": own.ru_utime + own.ru_stime,
        "children": children.ru_utime + children.ru_stime,
        **{kind: _started[kind] for kind in COUNTS},
    }


class Costs:
    """Measures each test where it runs, and adds up by file where reports arrive."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before: dict[str, float] = {}
        self._begin = time.monotonic()
        self._files: dict[str, Counter[str]] = defaultdict(Counter)
        sys.addaudithook(_note)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self):
        """A fixture that tests share is paid by the first of them."""
        self._before = _now()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        try:
            return (yield)
        finally:
            spent = {name: value - self._before[name] for name, value in _now().items()}
            item.user_properties.append(("costs", spent))

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            spent = dict(report.user_properties).get("costs", {})
            self._files[report.nodeid.partition("::")[0]].update(tests=1, **spent)

    def pytest_terminal_summary(self, terminalreporter):
        """The ten files that cost most; the whole table where it was asked for."""
        most = sorted(self._files.items(), key=lambda file: -file[1]["wall"])
        if file := self._config.getoption("--costs"):
            with Path(file).open("w", newline="") as written:
                table = csv.writer(written)
                table.writerow(("file", "tests", *SECONDS, *COUNTS))
                for name, spent in most:
                    seconds = (f"{spent[kind]:.1f}" for kind in SECONDS)
                    table.writerow((name, spent["tests"], *seconds, *(spent[k] for k in COUNTS)))
        if len(most) > 10:
            terminalreporter.section("most expensive files")
            for name, spent in most[:10]:
                counts = f"{spent['tests']:4} tests  {spent['kernels']:4} kernels"
                terminalreporter.write_line(f"{spent['wall']:6.1f} s  {counts}  {name}")
        took = time.monotonic() - self._begin
        if self._is_default_run() and took > DEFAULT_RUN_SECONDS:
            terminalreporter.write_line(
                f"warning: the default run took {took:.0f} s, {DEFAULT_RUN_SECONDS} s is too much: "
                "give the files above fewer kernels, or mark tests thorough",
                yellow=True,
            )

    def _is_default_run(self) -> bool:
        config = self._config
        everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        return everything and config.option.markexpr == "not thorough"


def pytest_configure(config):
    config.pluginmanager.register(Costs(config), "fusedops-costs")
