# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every operation that a functor of the user's own may use: its C++ alone, value and gradients."""

import ctypes
import itertools
import math
import re
import subprocess

import mpmath
import pytest
import torch
from operations import OPERATIONS
from references import check

import fusedops as fo
from fusedops.jit import compile_cuda, env, host

SPECIAL = [
    *(torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-30, -1e-30, 1e30),
    *(0.5, -0.5, 0.75, -0.75, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, 5.0, -100.0, 100.0, 1.5, -1.5),
]

#: Of two zeros torch gives one or the other; softshrink's vectors lose the sign.
OPEN_ZERO = ("maximum", "minimum", "clamp_tensors", "clamp_to_operand", "softshrink")

DRIVER = """
template <class T>
struct Problem {
  int64_t count;
  const T *x, *upstream, *operand[2];
  T *y, *dx, *gradient[2];
};

template <class T>
struct Recorder {
  const Problem<T>& p;
  template <int k, int N, class Row>
  void add(const T (&gradient)[N], const Row&, int64_t col) {
    for (int i = 0; i < N; ++i) p.gradient[k][col + i] = gradient[i];
  }
};

template <int N, class T, class F>
void pack(const Problem<T>& p, const F& functor, int64_t col) {
  const RowIndex<1> row{0, {0}};
  T v[N], g[N];
  for (int i = 0; i < N; ++i) v[i] = p.x[col + i];
  for (int i = 0; i < N; ++i) g[i] = p.upstream[col + i];
  Recorder<T> sink{p};
  functor.backward(g, v, row, col, sink);
  functor(v, row, col);
  for (int i = 0; i < N; ++i) p.y[col + i] = v[i];
  for (int i = 0; i < N; ++i) p.dx[col + i] = g[i];
}

template <class T, class F>
void drive(const Problem<T>& p, const F& functor) {
  int64_t col = 0;
  for (; col + 16 <= p.count; col += 16) pack<16>(p, functor, col);
  for (; col < p.count; ++col) pack<1>(p, functor, col);
}

template <class T>
using Full = View<const T, 1, Column::kContiguous, kAnyWidth>;
"""


def source():
    """All functors with a function each that runs them: `name_float` and `name_double`."""
    texts = []
    calls = []
    for name, operation in OPERATIONS.items():
        functor = operation.functor
        texts.append(functor.definition)
        kind = functor.definition.split("struct ")[1].split(" ")[0]
        count = len(operation.operands)
        for compute in ("float", "double"):
            views = ", ".join(f"{{p->operand[{k}], {{{{0}}}}, 1}}" for k in range(count))
            types = ", ".join([f"Full<{compute}>"] * count)
            made = f"{kind}<{types}>{{{views}}}" if count else f"{kind}{{}}"
            calls.append(
                f'extern "C" void {name}_{compute}(const Problem<{compute}>* p) '
                f"{{ drive(*p, {made}); }}"
            )
    headers = ["row/view.cuh", "functor/contract.cuh", "core/pointwise.cuh"]
    includes = "".join(f"#include <fusedops/{header}>\n" for header in headers)
    return "\n".join([includes, *texts, "using namespace fusedops;", DRIVER, *calls])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operations")
    (folder / "all.cpp").write_text(source())
    # As the CPU's variants are compiled, but with warnings and without the time that -O3 takes.
    options = [*host.flags("x86-64-v3"), "-O1", "-Wall", "-Werror", "-fvisibility=default"]
    command = [*host.find_compiler(), *options, f"-I{env.include_dir()}", "all.cpp", "-o", "all.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    return ctypes.CDLL(str(folder / "all.so"))


def run(library, name, x, upstream, operands):
    """Value and gradients that the C++ gives."""
    compute = {torch.float32: "float", torch.float64: "double"}[x.dtype]
    results = [torch.full_like(x, torch.nan) for _ in range(2 + len(operands))]

    class Problem(ctypes.Structure):
        _fields_ = (
            ("count", ctypes.c_int64),
            *((field, ctypes.c_void_p) for field in ("x", "upstream")),
            ("operand", ctypes.c_void_p * 2),
            *((field, ctypes.c_void_p) for field in ("y", "dx")),
            ("gradient", ctypes.c_void_p * 2),
        )

    problem = Problem(x.numel(), x.data_ptr(), upstream.data_ptr())
    problem.y, problem.dx = results[0].data_ptr(), results[1].data_ptr()
    for k, operand in enumerate(operands):
        problem.operand[k] = operand.data_ptr()
        problem.gradient[k] = results[2 + k].data_ptr()
    function = getattr(library, f"{name}_{compute}")
    function.restype = None
    function(ctypes.byref(problem))
    return results


def by_torch(operation, x, upstream, operands):
    """The same by torch's autograd."""
    leaves = [value.clone().requires_grad_() for value in (x, *operands)]
    value = operation.kind.function(*leaves)
    grads = torch.autograd.grad(value, leaves, upstream, allow_unused=True, materialize_grads=True)
    return [value.detach(), *[grad + 0 for grad in grads]]


def special_inputs(count, dtype):
    """All combinations of special values, as x and so many operands."""
    values = torch.tensor(SPECIAL, dtype=dtype)
    if count == 2:  # the triple product would be long: operands in another order
        x, a = (grid.flatten() for grid in torch.meshgrid(values, values, indexing="ij"))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        return [x, a, a[order].contiguous()]
    grids = torch.meshgrid(*[values] * (1 + count), indexing="ij")
    return [grid.flatten().contiguous() for grid in grids]


def same(got, want, *, rtol, what):
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=0, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPERATIONS)
def test_special_values(library, name):
    """Torch's own convention at kinks, NaN, infinities and zeros, of value and gradients."""
    operation = OPERATIONS[name]
    x, *operands = special_inputs(len(operation.operands), torch.float64)
    upstream = torch.ones_like(x)
    got = run(library, name, x, upstream, operands)
    want = by_torch(operation, x, upstream, operands)
    for what, mine, theirs in zip(["y", "dx", "da", "db"], got, want, strict=False):
        if what == "dx" and operation.open_nan:
            mine, theirs = mine.masked_fill(x.isnan(), 0), theirs.masked_fill(x.isnan(), 0)
        same(mine, theirs, rtol=1e-7, what=what)
    if name not in OPEN_ZERO:
        zero = want[0] == 0
        assert torch.equal(got[0].signbit()[zero], want[0].signbit()[zero])


