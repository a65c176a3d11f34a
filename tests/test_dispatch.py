# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ dispatch functions, on threads of the CPU and on a GPU, held to the bound."""

import ctypes
import itertools

import pytest
import torch
from cases import ADD_NORM, ATTENTION, compare, compare_gradients, poisoned, randn, same_bits
from cpptest import build, place
from philox import drawn
from references import Chain

SUCCESS, INVALID = 0, 1
COLUMNS = (1, 3, 8, 24, 64, 65, 256, 257, 768, 1024, 1032, 1536, 2048, 3000, 4096, 4097)
COLUMNS += (5120, 8192, 16384, 16385, 20480, 50264, 65536, 98312)


def fresh(shape, dtype, device):
    out, intact = poisoned(shape, dtype, device)
    fresh.guards.append(intact)
    return out


fresh.guards = []


@pytest.fixture(autouse=True)
def nothing_written_outside():
    fresh.guards.clear()
    yield
    assert all(intact() for intact in fresh.guards)


def space(call, device):
    """The workspace that a call asks for, and its size."""
    needed = ctypes.c_size_t(12345)
    assert call(None, 0, ctypes.byref(needed)) == SUCCESS
    return torch.full((needed.value,), 255, dtype=torch.uint8, device=device), needed.value


@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", [(2, 3, 5, 40), (3, 2, 4, 33), (4, 2, 3, 1024)])
def test_attention(device, shape, p):
    library = place("attention", device)
    batch, _, _, keys = shape
    x = randn(*shape, dtype=torch.float16, device=device)
    bias = randn(1, *shape[1:], dtype=torch.float16, device=device, seed=1)
    mask = randn(batch, 1, 1, keys, device=device, seed=2) > 0.5
    mask[0] = True  # an empty row
    operands = {"scale": 0.125, "pair_bias": bias, "padding": mask, "p": p}
    seed, offset = drawn(torch.device(device), 1)
    random = (p, seed, offset)
    y = fresh(shape, torch.float16, device)
    kept = fresh((x.numel() // keys, 2), torch.float32, device)
    assert library.attention(x, bias, mask, y, kept, *random, *shape) == SUCCESS
    compare(ATTENTION, x, operands, {"y": y})

    dy = randn(*shape, dtype=torch.float16, device=device, seed=3)
    dx, dbias = (fresh(like.shape, torch.float16, device) for like in (x, bias))

    def gradient(*rest):
        return library.attention_gradient(
            x, bias, mask, kept, dy, dx, dbias, *random, *shape, *rest
        )

    assert gradient(*space(gradient, device), None) == SUCCESS
    got = {"x": dx, "pair_bias": dbias}
    compare_gradients(ATTENTION, x, operands, {"y": dy}, {"y": y}, got)


@pytest.mark.parametrize(("rows", "pitch"), [(1, 0), (5, 0), (5, 3), (300, 0), (0, 0)])
@pytest.mark.parametrize("cols", COLUMNS)
def test_add_norm(device, rows, cols, pitch):
    if cols > 2048 and (rows > 5 or pitch):
        pytest.skip("once is enough")
    library = place("add_norm", device)
    half = {"dtype": torch.float16, "device": device}
    x = randn(rows, cols + pitch, **half)[:, :cols]
    names = ("bias", "gamma", "beta")
    operands = {name: randn(cols, device=device, seed=i) for i, name in enumerate(names, 1)}
    operands["bias"] = operands["bias"].half()
    operands |= {"residual": randn(rows, cols, seed=7, **half), "p": 0.25}
    seed, offset = drawn(torch.device(device), 1)
    random = (0.25, seed, offset)
    y, stream = (fresh((rows, cols), torch.float16, device) for _ in "ys")
    mean, rstd = (fresh((rows,), torch.float32, device) for _ in "mr")
    kept = fresh((rows, 3), torch.float32, device)
    bias, gamma, beta = (operands[name] for name in names)
    size = (rows, cols, cols + pitch)
    assert (
        library.add_norm(
            *(x, bias, operands["residual"], stream, gamma, beta, y, mean, rstd, kept),
            *(*random, *size),
        )
        == SUCCESS
    )
    if rows:
        compare(ADD_NORM, x, operands, {"y": y, "stream": stream})
        assert torch.allclose(mean, stream.float().mean(-1), atol=1e-4)

    dy, dstream = (randn(rows, cols, seed=seed, **half) for seed in (8, 9))
    dx, dresidual = (fresh((rows, cols), torch.float16, device) for _ in "xr")
    dbias = fresh((cols,), torch.float16, device)
    dgamma, dbeta = (fresh((cols,), torch.float32, device) for _ in "gb")
    arguments = (x, bias, stream, gamma, kept, dy, dstream, dx, dbias, dresidual, dgamma, dbeta)

    def gradient(*rest):
        return library.add_norm_gradient(*arguments, *random, *size, *rest)

    workspace = space(gradient, device)
    assert gradient(*workspace, None) == SUCCESS
    got = {"residual": dresidual, "bias": dbias, "gamma": dgamma, "beta": dbeta}
    if not rows:
        assert all(not got[name].any() for name in names)
        return
    again = {name: tensor.clone() for name, tensor in got.items()}
    assert gradient(*workspace, None) == SUCCESS
    assert all(same_bits(again[name], got[name]) for name in got)
    got["x"] = dx
    compare_gradients(
        ADD_NORM, x, operands, {"y": dy, "stream": dstream}, {"y": y, "stream": stream}, got
    )


@pytest.mark.parametrize("cols", [40, 1032, 3000, 5120, 24576])
def test_a_stream_in_the_memory_of_the_residual(device, cols):
    """Each pack is read once, and written once, also where the columns do not fill their tile."""
    library, rows = place("add_norm", device), 5
    half = {"dtype": torch.float16, "device": device}
    x, bias, residual = (
        randn(*shape, seed=seed, **half)
        for seed, shape in enumerate(((rows, cols), (cols,), (rows, cols)))
    )
    gamma, beta = (randn(cols, device=device, seed=seed) for seed in (3, 4))
    mean, rstd = (fresh((rows,), torch.float32, device) for _ in "mr")
    kept = fresh((rows, 3), torch.float32, device)
    found = []
    for stream in (fresh((rows, cols), torch.float16, device), residual.clone()):
        other = residual if not found else stream
        y = fresh((rows, cols), torch.float16, device)
        operands = (x, bias, other, stream, gamma, beta, y, mean, rstd, kept)
        assert library.add_norm(*operands, 0.25, 1, 0, rows, cols, cols) == SUCCESS
        found.append((y, stream))
    assert all(same_bits(apart, shared) for apart, shared in zip(*found, strict=True))


@pytest.mark.parametrize(("rows", "cols"), [(7, 40), (300, 515), (3, 5120), (2, 20001)])
def test_rms_norm(device, rows, cols):
    library = place("others", device)
    chain = Chain("rms_norm", store=(("affine", "gamma", None),), eps=1e-6)
    x = randn(rows, cols, dtype=torch.bfloat16, device=device)
    gamma = randn(cols, dtype=torch.bfloat16, device=device, seed=1)
    y = fresh((rows, cols), torch.bfloat16, device)
    rstd, kept = (fresh((rows,), torch.float32, device) for _ in "rk")
    assert library.rms(x, gamma, y, rstd, kept, rows, cols) == SUCCESS
    compare(chain, x, {"gamma": gamma}, {"y": y})
    assert same_bits(rstd, kept)

    dy = randn(rows, cols, dtype=torch.bfloat16, device=device, seed=2)
    dx = fresh((rows, cols), torch.bfloat16, device)
    dgamma = fresh((cols,), torch.bfloat16, device)

    def gradient(*rest):
        return library.rms_gradient(x, gamma, kept, dy, dx, dgamma, rows, cols, *rest)

    assert gradient(*space(gradient, device), None) == SUCCESS
    got = {"x": dx, "gamma": dgamma}
    compare_gradients(chain, x, {"gamma": gamma}, {"y": dy}, {"y": y}, got)


@pytest.mark.parametrize(("queries", "keys"), [(4, 9), (16, 1024), (5, 300), (3, 17000)])
def test_causal_log_softmax(device, queries, keys):
    library = place("others", device)
    rows = 3 * queries
    chain = Chain(
        "log_softmax", load=(("scale", "s"), ("bias", "b"), ("causal", "bottom-right", 0))
    )
    x = randn(3, queries, keys, device=device)
    s = randn(1, device=device, seed=1).reshape(())
    b = randn(3, queries, 1, dtype=torch.float64, device=device, seed=2)
    y, dx = (fresh(x.shape, torch.float32, device) for _ in "yd")
    kept = fresh((2 * rows + 1,), torch.float32, device)[1:]  # aligned to four bytes alone
    size = (rows, queries, keys)
    assert library.causal_log_softmax(x, s, b, y, kept, *size) == SUCCESS
    compare(chain, x, {"s": s, "b": b}, {"y": y})

    dy = randn(*x.shape, device=device, seed=3)
    ds = fresh((), torch.float32, device)
    db = fresh(b.shape, torch.float64, device)

    def gradient(*rest):
        return library.causal_log_softmax_gradient(x, s, b, kept, dy, dx, ds, db, *size, *rest)

    assert gradient(*space(gradient, device), None) == SUCCESS
    got = {"x": dx, "s": ds, "b": db}
    compare_gradients(chain, x, {"s": s, "b": b}, {"y": dy}, {"y": y}, got)


def test_a_range_of_columns(device):
    library = place("ranges", device)
    x = randn(5, 301, dtype=torch.float64, device=device)
    for cols in (3, 4, 64, 299, 300):
        given = x[:, :cols].contiguous()
        given[1] = -torch.inf
        y = fresh((5, cols), torch.float64, device)
        assert library.short_rows(given, y, 5, cols) == SUCCESS
        assert torch.allclose(y, given.softmax(-1), atol=1e-14, equal_nan=True)
    y = fresh((5, 301), torch.float64, device)
    for cols in (2, 301, 0, -1):
        assert library.short_rows(x, y, 5, cols) == INVALID
    assert y.isnan().all()
    assert library.short_rows(x, y, -1, 100) == INVALID
    assert library.short_rows(None, None, 0, 100) == SUCCESS


def test_a_workspace_too_small(device):
    library = place("others", device)
    rows, cols = 300, 512
    x, gamma, dx, dy = (
        randn(*shape, dtype=torch.bfloat16, device=device)
        for shape in ((rows, cols), (cols,), (rows, cols), (rows, cols))
    )
    kept = randn(rows, device=device)
    dgamma = fresh((cols,), torch.bfloat16, device)

    def gradient(*rest):
        return library.rms_gradient(x, gamma, kept, dy, dx, dgamma, rows, cols, *rest)

    workspace, size = space(gradient, device)
    assert size >= 4 * cols
    for given, its_size in itertools.product((workspace, None, workspace[1:]), (size, size - 1)):
        if given is not workspace or its_size != size:
            assert gradient(given, its_size, None) == INVALID
    assert dgamma.isnan().all()


@pytest.mark.parametrize("cols", [8, 264, 1024, 1040, 5120, 17000, 20480])
def test_bits_do_not_depend_on_alignment_or_rows(device, cols):
    library = place("others", device)
    base = randn(40, cols, dtype=torch.bfloat16, device=device)
    gamma = randn(cols, dtype=torch.bfloat16, device=device, seed=1)
    results = []
    for rows, shift in itertools.product((40, 1), (0, 1, 4)):
        buffer = torch.zeros(rows * cols + 8, dtype=torch.bfloat16, device=device)
        x = buffer[shift : shift + rows * cols].view(rows, cols)
        x.copy_(base[:rows])
        y = fresh((rows, cols), torch.bfloat16, device)
        assert library.rms(x, gamma, y, None, None, rows, cols) == SUCCESS
        results.append(y[0].clone())
    assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize(("rows", "cols"), [(2, 64), (7, 100), (5, 1025), (300, 2048)])
def test_double(device, rows, cols):
    library = place("others", device)
    chain = Chain("layer_norm", store=(("affine", "g", None),), eps=1e-5)
    x, dy = (randn(rows, cols, dtype=torch.float64, device=device, seed=s) for s in (1, 2))
    gamma = randn(cols, dtype=torch.float64, device=device, seed=3)
    y, dx = (fresh((rows, cols), torch.float64, device) for _ in "yd")
    kept = fresh((rows, 3), torch.float64, device)
    dgamma = fresh((cols,), torch.float64, device)
    assert library.double_norm(x, gamma, y, kept, rows, cols) == SUCCESS
    compare(chain, x, {"g": gamma}, {"y": y})

    def gradient(*rest):
        return library.double_norm_gradient(x, gamma, kept, dy, dx, dgamma, rows, cols, *rest)

    assert gradient(*space(gradient, device), None) == SUCCESS
    compare_gradients(chain, x, {"g": gamma}, {"y": dy}, {"y": y}, {"x": dx, "g": dgamma})


@pytest.mark.parametrize("pitches", [(33, 36), (36, 33), (36, 36), (33, 33)])
def test_the_gradient_of_a_result_that_lies_otherwise(device, pitches):
    library = place("others", device)
    rows, cols = 7, 33
    pitch, other = pitches
    y = randn(rows, cols, device=device).softmax(-1)
    dy = randn(rows, cols, device=device, seed=1)
    padded = {}
    for name, tensor, stride in (("y", y, pitch), ("dy", dy, other), ("dx", None, other)):
        padded[name] = torch.full((rows, stride), torch.nan, device=device)
        if tensor is not None:
            padded[name][:, :cols] = tensor
    given = (padded["y"], padded["dy"], padded["dx"])
    assert library.softmax_gradient_of_result(*given, rows, cols, pitch, other) == SUCCESS
    truth = y.double() * (dy.double() - (y.double() * dy.double()).sum(-1, keepdim=True))
    assert torch.allclose(padded["dx"][:, :cols].double(), truth, rtol=1e-5, atol=1e-7)
    assert padded["dx"][:, cols:].isnan().all()


def test_complete_packs_of_a_cluster_lie_in_the_row(tmp_path):
    """Also where each chunk begins with a block of columns that share a scale."""
    assert build("clusters", tmp_path).rows_with_incomplete_packs() == 0


@pytest.mark.gpu
def test_an_error_before_is_not_ours():
    library = place("others", "cuda")
    x = randn(4, 512, dtype=torch.bfloat16, device="cuda")
    gamma = torch.ones(512, dtype=torch.bfloat16, device="cuda")
    y = fresh((4, 512), torch.bfloat16, "cuda")
    assert library.failed() != SUCCESS
    assert library.rms(x, gamma, y, None, None, 4, 512) == SUCCESS
    torch.cuda.synchronize()
    assert y.isfinite().all()


@pytest.mark.gpu
def test_capture():
    library = place("others", "cuda")
    rows, cols = 64, 1024
    x, dy = (randn(rows, cols, dtype=torch.bfloat16, device="cuda", seed=s) for s in (1, 2))
    gamma = randn(cols, dtype=torch.bfloat16, device="cuda", seed=3)
    y, dx = (fresh((rows, cols), torch.bfloat16, "cuda") for _ in "yd")
    dgamma = fresh((cols,), torch.bfloat16, "cuda")
    kept = fresh((rows,), torch.float32, "cuda")

    def gradient(*rest):
        return library.rms_gradient(x, gamma, kept, dy, dx, dgamma, rows, cols, *rest)

    workspace = space(gradient, "cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Also the first call of a kernel, which loads it, and the query.
        assert library.rms(x, gamma, y, None, kept, rows, cols) == SUCCESS
        assert space(gradient, "cpu")[1] == workspace[1]
        assert gradient(*workspace, None) == SUCCESS
    assert y.isnan().all()
    graph.replay()
    torch.cuda.synchronize()
    first = [tensor.clone() for tensor in (y, dx, dgamma)]
    x.copy_(randn(rows, cols, dtype=torch.bfloat16, device="cuda", seed=4))
    graph.replay()
    torch.cuda.synchronize()
    assert not torch.equal(first[0], y)
    assert library.rms(x, gamma, y, None, kept, rows, cols) == SUCCESS
    again = [tensor.clone() for tensor in (y, dx, dgamma)]
    assert gradient(*workspace, None) == SUCCESS
    assert all(same_bits(a, b) for a, b in zip(again, (y, dx, dgamma), strict=True))


@pytest.mark.gpu
def test_more_than_32_bits_of_elements():
    library = place("others", "cuda")
    rows, cols = (1 << 20) + 3, 4104
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of free memory")
    assert rows * cols > 1 << 32
    gamma = torch.ones(cols, dtype=torch.bfloat16, device="cuda")
    x = torch.zeros(rows, cols, dtype=torch.bfloat16, device="cuda")
    some = torch.tensor([0, 1, rows // 2, rows - 2, rows - 1], device="cuda")
    x[some] = randn(5, cols, dtype=torch.bfloat16, device="cuda")
    y = torch.full_like(x, torch.nan)
    assert library.rms(x, gamma, y, None, None, rows, cols) == SUCCESS
    few = fresh((5, cols), torch.bfloat16, "cuda")
    assert library.rms(x[some].contiguous(), gamma, few, None, None, 5, cols) == SUCCESS
    assert same_bits(y[some], few)
    assert not y[2].any()
    assert not y.isnan().any()


@pytest.mark.gpu
def test_in_place():
    library = place("others", "cuda")
    for rows, cols in ((65, 512), (5, 20000), (3, 100001)):
        x = randn(rows, cols, dtype=torch.bfloat16, device="cuda")
        gamma = randn(cols, dtype=torch.bfloat16, device="cuda", seed=1)
        y = fresh((rows, cols), torch.bfloat16, "cuda")
        assert library.rms(x, gamma, y, None, None, rows, cols) == SUCCESS
        assert library.rms(x, gamma, x, None, None, rows, cols) == SUCCESS
        assert same_bits(x, y)
