# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA launches: streams, shared memory, capture, and where the time goes."""

from __future__ import annotations

import struct
import threading

import pytest
import torch

from fusedops import _runtime
from fusedops.jit.nvrtc import compile_cuda
from fusedops.runtime import device_info, draw

pytestmark = pytest.mark.gpu

SOURCE = r"""
struct Words { const float* x; float* out; long long count; float scale; };
extern "C" __global__ void scale(Words w) {
  extern __shared__ float staged[];
  for (long long i = threadIdx.x + 1ll * blockIdx.x * blockDim.x; i < w.count;
       i += 1ll * gridDim.x * blockDim.x) {
    staged[threadIdx.x] = w.x[i];
    w.out[i] = staged[threadIdx.x] * w.scale;
  }
}
"""


def scaling(shared=1024, block=256, draws=0):
    major, minor = device_info(torch.cuda.current_device())["capability"]
    kernel = _runtime.load_cuda(compile_cuda(SOURCE, f"sm_{major}{minor}")[0], "scale")

    def slow(reason, x, operands, options):
        if reason != "miss":
            return reason
        words = struct.pack("<QQqff", 0, 0, x.numel(), 0, 0)
        patches = [(0, _runtime.POINTER, 0), (1, _runtime.OUTPUT, 0), (3, _runtime.FLOAT32, 1)]
        outputs = [(2, 32, tuple(x.shape))]
        return _runtime.Plan(
            kernel, words, patches, outputs, x.shape[0], 0, 4, block, shared, draws, None
        )

    return _runtime.Dispatcher("scale", [("s", 2)], slow, draw)


@pytest.fixture
def x():
    return torch.randn(33, 77, device="cuda")


def test_it_computes(x):
    dispatch = scaling()
    for scale in (2.0, 3.0):
        assert torch.equal(dispatch(x, s=scale), x * scale)
    assert (dispatch.misses, dispatch.hits, dispatch.launches) == (1, 1, 2)


def test_device_properties():
    index = torch.cuda.current_device()
    known = torch.cuda.get_device_properties(index)
    found = device_info(index)
    assert found["name"] == known.name
    assert found["capability"] == (known.major, known.minor)
    assert found["multiprocessors"] == known.multi_processor_count
    assert found["l2_bytes"] == known.L2_cache_size
    assert found["shared_per_block_optin"] == known.shared_memory_per_block_optin
    assert found["registers_per_block"] == known.regs_per_multiprocessor
    assert _runtime.device_count() == torch.cuda.device_count()
    assert _runtime.driver_version() >= 12000


def test_shared_memory_above_48_kb(x):
    most = device_info(torch.cuda.current_device())["shared_per_block_optin"]
    for shared in (48 * 1024, 48 * 1024 + 16, most):
        assert torch.equal(scaling(shared)(x, s=2.0), x * 2)
    with pytest.raises(RuntimeError, match=r"bytes of shared memory on device.*CUDA_ERROR"):
        scaling(most + 16)(x, s=2.0)


def test_a_launch_that_fails_says_so(x):
    with pytest.raises(RuntimeError, match=r"launching scale .*block 4096.*CUDA_ERROR_INVALID"):
        scaling(block=4096)(x, s=2.0)
    assert torch.equal(scaling()(x, s=2.0), x * 2)


def test_the_current_stream_is_used(x):
    dispatch = scaling()
    dispatch(x, s=1.0)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        y = dispatch(x, s=2.0)
        assert not stream.query()
    y.record_stream(torch.cuda.current_stream())
    stream.synchronize()
    assert torch.equal(y, x * 2)


def test_another_thread(x):
    dispatch = scaling()
    got = []
    thread = threading.Thread(target=lambda: got.append(dispatch(x, s=2.0)))
    thread.start()
    thread.join()
    assert torch.equal(got[0], x * 2)


def test_a_graph_captures_the_launch_even_the_first(x):
    dispatch = scaling()  # not loaded on the device yet
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = dispatch(x, s=2.0)
    x.normal_()
    graph.replay()
    assert torch.equal(y, x * 2)


def test_operands_on_two_devices_are_turned_away(x):
    assert scaling()(x, s=2.0, out=torch.empty(33, 77)) == "device"


def test_draws_move_the_generator():
    index = torch.cuda.current_device()
    generator = torch.Generator(f"cuda:{index}").manual_seed(7)
    assert draw("cuda", index, generator, 1) == (7, 0)
    assert draw("cuda", index, generator, 5) == (7, 4)
    assert draw("cuda", index, generator, 1) == (7, 12)
    torch.cuda.manual_seed(9)
    assert draw("cuda", index, None, 1) == (9, 0)
    assert draw("cuda", index, None, 1) == (9, 4)
    with pytest.raises(ValueError, match="generator must be on the device of x, cpu"):
        draw("cpu", 0, generator, 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current():
    x = torch.randn(33, 77, device="cuda:1")
    dispatch = scaling()
    with torch.cuda.device(0):
        y = dispatch(x, s=2.0)
    assert y.device == x.device
    assert torch.equal(y, x * 2)
