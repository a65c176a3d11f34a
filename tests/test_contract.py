# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of LOAD, STORE and functor in C++: drives tests/cpp/contract.cpp.

That the traits accept and refuse the right types are `static_assert`s there: the file compiles.
"""

import ctypes
import subprocess

import pytest
import torch
from cpptest import build, normal, same_bits
from philox import keep_mask, keep_scale

from fusedops.errors import CompileError
from fusedops.jit import env, host, nvrtc


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    return build("contract", tmp_path_factory.mktemp("contract"))


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


# A column, the packs of a CPU and their rests, several tiles, and what no buffer holds.
COLUMNS = [1, 7, 64, 100, 3000, 16384]


class TestForeignTypes:
    @pytest.mark.thorough
    @pytest.mark.parametrize("streamed", [False, True], ids=["kept", "streamed"])
    @pytest.mark.parametrize("columns", COLUMNS)
    def test_a_plain_load_and_store(self, contract, columns, streamed):
        x = normal(3, columns)
        y, visits = torch.full_like(x, torch.nan), torch.zeros(3, columns, dtype=torch.int32)
        call(contract.foreign_softmax, x, y, visits, 3, columns, streamed)
        torch.testing.assert_close(y, x.softmax(-1))
        assert (visits == (2 if streamed else 1)).all()

    @pytest.mark.thorough
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
  void loads(float*, int64_t, int64_t) const {{}}
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


@pytest.mark.thorough
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
