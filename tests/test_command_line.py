# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The command line as a whole: it starts at once, and without torch."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fusedops.version import __version__

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
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
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.fixture
def without_torch(tmp_path):
    """A folder that, first on the path, has a torch that cannot be imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so is gone')\n")
    return {"PYTHONPATH": str(tmp_path)}


FLAGSHIP = ["fusedops.flagship:ATTENTION", "--arch", "cpu", "--operand", "p=0.1"]
SIZES = ["x=float16:1,2,8,64", "scale=0.125", "pair_bias=float16:2,8,64", "padding=bool:1,1,1,64"]
FLAGSHIP += [word for size in SIZES for word in ("--operand", size)]


@pytest.fixture
def without_numpy(tmp_path):
    """A folder that, first on the path, has a numpy that is not there."""
    (tmp_path / "numpy").mkdir()
    missing = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')\n"
    (tmp_path / "numpy" / "__init__.py").write_text(missing)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (["export", *FLAGSHIP], "// attention: made by fusedops"),
        pytest.param(["demo", "--device", "cpu"], "fusedops ", marks=pytest.mark.thorough),
    ],
    ids=["export", "demo"],
)
def test_torch_says_nothing_of_a_numpy_that_nobody_needs(command, first, without_numpy, tmp_path):
    """Nor do the processes that build."""
    done = run("-m", "fusedops", *command, **without_numpy, FUSEDOPS_CACHE_DIR=f"{tmp_path}/cache")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith(first)


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


@pytest.mark.thorough
def test_a_command_finds_every_public_name():
    """Modules that a command imports say `fo.Map` as any other."""
    names = "import fusedops; [getattr(fusedops, name) for name in fusedops.__all__]"
    done = run("-c", f"import sys; sys.argv = ['/usr/bin/fusedops']; {names}")
    assert done.returncode == 0, done.stderr


def test_a_command_that_needs_torch_says_so_without_a_traceback(without_torch):
    done = run("-m", "fusedops", "demo", **without_torch)
    assert done.returncode == 1
    assert "libtorch.so is gone" in done.stderr
    assert "fusedops doctor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_the_doctor_works_without_torch(without_torch):
    done = run("-m", "fusedops", "doctor", "--json", **without_torch)
    assert done.returncode == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["verdict"] == "problem"
    assert "libtorch.so is gone" in checks["torch"]["found"]
    assert "pip install" in checks["torch"]["cure"]
    assert checks["fusedops"]["verdict"] == "ok"


def test_the_version_is_printed():
    done = run("-m", "fusedops", "--version")
    assert (done.returncode, done.stdout) == (0, f"fusedops {__version__}\n")


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize("command", ["build", "record", "tune", "export", "doctor", "demo"])
def test_help_is_whole_in_narrow_terminals(command, columns):
    done = run("-m", "fusedops", command, "--help", COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= columns
    assert "…" not in done.stdout
    if command in ("build", "tune", "export"):
        for syntax in ("NAME=DTYPE:SIZES@STRIDES", "NAME=NUMBER"):
            assert re.search(rf"^ +(.* )?{syntax}\b", done.stdout, re.MULTILINE)


def test_the_list_of_commands_cuts_no_sentence_off():
    done = run("-m", "fusedops", "--help", COLUMNS="60")
    assert "torch chains." in " ".join(done.stdout.split())
    assert done.stdout.count("...") == 1  # of the usage


@pytest.mark.thorough
def test_an_export_that_cannot_be_written_is_said_in_a_line(tmp_path):
    file = tmp_path / "missing" / "norm.h"
    operands = ("x=float32:4,8", "bias=float32:8", "p=0.1", "residual=float32:4,8")
    operands += ("gamma=float32:8", "beta=float32:8")
    done = run(
        *("-m", "fusedops", "export", "fusedops.flagship:ADD_NORM", "--arch", "cpu"),
        *(word for one in operands for word in ("--operand", one)),
        *("--output", str(file)),
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    said = " ".join(done.stderr.split())
    assert f"{file} cannot be written: No such file or directory" in said
    assert "--output" in said


@pytest.fixture
def without_a_terminal(tmp_path):
    """A folder that, first on the path, blocks what the command line alone needs."""
    for name in ("rich", "typer"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no module called {name}')\n")
    return {"PYTHONPATH": str(tmp_path)}


LIBRARY = """
import importlib, pkgutil, sys
import torch, fusedops
for name in fusedops.__all__:
    getattr(fusedops, name)
for module in pkgutil.walk_packages(fusedops.__path__, "fusedops."):
    of_extras = ("fusedops.commands", "fusedops.cli", "fusedops.demo")
    of_extras += ("fusedops.integrations.transformers",)
    if not module.name.startswith(of_extras):
        importlib.import_module(module.name)
x = torch.randn(3, 8, requires_grad=True)
fusedops.Softmax()(x).sum().backward()
fusedops.Softmax().explain(x)
assert x.grad is not None
assert not {"rich", "typer"} & {*sys.modules}
"""


@pytest.mark.thorough
def test_the_library_needs_neither_rich_nor_typer(without_a_terminal):
    done = run("-c", LIBRARY, **without_a_terminal)
    assert done.returncode == 0, done.stderr


SCRIPTS = re.search(r'^fusedops = "([\w.]+):(\w+)"$', PROJECT.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "fusedops", "doctor"],
        # As pip's script has it.
        [
            "-c",
            "import sys; sys.argv = ['/usr/bin/fusedops', '--help']\n"
            f"from {SCRIPTS[1]} import {SCRIPTS[2]}\nsys.exit({SCRIPTS[2]}())",
        ],
    ],
    ids=["module", "script"],
)
def test_without_them_a_command_says_in_one_line_what_to_install(command, without_a_terminal):
    done = run(*command, **without_a_terminal)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "pip install rich typer" in line
    assert "no module called" in line


@pytest.mark.thorough
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
