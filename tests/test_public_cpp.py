# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the reference of C++ calls public is there, and its example of a functor is right."""

import re
import subprocess

import pytest
from cpptest import compiler, run
from test_docs import DOCS

from fusedops.jit import env

PAGE = (DOCS / "reference" / "cpp.md").read_text(encoding="utf-8")
PUBLIC = PAGE[PAGE.index("## What is public") :].split("\n## ")[0]
HEADERS = [
    header
    for header in re.findall(r"^\| `(fusedops/[\w/]+\.cuh)` \|", PAGE, re.MULTILINE)
    if "cutlass" not in header
]

#: Of the first column of the tables.
LISTED = re.findall(
    r"`(\w+)`",
    "".join(re.findall(r"^\| ([^|]+) \|", PUBLIC, re.MULTILINE)).replace("oneflow::", ""),
)
MACROS = [name for name in LISTED if name.startswith("FUSEDOPS_")]
#: What the second table of macros has for a user to define.
TO_DEFINE = re.findall(r"^\| `(\w+)` \| yours to define", PUBLIC, re.MULTILINE)
NAMESPACES = {"pointwise"}
ELSEWHERE = {"cuda", "Sm90Functors"}


def test_there_are_names():
    assert len(LISTED) > 60
    assert len(HEADERS) == 9
    assert TO_DEFINE == ["FUSEDOPS_OPENMP_SIMD", "FUSEDOPS_CUDA_TYPES"]


def test_each_is_there(tmp_path):
    names = [name for name in LISTED if name not in MACROS and name not in ELSEWHERE]
    dispatches = [name for name in names if name.startswith("dispatch_")]
    gradients = [f"{n}_gradient" for n in dispatches if not n.endswith("_gradient")]
    lines = [f"#include <{header}>" for header in HEADERS]
    for name in dict.fromkeys([*names, *gradients]):
        kind = "namespace one = " if name in NAMESPACES else "using "
        lines.append(f"namespace of_{name} {{ {kind}fusedops::{name}; }}")
    lines.append("namespace of_oneflow = oneflow::cuda;")
    for macro in MACROS:
        wrong = "#if" + "n" * (macro not in TO_DEFINE) + "def"
        lines += [f"{wrong} {macro}", f"#error {macro}", "#endif"]
    source = tmp_path / "names.cpp"
    source.write_text("\n".join(lines) + "\n")
    run([compiler(), "-std=c++17", "-fsyntax-only", f"-I{env.include_dir()}", source])


def test_functors_of_the_list_are_there(tmp_path):
    """What the head of functors.cuh lists, and no function of it that is not listed."""
    text = (env.include_dir() / "fusedops/functors.cuh").read_text(encoding="utf-8")
    head, code = text.split("#pragma once")
    listed = set(re.findall(r"\b([a-z_]+)(?:<[\w, ]+>)?\(", head))
    code = re.sub(r"namespace detail \{.*?\}  // namespace detail", "", code, flags=re.DOTALL)
    made = set(re.findall(r"^FUSEDOPS_HD [\w:<>, ]+? (\w+)\(", code, re.MULTILINE))
    made |= set(re.findall(r"^    ?(\w+)\($", code, re.MULTILINE))
    assert made <= listed


MAIN = """
#include <cmath>
#include <cstdio>
double swish(double v) { return v / (1 + std::exp(-1.5 * v)); }
int main() {
  float x[4] = {-3, -0.5, 1, 4}, y[4], dy[4] = {1, -2, 0.5, 3}, dx[4];
  half hx[4], hy[4], one[4] = {1, 1, 1, 1};
  for (int i = 0; i < 4; ++i) hx[i] = half(x[i]);
  if (norm(Threads{1}, hx, one, hy, 1, 4) != Status::kSuccess) return 1;
  const auto in = load(direct(x, 4), Swish{1.5f});
  if (dispatch_softmax<float>(Threads{1}, in, store(direct(y, 4)), 1, few_cols<>(4)) !=
      Status::kSuccess) return 2;
  double rms = 0, sum = 0, dot = 0;
  for (float v : x) rms += v * v / 4, sum += std::exp(swish(v));
  for (int i = 0; i < 4; ++i) {
    if (std::fabs(double(float(hy[i])) - swish(x[i] / std::sqrt(rms + 1e-5))) > 2e-3) return 3;
    if (std::fabs(y[i] - std::exp(swish(x[i])) / sum) > 1e-6) return 4;
  }
  float space[2];
  if (dispatch_softmax<float>(Threads{1}, in, store(direct(y, 4)), 1, few_cols<>(4), space) !=
      Status::kSuccess) return 5;
  if (dispatch_softmax_gradient<float>(Threads{1}, in, store(Absent{}), space, direct(dy, 4),
                                       direct(dx, 4), gradients(), nullptr, 0, 1, few_cols<>(4)) !=
      Status::kSuccess) return 6;
  for (int i = 0; i < 4; ++i) dot += double(dy[i]) * y[i];
  for (int i = 0; i < 4; ++i) {
    const double h = 1e-5, slope = (swish(x[i] + h) - swish(x[i] - h)) / (2 * h);
    if (std::fabs(dx[i] - y[i] * (dy[i] - dot) * slope) > 1e-5) return 7;
  }
  std::puts("right");
}
"""


@pytest.mark.thorough
def test_the_functor(tmp_path):
    block = re.search(r"^```cpp\n(// swish\.cu.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    source, program = tmp_path / "swish.cpp", tmp_path / "swish"
    source.write_text(
        block.replace(
            "#include <fusedops/rms", "#include <fusedops/softmax.cuh>\n#include <fusedops/rms"
        )
        + MAIN
    )
    flags = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-pthread", f"-I{env.include_dir()}")
    run([compiler(), *flags, source, "-o", program])
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "right\n")
