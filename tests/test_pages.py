# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The pages that C++ users include: their examples compile, and to how many kernels."""

import re
import subprocess

import pytest
from cases import exhaustive, thorough
from cpptest import FOLDER, compiler, find_nvcc, run

from fusedops.jit import env

PAGES = ("softmax.cuh", "layer_norm.cuh", "rms_norm.cuh", "cross_entropy.cuh")

PLAIN = """\
#include <fusedops/softmax.cuh>
using namespace fusedops;
cudaError_t go(cudaStream_t stream, const half* x, half* y, int64_t rows, {type} cols) {{
  return dispatch_softmax<float>(stream, load(direct(x, 0)), store(direct(y, 0)), rows, cols);
}}
"""


def examples(page):
    """The code in the comment at a page's head: what is indented more than its text."""
    text = (env.include_dir() / "fusedops" / page).read_text(encoding="utf-8")
    head = text.split("#pragma once")[0]
    return [match[1] for match in re.finditer(r"^//   (\s*\S.*)$", head, re.MULTILINE)]


def code(page):
    """The example of a page: from its include to the brace that ends it."""
    lines = examples(page)
    end = lines.index("}")
    return "\n".join(lines[: end + 1])


@pytest.mark.parametrize("page", [PAGES[0], *thorough(*PAGES[1:])])
def test_examples_compile(tmp_path, page):
    source = tmp_path / "example.cu"
    source.write_text(code(page) + "\n")
    assert source.read_text().startswith(f"#include <fusedops/{page}>")
    # As far as PTX, hardly optimized: this is about what is accepted.
    command = [find_nvcc(), "-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx"]
    run([*command, "-Xcicc", "-O0", f"-I{env.include_dir()}", source, "-o", tmp_path / "out.ptx"])


def kernels(tmp_path, text):
    """The kernels that a source compiles to."""
    source = tmp_path / "one.cu"
    source.write_text(text)
    output = tmp_path / "one.ptx"
    command = [find_nvcc(), "-std=c++17", "-arch=sm_90", "-ptx", "-Xcicc", "-O0"]
    run([*command, f"-I{env.include_dir()}", source, "-o", output])
    return len(re.findall(r"\.entry", output.read_text()))


@pytest.mark.thorough
def test_kernels_of_one_dispatch(tmp_path):
    whole = kernels(tmp_path, PLAIN.format(type="int64_t"))
    assert 20 <= whole < 40
    # One bucket each: exact, not exact, and for operands that lie otherwise.
    assert kernels(tmp_path, PLAIN.format(type="cols<1000, 1024>")) == 3
    assert kernels(tmp_path, PLAIN.format(type="cols<1024, 1024>")) == 2
    assert kernels(tmp_path, PLAIN.format(type="cols<1, 1024>")) < whole // 2
    # A warp, a block and chunks, each for wide accesses and for others.
    assert kernels(tmp_path, PLAIN.format(type="few_cols<>")) == 6
    assert kernels(tmp_path, PLAIN.format(type="few_cols<1, 1024>")) == 2


@pytest.mark.parametrize(
    ("right", "word"), [("load(direct(x, 0))", "LOAD"), ("store(direct(y, 0))", "STORE")]
)
def test_what_is_neither_load_nor_store(tmp_path, right, word):
    text = PLAIN.format(type="cols<1024, 1024>").replace(right, "Nothing{}")
    source = tmp_path / "wrong.cpp"
    text = text.replace("cudaError_t go", "struct Nothing {};\nStatus go")
    source.write_text(text.replace("cudaStream_t stream", "Threads stream"))
    command = [compiler(), "-std=c++17", "-fsyntax-only", f"-I{env.include_dir()}", source]
    with pytest.raises(AssertionError) as raised:
        run(command)
    first = next(line for line in str(raised.value).splitlines() if "error:" in line)
    assert f"fusedops: not a {word}" in first


def compiled(tmp_path, text, name):
    """What a compiler says to a CPU's call."""
    source = tmp_path / name
    source.write_text(text)
    flags = ("-std=c++17", "-fsyntax-only")
    run([compiler(), *flags, f"-I{env.include_dir()}", source])


