# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a run records is what it runs; what is built for it is all that it needs, and elsewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
import torch
from cases import exhaustive, thorough
from hypothesis import strategies as st
from typer.testing import CliRunner

import fusedops as fo
from fusedops.bind.bind import floating
from fusedops.bind.generator import draw_in_memory
from fusedops.cli import app
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate.target import ARCHS, Target
from fusedops.generate.variant import Variant
from fusedops.jit import env
from fusedops.plan.placing import columns_apart
from fusedops.prebuild.build_all import build_all, variants
from fusedops.prebuild.recording import Signature, of_call
from fusedops.run.gradient import described, gradient_of

HERE = Path(__file__).parent

SOFTCAP = """
import torch
import fusedops as fo

@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)
"""
# A training step and an evaluation, of ops that need all kinds of kernels.
PROGRAM = """
import sys, warnings
warnings.simplefilter("error")
import torch
import fusedops as fo
sys.path.insert(0, sys.argv[1])
from of_mine import softcap

torch.manual_seed(0)

def check(op, x, **operands):
    x = x.clone().requires_grad_()
    got = op(x, **operands)
    got = got if isinstance(got, torch.Tensor) else got.y
    dy = torch.randn_like(got)
    (gradient,) = torch.autograd.grad(got, x, dy)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        here = op(x.detach(), **operands, training=False)
        there = op.unfused(x.detach(), **operands, training=False)
    for one, other in zip([here] if isinstance(here, torch.Tensor) else here,
                          [there] if isinstance(there, torch.Tensor) else there):
        torch.testing.assert_close(one, other)
    assert gradient.isfinite().all()

OP = fo.LayerNorm(load=[softcap("cap"), fo.Dropout("p")], store=[fo.Affine("gamma")])
v = torch.randn(24)
check(OP, torch.randn(6, 48)[:, ::2], cap=2.0, p=0.1, gamma=v)
"""


def run(program, *arguments, **environment):
    """Run Python in a process of its own."""
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    (folder / "of_mine.py").write_text(SOFTCAP)
    (folder / "program.py").write_text(PROGRAM)
    return folder / "program.py"


@pytest.fixture(scope="module")
def recorded(program, tmp_path_factory):
    """What `fusedops record` makes of it."""
    calls = tmp_path_factory.mktemp("recorded") / "calls.jsonl"
    command = ["record", "--output", str(calls), str(program), str(program.parent)]
    done = subprocess.run(
        [sys.executable, "-m", "fusedops", *command],
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"fusedops: (\d+) new calls?, \1 in .*calls\.jsonl", done.stderr)
    return calls


@pytest.fixture(scope="module")
def filled(program, recorded, tmp_path_factory):
    """A cache with what `fusedops build` makes of that, for this CPU."""
    cache = tmp_path_factory.mktemp("filled") / "cache"
    command = ["build", "--calls", recorded, "--cache", cache, "--import", "of_mine", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "fusedops", *map(str, command)],
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return cache


SIZES = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@pytest.mark.thorough
@hypothesis.given(st.data(), SIZES, st.sampled_from([torch.float16, torch.float32, torch.bool]))
def test_a_tensor_is_read_as_it_was_written(data, sizes, dtype):
    strides = data.draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)))
    behind = data.draw(st.integers(0, 8))
    end = sum(max(size - 1, 0) * step for size, step in zip(sizes, strides, strict=True)) + 1
    x = torch.empty(end + behind, dtype=dtype).as_strided(sizes, strides, behind)
    line = str(of_call(fo.Softmax().bind(torch.zeros(1), {})._replace(x=x, dtype=x.dtype)))
    again, _, _ = Signature.parse(line).read()
    assert (again.shape, again.dtype) == (x.shape, x.dtype)
    assert again.stride() == x.stride() or x.is_contiguous()
    assert again.data_ptr() % 16 == x.data_ptr() % 16
    assert again.device.type == "meta"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"op": 1, "x": "float32:1", "values": {}}',
        '{"op": "Softmax()", "x": "float32:1", "values": 3}',
        "[" * 100_000,
    ],
)
def test_what_is_no_signature_is_refused(line):
    with pytest.raises(ValueError, match="not the signature of a call"):
        Signature.parse(line)


