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
import resource
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

SECONDS = ("wall", "own", "children")
COUNTS = ("kernels", "inductor", "nvcc", "python", "others")
DEFAULT_RUN_SECONDS = (
    360  # More than this and the default run is no longer what a person waits for.
)

#: Files with tests of ten seconds and more. These begin first: else a worker has one left at the
#: end, for which the others wait.
LONGEST = {
    "test_cutlass.py",
    "test_dispatch_spills.py",
    "test_building.py",
    "test_examples.py",
    "test_cmake.py",
    "test_sanitized.py",
    "test_sharded.py",
    "test_sharded_columns.py",
    "test_compiled_numbers.py",
}

_started: Counter[str] = Counter()  # processes by kind


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


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
