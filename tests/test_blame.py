# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A compiler's error names the functor or operand that it is in, and says first what is wrong."""

import re

import pytest
import torch

import fusedops as fo
from fusedops.errors import CompileError
from fusedops.generate.compiler_errors import culprit
from fusedops.generate.source import Member
from fusedops.generate.target import Target
from fusedops.plan import forward as plan

wrong = fo.cpp_functor("wrong", forward="v * nonsense", operands=["a"])
right = fo.cpp_functor("right", forward="v * a", operands=["a"])
ARCHS = [Target.named("cpu").arch, "sm_90"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))


def variant(op, arch, **operands):
    bound = op.bind(torch.empty(3, 40), operands)
    return plan.describe(bound, Target.named(arch)).variant


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("side", ["load", "store"])
def test_a_functor_of_a_users_own_is_named(arch, side):
    op = fo.Softmax(**{side: [fo.Scale("s"), right("a"), wrong("b")]})
    with pytest.raises(CompileError) as caught:
        variant(op, arch, s=1.0, a=2.0, b=3.0).build()
    assert caught.value.culprit == f"wrong('b'), {side}[2]"
    first, where, *rest = str(caught.value).splitlines()
    assert re.match(rf"Softmax\(.*\): its kernel for {arch} does not compile: kernel\.c.*", first)
    assert "nonsense" in first
    assert where == f"in: wrong('b'), {side}[2]"
    assert [line.split(":")[0] for line in rest] == ["command", "source", "whole log"]
    assert caught.value.source.read_text() in str(variant(op, arch, s=1.0, a=2.0, b=3.0).source)
    assert caught.value.source.with_name("log.txt").read_text() == caught.value.log


SIDES = {"load": (fo.Scale("s"), right("a")), "store": (fo.Bias("b"),)}
MEMBERS = (
    Member("int64_t", "cols"),
    Member("View<half, 1>", "x"),
    Member("Scale<Value<float>>", "load0", "functor", "load", 0),
    Member("Bias<View<half, 0>>", "store0", "functor", "store", 0),
    Member("Each<1, 0, View<half, 0>>", "of_load1_0", "target", "load", 1),
)
SOURCE = "\n".join(
    [
        "#include <fusedops/functor/scale.cuh>",
        right("a").definition,
        "struct Arguments {",
        *(member.field for member in MEMBERS),
        "};",
    ]
)
LAST = SOURCE.count("\n")  # the line before the target's
INSIDE = SOURCE.splitlines().index("struct Arguments {") - 3


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (f"kernel.cu({INSIDE}): error: x", "right('a'), load[1]"),
        (f"kernel.cpp:{INSIDE}:7: error: x", "right('a'), load[1]"),
        (f"kernel.cu({LAST}): error: x", "right('a'), load[1]"),
        (f"kernel.cu({LAST - 1}): error: x", "Bias(bias='b'), store[0]"),
        (f"kernel.cu({LAST - 2}): error: x", "Scale(scale='s'), load[0]"),
        (f"kernel.cu({LAST - 3}): error: x", "operand 'x'"),
        (f"kernel.cu({LAST - 4}): error: x", None),
        ("/some/where/fusedops/functor/bias.cuh(12): error: x", "Bias(bias='b'), store[0]"),
        ("/some/where/fusedops/row/view.cuh(12): error: x", None),
        (f"a warning\nkernel.cu({LAST - 1}): warning: no\n/h/row.cuh(3): error: x", None),
        (
            f"/h/row.cuh(3): error: x\n  detected during: at line {LAST - 1} of kernel.cu",
            "Bias(bias='b'), store[0]",
        ),
        (
            f"/h/a.cuh: In instantiation of 'x':\nkernel.cpp:{INSIDE}:1:   required from here\n"
            "/h/a.cuh:8:3: error: y",
            "right('a'), load[1]",
        ),
        (f"/h/a.cuh(1): error: x\nkernel.cu({INSIDE}): error: y", None),
        ("kernel.cu(99999): error: x", None),
        ("nothing of a place", None),
        ("", None),
    ],
)
def test_the_first_error_decides(log, found):
    assert culprit(log, SOURCE, MEMBERS, SIDES) == found


def test_a_python_functor_is_named_with_its_place():
    @fo.functor
    def halved(x):
        return x / 2

    source = halved().definition
    said = culprit("kernel.cu(2): error: x", source, (), {"load": (halved(),)})
    assert re.fullmatch(r"halved\(\), load\[0\], of .*test_blame\.py:\d+", said)


@pytest.mark.parametrize(
    ("log", "cure"),
    [
        ('kernel.cu(1): catastrophic error: cannot open source file "cuda_bf16.h"', "incomplete"),
        ("a.h:1:10: fatal error: cstdint: No such file or directory", "apt-get install g++"),
        ("a.h:1:10: fatal error: 'type_traits' file not found", "apt-get install g++"),
        ("g++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("the compiler was ended by signal 9", "out of memory"),
        ("error: can't write: No space left on device", "set TMPDIR"),
        ("kernel.cu(1): error: identifier undefined", None),
    ],
)
def test_what_is_missing_comes_with_a_cure(log, cure):
    said = str(CompileError(["g++"], log))
    assert ("cure: " in said) == (cure is not None)
    assert cure is None or cure in said
