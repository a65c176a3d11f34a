# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Operators in compiled code: calls of a known kind take the short way, with the same bits."""

import pytest
import torch
from cases import Seen, randn, same_bits, thorough

import fusedops as fo
from fusedops.torch_ops import known_calls, operators

COLUMNS = 16


def _vector(seed):
    return randn(COLUMNS, dtype=torch.float32, seed=seed)


def _whole(seed):
    return randn(3, 4, COLUMNS, dtype=torch.float32, seed=seed)


#: By name: an op, its operands, its options, and whether the backward pass is known, too.
CASES = {
    "nothing besides x": (fo.Softmax(), {}, {}, True),
    "streams and parameters": (
        fo.LayerNorm(
            load=[fo.Bias("b"), fo.Residual("r", save="stream")], store=[fo.Affine("gamma", "beta")]
        ),
        {"b": _vector(1), "r": _whole(2), "gamma": _vector(3), "beta": _vector(4)},
        {},
        True,
    ),
    "numbers and dropout": (
        fo.Softmax(load=[fo.Scale("s")], store=[fo.Dropout("p")]),
        {"s": 0.5, "p": 0.25},
        {},
        True,
    ),
    "a count": (fo.Softmax(load=[fo.Lengths("n")]), {"n": 5}, {}, True),
    "a count and numbers": (
        fo.Softmax(load=[fo.Scale("s"), fo.Lengths("n"), fo.Bias("b")]),
        {"s": 0.5, "n": 5, "b": 2.0},
        {},
        True,
    ),
    "several dimensions": (fo.LayerNorm(), {}, {"dim": (1, 2)}, True),
    "another dimension": (fo.RMSNorm(store=[fo.Scale("s")]), {"s": 2.0}, {"dim": 1}, True),
    "another dtype": (fo.Softmax(), {}, {"dtype": torch.bfloat16}, True),
    "a shard": (
        fo.Softmax(store=[fo.Dropout("p")]),
        {"p": 0.5},
        {"part_of": ((6, 4, COLUMNS), (3, 0, 0))},
        True,
    ),
    "an optional operand": (
        fo.Softmax(load=[fo.Bias("b", optional=True), fo.Scale("s")]),
        {"s": _whole(1)},
        {},
        True,
    ),
    "statistics": (fo.Softmax(lse=True), {}, {}, True),
    "an operand of two functors": (
        fo.RMSNorm(load=[fo.Scale("s")], store=[fo.Scale("s")]),
        {"s": _vector(1)},
        {},
        False,
    ),
}


def step(function, x, operands, options, upstream):
    leaves = {"x": x.clone().requires_grad_()}
    leaves |= {
        name: one.clone().requires_grad_()
        for name, one in operands.items()
        if isinstance(one, torch.Tensor)
    }
    given = {**operands, **{k: one for k, one in leaves.items() if k != "x"}}
    torch.manual_seed(3)
    outputs = function(leaves["x"], **given, **options)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    incoming = [upstream(y) for y in outputs]
    return outputs + list(torch.autograd.grad(outputs, list(leaves.values()), incoming))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("backend", ["aot_eager", *thorough("inductor")])
@pytest.mark.parametrize("case", CASES)
def test_known_calls_give_the_bits_of_eager_ones(case, backend, monkeypatch):
    op, operands, options, backward_too = CASES[case]
    torch._dynamo.reset()
    compiled = torch.compile(op, backend=backend, fullgraph=True, dynamic=False)

    def upstream(y):
        return randn(*y.shape, dtype=y.dtype, seed=50)

    for seed in (11, 12, 13):
        x = _whole(seed)
        wanted = step(op, x, operands, options, upstream)
        got = step(compiled, x, operands, options, upstream)
        assert all(same_bits(*pair) for pair in zip(got, wanted, strict=True))
        # From now on the operator's own code must not be needed.
        monkeypatch.setattr(operators, "ForwardCall", None)
        if backward_too:
            monkeypatch.setattr(operators, "BackwardCall", None)


def arguments(x, op, keep=False):
    return x, [x], ["x"], [], None, None, op.text, [x.dim() - 1], x.dtype, keep