GRADIENT = """\
#include <fusedops/layer_norm.cuh>
using namespace fusedops;
Status go(const float* x, const float* gamma, float* dgamma) {{
  const auto wanted = gradients({wanted});
  const auto out = store({functors} Absent{{}});
  return dispatch_layer_norm_gradient<float>(Threads{{1}}, load(direct(x, 8)), out, x,
                                             direct(x, 8), Absent{{}}, wanted, nullptr, 0, 8, 8);
}}
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("wanted", "functors", "said"),
    [
        ("in_store<0>(per_column(dgamma)), in_store<0>(per_column(dgamma))", "", "twice"),
        ("in_store<1>(per_column(dgamma))", "", "counted from 0"),
        ("in_store<0, 2>(per_column(dgamma))", "", "counted from 0"),
        ("in_load<0>(per_column(dgamma))", "", "counted from 0"),
        ("", "causal(8),", "a mask in a STORE"),
    ],
)
def test_what_is_refused(tmp_path, wanted, functors, said):
    functors += "affine(per_column(gamma)),"
    text = GRADIENT.format(wanted=wanted, functors=functors)
    right = GRADIENT.format(
        wanted="in_store<0>(per_column(dgamma))", functors="affine(per_column(gamma)),"
    )
    compiled(tmp_path, right, "right.cpp")
    with pytest.raises(AssertionError, match=f"fusedops: .*{said}"):
        compiled(tmp_path, text, "wrong.cpp")


THREADS = """\
#include <cstdio>
#include <fusedops/layer_norm.cuh>
using namespace fusedops;
int main() {
  float x[32], gamma[8], y[32], dx[32], dgamma[8], kept[12], room[4096];
  for (int i = 0; i < 32; ++i) x[i] = float(i * i % 7);
  for (int i = 0; i < 8; ++i) gamma[i] = 1;
  float *const mean = nullptr, *const rstd = nullptr;
  const auto out = store(affine(per_column(gamma)), direct(y, 8));
  Status status = dispatch_layer_norm<float>(Threads{2}, load(direct(x, 8)), out, 4, 8, 1e-5, mean,
                                             rstd, kept);
  if (status != Status::kSuccess) return 1;
  const auto wanted = gradients(in_store<0>(per_column(dgamma)));
  status = dispatch_layer_norm_gradient<float>(Threads{2}, load(direct(x, 8)), out, kept,
                                               direct(x, 8), direct(dx, 8), wanted, room,
                                               sizeof(room), 4, 8);
  if (status != Status::kSuccess) return 2;
  for (int c = 0; c < 8; ++c) {
    float sum = 0;
    for (int r = 0; r < 4; ++r) sum += y[r * 8 + c] * x[r * 8 + c];
    if (!(sum - dgamma[c] < 1e-4f && dgamma[c] - sum < 1e-4f)) return 3;
  }
  std::puts("right");
}
"""


@pytest.mark.thorough
def test_threads_of_a_cpu_in_cuda_code(tmp_path):
    source = tmp_path / "threads.cu"
    source.write_text(THREADS)
    flags = ("-std=c++17", "-arch=sm_90", "-Werror", "all-warnings", "-Xcompiler", "-pthread")
    run([find_nvcc(), *flags, f"-I{env.include_dir()}", source, "-o", tmp_path / "threads"])
    done = subprocess.run([tmp_path / "threads"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n")


STREAMS = """\
#include <fusedops/softmax.cuh>
using namespace fusedops;
struct Owner {
  cudaStream_t stream;
  operator cudaStream_t() const { return stream; }
};
template <class Where>
auto go(Where where, const float* x, float* y) {
  return dispatch_softmax<float>(where, load(direct(x, 8)), store(direct(y, 8)), 8, cols<8, 8>(8));
}
cudaError_t all(const float* x, float* y, Owner owner, cudaStream_t stream) {
  const cudaError_t found[] = {go(stream, x, y), go(owner, x, y), go(nullptr, x, y), go(0, x, y),
                               go(NULL, x, y), go(cudaStreamPerThread, x, y)};
  const Status on_cpu[] = {
      go(Threads{2}, x, y),
      dispatch_softmax<float>({2}, load(direct(x, 8)), store(direct(y, 8)), 8, cols<8, 8>(8))};
  return on_cpu[0] == on_cpu[1] ? found[0] : found[1];
}
"""


@pytest.mark.thorough
def test_what_stands_for_a_stream(tmp_path):
    """What converts to a cudaStream_t, a null pointer or 0; else threads, in braces as well."""
    source = tmp_path / "streams.cu"
    source.write_text(STREAMS)
    flags = ("-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx", "-Xcicc", "-O0")
    run([find_nvcc(), *flags, f"-I{env.include_dir()}", source, "-o", tmp_path / "streams.ptx"])


def test_the_host_part_needs_no_cuda(tmp_path):
    source = tmp_path / "host.cpp"
    text = PLAIN.format(type="int64_t").replace("cudaError_t", "Status")
    source.write_text(text.replace("cudaStream_t stream", "Threads stream"))
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only")
    run([compiler(), *flags, f"-I{env.include_dir()}", source])


@pytest.mark.thorough
@pytest.mark.parametrize("march", [None, "x86-64-v3", *thorough("x86-64-v4")])
def test_strict_warnings(tmp_path, march):
    source = tmp_path / "all.cpp"
    source.write_text("")
    target = [f"-march={march}"] if march else []
    command = [compiler(), *target, "-fsyntax-only", source]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"this compiler does not know {march}")
    names = ("add_norm", "attention", "others", "training")
    source.write_text("".join(f'#include "{name}.cuh"\n' for name in names))
    warnings = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wold-style-cast", "-Werror")
    flags = ("-std=c++17", "-fsyntax-only", f"-I{env.include_dir()}", f"-I{FOLDER}")
    run([compiler(), *target, *warnings, *flags, source])


DECLARED = """\
#include <fusedops/layer_norm.cuh>
#include <fusedops/rms_norm.cuh>
#include <fusedops/softmax.cuh>
using Where = fusedops::Threads;
using Few = fusedops::few_cols<1, 64>;
using In = decltype(fusedops::load(fusedops::direct((const float*)nullptr, 1)));
using Out = decltype(fusedops::store(fusedops::direct((float*)nullptr, 1)));
using X = decltype(fusedops::direct((const float*)nullptr, 1));
using None = decltype(fusedops::gradients());
{extern} FUSEDOPS_INSTANTIATE_SOFTMAX(Where, float, In, Out, fusedops::int64_t);
{extern} FUSEDOPS_INSTANTIATE_LAYER_NORM(Where, float, In, Out, fusedops::few_cols<>);
{extern} FUSEDOPS_INSTANTIATE_GRADIENT(layer_norm, Where, float, In, Out, X,
                                       fusedops::Absent, None, fusedops::int64_t);
{extern} FUSEDOPS_INSTANTIATE_RMS_NORM(Where, float, In, Out, Few);
{extern} FUSEDOPS_INSTANTIATE_GRADIENT(rms_norm, Where, float, In, Out, X, fusedops::Absent, None,
                                       Few);
{extern} FUSEDOPS_INSTANTIATE_GRADIENT(softmax, Where, float, In, Out, X, fusedops::Absent, None,
                                       Few);
{extern} FUSEDOPS_INSTANTIATE_GRADIENT(log_softmax, Where, float, In, Out, X, fusedops::Absent,
                                       None, Few);
