# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every header compiles without warnings with each compiler that is here; without a GPU.

Each compiles alone with a host's compiler and NVRTC; nvcc, which is slow, gets all of them at once.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cases import exhaustive, thorough
from cpptest import run

from fusedops.errors import CompileError
from fusedops.jit import compile_cuda, env, nvrtc

TEXTS = {
    path.relative_to(env.include_dir()).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((env.include_dir() / "fusedops").rglob("*.cuh"))
}

#: What needs CUTLASS, which no other header may (`test_cutlass`): compiled there.
CUTLASS_HEADERS = [name for name in TEXTS if name.startswith("fusedops/cutlass/")]
HEADERS = [name for name in TEXTS if name not in CUTLASS_HEADERS]

#: One of each generation that fusedops is for.
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")

#: What a header may include beside others of fusedops: NVRTC compiles these in a tenth of a second.
FOREIGN = {"cuda_bf16.h", "cuda_fp16.h", "cstdint", "cmath"}

#: What headers that launch may include as well. Those of these folders may not: kernels are made of
#: them, and built while somebody waits.
LAUNCHING = {"cuda_runtime.h", "system_error", "thread"}
KERNELS = ("core", "functor", "host", "op", "row")

HOST_COMPILERS = ("g++", "clang++")

#: Names that headers of the C library, Windows and other projects define as macros.
MACROS = """\
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define small char
#define near
#define far
#define interface struct
#define major(x) (x)
#define minor(x) (x)
#define CHECK(x) (x)
#define ERROR 0
#define EPS 1e-6
#define PI 3.14
#define I (1.0iF)
#define E 2.72
#define WARP_SIZE 32
#define TRUE 1
#define FALSE 0
#define IN
#define OUT
"""


def included(header):
    """What the include lines of a header name, under whatever condition."""
    return re.findall(r"^\s*#\s*include\s*<([^>]+)>", TEXTS[header], re.MULTILINE)


def reaches(name):
    """The headers that include this file, themselves or through others of fusedops."""
    found = set()
    while more := {h for h in HEADERS if h not in found and {name, *found} & {*included(h)}}:
        found |= more
    return found


#: Headers for which NVRTC, which compiles no host code, lacks what they include. A host's compiler
#: does without a CUDA toolkit: what needs one stands there under a condition.
HOST_ONLY = reaches("cuda_runtime.h")


#: Headers that every run compiles alone with nvcc: those that only nvcc compiles whole, and one
#: that it once refused, although NVRTC, which asks for less, and a host's compiler, which sees no
#: device code, both took it.
NVCC_ALONE = [*sorted(HOST_ONLY), "fusedops/row/staging.cuh"]


def with_macros(foreign):
    """The macros, behind foreign headers: what those do with them is not our concern."""
    return "".join(f"#include <{name}>\n" for name in sorted(foreign)) + MACROS


def compiler(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_there_are_headers():
    assert "fusedops/functor/contract.cuh" in HEADERS


@pytest.mark.parametrize("name", HOST_COMPILERS)
def test_a_compiler_is_here(name):
    """Skipped once for a compiler that is missing, in place of once for each header."""
    run([compiler(name), "--version"])


def check_on_a_host(folder, name, text):
    source = folder / "some.cpp"
    source.write_text(text)
    warnings = ("-Wall", "-Wextra", "-Werror")
    run(
        [compiler(name), "-std=c++17", *warnings, "-fsyntax-only", f"-I{env.include_dir()}", source]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in HOST_COMPILERS if shutil.which(name)])
@pytest.mark.parametrize("header", HEADERS)
def test_on_a_host(tmp_path, header, name):
    check_on_a_host(tmp_path, name, f"#include <{header}>\n")


@pytest.mark.parametrize("name", [name for name in HOST_COMPILERS if shutil.which(name)])
def test_all_on_a_host_beside_others_macros(tmp_path, name):
    standard = [name for name in FOREIGN | LAUNCHING if not name.startswith("cuda")]
    every = "".join(f"#include <{header}>\n" for header in HEADERS)
    check_on_a_host(tmp_path, name, with_macros(standard) + every)


