# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of LOAD, STORE and functor in C++: drives tests/cpp/contract.cpp and backward.cpp.

That the traits accept and refuse the right types are `static_assert`s there: both files compile.
"""

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from philox import keep_mask, keep_scale

from fusedops.errors import CompileError
from fusedops.jit import env, host, nvrtc

FOLDER = Path(__file__).parent / "cpp"

#: Nothing has to be fast, and only then does GCC vectorize without fused multiply-adds.
FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Compile a source of tests/cpp with the host's compiler, and load it."""

    def compiled(name):
        library = tmp_path_factory.mktemp("contract") / f"{name}.so"
        include = f"-I{env.include_dir()}"
        command = [*host.find_compiler(), *FLAGS, include, f"{FOLDER / name}.cpp", "-o", library]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return ctypes.CDLL(str(library))

    return compiled


@pytest.fixture(scope="module")
def contract(build):
    return build("contract")


@pytest.fixture(scope="module")
def backward(build):
    return build("backward")


def pointers(arguments):
    """Tensors as pointers, Python integers as int64."""
    return [
        ctypes.c_void_p(a.data_ptr())
        if isinstance(a, torch.Tensor)
        else ctypes.c_bool(a)
        if isinstance(a, bool)
        else ctypes.c_int64(a)
        for a in arguments
    ]


def call(function, *arguments):
    function.restype = None
    function(*pointers(arguments))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same_bits(a, b):
    """Equal to the bit, NaN included."""
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.view(kind), b.view(kind))


# A column, the packs of a CPU and their rests, several tiles, and what no buffer holds.
COLUMNS = [1, 7, 64, 100, 3000, 16384]


class TestForeignTypes:
    @pytest.mark.parametrize("streamed", [False, True], ids=["kept", "streamed"])
    @pytest.mark.parametrize("columns", COLUMNS)
    def test_a_plain_load_and_store(self, contract, columns, streamed):
        x = normal(3, columns)
        y, visits = torch.full_like(x, torch.nan), torch.zeros(3, columns, dtype=torch.int32)
        call(contract.foreign_softmax, x, y, visits, 3, columns, streamed)
        torch.testing.assert_close(y, x.softmax(-1))
        assert (visits == (2 if streamed else 1)).all()

    @pytest.mark.parametrize("streamed", [False, True], ids=["kept", "streamed"])
    def test_revisit_serves_the_second_visit(self, contract, streamed):
        x = normal(3, 1000)
        y, visits = torch.full_like(x, torch.nan), torch.zeros(2, 3, 1000, dtype=torch.int32)
        call(contract.revisited_softmax, x, y, visits[0], visits[1], 3, 1000, streamed)
        torch.testing.assert_close(y, x.softmax(-1))
        assert (visits[0] == 1).all()
        assert (visits[1] == int(streamed)).all()

    def test_a_functor_that_takes_its_row_as_a_number(self, contract):
        x = normal(5, 77)
        y = torch.full_like(x, torch.nan)
        call(contract.ramped_softmax, x, y, 5, 77)
        ramp = torch.arange(5.0)[:, None] + 10 * torch.arange(77.0)
        torch.testing.assert_close(y, (x + ramp).softmax(-1) + ramp)