def test_what_torch_must_see_goes_through_its_dispatcher():
    """Modes, and tensors of other classes; so does a call whose kind is not known."""
    op, x = fo.Softmax(), _whole(1)
    forward = known_calls.ENTRIES["forward"]
    with torch.no_grad():
        wanted = op(x)
        assert same_bits(forward(*arguments(x, op))[0], wanted)
        with Seen() as seen:
            assert same_bits(forward(*arguments(x, op))[0], wanted)
        assert "fusedops::forward" in seen.names
        assert known_calls.run_forward_at_once(*arguments(x, op)) is not None
        assert forward(*arguments(x[:0], op))[0].shape == (0, 4, COLUMNS)

        class Named(torch.Tensor):
            pass

        named = x.as_subclass(Named)
        assert known_calls.run_forward_at_once(*arguments(named, op)) is None
        assert same_bits(forward(*arguments(named, op))[0].as_subclass(torch.Tensor), wanted)


def test_grad_mode_is_left_to_torch():
    op, x = fo.Softmax(), _whole(1).requires_grad_()
    forward = known_calls.ENTRIES["forward"]
    with torch.no_grad():
        forward(*arguments(x, op, True))
    y, _ = forward(*arguments(x, op, True))
    assert y.requires_grad


def test_lists_of_values():
    op, x = fo.Softmax(load=[fo.Scale("s"), fo.Bias("b")]), _whole(1)
    with torch.no_grad():
        wanted = op(x, s=0.5, b=2.0)
        got = op.direct.of_lists(("s", "b", "dim"), x, [0.5], (), (2.0, 2))
        assert same_bits(got[0], wanted)
        for wrong in ([0.5], [0.5, 2.0, 2, 3]):
            with pytest.raises(TypeError, match="values than names"):
                op.direct.of_lists(("s", "b", "dim"), x, wrong)
        with pytest.raises(TypeError, match="list or tuple"):
            op.direct.of_lists(("s", "b", "dim"), x, 0.5)
        with pytest.raises(TypeError, match="tuple of names"):
            op.direct.of_lists(["s"], x, [0.5])
    assert op.direct.of_lists(("s", "b", "dim"), x, (0.5, 2.0, 2)) is NotImplemented


def test_kinds_are_forgotten(monkeypatch):
    monkeypatch.setattr(known_calls, "_MOST_KINDS", 2)
    monkeypatch.setattr(known_calls, "_forwards", {})
    x = _whole(1)
    with torch.no_grad():
        for op in (fo.Softmax(), fo.LogSoftmax(), fo.RMSNorm()):
            for _ in range(2):
                got = known_calls.ENTRIES["forward"](*arguments(x, op))[0]
                assert same_bits(got, op(x))
    assert len(known_calls._forwards) == 1


@pytest.mark.thorough
def test_inductor_calls_no_operator():
    from torch._inductor.utils import run_and_get_code

    op = fo.LayerNorm(load=[fo.Dropout("p")], store=[fo.Affine("gamma", None)])
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, gamma: op(x * 2, gamma=gamma, p=0.5), fullgraph=True)

    def both(x, gamma):
        compiled(x, gamma).sum().backward()

    with torch._inductor.config.patch(force_disable_caches=True):
        _, codes = run_and_get_code(both, _whole(1).requires_grad_(), _vector(2).requires_grad_())
    calls = [line for code in codes for line in code.splitlines() if "= torch.ops.fusedops" in line]
    assert [line.split("(")[0].split(".")[-1] for line in calls] == [
        "at_once_draw",
        "at_once_forward",
        "at_once_backward",
    ]


@pytest.mark.parametrize("seed", [0, 7, -5, 8, 1 << 59, (1 << 63) + 3, (1 << 64) - 1])
def test_draws_in_memory(seed, monkeypatch, device):
    from fusedops.bind import generator

    for offset in (0, 4, 8, 1 << 40):
        monkeypatch.setattr(generator, "draw", lambda *_, k=offset: (seed, k))
        drawn = generator.draw_in_memory(torch.device(device), 1)
        signed = seed if seed < 1 << 63 else seed - (1 << 64)
        assert drawn.tolist() == [signed, offset]
        assert drawn.dtype is torch.int64
