# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A call with a new shape is planned quickly, and its plan keeps little.

Time is counted in function calls, which other processes do not change.
"""

import cProfile
import gc

import pytest
import torch

import fusedops as fo
from fusedops import _runtime
from fusedops.bind.bind import bind
from fusedops.bind.geometry import place
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate.target import Target
from fusedops.plan.forward import describe
from fusedops.plan.reading import Hints, Reading, readings
from fusedops.run.gradient import Gradient, described
from fusedops.schedule import backward, forward
from fusedops.schedule.forward_tile import Row

#: Function calls of both passes, C functions included: once 1985 and 2485 on sm_90.
MOST_CALLS = {"attention": 400, "add_norm": 415}


def meta(*shape):
    return torch.empty(shape, dtype=torch.float16, device="meta")


def attention(columns):
    mask = torch.empty(2, 1, 1, columns, dtype=torch.bool, device="meta")
    bias = meta(1, 2, 2, columns)
    return ATTENTION, (2, 2, 2, columns), {"scale": 0.1, "pair_bias": bias, "padding": mask}


def add_norm(columns):
    vectors = {key: meta(columns) for key in ("bias", "gamma", "beta")}
    given = {"residual": meta(16, columns), **vectors}
    return ADD_NORM, (16, columns), given


def plan(make, columns, profile, gradients):
    op, shape, given = make(columns)
    x, target = meta(*shape), Target.named("sm_90")
    wanted = {k for k, v in given.items() if torch.is_tensor(v) and v.is_floating_point()}
    gradient = gradients.setdefault(op, Gradient(op, frozenset({"x", *wanted}), frozenset()))
    with profile:
        bound = bind(op, x, {**given, "p": 0.1}, {})._replace(keep=True)
        describe(bound, target)
    backward_call = described(bound, gradient)
    with profile:
        gradient.describe(*backward_call, target)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [attention, add_norm], ids=MOST_CALLS)
def test_a_new_length_is_planned_in_few_calls(make):
    gradients = {}
    for columns in (701, 703, 705):
        plan(make, columns, cProfile.Profile(), gradients)
    profile = cProfile.Profile()
    # Ops of other tests that are collected on the way call back, as the table of ops is told.
    gc.collect()
    gc.disable()
    try:
        plan(make, 707, profile, gradients)
    finally:
        gc.enable()
    assert sum(one.callcount for one in profile.getstats()) <= MOST_CALLS[make.__name__]


def test_readings_that_have_served_are_tried_first():
    """And then those of a rank that has served: kernels of other ranks are seldom loaded."""
    hints, bound = Hints(), bind(fo.Softmax(), meta(4, 8), {}, {})
    rows = place((4, 8), (1,), [((4, 8), (8, 1))], [2])
    alone = bind(fo.Softmax(load=[fo.Bias("b")]), meta(8), {"b": meta(8)}, {})
    every = list(readings(alone, rows._replace(rows=1, sizes=(1,)), backward=True))
    assert hints.first(every) == every
    hints.note_usual(place((4, 2, 8), (2,), [((4, 2, 8), (8, 64, 1))], [2]))
    ranks = [one.rank for one in hints.first(every)]
    assert ranks[: ranks.count(2)] == [2] * ranks.count(2)
    served = Reading(rank=3, vectors=True)
    hints.note(bound, served)
    assert hints.first(every)[0] == served
    assert sorted(hints.first(every)) == sorted(every)
    assert hints.of(bound) == served


@pytest.mark.thorough
def test_a_plan_keeps_no_objects_of_its_making():
    op = fo.Softmax()
    op(torch.zeros(2, 20))
    before = tracked_after(op, range(21, 23))
    assert (tracked_after(op, range(33, 53)) - before) / 20 < 5  # shapes, for the next plan
    assert type(_runtime.last_plan().info) is str


def tracked_after(op, lengths):
    for columns in lengths:
        op(torch.zeros(2, columns))
    gc.collect()
    return len(gc.get_objects())


@pytest.mark.parametrize("dropout", [False, True])
def test_lengths_that_share_a_schedule_have_their_own(dropout):
    """The schedule of another length of the same step is that of the length itself."""
    gpu = Target.named("sm_90").gpu
    for columns in (*range(1, 140), 700, 701, 1023, 1025, 4095, 4098, 9000, 50257):
        row = Row(columns, 2, 4, dropout, "columns", True)
        pairs = [
            (forward.choose(row, "sm_90", gpu), forward._chosen(row, "sm_90", gpu, None, None)),
            (
                backward.choose_gradient(row, "sm_90", gpu, "norm", (1,)),
                backward._chosen(row, "sm_90", gpu, "norm", (1,), None, None, False),
            ),
        ]
        for shared, own in pairs:
            assert shared == own
            assert (shared.features, shared.lengths) == (own.features, own.lengths)
