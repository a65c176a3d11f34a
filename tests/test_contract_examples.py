# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The examples in the comments of functor/contract.cuh and op/contract.cuh, as they stand there.

They compile without warnings, compute what they say, and without any one of its members the
operator is refused by a message that names the member.
"""

import ctypes
import re
import subprocess

import pytest
import torch
from cpptest import build, example, normal

from fusedops.errors import CompileError
from fusedops.jit import env, host, nvrtc

FUNCTOR = example("functor/contract.cuh")
OPERATOR = example("op/contract.cuh")

UNIT_ROUNDOFF = 2.0**-24  # of float32


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    (folder / "functor_example.h").write_text(FUNCTOR)
    (folder / "operator_example.h").write_text(OPERATOR)
    return build("examples", folder, f"-I{folder}")


def in_double(x, gain, dy, eps):
    """The result and the gradients in float64, and what their errors are relative to."""
    x, gain = (one.double().requires_grad_() for one in (x, gain))
    v = x * (1 + gain)
    factor = (v.square().sum(-1, keepdim=True) + eps).rsqrt()
    y = v * factor
    y.backward(dy.double())
    terms = (dy * y).abs().sum(-1, keepdim=True)
    size = (factor * (dy.abs() + y.abs() * terms)).detach()
    return y.detach(), x.grad, gain.grad, size


@pytest.mark.parametrize("streamed", [False, True], ids=["kept", "streamed"])
@pytest.mark.parametrize("columns", [1, 7, 100, 3000])
def test_the_examples_compute_what_they_say(examples, columns, streamed):
    rows, eps = 3, 1e-6
    x, gain, dy = (normal(rows, columns, seed=seed) for seed in range(3))
    y, dx, dgain = (torch.full_like(x, torch.nan) for _ in range(3))
    kept = torch.full((rows, 1), torch.nan)
    given = [ctypes.c_void_p(one.data_ptr()) for one in (x, gain, dy, y, kept, dx, dgain)]
    numbers = (ctypes.c_int64(rows), ctypes.c_int64(columns), ctypes.c_float(eps))
    examples.l2_normalize.restype = None
    examples.l2_normalize(*given, *numbers, ctypes.c_bool(streamed))

    want, of_x, of_gain, size = in_double(x, gain, dy, eps)
    # A sum of n terms in any order is off by n roundings of the sum of their sizes at most (Higham,
    # "Accuracy and Stability of Numerical Algorithms", 4.2). The square root halves that; 8 more
    # roundings lie between x and y. The gradient adds a second such sum, of terms with y's error.
    relative = (columns / 2 + 8) * UNIT_ROUNDOFF
    of_dv = (2 * columns + 24) * UNIT_ROUNDOFF * size
    assert ((y - want).abs() <= relative * want.abs()).all()
    assert ((dx - of_x).abs() <= of_dv * (1 + gain).abs()).all()
    assert ((dgain - of_gain).abs() <= of_dv * x.abs()).all()


KERNELS = """\
#include <fusedops/functor/compose.cuh>
#include <fusedops/row/gradient.cuh>
#include <fusedops/row/kernel.cuh>
#include <fusedops/row/statistics.cuh>
{functor}
{operator}
using namespace fusedops;
using Full = View<float, 1, Column::kContiguous, 4>;
using OnePlus = example::OnePlus<Full>;
using Op = example::L2Normalize<float>;
using Gradient = example::L2NormalizeGradient<float>;
using Rows = RowSpace<1>;

