# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin: what tests call on the CPU runs through emulated GPU kernels.

PYTHONPATH=tests/emulator python -m pytest -p emulated_gpu tests/test_gradients.py -k cpu

The environment's EMULATED_ARCH and EMULATED_ORDER choose the GPU and the order of threads.
"""

import os

import pytest
from emulate import emulated


@pytest.fixture(autouse=True)
def on_an_emulated_gpu():
    """Every test runs within one block of `emulated`."""
    arch = os.environ.get("EMULATED_ARCH", "sm_90")
    with emulated(arch, os.environ.get("EMULATED_ORDER", "random")):
        yield
