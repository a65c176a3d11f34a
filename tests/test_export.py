# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Exported headers do what the op does, to the bit: forward, backward, for CPUs and GPUs."""

import ctypes
import itertools
import threading

import pytest
import torch
from exported import (
    CASES,
    DRAW,
    SUMS,
    Address,
    Call,
    add_norm,
    built,
    compile_,
    draw_of,
)
from test_headers import manual_warnings

from fusedops.jit import env
from fusedops.schedule import row_partition as slices


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """All cases for this CPU, in one library."""
    return built(tmp_path_factory.mktemp("host"), "cpu", manual_warnings())


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_on_a_cpu(library, name):
    op, x, operands = CASES[name]("cpu")
    Call(op, x, operands, draw_of(library, name)).check(library, name)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 2, 3, 9, 10, 17, 299, 3000])
def test_any_number_of_rows(library, rows):
    """The header was made for another. Of fewer than it says, sums need not agree to the bit."""
    near = SUMS if rows < 10 else ()
    Call(*add_norm(rows, 1001, "cpu"), DRAW).check(library, "add_norm", near)
    plain = Call(*add_norm(rows, 1001, "cpu", torch.float32, 0.0))
    plain.check(library, "add_norm_plain", near)


@pytest.mark.thorough
def test_no_rows(library):
    """Sums over none are zero; nothing else is touched, and pointers may be null."""
    call = Call(*add_norm(2, 1001, "cpu"), DRAW)
    call.room(library, "add_norm")
    call.values |= {"rows": 0, "x": None, "dy": None, "dx": None, "workspace": None}
    assert library.call("add_norm_forward", call.values) == 0
    assert library.call("add_norm_backward", call.values) == 0
    assert not call.values["dgamma"].any()
    assert torch.all(call.values["y"] == 7)


@pytest.mark.thorough
def test_threads_of_the_caller(library):
    """Ranges of rows and slices in any order, on several threads, change no bit."""
    call = Call(*add_norm(300, 1001, "cpu"), DRAW)
    call.room(library, "add_norm")
    count = library.call("add_norm_backward_slices", call.values, ctypes.c_int64)

    def shared(kind, total):
        bounds = [0, total // 3, total // 2, total]
        ranges = list(itertools.pairwise(bounds))[::-1]
        got = []

        def work(begin, end):
            values = {**call.values, "begin": begin, "end": end}
            got.append(library.call(f"add_norm_{kind}_range", values))

        threads = [threading.Thread(target=work, args=one) for one in ranges]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [0, 0, 0]

    shared("forward", 300)
    shared("backward", count)
    assert library.call("add_norm_backward_finish", call.values) == 0
    call.compare()


@pytest.mark.thorough
def test_what_cannot_be_is_an_error(library):
    call = Call(*add_norm(4, 1001, "cpu"), DRAW)
    call.room(library, "add_norm")
    x, dy = call.values["x"], call.values["dy"]

    def status(kind, **changed):
        return library.call(f"add_norm_{kind}", {**call.values, "begin": 0, "end": 1, **changed})

    odd = ctypes.c_void_p(x.data_ptr() + 1).value
    for kind, name in (("forward", "x"), ("backward", "dy"), ("forward_range", "gamma")):
        assert status(kind, **{name: None}) == 1
        assert status(kind, **{name: Address(odd)}) == 2
    for p in (0.0, -0.1, 1.5, float("nan")):
        assert status("forward", p=p) == 1
        assert status("backward", p=p) == 1
    assert status("forward", rows=-1) == 1
    assert status("forward_range", end=5) == 1
    assert status("forward_range", begin=3, end=2) == 1
    assert status("backward", workspace=None) == 1
    for name in call.want:
        assert torch.all(call.values[name] == 7), name
    assert x is call.values["x"]
    assert dy is call.values["dy"]


def test_rows_are_cut_as_the_op_cuts_them(tmp_path):
    """cut_rows of row/slices.cuh against slices.cut, on CPUs and GPUs."""
    source = tmp_path / "cut.cpp"
    source.write_text(
        "#include <fusedops/host/call.cuh>\n"
        'extern "C" void cut(int64_t rows, int64_t most, int64_t fewest, int64_t lanes,\n'
        "                    fusedops::Slices* to) {\n"
        "  if (fewest) most = fusedops::exported::host_slices(rows, fewest);\n"
        "  *to = fusedops::cut_rows(rows, most, 1, lanes);\n}\n"
    )
    include = f"-I{env.include_dir()}"
    compile_("g++", "-std=c++17", "-shared", "-fPIC", include, source, "-o", tmp_path / "cut.so")
    function = ctypes.CDLL(str(tmp_path / "cut.so")).cut
    found = (ctypes.c_int64 * 3)()

    def check(want, rows, *arguments):
        function(*map(ctypes.c_int64, (rows, *arguments)), found)
        assert tuple(found) == want[:3], (rows, arguments)
        assert found[2] == want.total

    counts = [*range(1, 300), 1000, 4097, 49152, 100003, 1 << 33]
    for rows in counts:
        shared = [slices.Sharing("column", rows, 0)]
        for columns in (1, 7, 100, 1000, 5000):
            fewest = -(-slices.HOST_SLICE // columns)
            for share in (shared, []):
                check(slices.cut(rows, columns, share, None), rows, 0, fewest, 1)
        for resident, lanes in ((1056, 1), (8448, 8), (7, 2)):
            if rows > 1:
                check(slices.cut(rows, 64, shared, resident, lanes), rows, resident, 0, lanes)
            check(slices.cut(rows, 64, [], resident, lanes, 1), rows, resident, 0, lanes)
        check(slices.cut(rows, 64, [], 1056, 4), rows, rows, 0, 1)
