# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a C++ compiler says to a call that cannot be: one readable sentence for each mistake.

What is right beside them is compiled as well, all of it in one source.
"""

import re
import subprocess

import pytest
from cpptest import compiler

from fusedops.jit import env

HEAD = """\
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>
using namespace fusedops;
extern float *p, *q;
extern const float* c;
const Threads t{1};
template <class Beta>
auto affine_gradient(const Beta& beta) {
  const auto out = store(affine(per_column(c), beta), Absent{});
  const auto wanted = gradients(in_store<0, 1>(per_column(p)));
  return dispatch_layer_norm_gradient<float>(t, load(direct(c, 8)), out, c, direct(c, 8), Absent{},
                                             wanted, nullptr, 0, 8, 8);
}
template <class Dx, class Wanted>
auto scaled_gradient(const Dx& dx, const Wanted& wanted) {
  return dispatch_softmax_gradient<float>(t, load(direct(c, 8), scale(single(c))), store(Absent{}),
                                          c, direct(c, 8), dx, wanted, nullptr, 0, 8, 8);
}
template <class Out>
auto softmax_to(const Out& out) {
  return dispatch_softmax<float>(t, load(direct(c, 8)), out, 8, 8);
}
"""

#: What is right beside each mistake, which compiles; the mistake; and the sentence.
MISTAKES = {
    "a target that is const": (
        "softmax_to(store(direct(p, 8)))",
        "softmax_to(store(direct(c, 8)))",
        "a result goes to memory that is const",
    ),
    "a dx that is const": (
        "scaled_gradient(direct(p, 8), gradients())",
        "scaled_gradient(direct(c, 8), gradients())",
        "a result goes to memory that is const",
    ),
    "a gradient that is const": (
        "scaled_gradient(Absent{}, gradients(in_load<0>(single(p))))",
        "scaled_gradient(Absent{}, gradients(in_load<0>(single(c))))",
        "a result goes to memory that is const",
    ),
    "a const that is added to": (
        "softmax_to(store(accumulate(direct(p, 8))))",
        "softmax_to(store(accumulate(direct(c, 8))))",
        "a result goes to memory that is const",
    ),
    "the gradient of a beta that is not there": (
        "affine_gradient(per_column(c))",
        "affine_gradient(Absent{})",
        "names a functor or an operand that the LOAD or the STORE does not have",
    ),
}


def compiled(folder, lines):
    """What a compiler says to a function for each of these lines."""
    source = folder / "all.cpp"
    functions = [f"auto f{i}() {{ return {line}; }}\n" for i, line in enumerate(lines)]
    source.write_text(HEAD + "".join(functions))
    flags = ("-std=c++17", "-fsyntax-only", "-Wno-psabi", "-fmax-errors=0")
    command = [compiler(), *flags, f"-I{env.include_dir()}", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_what_is_right_compiles(tmp_path):
    right = [right for right, _, _ in MISTAKES.values()]
    right.append("softmax_to(store(affine(Absent{}, Absent{}), direct(p, 8)))")
    right.append("softmax_to(store(zero_centred(Absent{}), direct(p, 8)))")
    assert compiled(tmp_path, right) == (0, "")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_sentence(tmp_path, mistake):
    _, wrong, sentence = MISTAKES[mistake]
    status, said = compiled(tmp_path, [wrong])
    assert status != 0
    errors = [line for line in said.splitlines() if "error:" in line]
    assert re.search(f"fusedops: .*{re.escape(sentence)}", errors[0]), said
