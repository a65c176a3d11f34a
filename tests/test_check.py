# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops.testing.check` passes what is right, and says where what is wrong is wrong."""

import dataclasses
import io
import math
import sys

import pytest
import torch
from cases import ADD_NORM, ATTENTION, declare, exhaustive, randn
from test_forward import add_norm_case, attention_case

import fusedops as fo
from fusedops.functors.operands import Reads
from fusedops.reference.error_bound import Expected
from fusedops.testing import check
from fusedops.testing.comparison import compare_call


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


@fo.functor
def snake(x, a):
    return x + torch.sin(a * x) ** 2 / a


class Mistaken(fo.Scale):
    """In torch it is something else: what it is in C++ is then wrong."""

    def apply(self, x, chain):
        return super().apply(x, chain) * (1 + 2e-6)


class WrongDerivative(fo.Scale):
    """The value is right."""

    def apply(self, x, chain):
        y = super().apply(x, chain)
        return y.detach() * 0.5 + y * 0.5


class WrongOperandDerivative(fo.Scale):
    def apply(self, x, chain):
        scale = chain.value(self.scale)
        return x * (scale.detach() * 0.5 + scale * 0.5)


class ForgetsToRead(fo.Scale):
    """It says that nothing is read unless the operand's gradient is wanted."""

    def reads(self, wanted):
        return super().reads(wanted) if self.scale in wanted else Reads(False, ())


@fo.functor
def same_segment(x, query, key):
    """Neither operand has a derivative: torch has no gradient for them, not even zeros."""
    return torch.where(query == key, x, -torch.inf)


class Undeclared(fo.LayerNorm):
    """Says nothing of its statistics."""

    def reference(self, value):
        return super().reference(value)[0], {}


class UndeclaredSoftmax(fo.RowOp):
    """A softmax as an operator of somebody else's."""

    header, gradient_header = fo.Softmax.header, fo.Softmax.gradient_header
    kept, masks, gradient_schedule = fo.Softmax.kept, True, "softmax"

    def reference(self, value):
        return torch.softmax(value, -1), {}

    def cpp(self, compute):
        return f"Softmax<{compute}, false, true>"

    def gradient_cpp(self, compute):
        return f"SoftmaxGradient<{compute}, false, true>"


class WrongMask(fo.Dropout):
    def apply(self, x, chain):
        kept, scale = chain.dropout(self)
        return torch.where(kept.roll(1, -1), x * scale, 0.0)


def scaled(kind=fo.Scale, dropout=fo.Dropout):
    return fo.Softmax(load=[kind("s")], store=[dropout("p")])


def check_scaled(op, device):
    x = randn(5, 24, device=device)
    return check(op, x, s=randn(24, device=device, seed=1), p=0.3)


def test_what_is_right_passes(device):
    report = check_scaled(scaled(), device)
    assert report.passed
    assert 0 < report.worst.share <= 1
    cases = list(dict.fromkeys(one.case for one in report.compared))
    assert cases == [
        *("as given", "x alone", "operands alone", "another draw", "columns apart"),
        *("shared upstream", "odd columns", "one row", "one column", "no rows"),
    ]
    for case in cases:
        parts = [one.what for one in report.compared if one.case == case]
        alone = {"x alone": ["x"], "operands alone": ["s"]}.get(case, ["x", "s"])
        assert parts == ["y", *(f"gradient of {name}" for name in alone)]
    worst = report.worst
    assert (
        str(report)
        == repr(report)
        == (
            f"check of Softmax: {len(report.compared)} comparisons within bounds, "
            f"worst {worst.share:.2g} of its bound ({worst.what}, {worst.case})"
        )
    )
    lines = report.table().splitlines()
    assert "Softmax(load=[Scale(scale='s')]" in lines[0]
    assert len(lines) == len(report.compared) + 3
    assert lines[-1] == "all within the bound"


def test_a_terminal_shows_how_far_it_is(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    op, x = fo.Softmax(), randn(2, 4)
    check(op, x)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    check(op, x)
    shown = sys.stderr.getvalue()
    assert "check Softmax: no rows" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the line is erased at the end
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "rich", None)  # not installed
    monkeypatch.setattr(sys, "stderr", Terminal())
    check(op, x)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        (Mistaken, "y"),
        (WrongDerivative, "gradient of x"),
        (WrongOperandDerivative, "gradient of s"),
    ],
)
def test_what_is_wrong_does_not(kind, out, device):
    with pytest.raises(AssertionError, match="OUT") as raised:
        check_scaled(scaled(kind), device)
    report = raised.value.args[0]
    assert not report.passed
    first = next(one for one in report.compared if one.share > 1)
    assert (first.case, first.what) == ("as given", out)
    assert len(first.at) == (1 if out == "gradient of s" else 2)
    assert first.got != first.wanted


