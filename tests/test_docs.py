# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every code block of docs/: C++ becomes the header that it names, and Python is executed."""

import re
import shutil
from pathlib import Path

import pytest

from fusedops import functors
from fusedops.jit import env

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request):
    return request.param


def test_blocks(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    include = tmp_path / "include"
    for match in FENCED.finditer(text):
        language, block = match.groups()
        if language == "python":
            # Padded, so that a traceback shows the page's own line.
            lines = text[: match.start(2)].count("\n")
            exec(compile("\n" * lines + block, str(page), "exec"), {"__name__": page.stem})
        else:
            # Any other block would be one that nothing executes.
            assert language == "cpp"
            if not include.exists():
                shutil.copytree(env.include_dir(), include)
                monkeypatch.setattr(env, "include_dir", lambda: include)
            named = re.match(r"// include/(fusedops/\S+)\n", block)
            assert named, "a header's first line names it"
            (include / named[1]).write_text(block)


def test_links(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_every_functor_has_its_line():
    table = (ROOT / "docs" / "functors.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)\(.* \| `(\S+)` \|$", table, re.MULTILINE)
    known = [getattr(functors, name) for name in functors.__all__]
    assert sorted(listed) == sorted(
        (kind.__name__, kind.header)
        for kind in known
        if isinstance(kind, type) and issubclass(kind, functors.Functor) and hasattr(kind, "header")
    )


def test_the_thresholds_are_those_of_the_code():
    """A fact that a threshold rests on is written down for that threshold."""
    from fusedops import schedule

    text = (ROOT / "docs" / "measured-facts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+|more) \| (\d+) \|", text, re.MULTILINE)
    assert [(None if most == "more" else int(most), int(values)) for most, values in rows] == list(
        schedule.VALUES
    )
    assert f"blocks of {schedule.SMALL_BLOCK} threads" in text
