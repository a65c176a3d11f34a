# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The mutations fit the code as it is; `python tests/mutations.py` tries them."""

import subprocess
import sys

import pytest
from mutations import MUTATIONS, ROOT, broken


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_applies(mutation):
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert broken(mutation, text) != text


@pytest.mark.thorough
def test_their_tests_are_there():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "not gpu"]
    tests = sorted({f"tests/{mutation.test}" for mutation in MUTATIONS})
    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
