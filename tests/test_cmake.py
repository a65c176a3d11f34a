# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The headers in a CMake project: each way to come by them, their version, and what is installed.

`tests/cmake` is the project. Where the tests run with an installed wheel, as in `.ci/run`,
`find_package` finds that one; else the source tree.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from cases import exhaustive
from cpptest import find_nvcc, run

import fusedops as fo
from fusedops.jit import env

ROOT = Path(__file__).parent.parent
CONSUMER = ROOT / "tests" / "cmake"


def installed(name):
    """A program, looked for first beside this Python, whose environment may not be activated."""
    folders = (sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath))
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def cmake(*arguments):
    """Run CMake; what it said, and its exit status."""
    done = subprocess.run(
        [installed("cmake"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=env.compiler_environment(),
    )
    # CMake breaks the lines of its messages where it likes.
    return done.returncode, " ".join(done.stdout.split())


def succeed(*arguments):
    status, said = cmake(*arguments)
    assert status == 0, said
    return said


def configure(source, build, *definitions):
    ninja = f"-DCMAKE_MAKE_PROGRAM={installed('ninja')}"
    given = [f"-D{definition}" for definition in definitions]
    # Not every project uses all that it is given.
    return cmake("-S", source, "-B", build, "-G", "Ninja", "--no-warn-unused-cli", ninja, *given)


def build(folder, *definitions):
    """Configure and build the consumer; the text of its only line when it runs."""
    status, said = configure(CONSUMER, folder, *definitions)
    assert status == 0, said
    succeed("--build", folder)
    # Where glibc has no threads of its own, a program that lacks this runs with one.
    assert "-lpthread" in (folder / "build.ninja").read_text(encoding="utf-8")
    done = subprocess.run([folder / "consumer"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def command_line(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "fusedops", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def cmakedir():
    """What a user's build script gets from `python -m fusedops --cmakedir`."""
    return command_line("--cmakedir").removesuffix("\n")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """The source tree, installed by CMake alone: no Python, no compiler."""
    folder = tmp_path_factory.mktemp("installed")
    missing = ("CMAKE_CXX_COMPILER=missing", "CMAKE_CUDA_COMPILER=missing")
    status, said = configure(ROOT, folder / "build", *missing)
    assert status == 0, said
    succeed("--install", folder / "build", "--prefix", folder / "prefix")
    return folder / "prefix"


def number():
    """FUSEDOPS_VERSION of the headers that the package uses."""
    text = (env.include_dir() / "fusedops/core/config.cuh").read_text(encoding="utf-8")
    return re.search(r"^#define FUSEDOPS_VERSION (\d+)", text, re.MULTILINE)[1]


class TestWays:
    def test_find_package(self, tmp_path, cmakedir):
        assert build(tmp_path, "WAY=find_package", f"fusedops_DIR={cmakedir}") == number()

    def test_an_installed_prefix(self, tmp_path, prefix):
        # Moved, it still finds its headers.
        moved = prefix.rename(tmp_path / "moved")
        try:
            ran = build(tmp_path / "build", "WAY=find_package", f"CMAKE_PREFIX_PATH={moved}")
        finally:
            moved.rename(prefix)
        assert ran == number()

    @pytest.mark.parametrize("wheel", ["", "SKBUILD=2"], ids=["plain", "for a wheel of its own"])
    def test_add_subdirectory(self, tmp_path, wheel):
        definitions = ["WAY=add_subdirectory", f"SOURCE={ROOT}", *filter(None, [wheel])]
        assert build(tmp_path, *definitions) == number()
        # Nothing of fusedops becomes part of what that project builds or installs.
        succeed("--install", tmp_path, "--prefix", tmp_path / "prefix")
        assert not (tmp_path / "prefix").exists()
        assert not [*tmp_path.rglob("*_runtime*")]

    def test_fetch_content(self, tmp_path):
        fetched = f"FETCHCONTENT_SOURCE_DIR_FUSEDOPS={ROOT}"
        assert build(tmp_path, "WAY=FetchContent", fetched) == number()

    @pytest.mark.thorough
    @pytest.mark.parametrize("way", ["find_package", "add_subdirectory"])
    def test_with_cuda(self, tmp_path, cmakedir, way):
        compiler = f"CMAKE_CUDA_COMPILER={installed('nvcc')}"
        definitions = [f"WAY={way}", f"fusedops_DIR={cmakedir}", f"SOURCE={ROOT}", compiler]
        archs = "CMAKE_CUDA_ARCHITECTURES=80"
        assert build(tmp_path, *definitions, "WITH_CUDA=ON", archs) == number()


class TestVersions:
    def test_there_is_one(self):
        pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        (version,) = re.findall(r'^version = "(.*)"$', pyproject, re.MULTILINE)
        assert fo.__version__ == version
        assert importlib.metadata.version("fusedops") == version
        major, minor, patch = map(int, version.split("."))
        assert int(number()) == major * 10000 + minor * 100 + patch

    def ask(self, folder, cmakedir, request):
        """Configure a project that asks for a version and says which one it got."""
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.19...3.31)\n"  # The first to know a range.
            "project(asks LANGUAGES NONE)\n"
            f"find_package(fusedops {request} REQUIRED)\n"
            'message("got ${fusedops_VERSION}.")\n'
        )
        return configure(folder, folder / "build", f"fusedops_DIR={cmakedir}")

    @pytest.mark.parametrize("request_", ["", "0.1", "0.1.0", "0.1.0 EXACT", "0.1...<0.2"])
    def test_a_request_that_is_met(self, tmp_path, cmakedir, request_):
        status, said = self.ask(tmp_path / "project", cmakedir, request_)
        assert status == 0, said
        assert f"got {fo.__version__}." in said

    @pytest.mark.parametrize("request_", ["0.0.9", "0.1.99", "0.2", "1.0", "99", "0.2...<0.9"])
    def test_a_request_that_is_not(self, tmp_path, cmakedir, request_):
        status, said = self.ask(tmp_path / "project", cmakedir, request_)
        assert status != 0
        wanted = request_.partition("...")[0]
        assert re.search(
            rf'find .*"fusedops".* compatible with requested version.* "?{wanted}', said
        )
        assert f"{cmakedir}/fusedops-config.cmake, version: {fo.__version__}" in said

    def test_the_subproject_has_it(self, tmp_path):
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.18...3.31)\n"
            "project(asks LANGUAGES NONE)\n"
            f'add_subdirectory("{ROOT}" fusedops)\n'
            f'get_directory_property(got DIRECTORY "{ROOT}" DEFINITION PROJECT_VERSION)\n'
            'message("got ${got}.")\n'
        )
        status, said = configure(tmp_path, tmp_path / "build")
        assert status == 0, said
        assert f"got {fo.__version__}." in said


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


#: What a project needs, below a prefix or inside the Python package.
WANTED = {f"{top}/{name}" for top in ("include", "share") for name in files(ROOT / top)}


class TestInstalled:
    def test_what_is_there(self):
        assert "include/fusedops/functor/contract.cuh" in WANTED
        assert "share/cmake/fusedops/fusedops-config.cmake" in WANTED
        assert all(name.endswith((".cuh", ".cmake")) for name in WANTED)

    def test_below_a_prefix(self, prefix):
        assert files(prefix) == WANTED | {"share/licenses/fusedops/LICENSE"}

    def test_in_the_wheel(self):
        package = importlib.metadata.distribution("fusedops")
        origin = json.loads(package.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            pytest.skip("an editable install uses the source tree; .ci/run installs the wheel")
        held = {path.as_posix() for path in package.files}
        assert held >= {f"fusedops/{name}" for name in WANTED}

    def test_the_folders_are_printed(self, cmakedir):
        include = command_line("--include").removesuffix("\n")
        assert Path(include) == env.include_dir()
        assert (Path(include) / "fusedops/core/config.cuh").is_file()
        assert Path(cmakedir) == env.cmake_dir()
        assert (Path(cmakedir) / "fusedops-config.cmake").is_file()


class TestExample:
    """examples/cpp, by each way; it says itself whether its results are right."""

    @pytest.mark.thorough
    @pytest.mark.parametrize("way", [*exhaustive("find_package"), "FetchContent"])
    def test_on_a_cpu(self, tmp_path, cmakedir, way):
        ran = run_example(tmp_path, cmakedir, way, "cpu")
        assert ran.count("of the allowed") == 2

    @pytest.mark.gpu
    @pytest.mark.parametrize("way", ["find_package", "FetchContent"])
    def test_on_a_gpu(self, tmp_path, cmakedir, way):
        assert run_example(tmp_path, cmakedir, way, "gpu").count("of the allowed") == 2

    @pytest.mark.thorough
    def test_training_on_a_cpu(self, tmp_path, cmakedir):
        assert run_example(tmp_path, cmakedir, "find_package", "train_cpu").endswith("right\n")

    @pytest.mark.gpu
    def test_training_on_a_gpu(self, tmp_path, cmakedir):
        assert run_example(tmp_path, cmakedir, "find_package", "train_gpu").endswith("right\n")

    @pytest.mark.thorough
    def test_training_compiles_for_a_gpu(self, tmp_path):
        source = ROOT / "examples" / "cpp" / "train" / "train.cu"
        flags = ("-std=c++17", "--extended-lambda", "-Werror", "all-warnings", "-arch=sm_90")
        command = [find_nvcc(), *flags, "-ptx", "-Xcicc", "-O0", f"-I{env.include_dir()}", source]
        run([*command, "-o", tmp_path / "out.ptx"])


def run_example(folder, cmakedir, way, target):
    where = f"fusedops_DIR={cmakedir}" if way == "find_package" else f"FUSEDOPS_SOURCE={ROOT}"
    given = [where]
    if target.endswith("gpu"):
        major, minor = torch.cuda.get_device_capability()
        given += [f"CMAKE_CUDA_COMPILER={find_nvcc()}", f"CMAKE_CUDA_ARCHITECTURES={major}{minor}"]
    status, said = configure(ROOT / "examples" / "cpp", folder, *given)
    assert status == 0, said
    succeed("--build", folder, "--target", target)
    done = subprocess.run([folder / target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    return done.stdout
