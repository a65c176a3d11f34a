# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What training loops in C++ ask for.

Gradients from mean and rstd, added to what is there, and in place; dropout whose seed and offset
lie in memory.
"""

import ctypes
import resource

import pytest
import torch
from cases import compare, compare_gradients, randn, same_bits
from cpptest import compiler, place, run
from references import Chain

from fusedops.jit import env

NORM = Chain(
    "layer_norm",
    load=(("residual", "residual", 1.0, "stream"),),
    store=(("affine", "gamma", "beta"),),
    eps=1e-5,
)
SHAPES = [(5, 40), (300, 33), (7, 1025), (3, 70000)]


def with_workspace(call, device):
    """Ask for the workspace, then call with it."""
    needed = ctypes.c_size_t()
    assert call(None, 0, ctypes.byref(needed)) == 0
    space = torch.full((needed.value,), 255, dtype=torch.uint8, device=device)
    assert call(space, needed.value, None) == 0


class Norm:
    """A norm of x + residual whose sum is saved, and what its gradient is given."""

    def __init__(self, device, rows, cols):
        self.built = place("training", device)
        self.device, self.size = device, (rows, cols)
        self.x = randn(rows, cols, device=device) + 0.5
        self.operands = {
            "residual": randn(rows, cols, device=device, seed=1).half(),
            "gamma": randn(cols, device=device, seed=2),
            "beta": randn(cols, device=device, seed=3).double(),
        }
        self.y, self.sum = (torch.full_like(self.x, torch.nan) for _ in "ys")
        self.mean, self.rstd = (torch.full((rows,), torch.nan, device=device) for _ in "mr")
        residual, gamma, beta = self.operands.values()
        forward = (self.x, residual, self.sum, gamma, beta, self.y, self.mean, self.rstd)
        assert self.built.sum_norm(*forward, rows, cols) == 0
        self.upstream = {
            "y": randn(rows, cols, device=device, seed=4),
            "stream": randn(rows, cols, device=device, seed=5),
        }

    def gradients(self, there=None, dy=None, dsum=None, dx=None):
        """All gradients; added to `there`, if that is given."""
        dy = self.upstream["y"] if dy is None else dy
        dsum = self.upstream["stream"] if dsum is None else dsum
        got = {"x": torch.full_like(self.x, torch.nan) if dx is None else dx}
        got |= {name: torch.full_like(t, torch.nan) for name, t in self.operands.items()}
        if there is not None:
            got = {name: tensor.clone() for name, tensor in there.items()}
        given = (self.sum, self.operands["gamma"], self.mean, self.rstd, dy, dsum)
        to = (got["x"], got["residual"], got["gamma"], got["beta"])

        def call(*rest):
            return self.built.sum_norm_gradient(
                int(there is not None), *given, *to, *self.size, *rest
            )

        with_workspace(call, self.device)
        return got


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_from_mean_and_rstd(device, shape):
    norm = Norm(device, *shape)
    results = {"y": norm.y, "stream": norm.sum}
    compare(NORM, norm.x, norm.operands, results)
    got = norm.gradients()
    compare_gradients(NORM, norm.x, norm.operands, norm.upstream, results, got)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_added(device, shape):
    """By one addition in the compute type, or in double where that is in memory, rounded once."""
    norm = Norm(device, *shape)
    plain = norm.gradients()
    there = {"x": randn(*shape, device=device, seed=6)}
    there |= {
        name: randn(*tensor.shape, device=device, seed=7).to(tensor.dtype)
        for name, tensor in norm.operands.items()
    }
    got = norm.gradients(there)
    for name in ("x", "gamma", "beta"):
        assert same_bits(got[name], there[name] + plain[name]), name
    # The gradient of the residual is that of x, before it is rounded to half.
    assert same_bits(got["residual"], (there["residual"].float() + plain["x"]).half())
    again = norm.gradients(there)
    assert all(same_bits(got[name], again[name]) for name in got)


def test_no_rows_add_nothing(device):
    library = place("training", device)
    there = [torch.ones(8, dtype=dtype, device=device) for dtype in (torch.float32, torch.float64)]
    nothing = [None] * 8
    for adds, want in ((1, 1.0), (0, 0.0)):
        given = (*nothing, *there, 0, 8, None, 0, None)
        assert library.sum_norm_gradient(adds, *given) == 0
        assert all((tensor == want).all() for tensor in there)


@pytest.mark.parametrize("cols", [40, 515])
def test_shared_gradients_are_added(device, cols):
    library = place("training", device)
    groups, rows = 40, 320
    x, dy = (randn(rows, cols, device=device, seed=seed) for seed in (1, 2))
    pair, row, one = (
        randn(groups, cols, device=device),
        randn(rows, device=device),
        randn(1, device=device),
    )
    y = torch.full_like(x, torch.nan)
    kept = torch.full((rows, 2), torch.nan, device=device)
    assert library.shared(x, pair, row, one, y, kept, groups, cols) == 0
    torch.testing.assert_close(
        y, ((x + pair.repeat_interleave(8, 0)) * row[:, None] * one).softmax(-1)
    )
    results = []
    there = [randn(*tensor.shape, device=device, seed=9) for tensor in (pair, row, one)]
    for adds in (0, 1):
        got = [t.clone() if adds else torch.full_like(t, torch.nan) for t in there]

        def call(*rest, adds=adds, got=got):
            given = (x, pair, row, one, kept, dy)
            return library.shared_gradient(adds, *given, *got, groups, cols, *rest)

        with_workspace(call, device)
        results.append(got)
    for plain, added, before in zip(*results, there, strict=True):
        assert same_bits(added, before + plain)


@pytest.mark.parametrize("place_", ["y", "stream"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dx_in_the_memory_of_an_incoming_gradient(device, shape, place_):
    norm = Norm(device, *shape)
    apart = norm.gradients()
    memory = norm.upstream[place_].clone()
    given = {"dy" if place_ == "y" else "dsum": memory}
    got = norm.gradients(dx=memory, **given)
    assert got["x"] is memory
    assert all(same_bits(got[name], apart[name]) for name in got)


@pytest.mark.parametrize("cols", [7, 24, 60, 1000, 2048])
def test_dx_in_the_memory_of_dy_where_nothing_but_the_operator_computes(device, cols):
    library = place("others", device)
    y = randn(9, cols, device=device).softmax(-1)
    dy = randn(9, cols, device=device, seed=1)
    results = []
    for together in (False, True):
        memory = dy.clone()
        dx = memory if together else torch.full_like(dy, torch.nan)
        size = (9, min(cols, 1024), cols, cols)
        assert library.softmax_gradient_of_result(y, memory, dx, *size) == 0
        results.append(dx[:, :1024].clone())
    assert same_bits(*results)
    assert results[0].isfinite().all()


def signed(number):
    """The same 64 bits, as torch's signed type takes them."""
    return number - (1 << 64) if number >= 1 << 63 else number


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_dropout_from_memory(device, p):
    library = place("training", device)
    x, dy = (randn(9, 300, device=device, seed=seed) for seed in (1, 2))
    results = []
    seed, offset = 0x9876543210FEDCBA, 1 << 40
    draw = torch.tensor([signed(seed), offset], device=device)
    for memory, number in ((draw, 0), (None, offset), (None, offset + 4)):
        y, dx = (torch.full_like(x, torch.nan) for _ in "yd")
        kept = torch.full((9, 2), torch.nan, device=device)
        given = (p, memory, signed(seed), number, 9, 300)
        assert library.dropped(x, y, kept, *given) == 0
        assert library.dropped_gradient(x, kept, dy, dx, *given) == 0
        of_result = torch.full_like(x, torch.nan)
        assert library.dropped_gradient_of_result(x, dy, of_result, *given) == 0
        results.append((y, dx, of_result))
    read, same, other = results
    assert all(same_bits(a, b) for a, b in zip(read, same, strict=True))
    assert same_bits(read[0], other[0]) is (p == 0)


