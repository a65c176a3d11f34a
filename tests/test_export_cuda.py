# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Exported headers for GPUs: under nvcc on any machine, and on a GPU to the bit."""

import re
import shutil
import struct
import subprocess

import pytest
import torch
from exported import (
    CASES,
    DRAW,
    SUMS,
    Address,
    Call,
    Library,
    add_norm,
    built,
    compile_,
    described,
    draw_of,
)

import fusedops as fo
from fusedops.exporting import target_of
from fusedops.exporting.passes import (
    backward_pass,
    exported_call,
    forward_pass,
    gradient_of,
)
from fusedops.jit import env, nvrtc


@pytest.fixture
def nvcc():
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_two_headers_compile_in_one_file(tmp_path, nvcc, arch):
    headers = []
    for name in ("attention", "add_norm"):
        op, x, operands = described(name)
        path = tmp_path / f"{name}.cuh"
        headers.append(fo.export(op, x, arch=arch, name=name, path=path, **operands))
        assert path.read_text() == headers[-1].text
    functions = [name for header in headers for name in header.parameters]
    source = tmp_path / "both.cu"
    source.write_text(
        '#include "attention.cuh"\n#include "add_norm.cuh"\n#include "attention.cuh"\n'
        + "".join(f"auto of_{name} = &{name};\n" for name in functions)
    )
    assert headers[0].command[0] == "nvcc"
    include = f"-I{env.include_dir()}"
    compile_(
        *headers[0].command, "-Werror", "all-warnings", include, "-c", source, "-odir", tmp_path
    )


def code(cubin):
    """The machine code in a cubin, by the names of its functions."""
    data = cubin.read_bytes()
    (start,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    sections = [struct.unpack_from("<IIQQQQ", data, start + 64 * k) for k in range(count)]
    found = {}
    for at, _, _, _, offset, size in sections:
        first = sections[names][4] + at
        name = data[first : data.index(b"\0", first)].decode()
        if name.startswith(".text."):
            found[name] = data[offset : offset + size]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["attention", "add_norm"])
def test_the_machine_code_is_that_of_the_op(tmp_path, nvcc, name):
    """What nvcc makes of the header and of the kernels that the op builds."""
    op, x, operands = described(name)
    header = fo.export(op, x, arch="sm_90", name=name, **operands)
    flags = [*header.command, f"-I{env.include_dir()}", "-cubin"]
    (tmp_path / "exported.cuh").write_text(header.text)
    source, cubin = tmp_path / "exported.cu", tmp_path / "exported.cubin"
    used = [f"auto of_{one} = &{name}_{one};\n" for one in ("forward", "backward")]
    source.write_text("".join(['#include "exported.cuh"\n', *used]))
    compile_(*flags, source, "-o", cubin)
    got = code(cubin)
    bound = exported_call(op, x, operands)
    target = target_of("sm_90", x.device, None)
    passes = [
        forward_pass(bound._replace(keep=True), target),
        backward_pass(bound, gradient_of(bound, True), target),
    ]
    launches = [launch for one in passes for launch in one.launches]
    assert len(got) == len(launches)
    for number, launch in enumerate(launches):
        (tmp_path / f"{number}.cu").write_text(launch.launch.variant.source)
        compile_(*flags, tmp_path / f"{number}.cu", "-o", tmp_path / f"{number}.cubin")
        (want,) = code(tmp_path / f"{number}.cubin").values()
        assert want in got.values(), launch.launch.variant.name


# On a GPU.


def release(nvcc):
    """The release of nvcc, as NVRTC gives its own."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor = re.search(r"release (\d+)\.(\d+)", said).groups()
    return int(major), int(minor)


@pytest.fixture(scope="module")
def gpu_library(tmp_path_factory):
    """All cases for this GPU, in one library."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    if release(nvcc) != nvrtc.version():
        pytest.skip(f"nvcc is {release(nvcc)}, NVRTC {nvrtc.version()}: bits may differ")
    return built(tmp_path_factory.mktemp("gpu"), "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(gpu_library, name):
    op, x, operands = CASES[name]("cuda")
    Call(op, x, operands, draw_of(gpu_library, name)).check(gpu_library, name)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 3, 17, 5000])
def test_any_number_of_rows_on_a_gpu(gpu_library, rows):
    near = SUMS if rows < 2 else ()
    for name, columns in (("add_norm", 1001), ("add_norm_wide", 1024)):
        Call(*add_norm(rows, columns, "cuda"), DRAW).check(gpu_library, name, near)


@pytest.mark.gpu
def test_no_rows_on_a_gpu(gpu_library):
    call = Call(*add_norm(2, 1001, "cuda"), DRAW)
    call.room(gpu_library, "add_norm")
    call.values["rows"] = 0
    assert gpu_library.call("add_norm_forward", call.values) == 0
    assert gpu_library.call("add_norm_backward", call.values) == 0
    torch.cuda.synchronize()
    assert not call.values["dgamma"].any()
    assert torch.all(call.values["y"] == 7)


@pytest.mark.gpu
def test_it_is_captured_into_a_graph(tmp_path, gpu_library):
    """At its first launch, which loads it: a library of its own."""
    op, x, operands = add_norm(300, 1024, "cuda")
    library = Library(tmp_path, fo.export(op, x, name="fresh", **operands))
    call = Call(op, x, operands, DRAW)
    call.room(library, "fresh")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.values["cuda_stream"] = torch.cuda.current_stream().cuda_stream
        assert library.call("fresh_forward", call.values) == 0
        assert library.call("fresh_backward", call.values) == 0
    assert torch.all(call.values["y"] == 7)
    graph.replay()
    torch.cuda.synchronize()
    call.compare()


@pytest.mark.gpu
def test_what_cannot_be_is_an_error_on_a_gpu(gpu_library):
    call = Call(*add_norm(4, 1001, "cuda"), DRAW)
    call.room(gpu_library, "add_norm")
    misaligned = Address(call.values["x"].data_ptr() + 8)
    for changed, status in (({"x": None}, 1), ({"x": misaligned}, 716), ({"p": 0.0}, 1)):
        assert gpu_library.call("add_norm_forward", {**call.values, **changed}) == status
    torch.cuda.synchronize()
    assert torch.all(call.values["y"] == 7)