@pytest.mark.thorough
def test_what_is_kept_too_little_is_noticed(device):
    op = fo.Softmax(store=[ForgetsToRead("s")])
    with pytest.raises(AssertionError, match="OUT") as raised:
        check(op, randn(5, 24, device=device), s=randn(24, device=device, seed=1))
    first = next(one for one in raised.value.args[0].compared if one.share > 1)
    assert (first.case, first.what) == ("x alone", "gradient of x")


def test_another_mask_is_noticed(device):
    with pytest.raises(AssertionError, match="OUT"):
        check_scaled(scaled(dropout=WrongMask), device)


def test_a_run_that_differs_is_noticed(device, monkeypatch):
    op = scaled()
    calls = []

    class Unsteady(fo.Softmax):
        def __call__(self, x, **arguments):
            calls.append(x)
            return op(x, **arguments) * (1 if len(calls) % 2 else 1 + 2.0**-23)

    with pytest.raises(AssertionError, match="run again"):
        check_scaled(Unsteady(op.load, op.store), device)


@pytest.mark.thorough
def test_a_chain_with_a_stream(device):
    x, operands = add_norm_case(torch.float32, device)
    report = check(declare(ADD_NORM), x, **operands)
    assert {one.what for one in report.compared} >= {"stream", "gradient of residual"}


@pytest.mark.thorough
def test_a_functor_of_the_users_own(device):
    op = fo.LogSoftmax(load=[softcap("cap")])
    check(op, randn(4, 3, 16, device=device) * 20, cap=torch.tensor(15.0, device=device))


@pytest.mark.thorough
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_flagships(dtype):
    for chain, case in ((ATTENTION, attention_case), (ADD_NORM, add_norm_case)):
        x, operands = case(dtype, "cuda")
        check(declare(chain), x, **operands)


@pytest.mark.thorough
@pytest.mark.gpu
@pytest.mark.parametrize(
    "op",
    [
        fo.Softmax(load=[fo.Cast(torch.bfloat16), fo.Scale("a"), fo.Causal()]),
        fo.LogSoftmax(load=[fo.Alibi("a"), fo.Window(5)], store=[fo.Affine(None, "b")]),
        fo.LayerNorm(load=[fo.Scale("a"), fo.Cast(torch.float16)], store=[fo.Affine("a", "b")]),
        fo.RMSNorm(load=[softcap("a")], store=[fo.Cast(torch.float16), fo.Scale("b")], stats=True),
    ],
    ids=repr,
)
def test_other_declarations(op):
    a, b = randn(3, 1, 1, device="cuda").abs() + 0.5, randn(40, device="cuda", seed=1)
    x = randn(2, 3, 20, 40, device="cuda", seed=2)
    check(op, x, **{name: {"a": a, "b": b}[name] for name in op.slots})


@pytest.mark.thorough
def test_an_operand_without_a_derivative(device):
    op = fo.Softmax(load=[same_segment("q", "k")])
    query, key = torch.zeros(4, 1, device=device), (torch.arange(8, device=device) % 2).float()
    report = check(op, randn(4, 8, device=device), q=query, k=key)
    assert {one.got for one in report.compared if one.what == "gradient of q"} == {0.0}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Undeclared, *exhaustive(UndeclaredSoftmax)])
def test_an_operator_that_declares_no_statistics(kind, device):
    x = 3 + randn(5, 40, device=device)
    assert check(kind(load=[fo.Bias("b")]), x, b=x[0].clone()).passed
    with pytest.raises(AssertionError, match="OUT") as raised:
        check(kind(load=[WrongDerivative("s")]), x, s=randn(40, device=device, seed=1))
    first = next(one for one in raised.value.args[0].compared if one.share > 1)
    assert first.what == "gradient of x"


@pytest.mark.thorough
def test_options_are_passed_on(device):
    report = check(fo.LayerNorm(), randn(6, 5, 8, device=device).half(), dim=1, dtype=torch.float32)
    assert report.passed


def test_what_has_no_derivative_is_checked_forward(device):
    doubled = fo.cpp_functor("doubled", forward="v + v", apply=lambda x: x + x)
    report = check(fo.Softmax(load=[doubled()]), randn(3, 8, device=device))
    assert {one.what for one in report.compared} == {"y"}


def test_bad_arguments(device):
    x = randn(3, 8, device=device)
    with pytest.raises(TypeError, match=r"Softmax\(\), got"):
        check(torch.softmax, x)
    with pytest.raises(TypeError, match=r"LinearCrossEntropy.*check a CrossEntropy"):
        check(fo.LinearCrossEntropy(), x)
    with pytest.raises(TypeError, match="out="):
        check(fo.Softmax(), x, out=x)
    with pytest.raises(TypeError, match="unknown operand"):
        check(fo.Softmax(), x, s=1.0)


