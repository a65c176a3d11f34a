# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The node of CUTLASS's epilogue visitor tree: what includes it, that it compiles, its results.

CUTLASS is that of FUSEDOPS_CUTLASS, a folder with include/cutlass, or of the PyPI package
nvidia-cutlass (the extra ``gemm``). `.ci/run` names a folder, so that there the test compiles or
fails.
"""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from cpptest import find_nvcc, log_of
from test_cmake import cmake, configure
from test_headers import CUTLASS_HEADERS

from fusedops.jit import env

EXAMPLE = Path(__file__).parent.parent / "examples" / "cpp" / "gemm"


def cutlass():
    """The folder that holds CUTLASS's include, or a skip."""
    given = os.environ.get("FUSEDOPS_CUTLASS")
    package = None if given else importlib.util.find_spec("cutlass_library")
    if given is None and package is None:
        pytest.skip("no CUTLASS: pip install nvidia-cutlass, or set FUSEDOPS_CUTLASS")
    folder = Path(given) if given else Path(package.submodule_search_locations[0], "source")
    assert (folder / "include" / "cutlass" / "cutlass.h").is_file(), folder
    return folder


def test_no_other_header_needs_it():
    assert {*CUTLASS_HEADERS} == {"fusedops/cutlass/sm90_functors.cuh"}
    for path in (env.include_dir() / "fusedops").rglob("*.cuh"):
        text = path.read_text(encoding="utf-8")
        foreign = re.findall(r"#\s*include\s*<((?:fusedops/)?(?:cutlass|cute)/[^>]+)>", text)
        assert not foreign or path.parent.name == "cutlass", f"{path} includes {foreign}"


@pytest.mark.thorough
def test_it_compiles(tmp_path):
    """Without warnings of ours, without spills, with products that nothing serializes."""
    found = tmp_path / "linear.cubin"
    flags = ["-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas", "-v"]
    folders = [f"-I{env.include_dir()}", "-isystem", cutlass() / "include"]
    keep = ["--keep", "--keep-dir", tmp_path]
    command = [find_nvcc(), *flags, "-gencode=arch=compute_90a,code=sm_90a", *folders, *keep]
    said = log_of([*command, "-cubin", EXAMPLE / "linear.cu", "-o", found])
    assert said.count("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") == 2, said
    assert "C7510" not in said  # what ptxas says of a product that it waits for
    warned = [line for line in said.splitlines() if "warning" in line and "fusedops" in line]
    assert not warned
    # Lanes exchange, and so functors get packs of 8: CUTLASS's own code has no such shuffle.
    (code,) = tmp_path.glob("*.ptx")
    assert "shfl.sync.bfly" in code.read_text()


@pytest.mark.gpu
@pytest.mark.thorough
def test_the_example_on_a_gpu(tmp_path):
    """Whole tiles, edges in every dimension and odd columns, against a product in double."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the example is for sm_90")
    here = [f"CUTLASS_DIR={cutlass()}", f"CMAKE_CUDA_COMPILER={find_nvcc()}"]
    source = f"FUSEDOPS_SOURCE={Path(__file__).parent.parent}"
    status, said = configure(EXAMPLE, tmp_path / "build", source, *here)
    assert status == 0, said
    status, said = cmake("--build", tmp_path / "build")
    assert status == 0, said
    done = subprocess.run(
        [str(tmp_path / "build" / "linear")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("of the bound") == 9, done.stdout
    assert "all within the bound" in done.stdout
