# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of several launches, and of outputs that nobody is given."""

from __future__ import annotations

import gc
import struct

import pytest
import torch
from dispatchers import NUMBER, Chain

from fusedops import _runtime
from fusedops.bind.generator import draw


def tensors():
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


def expected(x, b, s):
    return x * s * 3 + b


def test_launches_run_in_order(library, x):
    chain, b = Chain(library), torch.randn(6)
    for scale in (2.0, -0.5):
        y = chain(x, b=b, s=scale)
        assert type(y) is torch.Tensor
        assert torch.equal(y, expected(x, b, scale))
    # One launch counted a call, whatever it takes.
    assert (chain.dispatch.launches, chain.dispatch.hits) == (2, 1)


@pytest.mark.parametrize("own", [False, True], ids=["team of torch", "own threads"])
@pytest.mark.parametrize("grains", [(1, 1), (7, 2000), (2000, 3), (2000, 2000)])
def test_each_launch_has_its_own_grain(library, grains, own):
    x, b = torch.randn(1000, 5), torch.randn(5)
    chain, before = Chain(library, grains=grains), torch.get_num_threads()
    torch.set_num_threads(3)
    _runtime.use_own_threads(own)
    try:
        for _ in range(20):
            assert torch.equal(chain(x, b=b, s=2.0), expected(x, b, 2.0))
    finally:
        _runtime.use_own_threads(False)
        torch.set_num_threads(before)


def test_scratch_can_be_returned(library, x):
    chain, b = Chain(library, returned=None, result=tuple), torch.randn(6)
    y, scratch = chain(x, b=b, s=2.0)
    assert torch.equal(scratch, x * 2)
    assert torch.equal(y, expected(x, b, 2.0))


@pytest.mark.thorough
def test_scratch_is_released(library, x):
    chain, b = Chain(library), torch.randn(6)
    chain(x, b=b, s=2.0)
    before = tensors()
    kept = [chain(x, b=b, s=2.0) for _ in range(10)]
    assert tensors() == before + len(kept)


def test_out_counts_what_is_returned(library, x):
    b, out = torch.randn(6), torch.empty(4, 6)
    for returned, result in ((1, None), (1, tuple)):
        chain = Chain(library, returned, result=result)
        for given in (out, (out,)):
            got = chain(x, b=b, s=2.0, out=given)
            assert (got if result is None else got[0]) is out
            assert torch.equal(out, expected(x, b, 2.0))
        with pytest.raises(ValueError, match="out must hold 1 tensor, one for each output, got 2"):
            chain(x, b=b, s=2.0, out=(out, torch.empty(4, 6)))
    both = Chain(library, 2, result=tuple)
    got = both(x, b=b, s=2.0, out=(None, out))
    assert got[1] is out
    assert torch.equal(out, x * 2)


def make(kernel, first=(), then=(), **changes):
    """A plan of one output, whose first launch has no rows unless `first` says so."""
    parts = dict(
        kernel=kernel, words=bytes(128), patches=[], outputs=[(0, 64, (15,))], rows=0, grain=1,
        grid=0, block=0, shared=0, draws=0, info=None,
    )  # fmt: skip
    return _runtime.Plan(**{**parts, **dict(first), **changes}, then=list(then))


def dispatcher(plan, slots=(("v", NUMBER),)):
    def slow(reason, x, operands, options):
        return plan if reason == "miss" else reason

    return _runtime.Dispatcher("op", slots, slow, lambda *call: (-2, 40))


def test_launches_without_rows_are_left_out(library):
    kernel = _runtime.load_host(library, "echo")
    nothing = (None, b"", [], 0, 1, 0, 0, 0)
    last = (kernel, struct.pack("<16q", *range(16)), [(0, _runtime.OUTPUT, 0)], 1, 1, 0, 0, 0)
    dispatch = dispatcher(make(None, words=b"", then=[nothing, last, nothing]))
    for _ in range(2):
        assert dispatch(torch.ones(1)).tolist() == list(range(1, 16))
    assert dispatch.launches == 2
    empty = dispatcher(make(None, words=b"", then=[nothing]))
    assert empty(torch.ones(1)).shape == (15,)
    assert empty.launches == 0