@pytest.mark.gpu
def test_a_captured_graph_draws_anew():
    library = place("training", "cuda")
    x = randn(64, 300, device="cuda")
    y = torch.full_like(x, torch.nan)
    kept = torch.full((64, 2), torch.nan, device="cuda")
    draw = torch.tensor([42, 0], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert library.dropped(x, y, kept, 0.3, draw, 0, 0, 64, 300) == 0
        draw[1:].add_(4)
    for offset in (0, 4, 8):
        graph.replay()
        torch.cuda.synchronize()
        want = torch.full_like(x, torch.nan)
        assert library.dropped(x, want, kept, 0.3, None, 42, offset, 64, 300) == 0
        assert same_bits(y, want)


CHAIN_ON_A_CPU = """
#include <fusedops/layer_norm.cuh>
using namespace fusedops;

auto in(const half* x, const half* b, const half* r, half* s, const half* ds, int64_t n, double p) {
  const auto skip = saved_residual(direct(r, n), direct(s, n), 1, direct(ds, n));
  return load(direct(x, n), bias(per_column(b)), dropout(p, 1, 0), skip);
}
Status forward(const half* x, const half* b, const half* r, half* s, half* y, const half* gamma,
               float* kept, int64_t rows, int64_t n, double p) {
  const auto out = store(affine(per_column(gamma), per_column(gamma)), direct(y, n));
  return dispatch_layer_norm<float>(Threads{}, in(x, b, r, s, s, n, p), out, rows, n, 1e-5, nullptr,
                                    nullptr, kept);
}
Status backward(const half* x, const half* b, const half* r, half* s, const half* gamma,
                const float* kept, const half* dy, half* dx, half* dgamma, void* space,
                size_t bytes, int64_t rows, int64_t n, double p) {
  const auto out = store(affine(per_column(gamma), per_column(gamma)), Absent{});
  const auto wanted = gradients(in_store<0, 0>(per_column(dgamma)));
  return dispatch_layer_norm_gradient<float>(Threads{}, in(x, b, r, s, s, n, p), out, kept,
                                             direct(dy, n), direct(dx, n), wanted, space, bytes,
                                             rows, n);
}
"""


@pytest.mark.thorough
def test_a_norm_and_its_gradient_compile_in_8_seconds_on_a_cpu(tmp_path):
    """Optimized, with a bias, a dropout and a residual before the norm."""
    source = tmp_path / "chain.cpp"
    source.write_text(CHAIN_ON_A_CPU)
    flags = ("-std=c++17", "-O2", f"-I{env.include_dir()}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run([compiler(), *flags, "-c", source, "-o", tmp_path / "chain.o"])
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 8
