# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What torch's profiler shows of a call: a range with the op's name and its functors."""

import pytest
import torch

import fusedops as fo

ADD_NORM = fo.LayerNorm(
    load=[fo.Bias("bias"), fo.Dropout("p"), fo.Residual("residual")], store=[fo.Affine("gamma")]
)
NAME = "LayerNorm(Bias, Dropout, Residual | Affine)"


def ranges(call):
    """The names of the ranges of one call that are ours, in order, and what the call returned."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = call()
    names = [event.name for event in profile.events()]
    return [name for name in names if "Norm(" in name or "Softmax(" in name], result


def operands(**gamma):
    return {
        "bias": torch.randn(8),
        "p": 0.5,
        "residual": torch.randn(4, 8),
        "gamma": torch.ones(8, **gamma),
    }


def test_calls_are_named_in_inference_the_first_and_the_later_ones():
    given = operands()
    for _ in range(2):
        assert ranges(lambda: ADD_NORM(torch.zeros(4, 8), **given))[0] == [NAME]


@pytest.mark.thorough
def test_calls_are_named_in_training_the_backward_pass_as_the_gradient_of_its_op():
    names, y = ranges(lambda: ADD_NORM(torch.zeros(4, 8), **operands(requires_grad=True)))
    assert names == [NAME]
    assert ranges(lambda: y.sum().backward())[0] == [f"gradient of {NAME}"]


def test_calls_are_named_in_compiled_code():
    given = operands()
    compiled = torch.compile(
        lambda x: ADD_NORM(x, **given), fullgraph=True, backend="eager", dynamic=False
    )
    compiled(torch.zeros(4, 8))
    assert ranges(lambda: compiled(torch.zeros(4, 8)))[0] == [NAME]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("op", "name"),
    [
        (fo.Softmax(), "Softmax()"),
        (fo.Softmax(load=[fo.Scale("s")]), "Softmax(Scale)"),
        (fo.Softmax(store=[fo.Scale("s")]), "Softmax(| Scale)"),
        (fo.GroupNorm(2), "GroupNorm()"),
    ],
)
def test_names_say_where_functors_stand(op, name):
    given = dict.fromkeys(op.slots, 0.5)
    names, _ = ranges(lambda: op(torch.zeros(2, 4, 2), **given))
    assert names[0] == name


def test_ranges_of_calls_that_raise_end():
    """An event that does not end would hold all later ones."""

    def fail():
        with pytest.raises(TypeError, match="bias"):
            ADD_NORM(torch.zeros(4, 8))
        return ADD_NORM(torch.zeros(4, 8), **operands())

    names, y = ranges(fail)
    assert names[-1] == NAME
    assert y.shape == (4, 8)
