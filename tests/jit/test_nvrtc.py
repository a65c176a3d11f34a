# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""NVRTC: cubins for every architecture that matters, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from samples import CUDA

from fusedops.errors import CompileError, UnsupportedError
from fusedops.jit import key, nvrtc

ELF = b"\x7fELF"


# The oldest that has bfloat16, the one that is measured, and the two families of Blackwell.
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_a_cubin_is_compiled(arch: str) -> None:
    cubin, log = nvrtc.compile_cuda(CUDA, arch)
    assert cubin.startswith(ELF)
    assert b"twice" in cubin
    assert log == ""


def test_registers_and_spills_can_be_had() -> None:
    _, log = nvrtc.compile_cuda(CUDA, "sm_90", ["--ptxas-options=-v"])
    assert "registers" in log
    assert "0 bytes spill stores" in log


@pytest.mark.gpu
def test_what_was_compiled_before_is_reported_again() -> None:
    """A driver's cache gives code without a report, and a spill would not be noticed."""
    for _ in range(2):
        _, log = nvrtc.compile_cuda(CUDA, "sm_90", [nvrtc.RESOURCES])
        assert "bytes spill stores" in log


# So many values at once, in blocks of 256 threads, with room for so many blocks.
MANY = """
#if defined(FUSEDOPS_BLOCKS)
inline constexpr int kBlocks = FUSEDOPS_BLOCKS;
#else
inline constexpr int kBlocks = {blocks};
#endif
extern "C" __global__ void __launch_bounds__(256, kBlocks) many(float* x) {{
  float at[{values}];
#pragma unroll
  for (int i = 0; i < {values}; ++i) at[i] = x[i * 256 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < {values}; ++i) x[i * 256 + threadIdx.x] = at[(7 * i + 1) % {values}] - at[i];
}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("values", "blocks", "said"),
    [
        (8, 4, ""),
        (100, 4, "fusedops: room for 2 blocks a multiprocessor: registers spill with room for 4"),
        (512, 1, "fusedops: registers spill, in whatever room"),
    ],
)
def test_room_that_is_given_up_is_told(values: int, blocks: int, said: str) -> None:
    _, log = nvrtc.compile_cuda(MANY.format(values=values, blocks=blocks), "sm_90")
    assert log == said


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each compilation is told of room, as they come."""
    told: list[str] = []
    compiled = nvrtc._compile

    def noted(source: str, arch: str, extra: Sequence[str]) -> tuple[bytes, bytes, str]:
        told.append(extra[-1].partition("=")[2] if extra[-1].startswith("-D") else "first")
        return compiled(source, arch, extra)

    monkeypatch.setattr(nvrtc, "_compile", noted)
    return told


def used(source: str, blocks: int) -> int:
    """The registers of a thread with room for so many blocks."""
    _, _, log = nvrtc._compile(source, "sm_90", [nvrtc.RESOURCES, f"-DFUSEDOPS_BLOCKS={blocks}"])
    return int(re.findall(r"Used (\d+) registers", log)[0])


def test_only_room_that_leaves_more_registers_is_tried(rooms: list[str]) -> None:
    """Of 256 threads 8 and 7 blocks leave a thread 32 registers each, 6 leave it 40."""
    source = MANY.format(values=40, blocks=8)
    _, log = nvrtc.compile_cuda(source, "sm_90")
    assert rooms == ["first", "6", "5"]
    assert log.startswith("fusedops: room for 5 blocks")
    assert used(source, 8) == used(source, 7) < used(source, 6)


def test_a_stack_frame_without_spills_is_no_reason_to_give_up_room(rooms: list[str]) -> None:
    """Large arguments of a sine take an array in local memory, however many registers there are."""
    source = """
#if defined(FUSEDOPS_BLOCKS)
inline constexpr int kBlocks = FUSEDOPS_BLOCKS;
#else
inline constexpr int kBlocks = 3;
#endif
extern "C" __global__ void __launch_bounds__(256, kBlocks) sine(double* x) {
  x[threadIdx.x] = sin(x[threadIdx.x]);
}
"""
    _, log = nvrtc.compile_cuda(source, "sm_90", [nvrtc.RESOURCES])
    assert re.search(r"[1-9]\d* bytes stack frame, 0 bytes spill", log)
    assert rooms == ["first"]
    assert "fusedops:" not in log


def test_warnings_are_kept() -> None:
    source = 'extern "C" __global__ void k() { int never_used; }'
    _, log = nvrtc.compile_cuda(source, "sm_90")
    assert "never_used" in log


def test_a_refused_source_is_told_with_options_and_log() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cuda("__global__ void k() { nonsense(); }", "sm_90")
    assert "nonsense" in str(caught.value)
    assert "kernel.cu(1)" in caught.value.log
    assert "--gpu-architecture=sm_90" in caught.value.command


def test_an_unknown_architecture_is_told_with_those_known() -> None:
    with pytest.raises(UnsupportedError, match=r"got 'sm_20'.*sm_90"):
        nvrtc.compile_cuda(CUDA, "sm_20")


def test_the_working_directory_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompileError, match=r"stray\.h"):
        nvrtc.compile_cuda('#include "stray.h"\n', "sm_90")


def test_the_identity_covers_release_library_and_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity_with(header: str) -> dict[str, str]:
        nvrtc._headers.cache_clear()
        (tmp_path / "cuda_fp16.h").write_text('#include "cuda_fp16.hpp"\n')
        (tmp_path / "cuda_fp16.hpp").write_text(header)
        return nvrtc.identity(request)

    request = key.Request("0" * 64, "", "sm_90", (), ("cuda_fp16.h",))
    real = nvrtc.identity(request)
    assert real["version"] == ".".join(map(str, nvrtc.version()))
    assert len(real["library"]) == len(real["headers"]) == 64
    toolkit = nvrtc.find_toolkit()
    other = type(toolkit)(toolkit.nvrtc, (tmp_path,))
    monkeypatch.setattr(nvrtc, "find_toolkit", lambda: other)
    before = identity_with("// one\n")
    after = identity_with("// two\n")
    nvrtc._headers.cache_clear()
    assert before["headers"] != after["headers"]
    assert before["library"] == after["library"] == real["library"]