def test_the_report_is_a_value():
    wrong = fo.testing.Compared("c", "y", 1, (0,), 1.0, 1.5, math.inf)
    right = dataclasses.replace(wrong, case="other", share=0.5)
    report = fo.testing.Report("op", (right, wrong))
    assert dataclasses.replace(report) == report
    assert "inf OUT" in str(report)
    assert "1 of 2 are out" in str(report)
    assert "other" not in str(report)
    assert "other" in report.table()


@pytest.mark.thorough
@pytest.mark.parametrize("of", ["value", "gate"])
def test_a_derivative_whose_terms_cancel(of, device):
    """Near -0.75, where a GELU has its least value, float32 knows its slope to few digits."""
    op = fo.Map(load=[fo.Gate("g", "gelu", of=of)])
    flat = -0.7517915 * (1 + 1e-6 * torch.arange(-40, 41, device=device)[:, None])
    other = randn(81, 1, device=device) + 2
    x, g = (flat, other) if of == "value" else (other, flat)
    comparison = compare_call(op, x, g=g)
    assert max(one.share for one in comparison.again()) <= 1
    # Six steps are off by a rounding each, which moves the slope by 1.4 roundings in all, times
    # what the slope is multiplied by; four times that is allowed.
    wanted = comparison.want({})
    slope, rest = (wanted[f"gradient of {name}"] for name in ("xg" if of == "value" else "gx"))
    factor = other * rest.value / torch.nn.functional.gelu(flat.double())
    most = 4 * 1.4 * torch.finfo(x.dtype).eps * factor.abs()
    assert (slope.allowed(x.dtype) <= most).all()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "op", [fo.Softmax(store=[softcap("a")]), fo.RMSNorm(store=[snake("a")])], ids=repr
)
def test_terms_cancel_in_functors_of_ones_own(op, device):
    """Of a number a column, whose gradient has too few rows to show the error of its chain."""
    for seed in range(2):
        x = randn(4, 100, device=device, seed=seed)
        a = torch.rand(100, generator=torch.Generator().manual_seed(seed)).to(device) + 0.5
        check(op, x, a=a)


@pytest.mark.thorough
def test_no_more_is_allowed_than_roundings_of_the_terms(device):
    """Both terms of tanh(u) - u / cosh(u)^2 are near u where u is small."""
    x = torch.logspace(-4, -1, 61, device=device)[:, None]
    op, cap = fo.Map(load=[softcap("cap")]), torch.ones(61, 1, device=device)
    comparison = compare_call(op, x, cap=cap)
    assert max(one.share for one in comparison.again()) <= 1
    want = comparison.want({})["gradient of cap"]
    u = x.double()
    upstream = (want.value / (torch.tanh(u) - u / torch.cosh(u) ** 2)).abs()
    assert (want.allowed(x.dtype) <= 20 * torch.finfo(x.dtype).eps * upstream * u).all()


@pytest.mark.thorough
def test_a_norm_near_zero_is_as_uncertain_as_its_row(device):
    """Of few rows with elements near the mean: the gradient of gamma is a sum of these."""
    op = fo.LayerNorm(store=[fo.Affine("g")])
    for seed in (39, 18):
        torch.manual_seed(seed)
        x, g = torch.randn(3, 40), torch.randn(40)
        check(op, x.to(device), g=g.to(device))
    row = torch.linspace(-1, 1, 41, device=device)
    comparison = compare_call(op, row[None].expand(1, 41).contiguous(), g=torch.ones_like(row))
    want = comparison.want({})["gradient of g"]
    n = op.unfused(row[None].double(), g=1.0)[0].abs()
    upstream = (want.value / n).abs()[n > 0.01].max()
    most = 8 * torch.finfo(row.dtype).eps * upstream * (n.max() + n.mean())
    assert want.allowed(row.dtype).max() <= most  # no more than a few roundings of the row


@fo.functor
def positive(v):
    """Truth values as numbers: its result has no gradient."""
    return (v > 0).to(v.dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("op", [fo.Map(load=[positive()]), fo.LayerNorm(store=[positive()])])
def test_a_chain_without_a_gradient(op, device):
    check(op, randn(3, 8, device=device))


def test_products_without_a_gradient(device):
    x, w = randn(3, 8, device=device), randn(16, 8, device=device, seed=1)
    check(fo.Linear(store=[positive()]), x, w)
    check(fo.MLP(hidden=[positive()]), x, w, w.mT.contiguous())


def test_a_result_is_rounded_where_it_lies_and_not_where_it_should():
    """Just below a power of two that it exceeds, so that the distance of numbers doubles."""
    value, off = 1 - 2.0**-10, 2.0**-8 + 2.0**-10 + 2.0**-20
    found = torch.tensor(value + off, dtype=torch.float64).bfloat16().double()
    assert found == 1 + 2.0**-7
    made = Expected(*torch.tensor([value, 0.0, off], dtype=torch.float64))
    assert found - value <= made.allowed(torch.bfloat16) <= off + 0.52 * 2.0**-7
