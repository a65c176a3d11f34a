# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: it starts at once, and without torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.argv = ["/usr/bin/fusedops", *sys.argv[1:]]
from fusedops.cli import main
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.fixture
def without_torch(tmp_path):
    """A folder that, first on the path, has a torch that cannot be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so is gone')\n")
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize("arguments", [["--help"], ["--include"], ["cache", "--help"]])
def test_what_needs_no_torch_does_not_import_it(arguments):
    done = run("-c", SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "False"


def test_started_as_a_module_it_needs_no_torch_either(without_torch):
    done = run("-m", "fusedops", "--help", **without_torch)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "export", "doctor", "cache"):
        assert f" {command} " in done.stdout


def test_a_command_that_needs_torch_says_so_without_a_traceback(without_torch):
    done = run("-m", "fusedops", "demo", **without_torch)
    assert done.returncode == 1
    assert "libtorch.so is gone" in done.stderr
    assert "fusedops doctor" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_works_without_torch(without_torch):
    done = run("-m", "fusedops", "doctor", "--json", **without_torch)
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["verdict"] == "problem"
    assert "libtorch.so is gone" in checks["torch"]["found"]
    assert "pip install" in checks["torch"]["cure"]
    assert checks["runtime"]["verdict"] == "ok"


def test_in_a_command_every_name_is_there_when_it_is_asked_for():
    done = run(
        "-c",
        "import sys; sys.argv = ['fusedops']; import fusedops\n"
        "assert 'torch' not in sys.modules\n"
        "for name in fusedops.__all__: getattr(fusedops, name)\n"
        "from fusedops import Softmax, nn\n"
        "assert not hasattr(fusedops, 'nothing')",
    )
    assert done.returncode == 0, done.stderr
