# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Many processes on one cold cache: each variant is built once, whoever is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CREW = Path(__file__).with_name("crew.py")
VARIANTS = 4
WORKERS = 16
ROUNDS = int(os.environ.get("FUSEDOPS_TEST_ROUNDS", "2"))  # 50 by hand: five seconds or so each


def rounds(folder: Path, number: int, killed: int) -> list[dict[str, Any]]:
    temporary = folder / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    numbers = map(str, (number, WORKERS, killed, 1234))
    done = subprocess.run(
        [sys.executable, CREW, folder, *numbers],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120 + 60 * number,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def nothing_is_left(result: dict[str, Any]) -> bool:
    return result["locked"] == result["damaged"] == 0 and result["strays"] == []


@pytest.mark.thorough
def test_processes_that_start_cold_compile_each_variant_once(tmp_path: Path) -> None:
    (result,) = rounds(tmp_path, 1, killed=0)
    assert result["compiles"] == VARIANTS
    assert result["right"] == WORKERS
    assert result["entries"] == VARIANTS + 1  # Softmax was asked for again, RMSNorm is new
    assert result["left"] == 0
    assert nothing_is_left(result)


@pytest.mark.thorough
@pytest.mark.skipif(ROUNDS < 1, reason="no rounds asked for")
def test_processes_that_are_killed_leave_nothing_that_hangs_or_misleads(tmp_path: Path) -> None:
    results = rounds(tmp_path, ROUNDS, killed=WORKERS // 2)
    for result in results:
        assert result["hung"] == result["wrong"] == 0
        assert result["right"] + result["killed"] == WORKERS
        assert result["late"] == 2  # right, and within seconds
        assert result["entries"] == VARIANTS + 1 or not result["right"]
        assert nothing_is_left(result)
    assert sum(result["killed"] for result in results) >= 2 * ROUNDS  # else too late
