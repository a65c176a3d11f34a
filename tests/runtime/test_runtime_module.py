# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled module itself: what it links, and what it knows of this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fusedops import _runtime
from fusedops.jit import levels


def test_loading_says_what_is_wrong(library, tmp_path):
    with pytest.raises(RuntimeError, match=r"loading the host kernel k failed: .*missing.so"):
        _runtime.load_host(str(tmp_path / "missing.so"), "k")
    with pytest.raises(RuntimeError, match="holds no kernel nothing"):
        _runtime.load_host(library, "nothing")
    if _runtime.device_count() == 0:
        with pytest.raises(RuntimeError):
            _runtime.load_cuda(b"", "k")


# What a level may ask for, as the kernel spells it in /proc/cpuinfo (its cpufeatures.h).
FEATURES = {"abm" if name == "lzcnt" else name for name in (*levels._V3, *levels._V4)}


def test_cpu_features_are_those_of_the_system():
    """Of all that the runtime may report: what is there is reported, what is not there is not."""
    features = _runtime.cpu_features()
    assert isinstance(features, frozenset)
    assert features <= FEATURES
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("no /proc/cpuinfo here")
    line = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE)
    if line is None:
        pytest.skip("/proc/cpuinfo has no flags on this processor")
    flags = set(line[1].split())
    assert features == FEATURES & flags


def test_every_feature_that_the_runtime_knows_is_one_that_a_level_asks_for():
    """By the source: on this processor some may never be reported."""
    text = (Path(__file__).parents[2] / "csrc" / "cpu.cpp").read_text()
    names = re.findall(r'\{"(\w+)", \w+, \d, kE', text)
    assert sorted(names) == sorted(FEATURES)


def test_the_module_links_neither_torch_nor_cuda():
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("no readelf on PATH: install binutils")

    def read(option):
        command = [readelf, "--wide", option, _runtime.__file__]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", read("--dynamic"))
    assert needed
    assert not [name for name in needed if re.search("torch|c10|cuda|nv|python", name)]
    undefined = re.findall(r"\bUND (\S+)", read("--dyn-syms"))
    assert undefined
    assert not [
        name for name in undefined if re.match(r"cu[A-Z]|cuda|nvrtc|.*(c10|torch|N2at)", name)
    ]


def test_the_module_loads_without_torch():
    code = (
        "import importlib.util, sys;"
        f"spec = importlib.util.spec_from_file_location('_runtime', {_runtime.__file__!r});"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        "assert module.cpu_features() is not None; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reasons_are_those_that_mypy_knows():
    root = Path(__file__).parents[2]
    typed = (root / "src" / "fusedops" / "_runtime.pyi").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^class Reason\(str, enum.Enum\):(.*?)^class", typed, re.M | re.S)
    members = {name: one.value for name, one in _runtime.Reason.__members__.items()}
    assert dict(re.findall(r'^    (\w+) = "(\w+)"$', listed, re.MULTILINE)) == members


def test_the_reasons_are_named_in_their_order():
    """The names stand in csrc/gate.cpp in the order of the enumerators in csrc/gate.h."""
    text = (Path(__file__).parents[2] / "csrc" / "gate.h").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^enum Reason : uint8_t \{(.*?)^\};", text, re.MULTILINE | re.DOTALL)
    none, *names = re.findall(r"^  k(\w+)", listed, re.MULTILINE)
    assert none == "None"
    assert [name.upper() for name in names] == list(_runtime.Reason.__members__)
