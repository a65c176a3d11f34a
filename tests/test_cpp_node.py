# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Autograd nodes in C++: they do what nodes in Python do, and Python serves where they are not.

The tests of `test_autograd` and `test_first_derivative` run here once more, with nodes in C++.
"""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
import test_autograd
import test_first_derivative
import torch
from cases import randn, same_bits
from test_autograd import flagship, saved_by  # noqa: F401
from test_host_calls import calls_of

import fusedops as fo
from fusedops.jit import env
from fusedops.row_op import declared
from fusedops.run import cpp_library

for module in (test_autograd, test_first_derivative):
    globals().update({name: one for name, one in vars(module).items() if name.startswith("Test")})
    globals().update({name: one for name, one in vars(module).items() if name.startswith("test_")})


def ask_again(monkeypatch, mode):
    """Every op, also those that other tests share, asks for its node at its next call."""
    monkeypatch.setenv("FUSEDOPS_AUTOGRAD", mode)
    cpp_library.forget()
    for op in [*declared.values()]:
        op.offered, op.grad = False, op._differentiate


@pytest.fixture(autouse=True)
def cpp(monkeypatch):
    """Nodes in C++, for which the library is built if the cache lacks it."""
    ask_again(monkeypatch, "cpp")
    yield
    monkeypatch.undo()
    ask_again(monkeypatch, env.autograd())


@pytest.fixture
def python(monkeypatch):
    """Has the ops that are called from now on make nodes in Python."""
    return lambda: ask_again(monkeypatch, "python")


def in_cpp(y):
    """Whether a result was made by a node in C++."""
    return type(y.grad_fn).__name__ == "CppFunction"


@fo.functor
def gate(v, g):
    return v * torch.sigmoid(g)


#: An op, the shapes of its tensors that need gradients, and its other arguments.
CALLS = {
    "norm": (lambda: fo.LayerNorm(store=[fo.Affine("g", "b")]), {"g": (32,), "b": (32,)}, {}),
    "frozen": (lambda: fo.RMSNorm(store=[fo.Affine("g")]), {}, {"g": "a tensor"}),
    "dim": (lambda: fo.Softmax(), {}, {"dim": 0}),
    "from y": (lambda: fo.Softmax(), {}, {}),
    "dtype": (lambda: fo.Softmax(), {}, {"dtype": torch.float64}),
    "shape": (lambda: fo.LayerNorm(), {}, {"normalized_shape": (32,)}),
    "numbers": (lambda: fo.Softmax(load=[fo.Scale("s")]), {}, {"s": 3}),
    "a number's tensor": (lambda: fo.Softmax(load=[fo.Scale("s")]), {"s": ()}, {}),
    "streams": (
        lambda: fo.LayerNorm(
            load=[fo.Dropout("p"), fo.Residual("r", save="stream")], store=[gate("h")], stats=True
        ),
        {"r": (6, 32), "h": (6, 32)},
        {"p": 0.25},
    ),
    "evaluation": (lambda: fo.Map([fo.Dropout("p")]), {}, {"p": 0.5, "training": False}),
    "optional": (lambda: fo.Map([fo.Bias("c", optional=True), gate("h")]), {"h": (32,)}, {}),
    "lse": (lambda: fo.Softmax(load=[fo.Mask("m")], lse=True), {}, {"m": "a mask"}),
    "twice": (lambda: fo.Map([fo.Bias("c"), gate("c")]), {"c": (32,)}, {}),
}


def arguments_of(name, device):
    """x, the tensors that need gradients, x among them, and all arguments by name."""
    _, leaves, others = CALLS[name]
    shapes = [(6, 32), *leaves.values()]
    inputs = [randn(*shape, device=device, seed=i) for i, shape in enumerate(shapes)]
    x, *given = (one.requires_grad_() for one in inputs)
    made = {"a tensor": randn(32, device=device, seed=9), "a mask": x.detach() > -1}
    others = {
        key: made[value] if isinstance(value, str) else value for key, value in others.items()
    }
    return x, inputs, {**others, **dict(zip(leaves, given, strict=True))}


def run(op, x, inputs, arguments):
    """What can be seen of a call, and tensors: results, saved tensors and gradients."""
    torch.manual_seed(3)
    kept, result = saved_by(lambda: op(x, **arguments))
    outputs = [result] if isinstance(result, torch.Tensor) else list(result)
    able = [one for one in outputs if one.requires_grad]
    gradients = []
    for some in (able, able[:1], able[1:]):
        if some:
            upstream = [torch.full_like(one, 0.5) for one in some]
            gradients += torch.autograd.grad(
                some, inputs, upstream, retain_graph=True, allow_unused=True
            )
    flags = [(one.requires_grad, one.dtype, one.shape) for one in outputs]
    seen = (type(result).__name__, flags, [one is None for one in gradients])
    found = [one.detach() for one in (*outputs, *kept, *gradients) if one is not None]
    return seen, found, outputs[0]


@pytest.mark.parametrize("name", CALLS)
def test_everything_is_that_of_nodes_in_python(name, device, python):
    call = arguments_of(name, device)
    op = CALLS[name][0]()
    ours = [run(op, *call) for _ in range(2)]  # the second knows what the first has shown
    python()
    seen, wanted, y = run(op, *call)
    assert not in_cpp(y)
    for mine, tensors, y in ours:
        assert in_cpp(y)
        assert mine == seen
        assert all(same_bits(a, b) for a, b in zip(tensors, wanted, strict=True))


@pytest.mark.parametrize(
    "odd",
    [
        {"s": torch.float32},
        {"dim": (0, 1)},
        {"generator": (1, 2)},
        {"part_of": ((12, 32), (6, 0))},
        {"dim": [1]},
    ],
    ids=str,
)
def test_what_python_has_to_read_it_reads(odd, device):
    x = randn(6, 32, device=device).requires_grad_()
    op = fo.LayerNorm(load=[fo.Scale("s"), fo.Dropout("p")])
    if odd.get("s") is torch.float32:
        odd = {"s": 10**20}
    y = op(x, **{"s": 2.0, "p": 0.0, **odd})
    assert not in_cpp(y)
    assert in_cpp(op(x, s=2.0, p=0.0))
    (got,) = torch.autograd.grad(y.sum(), x)
    assert got.shape == x.shape


def test_nothing_to_compute(device):
    x = torch.empty(0, 32, device=device).requires_grad_()
    y = fo.Softmax()(x)
    (got,) = torch.autograd.grad(y.sum(), x)
    assert got.shape == x.shape


def test_hooks_run(device):
    x = randn(6, 32, device=device).requires_grad_()
    y = fo.Softmax()(x)
    assert y.grad_fn.name() == "_DifferentiatedBackward"
    seen = []
    y.retain_grad()
    y.register_hook(lambda dy: seen.append("tensor") or dy * 2)
    y.grad_fn.register_prehook(lambda dy: seen.append("before"))
    y.grad_fn.register_hook(lambda dx, dy: seen.append("after") or (dx[0] * 2,))
    dy = randn(6, 32, device=device, seed=1)
    y.backward(dy)
    assert seen == ["tensor", "before", "after"]
    assert same_bits(y.grad, dy * 2)
    plain = x.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(fo.Softmax()(plain), plain, dy * 2)
    assert same_bits(x.grad, wanted * 2)


def test_anomaly_mode_says_where_the_call_was(device):
    x = randn(6, 32, device=device).requires_grad_()
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        y = fo.Softmax()(x)
    assert "test_anomaly_mode_says" in "".join(y.grad_fn.metadata["traceback_"])


def test_an_exception_in_a_backward_pass_is_itself(device):
    x = randn(6, 32, device=device).requires_grad_()

    def stop(saved):
        raise LookupError("gone")

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, stop):
        y = fo.Softmax()(x)
    with pytest.raises(LookupError, match="gone"):
        y.sum().backward()


def test_threads_that_share_a_graph(device):
    x = randn(64, 32, device=device).requires_grad_()
    gamma = randn(32, device=device, seed=1).requires_grad_()
    op = fo.LayerNorm(store=[fo.Affine("gamma")])
    y = op(x, gamma=gamma)
    dy = randn(64, 32, device=device, seed=2)
    wanted = torch.autograd.grad(y, [x, gamma], dy, retain_graph=True)
    found = []

    def work():
        for _ in range(20):
            own = op(x, gamma=gamma)
            for result in (y, own):
                found.append(torch.autograd.grad(result, [x, gamma], dy, retain_graph=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 160
    assert all(same_bits(a, b) for some in found for a, b in zip(some, wanted, strict=True))


def test_a_long_chain_of_nodes_goes_without_recursion(device):
    y = randn(2, 8, device=device).requires_grad_()
    op = fo.Map([fo.Scale("s")])
    for _ in range(20000):
        y = op(y, s=1.0)
    del y  # of a node that deletes the next, the stack would not be deep enough


def test_nothing_outlives_its_graph(device):
    op = fo.LayerNorm(store=[fo.Affine("gamma")], load=[fo.Residual("r", save="stream")])
    x, r = (randn(6, 32, device=device, seed=i).requires_grad_() for i in range(2))
    gamma = randn(32, device=device).requires_grad_()
    gone = [weakref.ref(one) for one in (op, x, r)]
    y, _ = op(x, r=r, gamma=gamma)
    gone.append(weakref.ref(y))
    torch.autograd.grad(y.sum(), [x, gamma], retain_graph=True)
    del op, x, r, y, _
    gc.collect()
    assert [one() for one in gone] == [None] * 4


def test_a_node_that_ran_has_let_go_of_what_it_saved(device):
    gamma = randn(32, device=device)
    gone = weakref.ref(gamma)
    y = fo.LayerNorm(store=[fo.Affine("gamma")])(
        randn(6, 32, device=device).requires_grad_(), gamma=gamma
    )
    node = y.grad_fn
    del gamma
    assert gone() is not None
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        node(torch.ones_like(y))
    assert gone() is None


def test_numbers_that_are_drawn_in_memory_are_saved(device, python, monkeypatch):
    """As while a CUDA graph is captured."""
    monkeypatch.setattr("fusedops.bind.generator.draw", lambda *given: None)
    op = fo.Softmax(store=[fo.Dropout("p")])
    x = randn(6, 32, device=device).requires_grad_()
    call = x, [x], {"p": 0.5}
    ours = [run(op, *call) for _ in range(2)]
    python()
    seen, wanted, _ = run(op, *call)
    for mine, tensors, y in ours:
        assert in_cpp(y)
        assert mine == seen
        assert all(same_bits(a, b) for a, b in zip(tensors, wanted, strict=True))
    assert any(one.dtype is torch.int64 and one.shape == (2,) for one in wanted)


def test_a_step_of_training_runs_no_python(device):
    op = fo.LayerNorm(store=[fo.Affine("gamma")])
    x, gamma = (randn(*shape, device=device).requires_grad_() for shape in ((6, 32), (32,)))

    def step():
        y = op(x, gamma=gamma)
        torch.autograd.backward(y, torch.ones_like(y))

    assert calls_of(step) == []


def test_compiled_autograd_gets_nodes_in_python():
    from torch._dynamo import compiled_autograd

    x = randn(6, 32).requires_grad_()
    op = fo.Softmax()
    assert in_cpp(op(x))
    with compiled_autograd._enable(lambda graph: graph):
        assert not in_cpp(op(x))


class TestTheLibrary:
    @pytest.fixture
    def absent(self, monkeypatch):
        """The library is not loaded yet."""
        monkeypatch.setattr(cpp_library, "_make", None)
        return monkeypatch

    @pytest.fixture
    def call(self):
        op, x = fo.Softmax(), randn(6, 32).requires_grad_()
        return lambda: op(x)

    def test_it_is_loaded_in_the_background(self, absent, call):
        call()
        ask_again(absent, "auto")
        absent.setattr(cpp_library, "_make", None)
        absent.setattr(cpp_library, "LOOK", 2)
        assert not in_cpp(call())
        assert not in_cpp(call())
        cpp_library.settle()
        assert in_cpp(call())

    @pytest.mark.parametrize("missing", ["compiler", "headers", "background"])
    def test_where_it_cannot_be_had_python_serves(self, absent, call, missing, tmp_path):
        ask_again(absent, "python")
        call()  # builds the kernel
        ask_again(absent, "auto")
        absent.setattr(cpp_library, "BUILD", 2)
        absent.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
        if missing == "compiler":
            absent.setenv("CXX", "no-such-compiler")
        elif missing == "headers":
            source = tmp_path / "node.cpp"
            source.write_text("#include <torch/no/such/header.h>\n")
            absent.setattr(cpp_library, "_SOURCE", source)
        else:
            absent.setenv("FUSEDOPS_BACKGROUND", "0")
        for _ in range(3):
            assert not in_cpp(call())
            cpp_library.settle()
        assert cpp_library._make is None

    def test_asked_for_and_not_to_be_had_is_an_error(self, absent, call, tmp_path):
        absent.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
        absent.setenv("CXX", "no-such-compiler")
        with pytest.raises(fo.errors.CompilerNotFound):
            call()
        absent.setenv("FUSEDOPS_OFFLINE", "1")
        with pytest.raises(fo.errors.MissingVariantError, match="autograd node"):
            call()


COMPILER = """#!/bin/sh
case "$*" in *-v) exec c++ -v ;; esac
echo $$ > {started}
exec sleep 600
"""

PROGRAM = """
import subprocess, sys, time
from pathlib import Path
import torch
import fusedops as fo
from fusedops.run import cpp_library