extern "C" __global__ void forward(Op op, Full x, OnePlus f, Full y, Full kept, Rows rows) {{
  const Kept<Full, NoStatistics> statistics{{kept, {{0}}}};
  row_kernel<{schedule}>(op, load(x, f), store(y), statistics, rows, 8192);
}}
extern "C" __global__ void backward(Gradient op, Full x, OnePlus f, Full dy, Full kept, Full dx,
                                    Each<0, 0, Full> of_gain, Slices slices, Rows rows) {{
  gradient_kernel<{schedule}, Prefetch::kPerThread>(op, load(x, f), dy, store(Absent{{}}), kept, dx,
                                                targets(of_gain), targets(), slices, rows, 8192);
}}
"""

#: The row in registers, in shared memory, streamed, and shared by a cluster of two blocks.
SCHEDULES = {
    "registers": "Schedule<InRegisters, 256, 8, 4, 1, true>",
    "shared": "Schedule<InShared, 256, 2, 4, 1, true>",
    "streamed": "Schedule<Streamed, 256, 2, 4, 1, true>",
    "cluster": "Schedule<InRegisters, 256, 4, 4, 1, true, 4, false, 2>",
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_the_examples_compile_for_a_gpu(schedule):
    text = KERNELS.format(functor=FUNCTOR, operator=OPERATOR, schedule=schedule)
    _, log = nvrtc.compile_cuda(text, "sm_90")
    assert "warning" not in log, log


SAVER = """\
struct Saver {{
  Full stream;
  static constexpr bool kSaves = true, kNeedsInput = false;
  template <int N, class Row>
  __device__ void operator()(float (&v)[N], const Row& row, int64_t col) const {{
    stream.write(v, row, col);
  }}
  template <int N, class Row>
  __device__ void reread(float (&v)[N], const Row& row, int64_t col) const {{
    stream.read_again(v, row, col);
  }}
  template <int N, class Row, class Sink>
  __device__ void backward(float (&)[N], const float (&)[N], const Row&, int64_t, Sink&) const {{}}
}};
extern "C" __global__ void saved(Gradient op, Full x, Saver f, Full dy, Full kept, Full dx,
                                 Slices slices, Rows rows) {{
  gradient_kernel<{schedule}, Prefetch::{prefetch}>(op, load(x, f), dy, store(Absent{{}}), kept, dx,
                                          targets(), targets(), slices, rows, 8192);
}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("prefetch", ["kPerThread", "kBulk", "kPerLine"])
def test_a_functor_that_saves_may_do_without_prefetch(prefetch):
    given = {"functor": FUNCTOR, "operator": OPERATOR, "schedule": SCHEDULES["registers"]}
    nvrtc.compile_cuda((KERNELS + SAVER).format(**given, prefetch=prefetch), "sm_90")


HOST = """\
#include <fusedops/functor/compose.cuh>
#include <fusedops/host/gradient.cuh>
#include <fusedops/row/statistics.cuh>
{operator}
using namespace fusedops;
using Full = View<float, 1, Column::kContiguous, kAnyWidth>;
using Op = example::L2Normalize<float>;
using Gradient = example::L2NormalizeGradient<float>;
using InCache = HostSchedule<InRegisters>;

void forward(const Op& op, Full x, Full y, Full kept, const RowSpace<1>& rows) {{
  const Kept<Full, NoStatistics> statistics{{kept, {{0}}}};
  host_rows<InCache>(op, load(x), store(y), statistics, rows, 8, 0, 1);
}}
void backward(const Gradient& op, Full x, Full dy, Full kept, const RowSpace<1>& rows) {{
  host_gradient<InCache>(op, load(x), dy, store(Absent{{}}), kept, x, targets(), targets(),
                         Slices{{1, 1, 1}}, rows, 8, 0, 1);
}}
"""

#: What is taken from the example, by a pattern and what it becomes, and what the message names.
WITHOUT = {
    "Compute": (r"  (using Compute = .*\n  W)", r" private:\n  \1", "the types Compute, Partial"),
    "Partial": (r"\bPartial\b", "Part", "the types Compute, Partial and Finish"),
    "padding_value": (r"padding_value", "padding", "static Compute padding_value()"),
    "identity": (r"identity\(\)", "none()", "static Partial identity()"),
    "reduce": (r"Partial reduce\(", "Partial reduces(", "reduce(Group group, Tile& tile) const"),
    "reduce const": (r"Tile& tile\) const", "Tile& tile)", "reduce(Group group, Tile& tile) const"),
    "rebuild": (r"Partial rebuild\(", "Partial again(", "rebuild(Group group, Tile& tile) const"),
    "rebuild known": (r"void rebuild\(", "void again(", "void rebuild(const Partial& part"),
    "combine": (r"combine\(", "combines(", "Partial combine(Group group, Partial part) const"),
    "merge": (r"merge\(", "merged(", "Partial merge(Partial a, Partial b) const"),
    "finish": (
        r"finish\(Partial part, const Row&, int64_t\)",
        "finish(Partial part, int64_t)",
        "finish(Partial part, const Row& row, int64_t cols) const",
    ),
    "of": (r"Finish of\(", "Finish off(", "Finish::of(Partial part) const"),
    "element": (r"operator\(\)\(Compute x\)", "apply(Compute x)", "from Compute to Compute"),
    "size": (r"Compute squares;", "char squares;", "a multiple of 4 bytes"),
    "keep": (r"void keep\(", "void keeps(", "void keep(Compute (&kept)[kKept]) const"),
}
GRADIENT_WITHOUT = {
    "Row": (r"\bRow\b", "OfRow", "the types Compute, Row, Partial and Finish"),
    "kKept": (r"kKept", "kNumbers", "the constants int kKept"),
    "kHasMasked": (r"kHasMasked = false, ", "", "bool kHasMasked"),
    "masked": (r"kHasMasked = false", "kHasMasked = true", "since kHasMasked is true"),
    "row": (r"Row row\(", "Row of_row(", "static Row row(const Compute (&kept)[kKept])"),
    "result": (r"result\(Compute v\)", "y(Compute v)", "Compute Row::result(Compute v) const"),
    "reduce": (r"const Tile& g", "Tile& g", "reduce(Group group, const Tile& y, const Tile& g)"),
    "finish": (
        r"finish\(const Row& known, ",
        "finish(Row& known, ",
        "finish(const Row& known, Partial all, const AnyRow& row, int64_t cols) const",
    ),
    "element": (r"operator\(\)", "apply", "Finish::operator()(Compute y, Compute g) const"),
}


def lacking(name):
    """The example without one member of the operator, or of its gradient."""
    forward, struct, backward = OPERATOR.partition("template <class Compute_>\nstruct L2NormalizeG")
    if name in WITHOUT:
        forward, count = re.subn(*WITHOUT[name][:2], forward)
    else:
        pattern, become, _ = GRADIENT_WITHOUT[name.removeprefix("gradient ")]
        backward, count = re.subn(pattern, become, backward)
    assert count > 0, "the example has changed"
    return forward + struct + backward


LACKING = {
    **{name: message for name, (_, _, message) in WITHOUT.items()},
    **{f"gradient {name}": message for name, (_, _, message) in GRADIENT_WITHOUT.items()},
}


def errors_on_a_host(tmp_path, text):
    source = tmp_path / "kernel.cpp"
    source.write_text(text)
    command = [*host.find_compiler(), "-std=c++17", "-fsyntax-only", f"-I{env.include_dir()}"]
    done = subprocess.run(
        [*command, source],
        capture_output=True,
        text=True,
        check=False,
        env=env.compiler_environment(),
    )
    return [line for line in done.stderr.splitlines() if "error" in line]


def check_message(errors, name):
    """Our message is the first, and names the member and the page."""
    kind = "the gradient of an operator" if name.startswith("gradient") else "an operator"
    begin = "an operator without a gradient" if name == "keep" else f"not {kind}: it needs"
    assert errors, "it compiles"
    assert f"fusedops: {begin}" in errors[0], errors
    assert LACKING[name] in errors[0], errors
    assert "(see fusedops/op/contract.cuh)" in errors[0], errors


def test_the_example_as_it_is_has_no_errors(tmp_path):
    assert errors_on_a_host(tmp_path, HOST.format(operator=OPERATOR)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", LACKING)
def test_a_missing_member_is_named_on_a_cpu(tmp_path, name):
    errors = errors_on_a_host(tmp_path, HOST.format(operator=lacking(name)))
    check_message(errors, name)


@pytest.mark.parametrize("name", ["identity", "rebuild", "gradient result", "gradient masked"])
def test_a_missing_member_is_named_on_a_gpu(name):
    schedule = SCHEDULES["registers"]
    text = KERNELS.format(functor=FUNCTOR, operator=lacking(name), schedule=schedule)
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cuda(text, "sm_90")
    check_message([line for line in caught.value.log.splitlines() if "error" in line], name)
