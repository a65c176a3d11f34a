# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every code block of docs/: C++ becomes the header that it names, and Python is executed.

A block of text after one of Python is what that prints.

What the walk-through of docs/how-to/functor-in-cpp.md makes, `LayerScale`, is then held to torch on
each device. test_tutorials.py runs the tutorials, and .ci/run builds the site.
"""

import contextlib
import copy
import importlib
import io
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import randn
from cpptest import find_nvcc, run

import fusedops as fo
from fusedops import functors
from fusedops.jit import env
from fusedops.testing import check

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN_HERE = [page for page in PAGES if page.parent != DOCS / "tutorials"]

FENCED = re.compile(r"^```(\w*|{eval-rst})\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(params=RUN_HERE, ids=lambda page: str(page.relative_to(DOCS)))
def page(request):
    return request.param


def run_blocks(page, tmp_path, monkeypatch):
    """Execute the blocks of a page; what the last of them defines."""
    text = page.read_text(encoding="utf-8")
    if "from transformers import" in text:
        pytest.importorskip("transformers", reason="transformers is not installed")
    include = tmp_path / "include"
    defined, printed = {}, ""
    torch.manual_seed(0)
    for match in FENCED.finditer(text):
        language, block = match.groups()
        if language == "python":
            # Padded, so that a traceback shows the page's own line.
            lines = text[: match.start(2)].count("\n")
            defined = {"__name__": page.stem}
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("\n" * lines + block, str(page), "exec"), defined)
            printed = output.getvalue()
        elif language == "text":
            assert anywhere(block) == anywhere(printed)
        elif language != "{eval-rst}":
            # Any other block would be one that nothing executes.
            assert language == "cpp"
            if re.match(r"// \w+\.cu\n", block):
                compile_block(block, tmp_path)
                continue
            if not include.exists():
                shutil.copytree(env.include_dir(), include)
                monkeypatch.setattr(env, "include_dir", lambda: include)
            named = re.match(r"// include/(fusedops/\S+)\n", block)
            assert named, "a header's first line names it"
            (include / named[1]).write_text(block)
    return defined


def anywhere(printed):
    """What is printed, without the machine's level and the state of its cache."""
    printed = re.sub(r"x86-64-v\d|aarch64", "LEVEL", printed.rstrip())
    return re.sub(r"^(  variant  ).*", r"\1", printed, flags=re.MULTILINE)


def compile_block(block, tmp_path):
    """A program's text: what nvcc accepts, hardly optimized."""
    source = tmp_path / "block.cu"
    source.write_text(block)
    command = [find_nvcc(), "-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx"]
    run([*command, "-Xcicc", "-O0", f"-I{env.include_dir()}", source, "-o", tmp_path / "out.ptx"])