@pytest.mark.parametrize("name", OPERATIONS)
def test_float_is_as_close_as_torch(library, name):
    operation = OPERATIONS[name]
    generator = torch.Generator().manual_seed(1)
    x, *operands = [
        torch.randn(16, 1000, generator=generator) * scale
        for scale in [4, 1, 1][: 1 + len(operation.operands)]
    ]
    upstream = torch.randn(x.shape, generator=generator)
    got = run(library, name, x, upstream, operands)
    near = by_torch(operation, x, upstream, operands)
    exact = [value.double() for value in (x, upstream, *operands)]
    want = by_torch(operation, exact[0], exact[1], exact[2:])
    for what, mine, truth, theirs in zip(["y", "dx", "da", "db"], got, want, near, strict=False):
        check(mine, truth, theirs, what=what)


#: Units in the last place that include/fusedops/core states for a CPU.
STATED = {"exp": 2, "tanh": 4, "erf": 2, "log": 2, "log1p": 3, "expm1": 6, "sigmoid": 4}


@pytest.mark.parametrize("name", STATED)
def test_stated_errors(library, name):
    """Over all magnitudes of floats; results that are subnormal have fewer digits."""
    size = torch.logspace(-149, 127, 1 << 18, base=2, dtype=torch.float64).float()
    dense = torch.linspace(-30, 30, 1 << 18)
    x = torch.cat([size, -size, dense])
    got = run(library, name, x, torch.ones_like(x), [])[0].double()
    want = OPERATIONS[name].kind.function(x.double())
    normal = want.abs().clamp_min(torch.finfo(torch.float32).tiny).frexp().exponent
    ulp = torch.ldexp(torch.ones_like(want), normal - 24)
    error = ((got - want).abs() / ulp)[want.abs() < torch.finfo(torch.float32).max]
    assert error.max() <= STATED[name], x[error.argmax()]


