# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of one program that are compiled differently share no function of the headers.

A linker keeps one copy of a template's instance, so a function for every CPU would else run that of
a source for AVX2, and host code of nvcc that of g++.
"""

import itertools
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
from cases import thorough
from cpptest import compiler, find_nvcc, log_of, run

from fusedops.jit import env

SOURCE = """\
#include <fusedops/softmax.cuh>
using namespace fusedops;
Status NAME(const half* x, half* y, int64_t rows, int64_t cols) {
  return dispatch_softmax<float>(Threads{1}, load(direct(x, cols), scale(2.0f)),
                                 store(direct(y, cols)), rows, few_cols<1, 64>(cols));
}
"""

#: It calls both: y of a row of two is as 1 to e.
MAIN = """\
#include <fusedops/softmax.cuh>
using fusedops::half;
fusedops::Status one(const half*, half*, fusedops::int64_t, fusedops::int64_t);
fusedops::Status other(const half*, half*, fusedops::int64_t, fusedops::int64_t);
int check(fusedops::Status (*f)(const half*, half*, fusedops::int64_t, fusedops::int64_t)) {
  half x[2] = {0.0f, 0.5f}, y[2] = {0.0f, 0.0f};
  if (f(x, y, 1, 2) != fusedops::Status::kSuccess) return 1;
  const float sum = float(y[0]) + float(y[1]), ratio = float(y[1]) / float(y[0]);
  return sum > 0.999f && sum < 1.001f && ratio > 2.71f && ratio < 2.73f ? 0 : 2;
}
int main() { return check(one) + 4 * check(other); }
"""

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")


def compiled(folder, text, name, *command, suffix=".cpp"):
    """An object of this text, in which NAME stands for `name`."""
    source = folder / f"{name}{suffix}"
    source.write_text(text)
    output = source.with_suffix(".o")
    include = f"-I{env.include_dir()}"
    run([*command, "-std=c++17", f"-DNAME={name}", include, "-c", source, "-o", output])
    return output


def functions(file):
    """What is defined here of the headers, mangled."""
    listed = subprocess.run(
        ["nm", "--defined-only", "--format=posix", str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    symbols = [line.split()[:2] for line in listed.stdout.splitlines()]
    return {
        name
        for name, kind in symbols
        if kind in "TWVu" and "8fusedops" in name and not re.match("_Z(3one|5other|5check)", name)
    }


def check_linked(folder, first, second, link, flags=(), *, runs=True):
    """In either order of linking the program has the functions of both, and both give results."""
    each = [functions(first), functions(second)]
    assert all(each)
    assert not each[0] & each[1]
    main = compiled(folder, MAIN, "main", compiler(), "-O0", *flags)
    program = folder / "program"
    for order in itertools.permutations([first, second]):
        run([*link, main, *order, "-o", program])
        assert each[0] | each[1] <= functions(program)
        if runs:
            assert subprocess.run([str(program)], check=False).returncode == 0


def has(flags):
    """Whether this CPU has what the flags ask for."""
    wanted = {flag[2:] for flag in flags if flag.startswith("-m")}
    return wanted <= set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86")
@pytest.mark.parametrize(
    "flags",
    [
        ["-mavx2", "-mfma"],
        *thorough(["-mavx512bw", "-mavx512vl"], ["-mavx", "-mf16c"], ["-fopenmp"]),
    ],
    ids=" ".join,
)
def test_two_instruction_sets(tmp_path, flags):
    plain = compiled(tmp_path, SOURCE, "one", compiler(), "-O0", "-fno-exceptions")
    wide = compiled(tmp_path, SOURCE, "other", compiler(), "-O0", "-fno-exceptions", *flags)
    check_linked(tmp_path, plain, wide, [compiler(), "-fopenmp"], runs=has(flags))


@pytest.mark.thorough
def test_nvcc_beside_a_host_compiler(tmp_path):
    """With FUSEDOPS_CUDA_TYPES, half is one type in both, so that one calls the other."""
    nvcc = find_nvcc()
    planned = log_of([nvcc, "--dryrun", "-x", "cu", "-c", os.devnull])
    headers = re.search(r'INCLUDES="-I([^"]+)"', planned)[1]
    types = ["-DFUSEDOPS_CUDA_TYPES", f"-isystem{headers}"]
    host = compiled(tmp_path, SOURCE, "one", compiler(), "-O0", *types)
    device = compiled(tmp_path, SOURCE, "other", nvcc, "-arch=sm_90", suffix=".cu")
    check_linked(tmp_path, host, device, [nvcc], types)


def test_every_header_is_in_the_namespace():
    for path in sorted((env.include_dir() / "fusedops").rglob("*.cuh")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^namespace (fusedops|oneflow) \{", text, re.MULTILINE):
            assert text.count("\ninline namespace FUSEDOPS_ABI {\n") == 1, path
            assert text.count("\n}  // namespace FUSEDOPS_ABI\n") == 1, path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86")
def test_its_name_says_how_it_was_compiled(tmp_path):
    source = tmp_path / "name.cpp"
    source.write_text("#include <fusedops/core/config.cuh>\nname: FUSEDOPS_ABI\n")
    for flags, name in {
        (): "v100_gcc",
        ("-mavx2", "-mfma", "-mf16c"): "v100_gcc_avx2_fma_f16c",
        ("-mavx512bw", "-mavx512vl"): "v100_gcc_avx512",
        ("-fopenmp-simd", "-DFUSEDOPS_OPENMP_SIMD", "-ffast-math"): "v100_gcc_simd_fast",
        ("-fno-exceptions",): "v100_gcc_nothrow",
        ("-D__CUDACC__", "-D__CUDA_ARCH_LIST__=800,900,1200"): "v100_cuda_sm8009001200",
    }.items():
        text = subprocess.run(
            [compiler(), *flags, "-std=c++17", f"-I{env.include_dir()}", "-E", "-P", str(source)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert text.endswith(f"name: {name}\n")


KERNEL = """\
#include <fusedops/core/config.cuh>
namespace fusedops {
inline namespace FUSEDOPS_ABI {
template <class T>
__global__ void kernel(T*) {}
}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
void go(float* p) { fusedops::kernel<<<1, 1>>>(p); }
"""


@pytest.mark.thorough
def test_a_kernel_has_one_name_in_both_passes_of_nvcc(tmp_path):
    """Flags of the host's compiler reach the pass for the GPU, or no launch found its kernel."""
    source = tmp_path / "kernel.cu"
    source.write_text(KERNEL)
    flags = ["-arch=sm_90", "-Xcompiler", "-fopenmp,-ffast-math,-fno-exceptions"]
    name = "v100_cuda_sm900_openmp_fast_nothrow"
    command = [find_nvcc(), "-std=c++17", *flags, f"-I{env.include_dir()}", source, "-o"]
    run([*command, tmp_path / "kernel.ptx", "-ptx"])
    run([*command, tmp_path / "kernel.o", "-c"])
    mangled = f"_ZN8fusedops{len(name)}{name}6kernelIfEEvPT_"
    assert f".entry {mangled}(" in (tmp_path / "kernel.ptx").read_text(encoding="utf-8")
    assert mangled in log_of(["nm", tmp_path / "kernel.o"])  # nvcc 13 makes it a local symbol