def test_every_launch_sees_slots_and_draw(library):
    kernel = _runtime.load_host(library, "echo")
    patches = [(1, _runtime.SEED, 0), (2, _runtime.OFFSET, 3), (3, _runtime.FLOAT64, 1)]
    outputs = [(0, 64, (15,))] * 2
    then = [(kernel, bytes(128), [(0, _runtime.OUTPUT, 1), *patches], 1, 1, 0, 0, 0)]
    plan = make(
        kernel, dict(patches=[(0, _runtime.OUTPUT, 0), *patches], rows=1), then,
        outputs=outputs, draws=1,
    )  # fmt: skip
    slow = lambda *call: plan  # noqa: E731
    drawn = []

    def draw_once(*call):
        drawn.append(call)
        return -2, 40

    dispatch = _runtime.Dispatcher("op", [("v", NUMBER)], slow, draw_once, tuple)
    first, second = dispatch(torch.ones(1), v=0.5)
    assert torch.equal(first, second)
    assert struct.unpack_from("<qqd", struct.pack("<15q", *first.tolist())) == (-2, 43, 0.5)
    assert len(drawn) == 1


@pytest.mark.parametrize("number", [32, 64])
def test_many_outputs(library, number):
    kernel = _runtime.load_host(library, "count")
    then = [(kernel, bytes(8), [(0, _runtime.OUTPUT, i)], 3, 1, 0, 0, 0) for i in range(number)]
    plan = make(kernel, outputs=[(0, 64, (3,))] * number, then=then)
    dispatch = _runtime.Dispatcher("op", [], lambda *call: plan, draw, tuple)
    outs = tuple(torch.zeros(3, dtype=torch.int64) for _ in range(number))
    got = dispatch(torch.ones(1), out=outs)
    assert all(one is other for one, other in zip(got, outs, strict=True))
    assert all(out.tolist() == [1, 1, 1] for out in outs)


GOOD = dict(
    kernel=None, words=bytes(16), patches=[(0, _runtime.OUTPUT, 0)], rows=1, grain=1, grid=0,
    block=0, shared=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(words=bytes(12)), "whole words of 8 bytes"),
        (dict(patches=[(2, _runtime.POINTER, 0)]), "out of range"),
        (dict(patches=[(0, _runtime.OUTPUT, 1)]), r"patch \(0, 1, 1\) is out of range"),
        (dict(rows=-1), "rows must not be negative"),
        (dict(grain=0), "grain must be positive"),
        (dict(kernel=None), "kernel must not be None where there are rows"),
    ],
)
def test_further_launches_are_checked(library, change, message):
    good = {**GOOD, "kernel": _runtime.load_host(library, "echo")}
    make(None, then=[tuple(good.values())])
    with pytest.raises(ValueError, match=message):
        make(None, then=[tuple({**good, **change}.values())])


@pytest.mark.parametrize("then", [[()], [(1, 2)], [None], 5])
def test_what_is_no_launch_is_refused(then):
    with pytest.raises(TypeError, match="incompatible"):
        _runtime.Plan(None, b"", [], [(0, 64, (1,))], 0, 1, 0, 0, 0, 0, None, then=then)


def test_a_patch_of_a_further_launch_must_fit(library):
    kernel = _runtime.load_host(library, "echo")
    then = [(kernel, bytes(128), [(1, _runtime.FLOAT32, 1)], 1, 1, 0, 0, 0)]
    dispatch = dispatcher(make(kernel, then=then))
    with pytest.raises(ValueError, match="does not fit the value in slot 1"):
        dispatch(torch.ones(1))
    assert dispatch.plans == 0
