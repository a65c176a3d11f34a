# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a C++ compiler says to a call that cannot be: one readable sentence for each mistake.

What is right beside them is compiled as well, all of it in one source.
"""

import re
import subprocess

import pytest
from cpptest import compiler, find_nvcc

from fusedops.jit import env

HEAD = """\
#include <fusedops/layer_norm.cuh>
#include <fusedops/softmax.cuh>
using namespace fusedops;
extern float *p, *q;
extern const float* c;
extern int* whole;
extern float8_e4m3* eight;
extern float a[4];
extern const float b[4];
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
template <class Out, class Compute = float>
auto softmax_to(const Out& out, Compute = {}) {
  return dispatch_softmax<Compute>(t, load(direct(c, 8)), out, 8, 8);
}
struct Twice {
  template <int N, class Compute>
  FUSEDOPS_HD void operator()(Compute (&v)[N], int64_t, int64_t) const {
    for (int i = 0; i < N; ++i) v[i] *= 2;
  }
};
struct Saves : Twice {
  static constexpr bool kSaves = true;
  template <int N, class Compute>
  FUSEDOPS_HD void reread(Compute (&)[N], int64_t, int64_t) const {}
};
struct SavesInVain : Twice {
  static constexpr bool kSaves = true;
};
template <class F>
auto softmax_through(const F& functor) {
  return dispatch_softmax<float>(t, load(direct(c, 8), functor), store(direct(p, 8)), 8, 8);
}
struct Owner : Twice {
  ~Owner() {}
};
template <class F>
auto gradient_through(const F& functor) {
  const auto in = load(direct(c, 8), functor);
  return dispatch_softmax_gradient<float>(t, in, store(Absent{}), c, direct(c, 8), direct(p, 8),
                                          gradients(), nullptr, 0, 8, 8);
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
    "a source that is a pointer": (
        "load(direct(c, 8))",
        "load(c)",
        "a bare pointer is no operand",
    ),
    "a target that is a pointer": (
        "store(direct(p, 8))",
        "store(p)",
        "a bare pointer is no operand",
    ),
    "an operand that is a pointer": (
        "affine(per_column(c))",
        "affine(c)",
        "a bare pointer is no operand",
    ),
    "an operand that is a number": (
        "load(direct(c, 8), bias(single(c)))",
        "load(direct(c, 8), bias(2.0f))",
        "a bare number is no operand",
    ),
    "a functor that saves and does not reread": (
        "softmax_through(Saves{})",
        "softmax_through(SavesInVain{})",
        "a functor that saves (kSaves) without template <int N> void reread",
    ),
    "a mask of floats": (
        "load(direct(c, 8), mask(direct(eight, 8)))",
        "load(direct(c, 8), mask(direct(c, 8)))",
        "flags are of one byte",
    ),
    "a mask of wide integers": (
        "load(direct(c, 8), keep(direct(eight, 8)))",
        "load(direct(c, 8), keep(direct(whole, 8)))",
        "flags are of one byte",
    ),
    "lengths that are floats": (
        "load(direct(c, 8), lengths(per_row(whole)))",
        "load(direct(c, 8), lengths(per_row(c)))",
        "lengths, ids and indices are integers in memory",
    ),
    "ids that are floats": (
        "load(direct(c, 8), segments(per_row(whole), per_column(whole)))",
        "load(direct(c, 8), segments(per_row(whole), per_column(c)))",
        "lengths, ids and indices are integers in memory",
    ),
    "an index of floats": (
        "load(direct(c, 8), gather(per_row(c), 8, 1, direct(whole, 8)))",
        "load(direct(c, 8), gather(per_row(c), 8, 1, direct(c, 8)))",
        "lengths, ids and indices are integers in memory",
    ),
    "a largest value that is no float": (
        "store(quantize(single(c), single(p)), direct(eight, 8))",
        "store(quantize(single(c), single(whole)), direct(eight, 8))",
        "is a float in memory",
    ),
    "a gradient that is a pointer": (
        "in_load<0>(per_column(p))",
        "in_load<0>(p)",
        "a bare pointer is no operand",
    ),
    "a dx that is a pointer": (
        "scaled_gradient(Absent{}, gradients())",
        "scaled_gradient(p, gradients())",
        "a bare pointer is no operand",
    ),
    "a target that is a pointer and added to": (
        "accumulate(direct(p, 8))",
        "accumulate(p)",
        "a bare pointer is no operand",
    ),
    "a table that is a pointer": (
        "gather(per_row(c), 2, 8, per_row(whole))",
        "gather(c, 2, 8, per_row(whole))",
        "a bare pointer is no operand",
    ),
    "a source that is an array": (
        "load(direct(b, 8))",
        "load(b)",
        "a bare pointer is no operand",
    ),
    "a target that is an array": (
        "store(direct(a, 8))",
        "store(a)",
        "a bare pointer is no operand",
    ),
    "an operand that is an array": (
        "bias(per_column(b))",
        "bias(b)",
        "a bare pointer is no operand",
    ),
    "a gradient that is an array": (
        "in_load<0>(per_column(a))",
        "in_load<0>(a)",
        "a bare pointer is no operand",
    ),
    "a functor without a gradient": (
        "gradient_through(scale(2.f))",
        "gradient_through(Twice{})",
        "a functor without a gradient: it needs",
    ),
    "arithmetic in int": (
        "softmax_to(store(direct(p, 8)), 1.)",
        "softmax_to(store(direct(p, 8)), 1)",
        "the compute type is float",
    ),
    "LOAD and STORE exchanged": (
        "dispatch_softmax<float>(t, load(direct(c, 8)), store(direct(p, 8)), 8, 8)",
        "dispatch_softmax<float>(t, store(direct(p, 8)), load(direct(c, 8)), 8, 8)",
        "LOAD and STORE are exchanged",
    ),
    "a target that comes first": (
        "softmax_to(store(scale(2.f), direct(p, 8)))",
        "softmax_to(store(direct(p, 8), scale(2.f)))",
        "ends with what it writes",
    ),
    "a source that comes last": (
        "load(direct(c, 8), scale(2.f))",
        "load(scale(2.f), direct(c, 8))",
        "begins with what it reads",
    ),
    "dropout of float in a dispatch of double": (
        "softmax_to(store(dropout<double>(.1, 1, 2), direct(p, 8)), 1.)",
        "softmax_to(store(dropout(.1, 1, 2), direct(p, 8)), 1.)",
        "a dropout of another compute type",
    ),
    "quantize before another functor": (
        "softmax_to(store(scale(2.f), quantize(single(c)), direct(eight, 8)))",
        "softmax_to(store(quantize(single(c)), scale(2.f), direct(eight, 8)))",
        "quantize() comes last",
    ),
    "quantize into float": (
        "softmax_to(store(quantize(single(c)), direct(eight, 8)))",
        "softmax_to(store(quantize(single(c)), direct(p, 8)))",
        "a target that is not of 8 bits",
    ),
    "a target of integers": (
        "softmax_to(store(direct(p, 8)))",
        "softmax_to(store(direct(whole, 8)))",
        "a result goes to integers",
    ),
    "columns that are no integer": (
        "dispatch_softmax<float>(t, load(direct(c, 8)), store(direct(p, 8)), 8, 8)",
        "dispatch_softmax<float>(t, load(direct(c, 8)), store(direct(p, 8)), 8, 7.9)",
        "the number of columns is an integer",
    ),
    "a functor with a destructor": (
        "load(direct(c, 8), Twice{})",
        "load(direct(c, 8), Owner{})",
        "copied to the GPU by bytes",
    ),
    "the gradient of a beta that is not there": (
        "affine_gradient(per_column(c))",
        "affine_gradient(Absent{})",
        "names a functor or an operand that the LOAD or the STORE does not have",
    ),
}


