# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every code block of the README: Python is executed here, the two commands by .ci/run."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(match[1], match[2], line, id=f"line{line}")
    for match in FENCED.finditer(README)
    for line in [README[: match.start(2)].count("\n")]  # Of the fence.
]


def commands():
    """What .ci/run takes from the README."""
    listed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--list"], check=True, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


@pytest.mark.parametrize(("language", "text", "line"), BLOCKS)
def test_block(language, text, line):
    if language == "python":
        # Padded, so that a traceback shows the README's own line.
        exec(compile("\n" * line + text, str(ROOT / "README.md"), "exec"), {"__name__": "readme"})
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
