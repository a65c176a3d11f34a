# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that run calls in the place of a plan, and dispatchers that choose between both."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from fusedops import _runtime
from fusedops.bind.generator import draw

TENSOR, NUMBER = _runtime.SLOT_TENSOR, _runtime.SLOT_NUMBER


class Product(_runtime.Dispatcher):
    """A dispatcher of x @ w, times s; keeps what `slow` and the delegate were given."""

    def __init__(self):
        self.asked, self.ran, self.wrong = [], [], []
        slots = [("s", NUMBER | TENSOR), ("w", TENSOR)]
        _runtime.Dispatcher.__init__(
            self, "product", slots, self.slow, draw, inputs=2, delegates=True
        )

    def slow(self, reason, inputs, operands, options):
        self.asked.append((reason, inputs, operands, options))
        return _runtime.Delegate(self.run) if reason == "miss" else reason

    def run(self, x, w, **arguments):
        self.ran.append((x, w, arguments))
        return x @ w * arguments.get("s", 1)

    def __call__(self, *inputs, **arguments):
        self.wrong.append((inputs, arguments))


_runtime.call_at_once(Product)


@pytest.fixture
def op():
    return Product()


X, W = torch.randn(2, 3), torch.randn(3, 4)


def reasons(op):
    return [asked[0].value for asked in op.asked]


def test_it_is_asked_for_once_and_gets_the_arguments_as_given(op):
    for scale in (2.0, 3.0):
        assert torch.equal(op(X, W, s=scale, training=False), X @ W * scale)
    assert reasons(op) == ["miss"]
    _, inputs, operands, options = op.asked[0]
    assert inputs[0] is X
    assert inputs[1] is W
    assert (operands, options) == ({"s": 2.0}, {"training": False})
    assert op.ran[1][:2] == (X, W)
    assert op.ran[1][2] == {"s": 3.0, "training": False}
    assert (op.hits, op.misses, op.plans, op.launches) == (1, 1, 1, 0)


def test_what_requires_a_gradient_is_part_of_the_key_in_grad_mode(op):
    leaf = W.clone().requires_grad_()
    op(X, W)
    op(X, leaf).sum().backward()
    assert leaf.grad is not None
    assert reasons(op) == ["miss", "miss"]
    with torch.no_grad():
        op(X, leaf)
    op(X.clone().requires_grad_(), W)
    assert reasons(op) == ["miss"] * 3


def test_what_autocast_casts_to_is_part_of_the_key(op):
    op(X, W)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert op(X, W).dtype is dtype
            op(X, W)
    with torch.autocast("cuda", torch.bfloat16):
        op(X, W)  # it is another device's
    assert reasons(op) == ["miss"] * 3


def test_shapes_strides_and_both_inputs_are_part_of_the_key(op):
    for x, w in ((X, W), (X[:1], W), (X, W[:, :2]), (X, W.t().contiguous().t())):
        op(x, w)
    assert reasons(op) == ["miss"] * 4


def test_an_input_is_no_keyword(op):
    assert op(X, W, w=W).value == "arguments"
    assert op(X, None).value == "arguments"
    assert op.wrong == []


@pytest.mark.parametrize("inputs", [(), (X,), (X, W, W)])
def test_another_number_of_inputs_is_for_the_method(op, inputs):
    op(*inputs, s=2.0)
    ((given, arguments),) = op.wrong
    assert len(given) == len(inputs)
    assert arguments == {"s": 2.0}


def test_its_errors_come_through_and_it_is_asked_again_after_clear(op):
    op(X, W)
    with pytest.raises(RuntimeError):
        op.run(X, X)
    op.clear()
    op(X, W)
    assert reasons(op) == ["miss", "miss"]


def test_an_op_that_has_one_is_freed():
    op = Product()
    op(X, W)
    gone = weakref.ref(op)
    del op
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("inputs", [0, 4])
def test_inputs_must_be_slots(inputs):
    slots = [("s", NUMBER), ("w", TENSOR)]
    with pytest.raises(ValueError, match="inputs must be 1 to 3"):
        _runtime.Dispatcher("op", slots, print, draw, inputs=inputs)