@pytest.mark.parametrize("text", ["float33:1", "float32", "float32:a", "__import__('os')"])
def test_what_is_no_tensor_is_refused(text):
    with pytest.raises(ValueError, match=r"must be written as DTYPE:SIZES, got"):
        Signature("op", text, {}).read()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("float32:2,3@1", "has 2 sizes and 1 stride"),
        ("float32:2,3@-3,1", "there is no tensor"),
        (f"float32:{10**12},{10**12}", "there is no tensor"),
    ],
)
def test_what_no_tensor_can_be_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        Signature("op", text, {}).read()


CALLS = {
    "plain": lambda: (fo.Softmax(), torch.randn(3, 17), {}),
    "double": lambda: (fo.LogSoftmax(), torch.randn(3, 17, dtype=torch.float64), {}),
    "rounded": lambda: (fo.Softmax(), torch.randn(3, 18), {"dtype": torch.float16}),
    "dim": lambda: (fo.Softmax(), torch.randn(3, 5, 18), {"dim": 1}),
    "dims": lambda: (
        fo.LayerNorm(store=[fo.Scale("s")]),
        torch.randn(3, 5, 18),
        {"dim": (1, 2), "s": torch.randn(5, 18)},
    ),
    "strided": lambda: (fo.RMSNorm(stats=True), torch.randn(7, 9, 16).transpose(0, 1)[::2], {}),
    "misaligned": lambda: (
        fo.RMSNorm(store=[fo.Affine("g")]),
        torch.randn(7 * 16 + 1)[1:].view(7, 16),
        {"g": torch.randn(17)[1:]},
    ),
    "expanded": lambda: (
        fo.Softmax(load=[fo.Bias("b"), fo.Causal()]),
        torch.randn(2, 4, 8),
        {"b": torch.randn(4, 1, dtype=torch.float16).expand(2, 4, 8)},
    ),
    "several uses": lambda: (
        fo.LayerNorm(load=[fo.Scale("v")], store=[fo.Bias("v")]),
        torch.randn(6, 8),
        {"v": torch.randn(8)},
    ),
    "attention": lambda: (
        ATTENTION,
        torch.randn(2, 3, 4, 8),
        {
            "scale": torch.tensor(0.5),
            "pair_bias": torch.randn(1, 3, 4, 8),
            "padding": torch.zeros(8, dtype=torch.bool),
            "p": 0.5,
        },
    ),
    "drawn in memory": lambda: (
        fo.Softmax(store=[fo.Dropout("p")]),
        torch.randn(6, 8),
        {"p": 0.5, "generator": draw_in_memory(torch.device("cpu"), 1)},
    ),
    "lse and sink": lambda: (
        fo.Softmax(lse=True, sink="s"),
        torch.randn(2, 3, 4, 8),
        {"s": torch.randn(3, 1, 1)},
    ),
    "add_norm": lambda: (
        ADD_NORM,
        torch.randn(6, 8, dtype=torch.bfloat16),
        {
            "bias": torch.randn(8),
            "p": 0.1,
            "residual": torch.randn(6, 8),
            "gamma": torch.randn(8),
            "beta": torch.randn(8),
        },
    ),
}
#: Those of them that the default run tries, and the others.
USUAL = ("strided", "attention", "add_norm", "lse and sink")
UNUSUAL = [name for name in CALLS if name not in USUAL]
#: A GPU of each; CI builds for these.
GENERATIONS = ("sm_80", "sm_90", "sm_100", "sm_120")


APART = {
    "dims": (fo.LayerNorm(), torch.randn(8, 4, 64), {"dim": (0, 2)}),
    "strides": (
        fo.LayerNorm(store=[fo.Affine("g", "b")]),
        torch.randn(6, 18, 5).transpose(1, 2),
        {"dim": (1, 2), "g": torch.randn(5, 18), "b": torch.randn(18, 5).t()},
    ),
    "dropout": (
        fo.RMSNorm(load=[fo.Dropout("p"), fo.Residual("r", save="s")]),
        torch.randn(8, 4, 16),
        {"dim": (0, 2), "p": 0.5, "r": torch.randn(8, 1, 16)},
    ),
}


@pytest.fixture
def nothing_loaded(monkeypatch):
    """No kernel is loaded, for one that other tests have left could serve in place of a call's."""
    monkeypatch.setattr("fusedops.generate.variant._kernels", {})