CALLS = """\
#include <cstdio>
#include <fusedops/softmax.cuh>
using namespace fusedops;
float x[96], y[96], b[48];
template <class Bias>
void softmax(const float* from, float* to, const Bias& more, int64_t rows) {
  const auto in = load(direct(from, 8), bias(more));
  const Status status = dispatch_softmax<float>(Threads{1}, in, store(direct(to, 8)), rows, 8);
  std::printf("%d\\n", int(status));
}
int main() {
  const auto six = layout({2, 3, 8}, {24, 8, 1});
  softmax(x, y, broadcast(b, six), 6);
  softmax(x, y, broadcast(b, six), 12);
  softmax(nullptr, y, per_column(b), 6);
  softmax(x, nullptr, per_column(b), 6);
  softmax(nullptr, nullptr, per_column(b), 0);
  softmax(x, y, single(static_cast<const float*>(nullptr)), 6);
}
"""


def compiled(folder, lines):
    """What a compiler says to a function for each of these lines."""
    source = folder / "all.cpp"
    functions = [f"auto f{i}() {{ return {line}; }}\n" for i, line in enumerate(lines)]
    source.write_text(HEAD + "".join(functions))
    flags = ("-std=c++17", "-fsyntax-only", "-fmax-errors=0")
    command = [compiler(), *flags, f"-I{env.include_dir()}", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.thorough
def test_what_is_right_compiles(tmp_path):
    right = [right for right, _, _ in MISTAKES.values()]
    right.append("softmax_to(store(affine(Absent{}, Absent{}), direct(p, 8)))")
    right.append("softmax_to(store(zero_centred(Absent{}), direct(p, 8)))")
    assert compiled(tmp_path, right) == (0, "")


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_its_sentence(tmp_path, mistake):
    _, wrong, sentence = MISTAKES[mistake]
    status, said = compiled(tmp_path, [wrong])
    assert status != 0
    errors = [line for line in said.splitlines() if "error:" in line]
    assert re.search(f"fusedops: .*{re.escape(sentence)}", errors[0]), said


def test_what_only_a_call_shows_is_refused(tmp_path):
    """A layout of fewer rows than are dispatched, and operands without memory."""
    source = tmp_path / "calls.cpp"
    source.write_text(CALLS)
    flags = ("-std=c++17", "-O0", "-pthread", f"-I{env.include_dir()}")
    subprocess.run([compiler(), *flags, source, "-o", tmp_path / "calls"], check=True)
    said = subprocess.run([tmp_path / "calls"], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["0", "1", "1", "1", "0", "1"]


def test_a_result_that_is_dropped(tmp_path):
    status, said = compiled(tmp_path, ["0; } void g() { softmax_to(store(direct(p, 8)))"])
    assert status == 0
    assert "nodiscard" in said


KERNEL = """\
#include <fusedops/softmax.cuh>
using namespace fusedops;
struct Twice {{
  template <int N, class Compute>
  {functor} void operator()(Compute (&v)[N], int64_t, int64_t) const {{
    for (int i = 0; i < N; ++i) v[i] *= 2;
  }}
}};
struct Plain {{
  const float* x;
  template <int N>
  {load} void load(float* dst, int64_t, int64_t col) const {{
    for (int i = 0; i < N; ++i) dst[i] = x[col + i];
  }}
}};
cudaError_t go(cudaStream_t stream, const float* x, float* y, cols<1024, 1024> n) {{
  const cudaError_t one =
      dispatch_softmax<float>(stream, load(direct(x, 8), Twice{{}}), store(direct(y, 8)), 8, n);
  if (one != cudaSuccess) return one;
  return dispatch_softmax<float>(stream, Plain{{x}}, store(direct(y, 8)), 8, n);
}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("functor", "load", "said"),
    [
        ("__device__", "__device__", None),
        ("", "__device__", r"Twice::operator \(\).*functor_needs_device"),
        ("__device__", "", r"Plain::load.*load_needs_device"),
    ],
)
def test_a_member_without_device(tmp_path, functor, load, said):
    """An error that names the member: from code for both sides it is a warning, or nothing."""
    source = tmp_path / "one.cu"
    source.write_text(KERNEL.format(functor=functor, load=load))
    flags = ("-std=c++17", "-arch=sm_90", "-ptx", "-Xcicc", "-O0", f"-I{env.include_dir()}")
    command = [find_nvcc(), *flags, source, "-o", tmp_path / "one.ptx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if said is None:
        assert (done.returncode, done.stderr) == (0, "")
        return
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert re.search(f"calling a __host__ function.*{said}.* is not allowed", errors[0])
