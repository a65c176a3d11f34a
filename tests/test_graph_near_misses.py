# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the backend "fusedops" must leave: results and gradients are eager torch's; it says why."""

import pytest
import torch
from captured import compiled, held
from cases import randn
from torch.nn import functional

X = randn(2, 3, 8, seed=1)
OTHER = randn(2, 3, 8, seed=2)
FLAGS = randn(2, 3, 8, seed=3) > 0

MISSES = {}


def miss(*inputs, why, wanted=None):
    """Register a program: its inputs, a reason that the report has, what is fused all the same."""

    def register(program):
        MISSES[program.__name__] = program, inputs, why, wanted
        return program

    return register


@miss(X, why="not elementwise")
def a_transpose_between(x):
    return torch.softmax((x * 3).mT, -1)


@miss(X, why="not elementwise")
def a_reshape_between(x):
    return torch.softmax((x * 3).reshape(3, 16), -1)


@miss(X, OTHER[:1, :1], why="its shape is not that", wanted="Softmax(load=[Scale(scale='scale')]")
def a_broadcast_that_enlarges_the_result(x, other):
    return torch.softmax(other * 3, -1) + x


@miss(OTHER[:, :1], X[0], why="it broadcasts what it reads")
def a_broadcast_that_enlarges_the_input(row, column):
    return torch.softmax(row + column, -1)


@miss(X, OTHER, why="something is written in place")
def written_in_between(x, other):
    h = x * 3
    other = other.clone()
    other.add_(1)
    return torch.softmax(h, -1), other


@miss(X, why="")
def the_argument_is_written_afterwards(x):
    h = x.clone()
    y = torch.softmax(h, -1)
    h.mul_(2)
    return torch.exp(y), h


@miss(X, why="no functor can hold it")
def an_activation_in_place(x):
    return torch.softmax(functional.relu(x * 3, inplace=True), -1)


@miss(X, OTHER, why="")
def a_saved_value_that_an_operand_needs(x, other):
    h = x + other
    return functional.layer_norm(h, (8,)) * (h @ torch.ones(8, 8, dtype=h.dtype))


@miss(
    X, OTHER, why="it is its input, unchanged", wanted="LayerNorm(load=[Scale(scale='scale'), Res"
)
def a_stream_that_a_first_norm_read_already(x, other):
    stream = functional.dropout(x, 0.0)
    first = functional.layer_norm(stream, (8,)) @ torch.ones(8, 8, dtype=x.dtype)
    stream = stream + first * other
    second = functional.layer_norm(stream, (8,)) @ torch.ones(8, 8, dtype=x.dtype)
    return stream + second


@miss(
    X, OTHER, why="it is used before all", wanted="LayerNorm(load=[Residual(residual='residual', "
)
def a_value_used_too_early(x, other):
    stream = x + other
    first = functional.layer_norm(stream.cumsum(-1), (8,))
    return functional.layer_norm(stream + first.cumsum(-1), (8,)), stream


@miss(X, FLAGS, why="its truth values are used elsewhere")
def truth_values_used_elsewhere(x, flags):
    both = flags & (x > 0)
    return torch.softmax(torch.where(both, x, -1.0), -1), both.to(x.dtype) * x


@miss(X, why="it is computed in another precision")
def rounded_after_a_double_norm(x):
    return functional.layer_norm(x.double(), (8,)).float() * 2


@miss(X, why="x has dtype torch.int64", wanted="")
def of_integers(x):
    return torch.softmax((x * 8).long(), -1, dtype=torch.float64) * x


@miss(X, OTHER, why="it runs beside another step")
def two_dropouts_side_by_side(x, other):
    both = functional.dropout(x, 1.0) + functional.dropout(other, 1.0)
    return torch.softmax(both, -1)


@miss(X, why="not elementwise")
def a_cumulative_sum_after(x):
    return torch.softmax(x, -1).cumsum(-1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MISSES)
def test_near_miss(name):
    program, inputs, why, wanted = MISSES[name]
    found = held(program, *inputs)
    said = [text for one in found for text in one.why.values()]
    assert any(why in text for text in said) or not why
    if wanted is not None:
        assert [one for one in found if one.op is not None and repr(one.op).startswith(wanted)] or (
            not wanted and all(one.op is None for one in found)
        )


def test_a_transform_is_left():
    """Under vmap a kernel sees nothing."""
    program = torch.func.vmap(lambda x: torch.softmax(x * 3, -1) * 2)
    fused, found = compiled(program)
    torch.testing.assert_close(fused(X), program(X))
    assert [one.op for one in found] == [None]
    assert "transform of torch.func" in next(iter(found[0].why.values()))


def test_gradients_switched_off_in_between():
    """What runs without gradients hands none on: it is no part of the kernel after it."""

    def program(x):
        with torch.no_grad():
            h = x * 3
        return torch.softmax(h + x, -1)

    (one,) = held(program, X)
    assert one.nodes == ("add", "softmax")