@pytest.mark.thorough
@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("name", APART)
def test_a_call_whose_reduced_dimensions_are_apart_is_built_for(name, monkeypatch):
    """What runs are kernels of dense copies, forward and backward."""
    declared, x, arguments = APART[name]
    op = type(declared)(declared.load, declared.store)  # without the plans of other tests
    bound = op.bind(x, arguments)
    assert columns_apart(bound)
    built = {variant.key for variant in variants([of_call(bound)], Target.named("cpu"))}
    asked = set()
    before = Variant.kernel

    def kernel(variant):
        asked.add(variant.key)
        return before(variant)

    monkeypatch.setattr(Variant, "kernel", kernel)
    op(x, **arguments)
    op(x, **arguments, training=False)
    given = {
        key: value.requires_grad_() if torch.is_tensor(value) and value.is_leaf else value
        for key, value in arguments.items()
    }
    results = op(x.detach().requires_grad_(), **given)
    results = [results] if torch.is_tensor(results) else list(results)
    torch.autograd.backward(results, [torch.randn_like(one) for one in results])
    assert len(asked) > 2
    assert asked <= built


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("name", [*USUAL, *thorough(*UNUSUAL[::2]), *exhaustive(*UNUSUAL[1::2])])
def test_what_is_built_for_a_recording_is_what_runs(name, tmp_path, monkeypatch):
    """Forward, backward and evaluation: each variant that a call asks for is among them."""
    op, x, arguments = CALLS[name]()
    op = type(op)(op.load, op.store, **op.constants)  # without the plans of other tests
    asked = {}
    before = Variant.kernel

    def kernel(variant):
        asked[variant.key] = variant.name
        return before(variant)

    monkeypatch.setattr(Variant, "kernel", kernel)
    monkeypatch.setenv("FUSEDOPS_RECORD", str(tmp_path / "calls"))
    op(x, **arguments)
    op(x, **arguments, training=False)
    given = {
        k: v.requires_grad_()
        for k, v in arguments.items()
        if torch.is_tensor(v) and v.is_floating_point() and v.is_leaf
    }
    results = op(x.detach().requires_grad_(), **{**arguments, **given})
    results = [results] if torch.is_tensor(results) else list(results)
    results = [one for one in results if one.requires_grad]
    torch.autograd.backward(results, [torch.randn_like(one) for one in results])
    lines = (tmp_path / "calls").read_text().splitlines()
    assert len(lines) == len(set(lines))
    built = {v.key for v in variants(map(Signature.parse, lines), Target.named("cpu"))}
    assert asked
    assert not {name for key, name in asked.items() if key not in built}


LAYER_NORM = fo.LayerNorm(store=[fo.Affine("g", "b")])


def recording(tmp_path, monkeypatch, sizes):
    """The lines that calls with these rows and columns leave, and the signatures of the calls."""
    op = type(LAYER_NORM)(store=LAYER_NORM.store)  # without the plans of other tests
    tmp_path.mkdir(exist_ok=True)
    calls = tmp_path / "calls"
    monkeypatch.setattr("fusedops.prebuild.recording._seen", set())
    monkeypatch.setenv("FUSEDOPS_RECORD", str(calls))
    of_all = []
    for rows, columns in sizes:
        g, b = (torch.randn(columns, requires_grad=True) for _ in range(2))
        x = torch.randn(rows, columns, requires_grad=True)
        op(x, g=g, b=b).backward(torch.randn_like(x))
        op(x.detach(), g=g.detach(), b=b.detach())
        of_all.append(of_call(op.bind(x, {"g": g, "b": b})))
    lines = calls.read_text().splitlines()
    assert len(lines) == len(set(lines))
    return [Signature.parse(line) for line in lines], of_all


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "x86-64-v3"])
def test_what_is_one_kernel_here_and_several_elsewhere_is_recorded(tmp_path, monkeypatch, arch):
    """A kernel of a CPU has any number of columns; a GPU's is made for one."""
    sizes = [(4, 256), (4, 1024), (4, 4096), (4, 70000), (8192, 256)]
    lines, calls = recording(tmp_path, monkeypatch, sizes)
    target = Target.named(arch)
    built = {variant.key for variant in variants(lines, target)}
    for call in calls:
        assert {variant.key for variant in variants([call], target)} <= built, call.x


def test_a_number_of_rows_that_makes_no_difference_is_not_recorded_again(tmp_path, monkeypatch):
    one, _ = recording(tmp_path / "one", monkeypatch, [(6000, 64)])
    several, _ = recording(tmp_path / "several", monkeypatch, [(r, 64) for r in (6000, 6001, 7000)])
    assert [str(line) for line in several] == [str(line) for line in one]


