# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every code block of the README: Python is executed here, the two commands by .ci/run."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match[1], match[2], line, id=f"line{line}")
    for match in FENCED.finditer(README)
    for line in [README[: match.start(2)].count("\n")]  # Of the fence.
]

sys.path.append(str(ROOT / "benchmarks"))  # Last: its modules go by short names.

import figures  # noqa: E402
import pictures  # noqa: E402
from sheet import read  # noqa: E402

FIGURES = ROOT / "benchmarks" / "results" / "h200.csv"


def commands():
    """What .ci/run takes from the README."""
    listed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--list"], check=True, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


def execute(text, line):
    """What a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        # Padded, so that a traceback shows the README's own line.
        exec(compile("\n" * line + text, str(ROOT / "README.md"), "exec"), {"__name__": "readme"})
    return printed.getvalue()


@pytest.mark.parametrize(("language", "text", "line"), BLOCKS)
def test_block(language, text, line):
    if language == "python":
        execute(text, line)
    elif language == "text":
        # What the block before it prints.
        before = [block for block in BLOCKS if block.values[2] < line][-1]
        assert execute(*before.values[1:]).rstrip() == text.rstrip()
    else:
        # Any other block would be one that nothing executes.
        assert language == "sh"
        assert text.strip() in commands()


def test_two_commands():
    demo, tests = commands()
    assert demo.endswith("fusedops demo")
    assert tests.endswith("pytest -n auto")
    for command in (demo, tests):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_links():
    """Each file that the README points to exists."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_it_is_short():
    assert README.count("\n") <= 180
    assert len(README.split()) <= 1400


def test_the_table_of_jobs():
    """Its rows are those that errors quote: `python tests/readme.py` writes them."""
    assert readme.PLACE.search(README)[0] == readme.table()


def test_the_pictures_are_those_of_the_results():
    """`python benchmarks/pictures.py benchmarks/results/h200.csv` draws them."""
    drawn = {"bytes": pictures.bytes_picture(), "speed": pictures.speed_picture(read(FIGURES))}
    for name, picture in drawn.items():
        path = FIGURES.parent / "plots" / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == picture


def test_the_page_of_figures_is_that_of_the_results():
    """benchmarks/README.md has the command that makes it again."""
    drawn = figures.page(read(FIGURES), read(FIGURES.with_name("cpu-zen4.csv")))
    page = ROOT / "docs" / "explanation" / "figures.md"
    assert page.read_text(encoding="utf-8") == drawn


def test_the_bytes_are_those_that_were_measured():
    """The benchmark counts the fused op's bytes by itself, and divides them by its time."""
    (ours,) = [
        row
        for row in read(FIGURES)
        if (row["part"], row["case"], row["by"]) == ("flagship", pictures.CASE, "fusedops")
    ]
    counted = float(ours["TB/s"]) * float(ours["microseconds"]) * 1e6
    assert pictures.fused_bytes() == pytest.approx(counted, rel=0.005)


def test_the_figures_in_the_text():
    rows = read(FIGURES)
    kept = {
        row["by"]: float(row["bytes a row"])
        for row in rows
        if row["part"] == "memory" and row["case"].endswith("between forward and backward")
    }
    prose = " ".join(README.split())
    said = re.search(r"keeps (\d+) bytes a row .*?eager torch keeps (\d+)", prose)
    assert [float(number) for number in said.groups()] == [kept["fusedops"], kept["torch eager"]]
    notes = [
        row["note"]
        for row in rows
        if row["part"] == "models"
        and row["case"].startswith("pairs")
        and row["case"].endswith(": a step")
        and ("compiled" in row["by"] or row["by"].startswith("backend"))
    ]
    speeds = [float(re.search(r"([\d.]+) times torch.compile", note)[1]) for note in notes]
    said = re.search(r"has ([\d.]+) to ([\d.]+) times the speed of torch.compile", prose)
    assert [float(number) for number in said.groups()] == [min(speeds), max(speeds)]
