# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line, in a process of its own as a user starts it."""

import os
import re
import subprocess
import sys

import pytest
from cases import thorough


def fusedops(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "fusedops", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},  # No table wraps.
        timeout=300,
        check=False,
    )


def row(printed, heading, op):
    """The cells of one op in the table of that heading."""
    table = printed[printed.index(heading) :]
    return re.search(rf"│ {op}.*│$", table, re.MULTILINE)[0]


@pytest.mark.thorough
def test_demo():
    """Chains, seconds of building, errors, and both times of each op."""
    result = fusedops("demo", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    assert "No CUDA runtime is found" not in result.stderr  # torch's, where there is nvcc alone
    printed = result.stdout
    for op in ("attention softmax", "residual LayerNorm"):
        assert re.search(rf"{op}.*\n  LOAD   x → .*\n  STORE  .*→ y", printed)
        (seconds,) = re.findall(r"│ (\d+\.\d\d) ", row(printed, "build", op))
        assert float(seconds) > 0
        errors = re.findall(r"\d\.\de-\d+", row(printed, "largest error", op))
        assert len(errors) == 2
        assert all(float(error) < 1e-5 for error in errors)
        assert len(re.findall(r"[\d.]+ ms", row(printed, "speed-up", op))) == 2
    assert "\nTimes: medians of whole calls, forward passes with dropout 0.1.\n" in printed


@pytest.mark.gpu
def test_demo_on_the_gpu():
    result = fusedops("demo")
    assert result.returncode == 0, result.stderr
    assert "torch.float16" in result.stdout


def test_without_a_command_says_what_there_is():
    result = fusedops()
    assert "demo" in result.stdout + result.stderr


@pytest.mark.parametrize("device", ["cuda:99", *thorough("meta", "nonsense")])
def test_a_device_that_does_not_exist_is_refused(device):
    result = fusedops("demo", "--device", device)
    assert result.returncode == 2
    assert "--device" in result.stderr
    assert "Traceback" not in result.stderr
