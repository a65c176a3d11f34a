# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A cache of its own for every test of the JIT, and what to build in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import Compiler

from fusedops.jit import host, store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(root))
    for name in ("FUSEDOPS_OFFLINE", "FUSEDOPS_VERBOSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(store, "_unkept", {})
    store._say.cache_clear()
    host._banner.cache_clear()
    return root


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    counting = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(counting.path))
    return counting


@pytest.fixture
def headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An include folder with a chain of project headers: a.cuh -> b.cuh, and c.cuh apart."""
    folder = tmp_path / "include"
    project = folder / "fusedops"
    project.mkdir(parents=True)
    (project / "a.cuh").write_text("#pragma once\n#include <fusedops/b.cuh>\n")
    (project / "b.cuh").write_text("#pragma once\n#if 0\n#include <cuda_fp16.h>\n#endif\n")
    (project / "c.cuh").write_text("#pragma once\n")
    monkeypatch.setattr("fusedops.jit.env.include_dir", lambda: folder)
    return folder
