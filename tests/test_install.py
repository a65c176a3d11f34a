# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel, and a checkout that is installed as it lies: what is in them, and that they work.

Programs run without `site`, whose `.pth` files would put what runs the tests first.
"""

import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import filelock
import pytest

import fusedops
from fusedops import _runtime
from fusedops.jit import env

ROOT = Path(__file__).parent.parent
# What is at the edge of file names, compilers' options and CMake's lists at once.
AWKWARD = "a folder, für Kerne; $HOME 'x'"


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What `pip wheel` makes of this checkout, or has made in the folder FUSEDOPS_TEST_WHEEL."""
    if folder := os.environ.get("FUSEDOPS_TEST_WHEEL"):
        (found,) = Path(folder).iterdir()
        return found
    for tool in ("scikit_build_core", "pybind11"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-build-isolation", "--no-deps", "--no-index")
    # Workers share the checkout's build folder.
    with filelock.FileLock(tmp_path_factory.getbasetemp().parent / "wheel.lock"):
        pip("wheel", *offline, "--wheel-dir", folder, ROOT)
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The wheel in a folder whose name is no plain word."""
    folder = tmp_path_factory.mktemp("installed") / AWKWARD
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)
    return folder


def run(packages, program, *arguments, cache, **environment):
    """What a program prints, with the package in that folder and all else from here."""
    paths = [str(packages), *site.getsitepackages()]
    head = f"import sys; sys.path[:0] = {paths!r}\n"
    own = {key: value for key, value in os.environ.items() if not key.startswith("FUSEDOPS_")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", head + textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**own, "FUSEDOPS_CACHE_DIR": str(cache), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_root_of_a_clone_does_not_hide_the_package():
    """`python -c` looks first where it stands, as a REPL and a script in that folder do."""
    program = "from importlib.util import find_spec; print(find_spec('fusedops').origin)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == fusedops.__file__


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_one_wheel_has_all(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("include", "share"):
        expected = {f"fusedops/{folder}/{name}" for name in files(ROOT / folder)}
        assert expected <= names
    kinds = (".py", ".typed", ".json")
    modules = {name for name in files(ROOT / "src" / "fusedops") if name.endswith(kinds)}
    assert {f"fusedops/{name}" for name in modules} <= names
    (runtime,) = [name for name in names if name.endswith(".so")]
    assert runtime.startswith("fusedops/_runtime.")
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fusedops", wheel.name.split("-cp")[0] + ".dist-info"}


# Counted, not timed: however busy a machine is, calls are the same. benchmarks/host.py times it.
IMPORT = """
import json, os, torch
before = set(sys.modules)
maps = open("/proc/self/maps").read()
events, calls = [], 0

def note(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"):
        events.append(event)
    if event == "ctypes.dlopen" and any(w in str(arguments[0]) for w in ("cuda", "nvrtc")):
        events.append(f"{event} {arguments[0]}")

def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

sys.addaudithook(note)
sys.setprofile(count)
import fusedops
sys.setprofile(None)
after = open("/proc/self/maps").read()
libraries = [name for name in ("libnvrtc", "libcuda.so") if name in after and name not in maps]
print(json.dumps({
    "file": fusedops.__file__,
    "calls": calls,
    "events": events,
    "libraries": libraries,
    "initialized": torch.cuda.is_initialized(),
    "modules": sorted(set(sys.modules) - before),
}))
"""


@pytest.mark.thorough
def test_an_import_is_quick_and_compiles_nothing(installed, tmp_path):
    """35,500 calls; what plans and generates is imported by the first call of an op."""
    said = json.loads(run(installed, IMPORT, cache=tmp_path))
    assert said["file"].startswith(str(installed))
    assert (said["events"], said["libraries"], said["initialized"]) == ([], [], False)
    packages = {name.split(".")[0] for name in said["modules"]}
    assert packages <= {"fusedops", "torch", *sys.stdlib_module_names}
    assert "fusedops.exporting" not in said["modules"]  # few programs export
    assert said["calls"] < 37000
    assert list(tmp_path.iterdir()) == []


CALL = """
import torch
import fusedops as fo
from fusedops.jit import env

op = fo.LayerNorm(load=[fo.Bias("bias")], store=[fo.Affine("gamma", "beta")])
x, bias = torch.randn(2, 5, 33, requires_grad=True)
gamma, beta = torch.randn(2, 33)
with torch.no_grad():
    assert torch.allclose(op(x, bias=bias, gamma=gamma, beta=beta),
                          op.unfused(x, bias=bias, gamma=gamma, beta=beta), atol=1e-5)
x = torch.randn(5, 33, requires_grad=True)
op(x, gamma=gamma, beta=beta, bias=bias.detach()).square().sum().backward()
got, x.grad = x.grad, None
op.unfused(x, gamma=gamma, beta=beta, bias=bias.detach()).square().sum().backward()
assert torch.allclose(got, x.grad, atol=1e-4)
print(env.include_dir())
print(env.cmake_dir())
from fusedops.doctor import check_package
print(check_package())
"""


@pytest.mark.thorough
def test_the_wheel_works_wherever_it_lies(installed, tmp_path):
    cache = tmp_path / AWKWARD
    include, cmake, check = run(installed, CALL, cache=cache).splitlines()
    assert "verdict='ok'" in check, check
    assert "für Kerne" in check
    assert Path(include) == installed / "fusedops" / "include"
    assert files(Path(include)) == files(ROOT / "include")
    assert (Path(cmake) / "fusedops-config.cmake").is_file()
    assert len([*cache.glob("*/kernel.so")]) >= 2


# Each call in a process of its own, as an edit between two runs has it.
EDIT = """
import os
from pathlib import Path
import torch

cache, include = (Path(argument) for argument in sys.argv[1:])

def call():
    if os.fork() == 0:
        import fusedops as fo
        assert Path(fo.__file__).is_relative_to(include.parent)
        fo.Softmax(load=[fo.Scale("s")])(torch.randn(3, 9), s=2.0)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
    print(len([*cache.glob("*/kernel.so")]), flush=True)  # else the next fork has it, too

def edit(name):
    with (include / "fusedops" / name).open("a") as file:
        file.write("// edited\\n")

call()
call()
edit("row/gradient.cuh")  # which a forward pass does not include
call()
edit("op/softmax.cuh")
call()
"""


@pytest.mark.thorough
def test_an_edited_header_of_a_checkout_makes_a_new_entry(tmp_path):
    """As `pip install -e` leaves it: modules and headers in the checkout."""
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "include", "share", "*.so")
    shutil.copytree(ROOT / "src" / "fusedops", checkout / "src" / "fusedops", ignore=ignored)
    shutil.copytree(env.include_dir(), checkout / "include")
    shutil.copy(_runtime.__file__, checkout / "src" / "fusedops")
    cache = tmp_path / "cache"
    counts = run(checkout / "src", EDIT, cache, checkout / "include", cache=cache).split()
    assert counts == ["1", "1", "1", "2"]
