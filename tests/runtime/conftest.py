# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The compiled C kernels, a dispatcher of them and something to call it with."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch
from dispatchers import KERNELS, Affine


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The compiled C kernels, as a path."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on PATH: install gcc or clang")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernels.c").write_text(KERNELS)
    command = [compiler, "-O1", "-fPIC", "-shared", "kernels.c", "-o", "kernels.so"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "kernels.so")


@pytest.fixture
def affine(library):
    return Affine(library)


@pytest.fixture
def x():
    return torch.arange(24, dtype=torch.float32).reshape(4, 6)
