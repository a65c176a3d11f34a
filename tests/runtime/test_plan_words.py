# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a plan writes into its kernel's argument, and what it refuses to be made of."""

from __future__ import annotations

import struct

import pytest
import torch
from dispatchers import NUMBER, TENSOR, Echo

from fusedops import _runtime
from fusedops.bind.generator import draw


def test_numbers_are_patched(library):
    echo = Echo(
        library,
        [(1, _runtime.FLOAT32, 1), (2, _runtime.FLOAT64, 1), (3, _runtime.INT64, 1)],
        struct.pack("<16q", *[-1] * 16),
    )
    for value in (3, -(2**40)):
        low, high, double, integer, rest = struct.unpack_from("<fidqq", echo(v=value))
        assert (low, double, integer) == (value, value, value)
        assert (high, rest) == (-1, -1)  # the upper half and the other words stay


@pytest.mark.parametrize(
    ("p", "threshold"),
    [(1e-9, 1), (0.1, 6554), (0.5, 32768), (1 - 1e-9, 65535), (1.0, 65536), (1, 65536)],
)
def test_probabilities_are_patched(library, p, threshold):
    patches = [(1, _runtime.THRESHOLD, 1), (2, _runtime.KEEP_SCALE32, 1)]
    echo = Echo(library, [*patches, (3, _runtime.KEEP_SCALE64, 1)], slots=[("v", 3)])
    got, _, scale32, _, scale64 = struct.unpack_from("<IIfId", echo(v=p))
    scale = 0.0 if threshold == 65536 else 65536 / (65536 - threshold)
    assert (got, scale64) == (threshold, scale)
    assert scale32 == pytest.approx(scale, rel=1e-7)


def test_draws_are_patched(library):
    patches = [(1, _runtime.SEED, 0), (2, _runtime.OFFSET, 0), (3, _runtime.OFFSET, 2)]
    echo = Echo(library, patches, draws=2)
    generator = torch.Generator()
    assert struct.unpack_from("<qqq", echo(v=1.0, generator=generator)) == (-2, 40, 42)
    assert echo.drawn == [("cpu", 0, generator, 2)]
    echo(v=1.0)
    assert echo.drawn[1] == ("cpu", 0, None, 2)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1])
def test_a_draw_may_be_given(library, seed):
    patches = [(1, _runtime.SEED, 0), (2, _runtime.OFFSET, 0), (3, _runtime.OFFSET, 2)]
    echo = Echo(library, patches, draws=2)
    wrapped = (seed + 2**63) % 2**64 - 2**63
    for _ in range(2):
        got = struct.unpack_from("<qqq", echo(v=1.0, generator=(seed, 12)))
        assert got == (wrapped, 12, 14)
        last = 2**48 - 2  # which leaves room for two
        assert struct.unpack_from("<qqq", echo(v=1.0, generator=(12, last))) == (12, last, last + 2)
    assert echo.drawn == []
    assert struct.unpack_from("<qqq", echo(v=1.0)) == (-2, 40, 42)
    assert echo.dispatch.misses == 1


def test_nothing_is_drawn_without_draws(library):
    echo = Echo(library, [])
    echo(v=1.0)
    assert echo.drawn == []


def test_draw_follows_the_generator():
    torch.manual_seed(5)
    first = draw("cpu", 0, None, 1)
    assert draw("cpu", 0, None, 1) != first
    torch.manual_seed(5)
    assert draw("cpu", 0, None, 1) == first
    assert draw("cpu", 0, torch.Generator().manual_seed(5), 1) == first
    wrong = r"Softmax: generator must be on the device of x, cuda:0, got a generator on cpu"
    with pytest.raises(ValueError, match=wrong):
        draw("cuda", 0, torch.Generator(), 1, op="Softmax")


def test_draw_after_inference_mode():
    with torch.inference_mode():
        draw("cpu", 0, None, 1)
    draw("cpu", 0, None, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(words=bytes(12)), "whole words of 8 bytes"),
        (dict(words=bytes(4104)), "at most 4096 bytes"),
        (dict(patches=[(1, _runtime.TENSOR_MAP, 0)]), "out of range"),  # of its sixteen words
        (dict(patches=[(16, _runtime.POINTER, 0)]), "out of range"),
        (dict(patches=[(0, 99, 0)]), "out of range"),
        (dict(patches=[(0, _runtime.OUTPUT, 1)]), "out of range"),
        (dict(patches=[(0, _runtime.POINTER, -1)]), "out of range"),
        (dict(outputs=[]), "outputs must be 1 to 64"),
        (dict(outputs=[(2, 32, (1,))] * 65), "outputs must be 1 to 64"),
        (dict(returned=0), "returned must be 1 to 1, the number of outputs, got 0"),
        (dict(returned=2), "returned must be 1 to 1, the number of outputs, got 2"),
        (dict(rows=-1), "rows must not be negative"),
        (dict(grain=0), "grain must be positive"),
        (dict(kernel=None), "kernel must not be None where there are rows"),
    ],
)
def test_plans_are_checked(library, change, message):
    kernel = _runtime.load_host(library, "echo")
    plan = dict(
        kernel=kernel, words=bytes(128), patches=[], outputs=[(2, 32, (1,))], rows=1, grain=1,
        grid=0, block=0, shared=0, draws=0, info=None,
    )  # fmt: skip
    _runtime.Plan(**plan)
    with pytest.raises(ValueError, match=message):
        _runtime.Plan(**{**plan, **change})


def test_unknown_output_dtype(library):
    kernel = _runtime.load_host(library, "echo")
    with pytest.raises(TypeError, match="no torch dtype has DLPack code 5 with 64 bits"):
        _runtime.Plan(kernel, b"", [], [(5, 64, (1,))], 1, 1, 0, 0, 0, 0, None)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (_runtime.POINTER, dict(v=1.0)),
        (_runtime.POINTER, {}),
        (_runtime.FLOAT32, {}),
        (_runtime.INT64, dict(v=1.0)),
        (_runtime.THRESHOLD, dict(v=torch.ones(1))),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(library, kind, given):
    echo = Echo(library, [(1, kind, 1)], slots=[("v", NUMBER | TENSOR)])
    with pytest.raises(ValueError, match="does not fit the value in slot 1"):
        echo(**given)