class TestColumns:
    @pytest.mark.parametrize("streamed", [False, True], ids=["kept", "streamed"])
    @pytest.mark.parametrize(("begin", "end"), [(0, 64), (100, 164), (64, 2000), (2990, 3000)])
    def test_what_a_functor_excludes_does_not_take_part(self, contract, begin, end, streamed):
        x = torch.full((2, 3000), torch.nan)
        x[:, begin:end] = normal(2, end - begin)
        y = torch.full_like(x, torch.nan)
        call(contract.window_softmax, x, y, 2, 3000, begin, end, streamed)
        want = torch.zeros_like(x)
        want[:, begin:end] = x[:, begin:end].softmax(-1)
        torch.testing.assert_close(y, want)

    @pytest.mark.parametrize(
        ("row", "windows", "length", "want"),
        [
            (99, (0, 100, 0, 100), 100, (0, 100)),
            (30, (0, 100, 0, 100), 100, (0, 31)),  # causal
            (99, (0, 100, 0, 100), 17, (0, 17)),  # lengths
            (99, (5, 100, 0, 60), 100, (5, 60)),  # one window each side
            (99, (40, 90, 20, 70), 50, (40, 50)),
            (9, (40, 90, 0, 100), 100, (40, 10)),  # nothing is left
        ],
    )
    def test_a_load_intersects_its_functors(self, contract, row, windows, length, want):
        columns, any_ = torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)
        window = torch.tensor(windows)
        call(contract.bounds, row, 100, window, length, 0, columns, any_)
        assert tuple(columns.tolist()) == want

    @pytest.mark.parametrize(
        ("column", "want"),
        [(24, False), (32, False), (40, True), (56, True), (64, False), (72, False)],
    )
    def test_any_holds_where_it_holds_for_all(self, contract, column, want):
        columns, any_ = torch.zeros(2, dtype=torch.int64), torch.zeros(1, dtype=torch.bool)
        call(contract.bounds, 99, 100, torch.tensor([0, 64, 40, 100]), 100, column, columns, any_)
        assert any_.item() is want


class TestComposition:
    @pytest.mark.parametrize("storing", [False, True], ids=["load", "store"])
    @pytest.mark.parametrize("reversed_", [False, True], ids=["declared", "reversed"])
    def test_functors_apply_in_their_order(self, contract, reversed_, storing):
        x = torch.arange(77, dtype=torch.float64)
        y = torch.full_like(x, torch.nan)
        call(contract.order, x, y, 77, reversed_, storing)
        assert torch.equal(y, (x * 5 + 3) * 2 if reversed_ else (x * 2 + 3) * 5)

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_masks_are_sticky_wherever_they_stand(self, contract, place):
        x = normal(4, 77, dtype=torch.float64)
        x[:, ::5] = torch.nan
        flags = torch.arange(77).expand(4, 77).remainder(5).lt(2).contiguous()
        y = torch.full_like(x, torch.nan)
        call(contract.sticky, x, flags, y, 4, 77, place)
        assert torch.equal(y, torch.where(flags, -torch.inf, torch.inf))


class TestSave:
    def test_a_later_visit_reads_the_last_stream_and_nothing_before_it(self, contract):
        x, skip = normal(3, 77, dtype=torch.float64), normal(3, 77, dtype=torch.float64, seed=1)
        first = torch.full((3, 77), torch.nan, dtype=torch.float16)
        second = torch.full((3, 77), torch.nan, dtype=torch.float32)
        y, again = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
        call(contract.saved, x, skip, first, second, y, 3, 77, False)

        # Doubles go to half through float.
        rounded = (3 * x + 0.5 * skip).float().half()
        assert same_bits(first, rounded)
        assert same_bits(second, (0.3 * rounded.double() + 0.5 * skip).float())
        torch.testing.assert_close(y, second.double() + 0.1, rtol=0, atol=0)

        kept = second.clone()
        for gone in (x, skip, first):
            gone.fill_(torch.nan)
        call(contract.saved, x, skip, first, second, again, 3, 77, True)
        assert same_bits(again, y)
        assert same_bits(second, kept)
        assert first.isnan().all(), "a second visit has written a stream"