@pytest.mark.parametrize("arch", ["cpu", "sm_90"])
def test_one_source_is_one_entry(arch):
    """The names of entries hold nothing that their sources do not tell."""
    named = {}
    for kind in (fo.LayerNorm, fo.RMSNorm):
        for functor in (fo.Affine("g"), fo.Scale("g")):
            for columns in (64, 70000):
                x = torch.empty(8192, columns, device="meta")
                g = torch.empty(columns, device="meta")
                call = of_call(kind(store=[functor]).bind(x, {"g": g}))
                for variant in variants([call], Target.named(arch)):
                    named.setdefault(variant.source, set()).add(variant.name)
    assert "sums" in "".join(map(str, named.values()))
    assert [names for names in named.values() if len(names) > 1] == []


@pytest.mark.parametrize("arch", ["cpu", "sm_90"])
def test_a_stream_without_a_gradient_is_built_for_as_well(arch):
    """A last layer's stream goes nowhere; the kernel of its backward pass is another."""
    op, x, arguments = CALLS["add_norm"]()
    bound, target = op.bind(x, arguments), Target.named(arch)
    built = {variant.key for variant in variants([of_call(bound)], target)}
    wanted = frozenset({"x", *floating(bound.operands)})
    kernels = []
    for joining in (frozenset(), frozenset(op.joining)):
        gradient = gradient_of(bound, wanted, joining)
        dy, given, options = described(bound, gradient)
        kernels.append({v.key for v in gradient.describe(dy, given, options, target).variants})
    assert kernels[0] != kernels[1]
    assert kernels[0] | kernels[1] <= built


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("part_of", ((12, 8), (6, 0))),
        ("generator", torch.empty(2, dtype=torch.int64, device="meta")),
    ],
)
def test_gradients_are_built_for_with_the_options_of_their_call(option, value):
    """The kernel is another where x is a part of a tensor, and where draws lie in memory."""
    op, x, arguments = CALLS["add_norm"]()
    x, arguments = x.to("meta"), {**arguments, option: value}
    arguments = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in arguments.items()}
    bound, target = op.bind(x, arguments), Target.named("sm_90")
    built = {variant.key for variant in variants([of_call(bound)], target)}
    gradient = gradient_of(bound, frozenset({"x", *floating(bound.operands)}), frozenset())
    dy, given, _ = described(bound, gradient)
    plain = {"dim": (1,), "training": True}
    own = gradient.describe(dy, given, {**plain, option: value}, target).variant.key
    assert own in built
    assert own != gradient.describe(dy, given, plain, target).variant.key


def test_an_evaluation_is_enough_to_build_for_training():
    """One call, and its gradients, with dropout and without."""
    op, x, arguments = CALLS["attention"]()
    of_one = of_call(op.bind(x, {**arguments, "training": False}))
    names = [v.name for v in variants([of_one], Target.named("sm_90"))]
    assert sum("gradient" in name for name in names) == 2
    assert sum("dropout" in name and "gradient" not in name for name in names) >= 2
    assert len(variants([of_one], Target.named("sm_90"), backward=False)) == 4


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arch",
    [
        *GENERATIONS,
        *exhaustive(*(a for a in ARCHS if a.startswith("sm_") and a not in GENERATIONS)),
    ],
)
def test_a_gpu_is_built_for_from_here(arch):
    """Every architecture that can be named; no GPU, and a recording of a CPU's run serves."""
    op, x, arguments = CALLS["add_norm"]()
    wanted = variants([of_call(op.bind(x, arguments))], Target.named(arch))
    outcomes = build_all(wanted[:1], 1)
    assert [outcome.error for outcome in outcomes] == [None]


def hidden(folder):
    """An environment without compilers: none on PATH, and none of the CUDA toolkit's."""
    folder.mkdir(exist_ok=True)
    return {"PATH": str(folder), "CXX": "", "FUSEDOPS_OFFLINE": "1"}


@pytest.mark.thorough
def test_the_cache_serves_elsewhere_and_offline(program, filled, tmp_path):
    """Copied to another path, without a compiler, in another order of calls: all is there."""
    copy = tmp_path / "in an imäge" / "cache"
    shutil.copytree(filled, copy)
    offline = hidden(tmp_path / "empty")
    done = run(program, program.parent, FUSEDOPS_CACHE_DIR=str(copy), **offline)
    assert done.returncode == 0, done.stderr
    assert {one.name for one in copy.iterdir()} == {one.name for one in filled.iterdir()}
    # The check checks something: an empty cache does not serve.
    done = run(program, program.parent, FUSEDOPS_CACHE_DIR=str(tmp_path / "none"), **offline)
    assert "MissingVariantError" in done.stderr
    metas = [json.loads(meta.read_text()) for meta in filled.glob("*/meta.json")]
    assert len(metas) >= 6
    for found in metas:
        check_meta(found)