#: Dispatches with functors, forward and gradient. One functor is a user's, in the form for which
#: the manual promises no warning of GCC's.
INSTANCES = """\
#include <fusedops/oneflow.cuh>
using namespace fusedops;
using Few = few_cols<1, 64>;
struct Doubled {
  template <size_t N, class Compute>
  FUSEDOPS_HD void operator()(Compute (&v)[N], int64_t, int64_t) const {
    for (size_t i = 0; i < N; ++i) v[i] *= 2;
  }
  template <size_t N, class Compute, class Sink>
  FUSEDOPS_HD void backward(Compute (&g)[N], const Compute (&)[N], int64_t, int64_t, Sink&) const {
    for (size_t i = 0; i < N; ++i) g[i] *= 2;
  }
};
Result softmax(Where where, const half* x, const bool* visible, float8_e4m3* y, float* amax,
               const float* kept, half* dx, int64_t rows, int64_t n) {
  const auto in = load(direct(x, n), scale(0.5f), mask(direct(visible, n)), causal(rows),
                       softcap(3.0f), dropout(0.1, 1, 2), Doubled{});
  const auto out = store(quantize(single(amax), single(amax)), direct(y, n));
  const Result status = dispatch_softmax<float>(where, in, out, rows, Few(n));
  if (status != Result(0)) return status;
  return dispatch_softmax_gradient<float>(where, in, store(Absent{}), kept, direct(x, n),
                                          direct(dx, n), gradients(), nullptr, 0, rows, Few(n));
}
Result norm(Where where, const bfloat16* x, bfloat16* stream, const float* gamma, double* y,
            float* kept, float* dgamma, void* space, size_t bytes, int64_t rows, int64_t n) {
  const auto in = load(direct(x, n), saved_residual(direct(x, n), direct(stream, n)));
  const auto out = store(affine(per_column(gamma)), activation<Gelu>(), direct(y, n));
  const Result status = dispatch_layer_norm<float>(where, in, out, rows, Few(n), 1e-5, kept);
  if (status != Result(0)) return status;
  const auto wanted = gradients(in_store<0, 0>(accumulate(per_column(dgamma))));
  return dispatch_rms_norm_gradient<float>(where, load(direct(x, n)),
                                           store(affine(per_column(gamma)), Absent{}), kept,
                                           direct(x, n), direct(stream, n), wanted, space, bytes,
                                           rows, Few(n));
}
inline auto others(const float* x, const int* ids, const bool* flags, float* to) {
  const auto each = per_row(x);
  const auto in = load(direct(x, 8), scale(each), bias(each), residual(each), residual(each, 2.0),
                       save(direct(to, 8)), saved_residual(each, direct(to, 8), 2),
                       saved_residual(each, direct(to, 8), 2, each), zero_centred(each),
                       softcap(each), leaky_relu(0.1f), leaky_relu(each), gate<Silu>(each),
                       gated<Relu>(each), dropout(0.1, Draw{nullptr}), row_dropout(0.1, 1, 2),
                       row_dropout(0.1, Draw{nullptr}), cast<half>(), keep(per_row(flags)),
                       window(8, 1, 2), lengths(per_row(ids)),
                       segments(per_row(ids), per_column(ids)), alibi(each, 8),
                       gather(each, 8, 1, direct(ids, 8)));
  const auto scales = per_row(to);
  (void)store(tap(direct(to, 8)), dynamic_quantize<float8_e4m3, kWholeRow>(scales), Absent{});
  return in;
}
"""
ON_A_HOST = "#define Where Threads\n#define Result Status\n"
ON_A_GPU = "#define Where cudaStream_t\n#define Result cudaError_t\n"


def instances(head):
    first, rest = INSTANCES.split("\n", 1)
    return f"{first}\n{head}{rest}"