def test_the_stated_error_of_an_exponential_of_doubles(library):
    """Over its whole range, and where its argument is halfway between two powers of two."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.rand(3000, generator=generator, dtype=torch.float64) * 1455 - 745.2
    halfway = (torch.arange(-1074, 1023, dtype=torch.float64) + 0.5) * math.log(2)
    x = torch.cat([spread, torch.linspace(-8, 8, 2001, dtype=torch.float64), halfway])
    got = run(library, "exp", x, torch.ones_like(x), [])[0]
    with mpmath.workdps(40):
        exact = [mpmath.exp(one) for one in x.tolist()]
        high = torch.tensor([float(one) for one in exact], dtype=torch.float64)
        low = [
            float(one - mpmath.mpf(near)) for one, near in zip(exact, high.tolist(), strict=True)
        ]
    normal = high.clamp_min(torch.finfo(torch.float64).tiny).frexp().exponent
    ulp = torch.ldexp(torch.ones_like(high), normal - 53)
    error = ((got - high) - torch.tensor(low, dtype=torch.float64)).abs() / ulp
    assert error.max() <= 1, x[error.argmax()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_gradient_does_not_read_has_no_part_in_it(library, name):
    operation = OPERATIONS[name]
    functor, names = operation.functor, operation.operands
    generator = torch.Generator().manual_seed(2)
    x, upstream, *operands = [
        torch.rand(40, generator=generator, dtype=torch.float64) for _ in range(2 + len(names))
    ]
    full = run(library, name, x, upstream, operands)
    for wanted in itertools.product([False, True], repeat=len(names)):
        asked = [operand for operand, want in zip(names, wanted, strict=True) if want]
        reads = functor.reads(asked)
        unread = torch.full_like(x, torch.nan)
        part = run(
            library,
            name,
            x if reads.input else unread,
            upstream,
            [
                value if operand in reads.operands else unread
                for operand, value in zip(names, operands, strict=True)
            ],
        )
        for got, want, used in zip(part[1:], full[1:], (True, *wanted), strict=True):
            if used:
                same(got, want, rtol=0, what=f"{asked}: {reads}")


@pytest.mark.parametrize(
    ("name", "wanted", "reads"),
    [
        ("add", ["a"], (False, ())),
        ("mul", [], (False, ("a",))),
        ("mul", ["a"], (True, ("a",))),
        ("div", [], (False, ("a",))),
        ("relu", [], (True, ())),
        ("no_power", [], (False, ())),
        ("where", [], (True, ("a",))),
        ("passed_through", ["a"], (False, ("a",))),
        ("addcmul", [], (False, ())),
        ("addcmul", ["a"], (False, ("b",))),
        ("addcmul", ["b"], (False, ("a",))),
    ],
)
def test_reads_no_more_than_it_takes(name, wanted, reads):
    assert OPERATIONS[name].functor.reads(wanted) == reads


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_special_values_on_a_gpu(name):
    """As on a CPU: the row's result times -0.0 plus a bias is that bias to the bit."""
    operation = OPERATIONS[name]
    names = operation.operands
    op = fo.RMSNorm(store=[fo.Scale("zero"), fo.Bias("v"), operation.functor])
    v, *operands = (value.cuda() for value in special_inputs(len(names), torch.float64))
    leaves = [value.requires_grad_() for value in (v, *operands)]
    y = op(torch.ones_like(v), zero=-0.0, v=v, **dict(zip(names, operands, strict=True)))
    upstream = torch.ones_like(v)
    got = [y.detach(), *torch.autograd.grad(y, leaves, upstream)]
    want = by_torch(operation, v.detach(), upstream, [value.detach() for value in operands])
    for what, mine, theirs in zip(["y", "dx", "da", "db"], got, want, strict=False):
        if what == "dx" and operation.open_nan:
            mine, theirs = mine.masked_fill(v.isnan(), 0), theirs.masked_fill(v.isnan(), 0)
        same(mine, theirs, rtol=1e-7, what=what)


@pytest.mark.thorough
def test_every_operation_compiles_for_gpus():
    log = compile_cuda(device_source("float"), "sm_90", ["--ptxas-options=-v"])[1]
    assert "warning" not in log, log[:2000]
    for spilled in re.findall(r"(\d+) bytes spill stores", log):
        assert spilled == "0"


def device_source(compute):
    """A kernel for each functor, forward and backward."""
    texts, kernels = [], []
    for name, operation in OPERATIONS.items():
        functor = operation.functor
        texts.append(functor.definition)
        kind = functor.definition.split("struct ")[1].split(" ")[0]
        count = len(operation.operands)
        types = f"<{', '.join([f'Value<{compute}>'] * count)}>" if count else ""
        kernels.append(
            f"""
extern "C" __global__ void {name}_kernel({compute}* data, const {kind}{types} functor) {{
  {compute} v[4], g[4];
  for (int i = 0; i < 4; ++i) v[i] = data[i], g[i] = data[i + 4];
  Sink sink{{data}};
  functor.backward(g, v, int64_t(0), 0, sink);
  functor(v, int64_t(0), 0);
  for (int i = 0; i < 4; ++i) data[i] = v[i], data[i + 4] = g[i];
}}"""
        )
    sink = f"""
struct Sink {{
  {compute}* data;
  template <int k>
  __device__ void add(const {compute} (&gradient)[4], int64_t, int64_t) {{
    for (int i = 0; i < 4; ++i) data[8 + 4 * k + i] = gradient[i];
  }}
}};"""
    headers = ["row/view.cuh", "core/pointwise.cuh"]
    includes = "".join(f"#include <fusedops/{header}>\n" for header in headers)
    return "\n".join([includes, *texts, "using namespace fusedops;", sink, *kernels])
