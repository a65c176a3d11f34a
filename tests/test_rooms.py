# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Data flows one way through the package: no room imports one that stands above it.

A room is a package or a module directly in fusedops/. Each says in its docstring which rooms it may
import, and that is exactly what it does import: at the top, within functions, or for types alone.
"""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest

import fusedops

ROOT = Path(fusedops.__file__).parent


@cache
def modules():
    """The file of each module by its name; the compiled runtime has none."""
    found = {"fusedops._runtime": None}
    for file in ROOT.rglob("*.py"):
        parts = ("fusedops", *file.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(file):
    """The modules of fusedops that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else node.module for name in inner]
        else:
            continue
        yield from (name for name in names if name in modules())


def room(module):
    """Where a module stands: fusedops itself, or what is directly in it."""
    return module.split(".")[1] if "." in module else module


@cache
def arrows():
    """Which rooms each room imports, and by which modules."""
    found = {room(module): {} for module in modules()}
    for module, file in modules().items():
        for other in imported(file) if file else ():
            if room(other) != room(module):
                found[room(module)].setdefault(room(other), set()).add(f"{module} -> {other}")
    return found


def said(name):
    """The rooms that a room's docstring lets it import."""
    file = modules()["fusedops" if name == "fusedops" else f"fusedops.{name}"]
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    lines = re.findall(r"^May import: ([\w, ]+)\.$", text.replace(",\n", ", "), re.MULTILINE)
    assert len(lines) == 1, f"{file} must say which rooms it may import: 'May import: a, b.'"
    return set() if lines == ["nothing of fusedops"] else set(lines[0].split(", "))


ROOMS = sorted({room(module) for module in modules()} - {"_runtime"})


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_what_it_says(name):
    found = arrows()[name]
    beyond = {other: sorted(found[other]) for other in found.keys() - said(name)}
    assert not beyond, f"{name} may not import: {beyond}"
    assert not said(name) - found.keys(), "what it may import and does not"


def test_no_modules_need_one_another():
    """Within the rooms, too, any module can be understood from those that it imports."""
    needs = {m: set(imported(file)) - {m} if file else set() for m, file in modules().items()}
    assert len(list(graphlib.TopologicalSorter(needs).static_order())) == len(needs)


def test_no_arrow_runs_back_up():
    """There is an order of the rooms in which each imports only those before it."""
    order = list(graphlib.TopologicalSorter(arrows()).static_order())
    assert order.index("declare") < order.index("bind") < order.index("schedule")
    assert order.index("schedule") < order.index("generate") < order.index("run")
    assert order.index("run") < order.index("row_op") < order.index("ops") < order.index("nn")