class TestRecomputation:
    def test_each_functor_gets_the_value_it_saw(self, contract):
        rows, columns = 4, 77
        x, scale = (
            normal(rows, columns, dtype=torch.float64),
            normal(rows, columns, dtype=torch.float64, seed=1),
        )
        flags = normal(rows, columns, seed=2) > 0
        given = torch.full((2, 4, rows, columns), torch.nan, dtype=torch.float64)
        seen = torch.full((4, rows, columns), torch.nan, dtype=torch.float64)
        y = torch.empty_like(x)
        call(contract.spied, x, scale, flags, given, seen, y, rows, columns)

        kept = keep_mask((rows, columns), 7, 1, 0.25)
        dropped = torch.where(kept, x * scale * keep_scale(0.25), 0.0)
        chain = torch.stack([x, x * scale, dropped, dropped.float().half().double()])
        assert same_bits(given[0], chain), "the load is not what this test takes it for"
        assert same_bits(given[1], given[0])
        assert same_bits(seen, given[0])
        assert torch.equal(y, chain[3].masked_fill(flags, -torch.inf))

    def test_only_functors_that_need_their_input_get_it(self, contract):
        needing, others = torch.zeros(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool)
        call(contract.needs, needing, others)
        assert needing.all()
        assert not others.any()