def public_headers():
    """The headers in the table of docs/reference/cpp.md that a .cpp can include."""
    page = Path(__file__).parent.parent / "docs/reference/cpp.md"
    found = re.findall(r"^\| `(fusedops/\S+)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [header for header in found if "cutlass" not in header]


def manual_warnings():
    """The flags under which docs/how-to/cpp-project.md says that the headers are clean."""
    page = Path(__file__).parent.parent / "docs/how-to/cpp-project.md"
    said = re.search(
        r"clean with GCC and clang under\s+`(-W[^`]+)`", page.read_text(encoding="utf-8")
    )
    return said[1].split()


@pytest.mark.parametrize("name", [name for name in HOST_COMPILERS if shutil.which(name)])
@pytest.mark.parametrize("flags", [[], *thorough(["-mavx2", "-mfma", "-std=c++20"])], ids=str)
def test_instances_on_a_host(tmp_path, name, flags):
    """Also of a newer C++, and of how vectors are passed without AVX: none are."""
    source = tmp_path / "some.cpp"
    source.write_text(instances(ON_A_HOST))
    # Clang vectorizes from -O2 on only, and says so of each loop that is to be.
    more = ["-O0"] if name == "clang++" else ["-O1"]
    done = subprocess.run(
        [name, "-std=c++17", *manual_warnings(), *more, *flags,
         f"-I{env.include_dir()}", "-c", str(source), "-o", str(source.with_suffix(".o"))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in HOST_COMPILERS if shutil.which(name)])
@pytest.mark.parametrize("header", public_headers())
def test_warnings_of_each_public_header(tmp_path, header, name):
    """Alone, since what one of them silences (FUSEDOPS_HEADER_BEGINS) another may include first."""
    source = tmp_path / "some.cpp"
    after = "int ours(unsigned n);\nint ours(unsigned n) { return n; }\n"
    source.write_text(f"#include <{header}>\n{after}")
    flags = ["-std=c++17", *manual_warnings(), f"-I{env.include_dir()}", "-fsyntax-only"]
    done = subprocess.run(
        [compiler(name), *flags, str(source)], capture_output=True, text=True, check=True
    )
    warned = [line for line in done.stderr.splitlines() if "warning: " in line]
    assert all(line.startswith(str(source)) for line in warned), done.stderr
    assert len(warned) == 1, "the warnings of who includes it are as before"


@pytest.mark.thorough
def test_instances_with_nvcc(tmp_path):
    """Nor has the host's compiler anything to say of what nvcc makes of them."""
    source = tmp_path / "some.cu"
    source.write_text(instances(ON_A_GPU))
    flags = ["-std=c++17", "-arch=sm_90", "-Xcompiler", "-Wall,-Wextra,-Wshadow"]
    output = source.with_suffix(".o")
    run([compiler("nvcc"), *flags, f"-I{env.include_dir()}", "-c", source, "-o", output])


@pytest.fixture(scope="module")
def known_archs():
    """What this NVRTC compiles for: the newest archs need a newer one than the least."""
    return {f"sm_{number}" for number in nvrtc.supported_archs()}


class TestWithNvrtc:
    def compile(self, source, arch, known_archs):
        if arch not in known_archs:
            pytest.skip(f"this NVRTC does not know {arch}")
        _, log = compile_cuda(source, arch)
        assert not log

    @pytest.mark.grid(strength=1)
    @pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_80"), *exhaustive("sm_100", "sm_120")])
    @pytest.mark.parametrize("header", [h for h in HEADERS if h not in HOST_ONLY])
    def test_alone(self, header, arch, known_archs):
        self.compile(f"#include <{header}>\n", arch, known_archs)

    @pytest.mark.parametrize("arch", ARCHS)
    def test_macros(self, arch, known_archs):
        headers = "".join(f"#include <{h}>\n" for h in HEADERS if h not in HOST_ONLY)
        foreign = [name for name in FOREIGN if name.startswith("cuda")]
        self.compile(with_macros(foreign) + headers, arch, known_archs)


class TestWithNvcc:
    def compile(self, folder, source):
        nvcc = compiler("nvcc")
        listed = subprocess.run(
            [nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True
        )
        known = [arch for arch in ARCHS if arch in listed.stdout.split()]
        assert "sm_80" in known
        targets = [f"-gencode=arch={arch.replace('sm', 'compute')},code={arch}" for arch in known]
        file = folder / "all.cu"
        file.write_text(source)
        flags = ("-std=c++17", "-Werror", "all-warnings", f"-I{env.include_dir()}")
        # As far as the host's source, which both passes of nvcc's front end have then accepted.
        run([nvcc, *flags, *targets, "-cuda", "-odir", folder, file])

    @pytest.mark.thorough
    @pytest.mark.parametrize("macros", [True, *thorough(False)], ids=["macros", "plain"])
    def test_all(self, tmp_path, macros):
        first = with_macros(FOREIGN | LAUNCHING) if macros else ""
        self.compile(tmp_path, first + "".join(f"#include <{header}>\n" for header in HEADERS))

    @pytest.mark.thorough
    @pytest.mark.parametrize("header", NVCC_ALONE)
    def test_alone(self, tmp_path, header):
        """Both passes, and the host's compiler on what nvcc makes of the header."""
        file = tmp_path / "alone.cu"
        file.write_text(f"#include <{header}>\n")
        flags = ("-std=c++17", "-Werror", "all-warnings", "-arch=sm_80", f"-I{env.include_dir()}")
        run([compiler("nvcc"), *flags, "-c", file, "-o", tmp_path / "alone.o"])


class TestWhatIsTooOld:
    """The least is C++17, CUDA 12.4 and sm_80; what is older is refused in one line."""

    SOURCE = "#include <fusedops/functor/contract.cuh>\n"
    STANDARD = "fusedops needs C++17, .*-std=c++17"
    TOOLKIT = "fusedops needs CUDA 12.4, .*newer nvcc"
    ARCH = "fusedops needs sm_80, .*-arch=sm_80 .*CMAKE_CUDA_ARCHITECTURES"

    def refused(self, message, folder, suffix, *command):
        source = folder / f"old{suffix}"
        source.write_text(self.SOURCE)
        done = subprocess.run(
            [*command, f"-I{env.include_dir()}", source],
            capture_output=True,
            text=True,
            check=False,
            env=env.compiler_environment(),
        )
        assert done.returncode != 0
        self.is_first_of(done.stderr, message)

    def is_first_of(self, log, message):
        first = next(line for line in log.splitlines() if "error" in line)
        assert re.search(message.replace("+", r"\+"), first), log

    def refused_by_nvrtc(self, message, arch, *options):
        with pytest.raises(CompileError) as raised:
            compile_cuda(self.SOURCE, arch, options)
        self.is_first_of(str(raised.value).partition("log:")[2], message)

    @pytest.mark.parametrize("name", ["g++", "clang++"])
    def test_standard_on_a_host(self, tmp_path, name):
        command = (compiler(name), "-std=c++14", "-fsyntax-only")
        self.refused(self.STANDARD, tmp_path, ".cpp", *command)

    def test_standard_with_nvcc(self, tmp_path):
        command = (compiler("nvcc"), "-std=c++14", "-arch=sm_80", "-cuda", "-odir", tmp_path)
        self.refused(self.STANDARD, tmp_path, ".cu", *command)

    def test_arch_with_nvcc(self, tmp_path):
        nvcc = compiler("nvcc")
        listed = subprocess.run(
            [nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True
        )
        if "sm_75" not in listed.stdout.split():
            pytest.skip("this nvcc knows nothing older than sm_80")
        self.refused(self.ARCH, tmp_path, ".cu", nvcc, "-arch=sm_75", "-cuda", "-odir", tmp_path)

    def test_arch_with_nvrtc(self, known_archs):
        if "sm_75" not in known_archs:
            pytest.skip("this NVRTC knows nothing older than sm_80")
        self.refused_by_nvrtc(self.ARCH, "sm_75")

    # No older compiler is here: it is what the one that is says of itself that is old.
    @pytest.mark.parametrize(("major", "minor"), [(11, 8), (12, 3)])
    def test_toolkit(self, major, minor):
        self.refused_by_nvrtc(self.TOOLKIT, "sm_80", *self.claim(major, minor))

    @pytest.mark.parametrize(("major", "minor"), [(12, 4), (13, 0)])
    def test_a_toolkit_that_will_do(self, major, minor):
        source = "#include <fusedops/core/config.cuh>\n"
        assert compile_cuda(source, "sm_80", self.claim(major, minor))

    def claim(self, major, minor):
        claimed = {"__CUDACC_VER_MAJOR__": major, "__CUDACC_VER_MINOR__": minor}
        undefined = [f"-U{name}" for name in claimed]
        return [*undefined, *(f"-D{name}={value}" for name, value in claimed.items())]


@pytest.mark.parametrize("header", HEADERS)
def test_what_is_included(header):
    lines = re.findall(r"^\s*#\s*include\s*(.*?)\s*$", TEXTS[header], re.MULTILINE)
    folder = header.split("/")[1]
    allowed = FOREIGN if folder in KERNELS else FOREIGN | LAUNCHING
    for line in lines:
        name = re.fullmatch(r"<([\w./]+)>", line)
        assert name, f"{header} includes {line}: only <...> is hashed"
        if name[1].startswith("fusedops/"):
            assert name[1] in HEADERS, f"{header} includes {line}, which is not there"
        else:
            assert name[1] in allowed, f"{header} includes {line}"


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm", "cross_entropy"])
def test_calls_in_a_head_are_those_that_are_declared(name):
    """The arguments that a page's head writes for a dispatch are the parameters of an overload."""
    head, code = TEXTS[f"fusedops/{name}.cuh"].split("#pragma once")
    head = re.sub(r"\s*\n//\s*", " ", head)
    declared = set()
    for function, parameters in re.findall(
        r"\] detail::StatusOf<Where>\s+(dispatch_\w+)\(([^{]+)\) \{", code
    ):
        names = [re.sub(r" = .*", "", each).split()[-1] for each in parameters.split(",")]
        declared.add((function, *names))
    written = re.findall(r"(dispatch_\w+)<Compute>\(([^)]*)\)", head)
    assert len(written) >= 2
    for function, arguments in written:
        assert (function, *re.split(r",\s*", arguments)) in declared


def test_kernels_reach_nothing_that_launches():
    for name in sorted(LAUNCHING):
        assert not [h for h in reaches(name) if h.split("/")[1] in KERNELS], name


@pytest.mark.parametrize("header", TEXTS)
def test_what_stands_at_the_head(header):
    text = TEXTS[header]
    assert text.startswith("// SPDX-FileCopyrightText:")
    assert text.count("#pragma once") == 1
    macros = set(re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE))
    assert all(macro.startswith("FUSEDOPS_") for macro in macros)
    macros -= set(re.findall(r"^\s*#\s*undef\s+(\w+)", text, re.MULTILINE))
    assert not macros or header == "fusedops/core/config.cuh", (
        f"macros belong to config.cuh: {macros}"
    )
