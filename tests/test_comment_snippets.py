# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The calls that the headers' comments write compile, with arguments of the names that stand there.

So do those in the text of the manual's pages about C++. The programs at the heads of the headers
are compiled by `test_pages`, those of the contracts by `test_contract_examples`, and the manual's
blocks by `test_docs`.
"""

import re

import pytest
from cpptest import compiler, run
from test_docs import DOCS, FENCED

from fusedops.jit import env

HEAD = """\
#include <fusedops/cross_entropy.cuh>
#include <fusedops/layer_norm.cuh>
#include <fusedops/rms_norm.cuh>
#include <fusedops/softmax.cuh>
using namespace fusedops;
extern float* memory;
extern int* ids;
extern bool* flags;
extern uint64_t* words;
"""
MEMORY = "float* const {} = memory"
OPERAND = "const auto {} = per_row(memory)"
NUMBER = "const int64_t {} = 1"
LAYOUT = "const auto {} = fusedops::layout({{2, 4, 8}}, {{8, 0, 1}})"
SHARED = "const auto {} = fusedops::layout({{1, 8, 8}}, {{8, 0, 1}})"

#: What a name in a header's comments stands for.
NAMES = {
    "row/layout": {},
    "row/operand": {
        **dict.fromkeys(["x", "bias", "gamma", "scale", "alpha"], MEMORY),
        "row_stride": NUMBER,
        "layout": LAYOUT,
        "target": "const auto {} = direct(memory, 8)",
    },
    "dispatch/wanted": {
        **dict.fromkeys(["dbias", "dgamma", "dpair"], MEMORY),
        **dict.fromkeys(["rows", "cols"], NUMBER),
        "layout": SHARED,
        "bytes": "size_t {} = 0",
    },
    "functors": {
        **dict.fromkeys(["operand", "gamma", "beta", "scale", "amax", "scales"], OPERAND),
        **dict.fromkeys(["seed", "offset", "queries", "shift", "left", "right"], NUMBER),
        **dict.fromkeys(["entries", "step"], NUMBER),
        **dict.fromkeys(["p", "alpha"], "const double {} = 0.5"),
        "stream": "const auto {} = direct(memory, 8)",
        "pointer": "uint64_t* const {} = words",
        "kBlock": "constexpr int {} = 128",
    },
}
#: What `operand` stands for in the calls of these functors.
OPERANDS = {
    ("mask(", "keep("): "per_row(flags)",
    ("lengths(", "segments(", "gather("): "per_row(ids)",
}
#: What a CPU's call has beside what a GPU's has.
ON_A_CPU = {"gradient_workspace<float>(": "gradient_workspace<float>(Threads{1}, "}

#: What stands in the calls of a page.
PAGE = """\
const Threads where{1};
float *const kept = memory, *const mean = memory, *const rstd = memory;
float *const loss = memory, *const lse = memory;
const auto target = per_row(ids);
const double dloss = 1;
const LossTerms terms;
const auto dx = direct(memory, 8), dy = dx;
const auto load = fusedops::load(dy);
const auto load_x = load, load_y = load, load_dy = load, load_scaled_dy = load;
const auto store = fusedops::store(dx), store_dx = store;
const auto wanted = gradients();
const int64_t rows = 1, n = 8;
const double epsilon = 1e-5, eps = epsilon;
void* const workspace = nullptr;
size_t bytes = 0;
"""
PAGES = ("softmax", "layer_norm", "rms_norm", "cross_entropy")

#: What other tests compile: whole programs, and the node for CUTLASS.
ELSEWHERE = {*PAGES, "functor/contract", "op/contract", "cutlass/sm90_functors"}

#: Pages of the manual, and what stands in the calls of their text beside what is in `PAGE`.
MANUAL = ("how-to/cpp-project.md", "reference/cpp.md", "tutorials/coming-from.md")
MORE = """\
const auto stream = where;
using MyGelu = decltype(activation<Gelu>());
float *const x = memory, *const y = memory, *const b = memory, *const skip = memory;
float *const scales = memory, *const scale = memory;
uint64_t* const pointer = words;
int* const labels = ids;
const int64_t blocks = 6, seed = 1, offset = 2;
const double p = 0.1;
"""


def head(name):
    return (env.include_dir() / f"fusedops/{name}.cuh").read_text(encoding="utf-8")


def balanced(text):
    """The calls, separated by commas, that a text begins with; None where one does not end."""
    depth, end = 0, 0
    for at, one in enumerate(text):
        depth += (one in "({") - (one in ")}")
        if one == ")" and depth == 0:
            end = at + 1
            if not re.match(r", \w+(<\w+>)?\(", text[end:]):
                return text[:end]
    return None


def calls(text):
    """Those at the beginnings of indented lines of comments; remarks follow behind two spaces."""
    found, begun = [], ""
    for line in re.findall(r"^ *///?   +(\S.*)$", text, re.MULTILINE):
        if not begun and not re.match(r"[a-z_]+(<[\w, ]+>)?\(", line):
            continue
        whole = balanced(f"{begun}{line}")
        if whole is None:
            begun += line.split("  ")[0] + " "
        else:
            found.append(whole)
            begun = ""
    assert not begun
    return found


def function(number, call, names):
    """A function with this call, and the names that stand in it."""
    words = dict.fromkeys(re.findall(r"\b([a-z]\w*)\b(?![<({:])", call))
    lines = [f"{names[word].format(word)};\n" for word in words if word in names]
    for functors, operand in OPERANDS.items():
        if call.startswith(functors):
            lines = [each for each in lines if " operand " not in each]
            lines.append(f"const auto operand = {operand};\n")
    for plain, full in ON_A_CPU.items():
        call = call.replace(plain, full)
    return f"void f{number}() {{\n{''.join(lines)}  (void)({call});\n}}\n"


def in_page(number, call, more=""):
    """A function with this call, and what stands in `PAGE`. Few columns are quick to compile."""
    few = call.startswith("dispatch_")
    cols = "const few_cols<1, 8> cols(n)" if few else NUMBER.format("cols")
    for plain, full in ON_A_CPU.items():
        call = call if "Threads" in call else call.replace(plain, full)
    return f"void f{number}() {{\n{PAGE}{cols};\n{more}(void)({call});\n}}\n"


def test_no_other_header_writes_calls():
    """Else nothing would compile them."""
    folder = env.include_dir() / "fusedops"
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.cuh")]
    assert {*names} > ELSEWHERE
    for name in {*names} - ELSEWHERE - {*NAMES}:
        assert not calls(head(name)), name


#: How many calls each of the headers has at least: were they fewer, some would not be found.
LEAST = {"row/layout": 2, "row/operand": 6, "dispatch/wanted": 3, "functors": 24}


def test_calls_in_comments(tmp_path):
    functions = []
    for name, names in NAMES.items():
        found = calls(head(name))
        assert len(found) >= LEAST[name]
        functions += [function(len(functions) + i, call, names) for i, call in enumerate(found)]
    compiled(tmp_path, functions)


def compiled(folder, functions):
    source = folder / "calls.cpp"
    source.write_text(HEAD + "".join(functions))
    run([compiler(), "-std=c++17", "-fsyntax-only", f"-I{env.include_dir()}", source])


@pytest.mark.thorough
def test_dispatches_in_the_heads_of_pages(tmp_path):
    functions = []
    for page in PAGES:
        text = re.sub(r"\s*\n//\s*", " ", head(page).split("#pragma once")[0])
        for call in re.findall(r"(?:dispatch_\w+|gradient_workspace)<Compute>\([^)]*\)", text):
            functions.append(in_page(len(functions), call.replace("<Compute>", "<float>")))
    assert len(functions) >= 13
    compiled(tmp_path, functions)


@pytest.mark.thorough
def test_calls_in_the_text_of_the_manual(tmp_path):
    """Those in full: where dots stand something is left out."""
    known = "".join(path.read_text(encoding="utf-8") for path in env.include_dir().rglob("*.cuh"))
    functions = []
    for page in MANUAL:
        text = FENCED.sub("", (DOCS / page).read_text(encoding="utf-8"))
        for call in re.findall(r"`([a-z_]+(?:<[\w, ]*>)?\([^`]+\))`", text):
            call = call.replace("load(...)", "load")
            if "..." in call or not re.search(rf"\b{re.match('[a-z_]+', call)[0]}[<(]", known):
                continue
            call = re.sub(r"\b(load|store|cols)(?=[(<])", r"fusedops::\1", call)
            functions.append(in_page(len(functions), call, MORE))
    assert len(functions) >= 16
    compiled(tmp_path, functions)
