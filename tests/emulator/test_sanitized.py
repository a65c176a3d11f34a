# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The emulated kernels with the address sanitizer: no access outside of any tensor."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from cases import exhaustive

OPTIONS = {
    "detect_leaks": "0",
    "replace_intrin": "0",  # the machine itself may fill what is poisoned
    "alloc_dealloc_mismatch": "0",
    "max_malloc_fill_size": str(1 << 30),  # memory that nothing has written is no zeros
    "malloc_fill_byte": "255",
}


def library_of_gcc(name):
    found = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip())


@pytest.mark.thorough
@pytest.mark.skipif(platform.machine() != "x86_64", reason="threads are switched by x86-64 code")
@pytest.mark.parametrize(
    "part", ["ops_and_schedules", *exhaustive("test_functors and 33", "layouts")]
)
def test_nothing_outside_of_tensors(part, tmp_path):
    """The quick tests once more, in a process that has the sanitizer from its start."""
    libraries = [library_of_gcc(name) for name in ("libasan.so", "libstdc++.so")]
    if not libraries[0].is_absolute():
        pytest.skip("g++ has no address sanitizer")
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in OPTIONS.items()),
        "FUSEDOPS_EMULATOR_ASAN": "1",
    }
    tests = Path(__file__).with_name("test_emulated_kernels.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not gpu", tests]
    done = subprocess.run(
        [*map(str, command), "-k", part],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
