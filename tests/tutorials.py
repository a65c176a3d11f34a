# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Run the tutorials top to bottom, and write what they print and draw into docs/tutorials.

    python tests/tutorials.py [PAGE ...]    # a page by its name, gemm-epilogue say; all by default

A page is run in a folder of its own. Its blocks share their names, as in one notebook:

- ``python`` is executed, and ``sh`` is run by bash;
- ``cpp`` and ``cmake`` are written to the file that their first line names in a comment, and a .cu
  file is compiled by nvcc;
- ``text`` right after a block is what that block prints;
- a picture that the page shows is a file that one of its blocks wrote.

`tests/test_tutorials.py` runs the pages and compares.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from cpptest import find_nvcc
from cpptest import run as compiler_run

from fusedops.jit import env

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
#: The pages that are run; the index has no code.
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")

FENCED = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\n```text\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?://|#) (\S+)\n")
DRAWN = re.compile(r"!\[[^\]]*\]\(([^):]+)\)")

#: What may differ from one run to the next, or from one machine to the next.
VARIES = [
    (re.compile(r"\d+(?:\.\d+)?(?= ?(?:s|ms|us|times as fast)\b)"), "T"),
    (re.compile(r"worst \d.*"), "worst ..."),
]
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?|-?\d+e[+-]\d+")


@dataclasses.dataclass
class Run:
    """What a page has become by running it.

    Attributes:
        text: The page with the outputs of this run.
        shown: The outputs on the page and those of this run, and the line of the page.
        drawn: The content of each picture that the page shows, by its name.
    """

    text: str
    shown: list[tuple[int, str, str]]
    drawn: dict[str, bytes]


def run(page: Path) -> Run:
    """Execute the blocks of a page in a fresh folder.

    Raises:
        AssertionError: A block is of no known kind, or a program failed.
    """
    text = page.read_text(encoding="utf-8")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            return _run(page, text, Path(name))
        finally:
            os.chdir(before)


def _run(page: Path, text: str, folder: Path) -> Run:
    space: dict[str, object] = {"__name__": page.stem}
    torch.manual_seed(0)
    pieces, shown = [], []
    end = 0
    for match in FENCED.finditer(text):
        if match.start() < end:  # an output, replaced already
            continue
        line = text[: match.start(2)].count("\n")
        printed = _execute(page, match[1], match[2], line, space, folder)
        pieces.append(text[end : match.end()])
        end = match.end()
        there = OUTPUT.match(text, end)
        if there:
            end = there.end()
        if printed is None:
            assert not there, f"{page.name}:{line}: a file prints nothing"
            continue
        shown.append((line, there[1] if there else "", printed))
        pieces.append(f"\n```text\n{printed}```\n" if printed else "")
    drawn = {
        one: (folder / one).read_bytes() for one in DRAWN.findall(text) if (folder / one).exists()
    }
    missing = {one for one in DRAWN.findall(text) if "/" not in one} - drawn.keys()
    assert not missing, f"{page.name}: no block drew {missing}"
    return Run("".join([*pieces, text[end:]]), shown, drawn)


def _execute(
    page: Path, language: str, block: str, line: int, space: dict[str, object], folder: Path
) -> str | None:
    """Run a block, or write it to its file; what it printed, None of a file."""
    if language == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Padded, so that a traceback shows the page's own line.
            exec(compile("\n" * line + block, str(page), "exec"), space)
        return _tidy(printed.getvalue(), folder)
    if language == "sh":
        # The programs of this environment come first, as in one that is activated.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            env={**os.environ, "PATH": path, "CMAKE_GENERATOR": "Ninja"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}:{line}: {done.stdout}"
        return _tidy(done.stdout, folder)
    named = NAMED.match(block)
    assert language in ("cpp", "cmake"), f"{page.name}:{line}: a block of {language!r}"
    assert named, f"{page.name}:{line}: a comment in the first line names the file"
    (folder / named[1]).write_text(block, encoding="utf-8")
    if named[1].endswith(".cu"):
        # As far as PTX, hardly optimized: this is about what is accepted.
        flags = ["-std=c++17", "-Werror", "all-warnings", "-arch=sm_90", "-ptx", "-Xcicc", "-O0"]
        output = ["-o", folder / "out.ptx"]
        compiler_run([find_nvcc(), *flags, f"-I{env.include_dir()}", folder / named[1], *output])
    return None


def _tidy(printed: str, folder: Path) -> str:
    """Output as a page shows it: no spaces at the ends of lines, no names of folders."""
    lines = printed.replace(str(folder.resolve()), ".").replace(str(folder), ".").splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def same(shown: str, printed: str) -> bool:
    """Whether an output says what the page shows.

    Timings, and which comparison of `check` is the worst, may differ. Numbers with decimals may
    differ by a hundredth, or by two in the last place, since processors add in different orders;
    whole numbers may not.
    """
    for pattern, word in VARIES:
        shown, printed = pattern.sub(word, shown), pattern.sub(word, printed)
    if NUMBER.sub("N", shown).split() != NUMBER.sub("N", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.01 * abs(float(a)) + 2 * _unit(a) for a, b in pairs)


def _unit(number: str) -> float:
    """One in the last place of a number as it is written."""
    digits, _, exponent = number.partition("e")
    return float(f"1e{int(exponent or 0) - len(digits.partition('.')[2])}")


def main(names: list[str]) -> None:
    """Run pages and write what has changed of their outputs and pictures."""
    for page in PAGES:
        if names and page.stem not in names:
            continue
        told = run(page)
        if not all(same(shown, printed) for _, shown, printed in told.shown):
            page.write_text(told.text, encoding="utf-8")
            print(f"{page.name}: outputs written")
        for name, content in told.drawn.items():
            if not (FOLDER / name).exists() or (FOLDER / name).read_bytes() != content:
                (FOLDER / name).write_bytes(content)
                print(f"{page.name}: {name} drawn")


if __name__ == "__main__":
    main(sys.argv[1:])
