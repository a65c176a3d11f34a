# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA launches: streams, shared memory, capture, and where the time goes."""

from __future__ import annotations

import struct
import threading

import pytest
import torch

from fusedops import _runtime
from fusedops.bind.generator import draw
from fusedops.generate.target import device_info
from fusedops.jit.nvrtc import compile_cuda

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


def compiled():
    major, minor = device_info(torch.cuda.current_device())["capability"]
    return _runtime.load_cuda(compile_cuda(SOURCE, f"sm_{major}{minor}")[0], "scale")


def scaling(shared=1024, block=256, draws=0):
    kernel = compiled()

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


def scaling_twice(shared=1024):
    """A dispatcher of x * s * 3 in two launches, by way of a scratch tensor."""
    kernel = compiled()

    def slow(reason, x, operands, options):
        first = struct.pack("<QQqff", 0, 0, x.numel(), 0, 0)
        second = struct.pack("<QQqff", 0, 0, x.numel(), 3, 0)
        to_scratch = [(0, _runtime.POINTER, 0), (1, _runtime.OUTPUT, 1), (3, _runtime.FLOAT32, 1)]
        to_y = [(0, _runtime.OUTPUT, 1), (1, _runtime.OUTPUT, 0)]
        outputs = [(2, 32, tuple(x.shape))] * 2
        then = [(kernel, second, to_y, x.shape[0], 0, 2, 128, shared)]
        return _runtime.Plan(
            kernel, first, to_scratch, outputs, x.shape[0], 0, 4, 256, 1024, 0, None, then, 1
        )

    return _runtime.Dispatcher("twice", [("s", 2)], slow, draw)


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


def test_launches_run_in_order_by_way_of_scratch():
    dispatch = scaling_twice()
    x = torch.randn(1 << 10, 1 << 12, device="cuda")
    dispatch(x, s=1.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for scale in range(20):  # the next call's tensors take the place of the last one's scratch
        assert torch.equal(dispatch(x, s=float(scale)), x * float(scale) * 3)
    assert torch.cuda.memory_allocated() == before
    assert dispatch.launches == 21


def test_launches_on_the_current_stream(x):
    dispatch = scaling_twice()
    dispatch(x, s=1.0)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        ys = [dispatch(x, s=scale) for scale in (2.0, 5.0)]
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(ys[0], x * 2 * 3)
    assert torch.equal(ys[1], x * 5 * 3)


def test_a_graph_captures_all_launches(x):
    dispatch = scaling_twice()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ys = [dispatch(x, s=scale) for scale in (2.0, 5.0)]
    x.normal_()
    graph.replay()
    assert torch.equal(ys[0], x * 2 * 3)
    assert torch.equal(ys[1], x * 5 * 3)


def test_a_further_launch_that_fails_says_so(x):
    most = device_info(torch.cuda.current_device())["shared_per_block_optin"]
    with pytest.raises(RuntimeError, match=r"bytes of shared memory on device.*CUDA_ERROR"):
        scaling_twice(most + 16)(x, s=2.0)
    assert torch.equal(scaling_twice(most)(x, s=2.0), x * 2 * 3)


def test_host_and_cuda_kernels_do_not_mix(library):
    host = (_runtime.load_host(library, "echo"), bytes(8), [], 1, 1, 0, 0, 0)
    with pytest.raises(ValueError, match="all for the host or all for CUDA devices"):
        _runtime.Plan(compiled(), bytes(40), [], [(2, 32, (1,))], 1, 0, 1, 32, 0, 0, None, [host])


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