class Problem(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("cols", ctypes.c_int64),
        ("side", ctypes.c_char_p),
        ("x", ctypes.c_void_p),
        ("upstream", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("dx", ctypes.c_void_p),
        ("operand", ctypes.c_void_p * 4),
        ("flags", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("gradient", (ctypes.c_void_p * 2) * 6),
    )


ROWS, WIDTH = 5, 64 + 2 * 8 + 3


class Given:
    """What every chain may use: four operands of x's shape, flags, lengths and dropout's mask."""

    def __init__(self):
        self.operands = [normal(ROWS, WIDTH, dtype=torch.float64, seed=10 + i) for i in range(4)]
        self.flags = normal(ROWS, WIDTH, seed=20) > 0.5
        self.lengths = torch.tensor([WIDTH, 1, 0, 40, 70])
        self.column = torch.arange(WIDTH).expand(ROWS, WIDTH)
        self.factor = keep_mask((ROWS, WIDTH), 11, 3, 0.25).double() * keep_scale(0.25)

    def scale(self, x, i):
        return x * self.operands[i]

    def bias(self, x, i):
        return x + self.operands[i]

    def residual(self, x, i):
        return x + 0.5 * self.operands[i]

    def affine(self, x, i, j):
        return x * self.operands[i] + self.operands[j]

    def dropout(self, x):
        return x * self.factor

    def cast(self, x):
        return x.float().double()

    def mask(self, x):
        return x.masked_fill(self.flags, -torch.inf)

    def keep(self, x):
        return x.masked_fill(~self.flags, -torch.inf)

    def causal(self, x):
        return x.masked_fill(self.column > torch.arange(ROWS)[:, None] + 2, -torch.inf)

    def to_length(self, x):
        return x.masked_fill(self.column >= self.lengths[:, None], -torch.inf)


@dataclass(frozen=True)
class Case:
    """A chain of backward.cpp: its torch function, and where its operands' gradients arrive.

    Attributes:
        places: (functor, operand within it) of operands 0, 1, ... of `Given`.
        masks: It masks, so it may only stand in a LOAD.
    """

    name: str
    torch: Callable
    places: tuple = ()
    masks: bool = False


def _then(*steps):
    """The steps one after another: (method, operand numbers...)."""

    def chain(given, x):
        for method, *numbers in steps:
            x = getattr(given, method)(x, *numbers)
        return x

    return chain


SINGLE = [
    Case("scale", _then(("scale", 0)), ((0, 0),)),
    Case("bias", _then(("bias", 0)), ((0, 0),)),
    Case("mask", _then(("mask",)), masks=True),
    Case("keep", _then(("keep",)), masks=True),
    Case("causal", _then(("causal",)), masks=True),
    Case("lengths", _then(("to_length",)), masks=True),
    Case("dropout", _then(("dropout",))),
    Case("residual", _then(("residual", 0)), ((0, 0),)),
    Case("saved", _then(("residual", 0)), ((0, 0),)),
    Case("gamma", _then(("scale", 0)), ((0, 0),)),
    Case("beta", _then(("bias", 0)), ((0, 1),)),
    Case("affine", _then(("affine", 0, 1)), ((0, 0), (0, 1))),
    Case("cast", _then(("cast",))),
]

# Masks come last, wherever they were declared.
CHAINS = [
    Case(
        "attention",
        _then(("scale", 0), ("bias", 1), ("dropout",), ("mask",)),
        ((0, 0), (1, 0)),
        masks=True,
    ),
    Case(
        "add_norm",
        _then(("bias", 0), ("dropout",), ("residual", 1), ("affine", 2, 3)),
        ((0, 0), (2, 0), (3, 0), (3, 1)),
    ),
    Case(
        "written",
        _then(("affine", 0, 1), ("dropout",), ("scale", 2), ("cast",)),
        ((0, 0), (0, 1), (2, 0)),
    ),
    Case(
        "twice",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("residual", 3)),
        ((0, 0), (1, 0), (2, 0), (3, 0)),
    ),
    Case(
        "indices",
        _then(("scale", 0), ("bias", 1), ("causal",), ("to_length",)),
        ((1, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_first",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((1, 0), (2, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_within",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((0, 0), (2, 0), (3, 0)),
        masks=True,
    ),
    Case(
        "mask_last",
        _then(("scale", 0), ("bias", 1), ("scale", 2), ("mask",)),
        ((0, 0), (1, 0), (2, 0)),
        masks=True,
    ),
]


def run_backward(library, case, side, given, x, upstream, stream=None):
    """The chain's result, the gradient of x, and those of all operands by (functor, operand)."""
    y, dx = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    stream = torch.full_like(x, torch.nan) if stream is None else stream
    gradients = torch.zeros(6, 2, ROWS, WIDTH, dtype=torch.float64)
    problem = Problem(ROWS, WIDTH, side.encode())
    for field, tensor in {
        "x": x,
        "upstream": upstream,
        "y": y,
        "dx": dx,
        "flags": given.flags,
        "lengths": given.lengths,
        "stream": stream,
    }.items():
        setattr(problem, field, tensor.data_ptr())
    for i, operand in enumerate(given.operands):
        problem.operand[i] = operand.data_ptr()
    for functor in range(6):
        for operand in range(2):
            problem.gradient[functor][operand] = gradients[functor][operand].data_ptr()
    library.run.restype = ctypes.c_bool
    assert library.run(case.name.encode(), ctypes.byref(problem)), f"no chain {case.name}"
    return y, dx, gradients


def _sides(case):
    sides = ["alone"] if case in SINGLE else []
    # A saved stream, too, belongs to a LOAD.
    return (
        [*sides, "load"]
        if case.masks or case.name in ("saved", "add_norm")
        else [*sides, "load", "store"]
    )


#: A handful of roundings, in the same order on both sides.
close = partial(torch.testing.assert_close, rtol=2e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("case", "side"),
    [
        pytest.param(case, side, id=f"{case.name}-{side}")
        for case in SINGLE + CHAINS
        for side in _sides(case)
    ],
)
def test_gradients_are_autograds(backward, case, side):
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    before = upstream.clone(), x.clone()
    y, dx, gradients = run_backward(backward, case, side, given, x, upstream)
    assert same_bits(upstream, before[0])
    assert same_bits(x, before[1])

    used = given.operands[: len(case.places)]
    leaves = [value.requires_grad_() for value in (x, *used)]
    want = case.torch(given, x)
    grads = torch.autograd.grad(want, leaves, upstream)
    close(y, want.detach())
    close(dx, grads[0])
    for (functor, operand), grad in zip(case.places, grads[1:], strict=True):
        close(gradients[functor, operand], grad, msg=lambda text, f=functor: f"functor {f}: {text}")
    for functor in range(6):
        for operand in range(2):
            if (functor, operand) not in case.places:
                assert not gradients[functor, operand].any(), (
                    "a gradient for an operand that is not there"
                )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=["nan", "inf"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in CHAINS if case.masks]
)
def test_nothing_under_a_mask_leaks_into_a_gradient(backward, case, bad):
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    clean = run_backward(backward, case, "load", given, x, upstream)
    masked = clean[0] == -torch.inf
    for tensor in (x, upstream, *given.operands):
        tensor[masked] = bad
    got = run_backward(backward, case, "load", given, x, upstream)
    for tensor, want in zip(got, clean, strict=True):
        assert same_bits(tensor, want)
    assert (got[1][masked] == 0).all()


def test_recomputation_reads_the_stream_and_does_not_write_it(backward):
    """As a second visit does: what was saved stands for its makings."""
    given, x = Given(), normal(ROWS, WIDTH, dtype=torch.float64, seed=1)
    upstream = normal(ROWS, WIDTH, dtype=torch.float64, seed=2)
    case = next(case for case in CHAINS if case.name == "add_norm")
    stream = normal(ROWS, WIDTH, dtype=torch.float64, seed=3)
    before = stream.clone()
    _, _, gradients = run_backward(backward, case, "again", given, x, upstream, stream)
    assert same_bits(stream, before)
    assert same_bits(gradients[3, 0], upstream * stream)  # of gamma, which comes after the stream


PREAMBLE = """\
#include <fusedops/functor/compose.cuh>
#include <fusedops/functor/scale.cuh>
#include <fusedops/op/softmax.cuh>
#include <fusedops/row/statistics.cuh>
#include <fusedops/{schedule}.cuh>
using namespace fusedops;
using Op = Softmax<float, false, false>;
using Rows = View<float, 1, Column::kContiguous, 1>;
struct Nothing {{}};
struct Misspelt {{
  template <int N>
  void lod(float*, int64_t, int64_t) const {{}}
}};
"""

HOST = """
void run(const Op& op, Rows rows, const RowSpace<1>& space) {{
  host_rows<HostSchedule<Streamed>>(op, {load}, {store}, NoStatistics{{0}}, space, 8, 0, 1);
}}
"""

CUDA = """
extern "C" __global__ void run(const Op op, Rows rows, const RowSpace<1> space) {{
  row_kernel<Schedule<InRegisters, 1, 1, 8, 1, true>>(op, {load}, {store}, NoStatistics{{0}}, space,
                                                      8);
}}
"""

REFUSED = {
    "load": (
        "Nothing{}",
        "store(rows)",
        "fusedops: not a LOAD: it needs template <int N> void load(",
    ),
    "misspelt load": ("Misspelt{}", "store(rows)", "fusedops: not a LOAD: it needs"),
    "store as load": ("store(rows)", "store(rows)", "fusedops: not a LOAD: it needs"),
    "store": (
        "load(rows)",
        "Nothing{}",
        "fusedops: not a STORE: it needs template <int N> void store(",
    ),
    "load as store": ("load(rows)", "load(rows)", "fusedops: not a STORE: it needs"),
    "functor": ("load(rows, Nothing{})", "store(rows)", "fusedops: not a functor: it needs"),
}


def _first_errors(log, count=3):
    return "\n".join([line for line in log.splitlines() if "error" in line][:count])


@pytest.mark.parametrize(("load", "store", "message"), REFUSED.values(), ids=REFUSED)
def test_a_type_that_is_neither_is_told_on_a_cpu(tmp_path, load, store, message):
    source = tmp_path / "kernel.cpp"
    source.write_text(PREAMBLE.format(schedule="host/rows") + HOST.format(load=load, store=store))
    command = [
        *host.find_compiler(),
        "-std=c++17",
        "-fsyntax-only",
        f"-I{env.include_dir()}",
        source,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=env.compiler_environment()
    )
    assert done.returncode != 0
    assert message in _first_errors(done.stderr)


@pytest.mark.parametrize("what", ["load", "store", "functor"])
def test_a_type_that_is_neither_is_told_on_a_gpu(what):
    load, store, message = REFUSED[what]
    source = PREAMBLE.format(schedule="row/kernel") + CUDA.format(load=load, store=store)
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cuda(source, "sm_90")
    assert message in _first_errors(caught.value.log)