"""
CALLING = """\
int main() {
  using namespace fusedops;
  const float x[] = {0, 0};
  float y[2], kept[3];
  float* const none = nullptr;
  const In in = load(direct(x, 2));
  const Out out = store(direct(y, 2));
  const bool good =
      dispatch_softmax<float>(Threads{1}, in, out, int64_t(1), int64_t(2)) == Status::kSuccess &&
      dispatch_layer_norm<float>(Threads{1}, in, out, 1, few_cols<>(2), 1e-5, none, none, kept) ==
          Status::kSuccess &&
      dispatch_layer_norm_gradient<float>(Threads{1}, in, out, kept, direct(x, 2), Absent{},
                                          gradients(), nullptr, 0, 1, int64_t(2)) ==
          Status::kSuccess;
  return good && y[0] == 0 ? 0 : 1;
}
"""


@pytest.mark.thorough
def test_explicit_instantiation(tmp_path):
    """One source has the kernels; those who call them compile none."""
    having, calling = tmp_path / "having.cpp", tmp_path / "calling.cpp"
    having.write_text(DECLARED.format(extern=""))
    calling.write_text(DECLARED.format(extern="extern") + CALLING)
    flags = ("-std=c++17", "-pthread", f"-I{env.include_dir()}")
    for source in (having, calling):
        run([compiler(), *flags, "-c", source, "-o", source.with_suffix(".o")])
    objects = [source.with_suffix(".o") for source in (having, calling)]
    assert [b"host_rows" in file.read_bytes() for file in objects] == [True, False]
    run([compiler(), "-pthread", *objects, "-o", tmp_path / "both"])
    subprocess.run([tmp_path / "both"], check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*exhaustive("float8"), "training"])
def test_what_gpu_tests_call_compiles(tmp_path, name):
    source = FOLDER / f"{name}.cuh"
    flags = ("-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx", "-Xcicc", "-O0")
    include = f"-I{env.include_dir()}"
    run([find_nvcc(), *flags, include, "-x", "cu", source, "-o", tmp_path / "out.ptx"])