def test_what_is_missing_is_named_with_the_command_that_builds_it(tmp_path, monkeypatch):
    # No other test has this chain: a kernel that the process has loaded needs no cache.
    op = fo.Softmax(load=[fo.Scale("of_this_test")] * 5)
    x = torch.randn(3, 19) / 16
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    with pytest.raises(fo.MissingVariantError, match=r"Softmax.*of_this_test") as caught:
        op(x, of_this_test=2.0)
    command = str(caught.value).splitlines()[-1].strip()
    assert command.startswith("fusedops build --arch ")
    monkeypatch.delenv("FUSEDOPS_OFFLINE")
    result = CliRunner().invoke(app, shlex.split(command)[1:])
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    torch.testing.assert_close(op(x, of_this_test=2.0), torch.softmax(32 * x, -1))


@pytest.mark.thorough
def test_the_command_finds_a_functor_of_the_users_own(program, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(program.parent)
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    calling = tmp_path / "calling.py"
    calling.write_text(
        "import sys, torch, fusedops as fo\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from of_mine import softcap\n"
        "fo.RMSNorm(load=[softcap('cap')])(torch.zeros(2, 8), cap=1.0)\n"
    )
    done = run(calling, program.parent)
    command = done.stderr.splitlines()[-1].strip()
    assert command.startswith("fusedops build --arch "), done.stderr
    monkeypatch.delenv("FUSEDOPS_OFFLINE")
    monkeypatch.chdir(program.parent)
    # In a process of its own, where the module has not been imported.
    built = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    assert run(calling, program.parent).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["the program itself", *exhaustive("a function")])
def test_no_command_is_named_where_none_can_find_the_functor(tmp_path, where):
    source = SOFTCAP
    if where == "a function":
        body = SOFTCAP.replace("\n", "\n    ")
        source = f"def make():{body}return softcap\nsoftcap = make()"
    calling = tmp_path / "calling.py"
    calling.write_text(
        f"{source}\nimport torch, fusedops as fo\n"
        "fo.RMSNorm(load=[softcap('cap')])(torch.zeros(2, 8), cap=1.0)\n"
    )
    environment = {"FUSEDOPS_CACHE_DIR": str(tmp_path / "cache"), "FUSEDOPS_OFFLINE": "1"}
    done = run(calling, **environment)
    assert "MissingVariantError" in done.stderr
    assert "--call" not in done.stderr
    assert "define the functor in a module that can be imported" in done.stderr


def check_meta(found):
    """An entry says what it is."""
    assert found["declaration"].startswith("LayerNorm(load=[softcap('cap'), Dropout(p='p')], sto")
    assert len(found["signature"]) > 2
    assert found["arch"] in ARCHS
    assert found["compiler"]["version"]
    assert f"-O{env.opt_level()}" in found["flags"]
    assert found["seconds"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*", found["date"])


@pytest.mark.thorough
def test_a_lower_level_of_the_cpu_serves_where_there_is_no_other(tmp_path, monkeypatch):
    levels = [arch for arch in ARCHS if arch.startswith("x86")]
    if Target.named("cpu").arch not in levels[1:]:
        pytest.skip("this CPU has no lower level")
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, fusedops as fo\n"
        "y = fo.Softmax()(torch.zeros(2, 4))\nassert (y == 0.25).all()\n"
    )
    cache = tmp_path / "cache"
    call = str(of_call(fo.Softmax().bind(torch.zeros(2, 4), {})))
    command = ["build", "--arch", levels[0], "--call", call, "--cache", str(cache)]
    with monkeypatch.context() as patch:
        patch.setenv("FUSEDOPS_CACHE_DIR", str(cache))  # the command sets it; it is set back here
        assert CliRunner().invoke(app, command).exit_code == 0
    offline = hidden(tmp_path / "empty")
    done = run(script, FUSEDOPS_CACHE_DIR=str(cache), **offline)
    assert done.returncode == 0, done.stderr
    assert f"runs what was built for {levels[0]}, as machine code" in done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
