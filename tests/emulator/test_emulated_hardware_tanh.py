# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A tanh of the hardware that is as far off as PTX allows, in kernels that g++ compiled.

Each of its results is 2^-11 too large or too small, by a hash of its argument (builtins.h).
"""

import platform
import shutil

import pytest
import torch
from cases import randn, thorough
from emulate import emulated
from test_hardware_tanh import made, of_all, operands, others

import fusedops as fo
from fusedops.testing.comparison import compare_call

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None,
    reason="threads are switched by x86-64 code, and kernels built by g++",
)


@pytest.mark.parametrize("name", ["silu", *thorough(*others("silu"))])
def test_elements_reach_their_bounds_and_no_more(name):
    """Value and gradient: so nothing less would be enough."""
    op, x = fo.Map(load=[made(name)]), randn(7, 61) * 3
    with emulated("sm_90"):
        shares = {one.what: one.share for one in compare_call(op, x, **operands(name, 61)).again()}
    assert all(share <= 1 for share in shares.values()), shares
    assert all(shares[key] > 0.9 for key in ("y", "gradient of x")), shares


def test_several_calls_of_one_functor():
    with emulated("sm_90"):
        found = compare_call(fo.Map([of_all()]), randn(70, 61) * 2).again()
    shares = {one.what: one.share for one in found}
    assert all(0.5 < share <= 1 for share in shares.values()), shares


@pytest.mark.parametrize("dtype", [torch.float32, *thorough(torch.float16)], ids=str)
def test_rows_whose_elements_mix(dtype):
    op = fo.Softmax(load=[fo.Softcap("cap", hardware_tanh=True)])
    x = randn(7, 61, dtype=dtype) * 8
    for cap in (2.0, 20.0):
        with emulated("sm_90"):
            found = compare_call(op, x, cap=torch.tensor(cap)).again()
        shares = {one.what: one.share for one in found}
        assert all(share <= 1 for share in shares.values()), shares
        assert shares["y"] > 0.1, shares


class NotSaid(fo.Tanh):
    """Its C++ is that of the hardware's tanh, which the declaration does not say."""

    def emit(self, writer):
        return fo.Tanh(hardware_tanh=True).emit(writer)


def test_nobody_else_is_allowed_it():
    with emulated("sm_90"):
        found = compare_call(fo.Map(load=[NotSaid()]), randn(7, 61)).again()
    assert all(one.share > 10 for one in found if one.what == "y")
