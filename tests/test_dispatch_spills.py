# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""No kernel of a C++ dispatch spills more registers than a few, on any architecture."""

import itertools
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
    "cross_entropy",
    "cross_entropy gradient",
)
DTYPES = ("half", "bfloat16", "float", "double")
ARCHS = (80, 90, 100, 120)
#: Bytes of a thread. A number or two in local memory cost nothing that can be measured.
MOST = 64


#: What CI compiles: what spills most of doubles and of others (64 and 52 bytes with nvcc 13.0).
IN_CI = (
    ("double", 120, "rms_norm gradient"),
    ("bfloat16", 100, "layer_norm of parameters"),
)


def points():
    """Every dtype, architecture and dispatch."""
    for point in itertools.product(DTYPES, ARCHS, DISPATCHES):
        marks = [pytest.mark.thorough, *[pytest.mark.exhaustive] * (point not in IN_CI)]
        yield pytest.param(point, marks=marks, id="-".join(map(str, point)))


@pytest.mark.parametrize("point", list(points()))
def test_no_kernel_spills(tmp_path, point):
    dtype, arch, dispatch = point
    compute = "double" if dtype == "double" else "float"
    flags = ["-std=c++17", "-cubin", f"-arch=sm_{arch}", f"-I{env.include_dir()}", "-Xptxas=-v"]
    macros = [f"-DPASS={DISPATCHES.index(dispatch)}", f"-DTYPE={dtype}", f"-DCT={compute}"]
    source, output = FOLDER / "spills.cu", tmp_path / "kernels.cubin"
    log = log_of([find_nvcc(), *flags, *macros, source, "-o", output])
    spilled = {int(stores) for stores in re.findall(r"(\d+) bytes spill stores", log)}
    assert spilled, log
    assert max(spilled) <= MOST, log