class Slow(subprocess.Popen):  # the program's end comes between the start and whatever notes it
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        time.sleep(0.5)

subprocess.Popen = Slow
op, x = fo.Softmax(), torch.randn(6, 32).requires_grad_()
source, started = map(Path, sys.argv[1:])
cpp_library.BUILD, cpp_library._SOURCE = 2, source
for _ in range(2):
    assert type(op(x).grad_fn).__name__ != "CppFunction"
while not (started.exists() and started.read_text()):
    time.sleep(0.01)
"""


@pytest.mark.thorough
def test_a_program_that_ends_ends_the_compiler(tmp_path, monkeypatch):
    fo.Softmax()(randn(6, 32).requires_grad_())  # its kernel is in the cache
    compiler, started, source = (tmp_path / name for name in ("c++", "started", "node.cpp"))
    compiler.write_text(COMPILER.format(started=started))
    compiler.chmod(0o700)
    source.write_text("// none that is in the cache")
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("FUSEDOPS_AUTOGRAD", "auto")
    subprocess.run([sys.executable, "-c", PROGRAM, source, started], check=True, timeout=120)
    state = Path("/proc", started.read_text().strip(), "stat")
    end = time.monotonic() + 10
    while state.exists() and ") Z " not in state.read_text():  # nobody may have waited for it
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.gpu
def test_a_step_in_a_cuda_graph():
    """Dropout draws anew in each replay, and the gradients are those of the mask."""
    op = fo.LayerNorm(load=[fo.Dropout("p"), fo.Residual("r")])
    x = randn(64, 256, device="cuda").requires_grad_()
    r = randn(64, 256, device="cuda", seed=1)

    def step():
        y = op(x, r=r, p=0.5)
        assert in_cpp(y)
        return y, torch.autograd.grad(y, x, r)[0]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, dx = step()
    masks = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        masks.append(dx != 0)
        assert 0.4 < masks[-1].float().mean() < 0.6
    assert not torch.equal(*masks)
