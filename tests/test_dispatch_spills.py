# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""No kernel of a C++ dispatch spills more registers than a few, on any architecture."""

import re

import pytest
from cpptest import FOLDER, find_nvcc, log_of

from fusedops.jit import env

#: The dispatches of tests/cpp/spills.cu.
DISPATCHES = (
    "softmax",
    "norms",
    "layer_norm of parameters",
    "softmax gradients",
    "layer_norm gradient",
    "rms_norm gradient",
)
#: Bytes of a thread. A number or two in local memory cost nothing that can be measured.
MOST = 64


def points():
    """Every dispatch, dtype and architecture; CI takes the widest packs on two architectures."""
    for dtype in ("half", "bfloat16", "float", "double"):
        for arch in (80, 90, 100, 120):
            usual = dtype == "half" and arch in (90, 100)
            marks = [pytest.mark.thorough, *[pytest.mark.exhaustive] * (not usual)]
            for number, name in enumerate(DISPATCHES):
                yield pytest.param(dtype, arch, number, marks=marks, id=f"{name}-{dtype}-{arch}")


@pytest.mark.parametrize(("dtype", "arch", "number"), list(points()))
def test_no_kernel_spills(tmp_path, dtype, arch, number):
    compute = "double" if dtype == "double" else "float"
    flags = ["-std=c++17", "-cubin", f"-arch=sm_{arch}", f"-I{env.include_dir()}", "-Xptxas=-v"]
    macros = [f"-DPASS={number}", f"-DTYPE={dtype}", f"-DCT={compute}"]
    source, output = FOLDER / "spills.cu", tmp_path / "kernels.cubin"
    log = log_of([find_nvcc(), *flags, *macros, source, "-o", output])
    spilled = {int(stores) for stores in re.findall(r"(\d+) bytes spill stores", log)}
    assert spilled, log
    assert max(spilled) <= MOST, log
