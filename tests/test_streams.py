# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Streams, devices and threads: work goes where torch's own would."""

import threading

import pytest
import torch
from cases import ADD_NORM, declare, gradients_of, named, randn, same_bits, upstream_of
from test_forward import add_norm_case

import fusedops as fo

two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")


def step(x, operands, upstream, seed=1):
    outputs, gradients = gradients_of(declare(ADD_NORM), x, operands, upstream, seed=seed)
    return [*(y.detach() for y in outputs.values()), *gradients.values()]


def test_several_threads(device):
    """Each thread's calls, backward passes included, have the bits of one thread's."""
    cases = [add_norm_case(torch.float32, device, rows, 64 + rows) for rows in (3, 17, 40, 41)]
    upstreams = [upstream_of(ADD_NORM, *case) for case in cases]
    wanted = [step(*case, up, k) for k, (case, up) in enumerate(zip(cases, upstreams, strict=True))]
    failures = []

    def work(k):
        for _ in range(20):
            got = step(*cases[k], upstreams[k], k)
            if not all(same_bits(*pair) for pair in zip(got, wanted[k], strict=True)):
                failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(("rows", "columns"), [(3, 4096), (8, 1024), (40, 256)])
def test_few_rows_one_kernel_after_another(rows, columns, device):
    """Kernels of few blocks let the next one come up early; it still finds what they wrote."""
    norm, softmax = fo.LayerNorm(store=[fo.Affine("gamma", "beta")]), fo.Softmax()
    start = randn(rows, columns, device=device)

    def chain(pause):
        gamma, beta = (randn(columns, device=device).requires_grad_() for _ in range(2))
        x = start
        for _ in range(6):
            x = x.detach().requires_grad_()
            y = norm(x, gamma=gamma, beta=beta)
            pause()
            z = softmax(y)
            pause()
            given = torch.autograd.grad(z, [x, gamma, beta], start)
            pause()
            x = start + z + sum(given)
        return x.detach()

    wanted = chain(torch.cuda.synchronize if start.is_cuda else lambda: None)
    assert all(same_bits(chain(lambda: None), wanted) for _ in range(10))


@pytest.mark.gpu
def test_a_side_stream_and_record_stream():
    """Memory that a side stream still uses is not handed out again, as for torch's tensors."""
    x, operands = add_norm_case(torch.float32, "cuda", 4096, 1024)
    upstream = upstream_of(ADD_NORM, x, operands)
    wanted = step(x, operands, upstream)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    for _ in range(3):
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            got = step(x, operands, upstream)
        for tensor in got:
            tensor.record_stream(side)
        copies = [tensor.clone() for tensor in got] if not side.synchronize() else []
        assert all(same_bits(*pair) for pair in zip(copies, wanted, strict=True))

    # An output made on this stream and read on the other, gone from here at once.
    y = named(declare(ADD_NORM)(x, **{**operands, "p": 0.0}))["y"]
    want = y.clone()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        late = y.clone()
    y.record_stream(side)
    del y
    junk = [torch.full_like(want, torch.nan) for _ in range(4)]
    side.synchronize()
    assert len(junk) == 4
    assert same_bits(late, want)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(3, 64), (700, 257), (5000, 1024), (40, 70000)], ids=str)
def test_kernels_wait_for_those_before_them(shape):
    """A kernel comes up before the last one has ended, and reads only what that has written."""
    op = fo.LayerNorm(load=[fo.Residual("r")])
    x, r = randn(*shape, device="cuda"), randn(*shape, device="cuda", seed=1)

    def chain(between):
        buffers = [torch.full_like(x, torch.nan) for _ in range(2)]
        last = x
        for turn in range(60):
            last = op(last, r=r, out=buffers[turn % 2])
            between(last)
            if turn % 7 == 6:
                last.mul_(1.5)  # one of torch's, between two of ours
        return last.clone()

    wanted = chain(lambda _: torch.cuda.synchronize())
    assert wanted.isfinite().all()
    assert all(same_bits(chain(lambda _: None), wanted) for _ in range(5))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(lambda _: None)
    graph.replay()
    assert same_bits(captured, wanted)


@pytest.mark.gpu
@two_devices
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("home", [0, 1])
def test_two_devices(home, current):
    """The tensors' device decides, whichever is current; each has its own streams and generator."""
    place = torch.device("cuda", home)
    x, operands = add_norm_case(torch.float32, place)
    upstream = upstream_of(ADD_NORM, x, operands)
    with torch.cuda.device(home):
        wanted = step(x, operands, upstream)
        torch.cuda.manual_seed(4)
        drawn = declare(ADD_NORM)(x, **operands)
    with torch.cuda.device(current):
        side = torch.cuda.Stream(place)
        side.wait_stream(torch.cuda.current_stream(place))
        with torch.cuda.stream(side), torch.cuda.device(current):
            got = step(x, operands, upstream)
        side.synchronize()
        assert torch.cuda.current_device() == current
        torch.cuda.default_generators[home].manual_seed(4)
        again = declare(ADD_NORM)(x, **operands)
    assert all(t.device == place for t in got)
    assert all(same_bits(*pair) for pair in zip(got, wanted, strict=True))
    assert all(same_bits(*pair) for pair in zip(again, drawn, strict=True))


@pytest.mark.gpu
@two_devices
def test_two_devices_in_one_backward_pass():
    """The autograd engine runs each device's part on a thread of its own."""
    x = randn(64, 128).requires_grad_()
    results = []
    for devices in (("cuda:0", "cuda:1"), ("cuda:0", "cuda:0")):
        leaf = x.detach().clone().requires_grad_()
        y = named(declare(ADD_NORM)(leaf.to(devices[0]), **plain(devices[0])))["y"]
        z = named(declare(ADD_NORM)(y.to(devices[1]), **plain(devices[1])))["y"]
        z.cpu().backward(randn(64, 128, seed=9))
        results.append(leaf.grad)
    assert same_bits(*results)


def plain(device):
    vectors = {name: randn(128, device=device, seed=i) for i, name in enumerate(("gamma", "beta"))}
    return {"bias": 0.5, "p": 0.0, "residual": randn(64, 128, device=device, seed=3), **vectors}
