# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel, and a checkout that is installed as it lies: what is in them, and that they work.

Programs run without `site`, whose `.pth` files would put the installation that runs the tests
first. What takes torch seconds to import is forked from one process that has it.
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
    """What `pip wheel` makes of this checkout, with the build tools that are installed."""
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


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_one_wheel_has_all(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("include", "share"):
        expected = {f"fusedops/{folder}/{name}" for name in files(ROOT / folder)}
        assert expected <= names
    modules = {name for name in files(ROOT / "fusedops") if name.endswith((".py", ".typed"))}
    assert {f"fusedops/{name}" for name in modules} <= names
    (runtime,) = [name for name in names if name.endswith(".so")]
    assert runtime.startswith("fusedops/_runtime.")
    tops = {name.split("/")[0] for name in names}
    assert tops == {"fusedops", wheel.name.split("-cp")[0] + ".dist-info"}


# Forked from one process with torch: times of `import fusedops` alone, and what it does.
IMPORT = """
import gc, json, os, time
begin = time.process_time()
import torch
print(time.process_time() - begin, flush=True)
gc.collect()
gc.freeze()  # else a child's first collection copies the parent's memory

def child():
    events = []
    watched = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork")
    def note(event, arguments):
        if event in watched:
            events.append(event)
        if event == "ctypes.dlopen" and any(w in str(arguments[0]) for w in ("cuda", "nvrtc")):
            events.append(f"{event} {arguments[0]}")
    sys.addaudithook(note)
    begin = time.process_time()
    import fusedops
    seconds = time.process_time() - begin
    maps = open("/proc/self/maps").read()
    return {
        "file": fusedops.__file__,
        "seconds": seconds,
        "events": events,
        "initialized": torch.cuda.is_initialized(),
        "loaded": [name for name in ("libnvrtc", "libcuda.so") if name in maps],
        "exporting": "fusedops.exporting" in sys.modules,
    }

before = [name for name in ("libnvrtc", "libcuda.so") if name in open("/proc/self/maps").read()]
for _ in range(7):
    if os.fork() == 0:
        said = child()
        said["loaded"] = [name for name in said["loaded"] if name not in before]
        print(json.dumps(said), flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_import_is_quick_and_compiles_nothing(installed, tmp_path):
    """50 ms beyond torch's own; where torch itself takes more than 1.5 s, as much more."""
    printed = run(installed, IMPORT, cache=tmp_path)
    torch_seconds, *said = [json.loads(line) for line in printed.splitlines()]
    assert len(said) == 7
    for one in said:
        assert one["file"].startswith(str(installed))
        assert (one["events"], one["initialized"], one["loaded"]) == ([], False, [])
        assert not one["exporting"]  # few programs export
    quickest = min(one["seconds"] for one in said)  # whatever else runs here only adds to it
    assert quickest < max(0.05, torch_seconds / 30), (quickest, torch_seconds)
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
from fusedops.doctor.package import check_headers, check_runtime
print(check_headers())
print(check_runtime())
"""


def test_the_wheel_works_wherever_it_lies(installed, tmp_path):
    cache = tmp_path / AWKWARD
    include, cmake, *checks = run(installed, CALL, cache=cache).splitlines()
    assert all("Verdict.OK" in check and "für Kerne" in check for check in checks), checks
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
    print(len([*cache.glob("*/kernel.so")]))

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


def test_an_edited_header_of_a_checkout_makes_a_new_entry(tmp_path):
    """As `pip install -e` leaves it: modules and headers in the checkout."""
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "include", "share", "*.so")
    shutil.copytree(ROOT / "fusedops", checkout / "fusedops", ignore=ignored)
    shutil.copytree(env.include_dir(), checkout / "include")
    shutil.copy(_runtime.__file__, checkout / "fusedops")
    cache = tmp_path / "cache"
    counts = run(checkout, EDIT, cache, checkout / "include", cache=cache).split()
    assert counts == ["1", "1", "1", "2"]