@pytest.mark.thorough
def test_blocks(page, tmp_path, monkeypatch):
    run_blocks(page, tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def layer_scale(tmp_path_factory):
    """The walk-through's class; its header can be included while the tests of this file run."""
    page = DOCS / "how-to" / "functor-in-cpp.md"
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("walk-through")
        yield run_blocks(page, folder, patch)["LayerScale"]


def declared(layer_scale, device):
    """The page's two ops; inputs of them, and which of these are kept for the gradient of x."""
    x, residual = randn(2, 5, 100, device=device)
    gamma, bias = randn(2, 100, device=device, seed=1)
    stream = fo.LayerNorm(load=[layer_scale("gamma"), fo.Residual("residual", save="stream")])
    yield stream, {"x": x, "gamma": gamma, "residual": residual}, {"gamma"}
    stored = fo.LayerNorm(store=[fo.Bias("bias"), layer_scale("gamma")])
    yield stored, {"x": x, "gamma": gamma, "bias": bias}, {"x", "gamma"}


def differentiate(call, inputs, wanted):
    """The gradients of these inputs, by name, and the inputs that were kept for them."""
    leaves = {name: value.clone().requires_grad_(name in wanted) for name, value in inputs.items()}
    kept = set()

    def pack(tensor):
        kept.update(name for name, one in leaves.items() if one.data_ptr() == tensor.data_ptr())
        return tensor

    x, *operands = leaves
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call(leaves[x], **{name: leaves[name] for name in operands})
    outputs = [result] if isinstance(result, torch.Tensor) else result
    upstream = [randn(*y.shape, device=y.device, seed=k) for k, y in enumerate(outputs, 7)]
    gradients = torch.autograd.grad(outputs, [leaves[name] for name in wanted], upstream)
    return dict(zip(wanted, gradients, strict=True)), kept


@pytest.mark.thorough
def test_the_walk_through(layer_scale, device):
    for op, inputs, kept_for_x in declared(layer_scale, device):
        x, *operands = inputs
        check(op, inputs[x], **{name: inputs[name] for name in operands})
        # Each set of gradients has a kernel of its own, and reads what that takes.
        for wanted in (*([name] for name in inputs), ["x", "gamma"]):
            got, kept = differentiate(op, inputs, wanted)
            want, _ = differentiate(op.unfused, inputs, wanted)
            torch.testing.assert_close(got, want)
            if "gamma" in wanted:
                assert kept >= {"x", "gamma"}
            elif wanted == ["x"]:
                assert kept == kept_for_x


@pytest.mark.thorough
def test_a_functor_may_bring_its_cpp(layer_scale, device):
    page = (DOCS / "how-to" / "functor-in-cpp.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```cpp\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    includes = re.findall(r"^#include <fusedops/(\S+)>$", block, re.MULTILINE)

    class OwnScale(layer_scale):
        headers = ("row/view.cuh",)
        definition = block[block.index("namespace") :].replace("LayerScale", "OwnScale")

        def emit(self, writer):
            return super().emit(writer).replace("LayerScale", "OwnScale")

    assert tuple(includes) == OwnScale.headers
    gamma = randn(24, device=device, seed=1)
    x = randn(3, 24, device=device)
    check(fo.Softmax(load=[OwnScale("gamma")]), x, gamma=gamma)

    class Redefined(OwnScale):
        """As when a notebook's cell runs once more: the same name for something else."""

        definition = OwnScale.definition.replace("*= scale", "+= scale")

    assert Redefined.definition != OwnScale.definition
    got = fo.Softmax(load=[Redefined("gamma")])(x, gamma=gamma)
    torch.testing.assert_close(got, torch.softmax(x + gamma, -1))


@pytest.fixture(scope="module")
def squared_relu(tmp_path_factory):
    """The operator of docs/how-to/write-an-operator.md, in a module that can be imported."""
    text = (DOCS / "how-to" / "write-an-operator.md").read_text(encoding="utf-8")
    (block,) = [body for _, body in FENCED.findall(text) if "class SquaredReLU" in body]
    folder = tmp_path_factory.mktemp("operators")
    (folder / "squared_relu.py").write_text(block)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("squared_relu")
    sys.modules.pop("squared_relu")


def of_rows(shape, device, seed=1):
    return randn(*shape, device=device, seed=seed).abs() + 0.1


@pytest.mark.parametrize(
    ("total", "dtype"), [(True, torch.float32), (False, torch.float16)], ids=["total", "alone"]
)
def test_an_operator_of_another_module(total, dtype, squared_relu, device):
    """With functors, masks, a residual and an operand of its own that rows share."""
    load = [fo.Residual("r", save="stream"), fo.Mask("m"), fo.Scale("s")]
    op = squared_relu.SquaredReLU(load=load, store=[fo.Scale("g")], rest="rest", total=total)
    x = randn(4, 3, 30, dtype=dtype, device=device)
    operands = {
        "r": randn(3, 30, dtype=dtype, device=device, seed=2),
        "m": randn(4, 3, 30, device=device, seed=3) > 1,
        "s": 0.5,
        "g": randn(30, device=device, seed=4),
        "rest": of_rows((3, 1), device),
    }
    assert check(op, x, **operands).passed
    assert op == copy.copy(op) == pickle.loads(pickle.dumps(op))
    assert "SquaredReLU" in str(op.explain(x, **operands))


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [1, 5000, pytest.param(20000, marks=pytest.mark.thorough)])
def test_it_has_the_schedules_of_the_others(columns, squared_relu, device):
    op = squared_relu.SquaredReLU(rest="rest", total=True)
    assert check(op, randn(3, columns, device=device), rest=of_rows((3, 1), device)).passed


def test_its_gradients_are_those_of_torch(squared_relu, device):
    """In double, with random gradients of both outputs, by a formula that is not the class's."""
    op = squared_relu.SquaredReLU(rest="rest", total=True, eps=0.25)
    x = randn(2, 3, 8, 12, dtype=torch.float64, device=device)
    rest = randn(3, 1, 1, dtype=torch.float64, device=device, seed=1).abs()
    dy, of_total = torch.randn_like(x), torch.randn_like(x[..., 0])
    leaves = [x.requires_grad_(), rest.requires_grad_()]
    y, total = op(x, rest=rest)
    squares = x.clamp(min=0) ** 2
    wanted = 0.25 + rest[..., 0] + squares.sum(-1)
    torch.testing.assert_close(total, wanted)
    torch.testing.assert_close(y, squares / wanted[..., None])
    got = torch.autograd.grad([y, total], leaves, [dy, of_total])
    want = torch.autograd.grad([squares / wanted[..., None], wanted], leaves, [dy, of_total])
    torch.testing.assert_close(got, want)


LOADED = """
import sys, torch
import fusedops as fo
program = torch.export.load("program.pt2")
x, rest, want = torch.load("io.pt")
try:
    program.module()(x, rest)
except fo.UnsupportedError as error:
    print(error)
sys.path.insert(0, sys.argv[1])
import squared_relu
print(torch.equal(program.module()(x, rest), want))
"""


@pytest.mark.thorough
def test_a_saved_program_says_what_to_import(squared_relu, tmp_path):
    class Weights(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.op = squared_relu.SquaredReLU(rest="rest")

        def forward(self, x, rest):
            return self.op(x, rest=rest)

    x, rest = randn(3, 4, 8), of_rows((4, 1), "cpu")
    program = torch.export.export(Weights(), (x, rest), strict=False)
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save((x, rest, Weights()(x, rest)), tmp_path / "io.pt")
    folder = str(Path(squared_relu.__file__).parent)
    command = [sys.executable, "-c", LOADED, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    told, equal = done.stdout.splitlines()
    assert "SquaredReLU: this program uses 'SquaredReLU' of the module 'squared_relu'" in told
    assert "import squared_relu before the program is run" in told
    assert equal == "True"


def slugs(page):
    """What links call the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=str)
def test_links(page):
    text = FENCED.sub("", page.read_text(encoding="utf-8"))  # a lambda of C++ looks like a link
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            assert heading in slugs(linked), heading


def test_every_functor_has_its_line():
    table = (DOCS / "reference" / "functors.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)\(.* \| `(\S+)` \|$", table, re.MULTILINE)
    known = [getattr(functors, name) for name in functors.__all__]
    assert sorted(listed) == sorted(
        (kind.__name__, kind.header)
        for kind in known
        if isinstance(kind, type) and issubclass(kind, functors.Functor) and hasattr(kind, "header")
    )


REFERENCE = DOCS / "reference"


@pytest.mark.parametrize("home", ["fusedops", "fusedops.nn", "fusedops.testing"])
def test_the_reference_has_every_public_name(home):
    text = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    described = {
        f"{module}.{name}"
        for module, part in re.findall(
            r"currentmodule:: (\S+)\n(.*?)(?=\.\. py:currentmodule|\Z)", text, re.DOTALL
        )
        for name in re.findall(
            r"^\.\. auto(?:class|function|exception):: (\w+)$", part, re.MULTILINE
        )
    }
    names = set(importlib.import_module(home).__all__) - {"nn"}
    assert {f"{home}.{name}" for name in names} <= described


def test_the_reference_has_every_variable():
    text = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(FUSEDOPS_\w+)` \|", text, re.MULTILINE))
    code = Path(env.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"FUSEDOPS_[A-Z_]+", code)) == listed


def test_the_reference_has_every_command():
    import typer

    from fusedops.cli import app

    def named(command, *words):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(words)
        else:
            for name, one in inner.items():
                yield from named(one, *words, name)

    text = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    shown = re.findall(r"^:::\{command-help\} (.+)$", text, re.MULTILINE)
    assert sorted(shown) == sorted(named(typer.main.get_command(app)))


def headwords():
    """The words that the glossary explains, in the code's spelling."""
    text = (DOCS / "contributing" / "glossary.md").read_text(encoding="utf-8")
    for words in re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE):
        yield from words.split(", ")


def test_the_words_of_the_glossary_are_in_use():
    package = (ROOT / "src" / "fusedops", "*.py")
    folders = [package, (ROOT / "csrc", "*.h"), (env.include_dir(), "*.cuh")]
    files = [path for folder, kind in folders for path in folder.rglob(kind)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert len({*headwords()}) > 50
    for word in headwords():
        assert re.search(rf"\b{word}", text, re.IGNORECASE), word


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=str)
def test_tables_are_whole(page):
    """A row after a blank line is no row of the table above it, but text."""
    lines = ["", *page.read_text(encoding="utf-8").splitlines(), ""]
    heads = [n for n, line in enumerate(lines) if line.startswith("|") and not lines[n - 1].strip()]
    assert [lines[n] for n in heads if not lines[n + 1].startswith("| ---")] == []
