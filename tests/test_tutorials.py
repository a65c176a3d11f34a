# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Each tutorial runs from top to bottom, and prints and draws what its page shows."""

import pytest
import tutorials
from test_cmake import installed


@pytest.mark.thorough
@pytest.mark.parametrize("page", tutorials.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_it_does(page):
    if "cmake -S" in page.read_text(encoding="utf-8"):
        installed("cmake")
    told = tutorials.run(page)
    for line, shown, printed in told.shown:
        assert tutorials.same(shown, printed), (
            f"{page.name}:{line}: prints\n{printed}\nand the page shows\n{shown}\n"
            "If that is right: python tests/tutorials.py"
        )
    for name, content in told.drawn.items():
        assert (tutorials.FOLDER / name).read_bytes() == content, f"{name} is out of date"


def test_what_may_differ():
    assert tutorials.same("loss 0.4310\n", "loss 0.4311\n")
    assert tutorials.same("took 12 ms, 3.1 times as fast", "took 9.5 ms, 2.8 times as fast")
    assert not tutorials.same("42 comparisons", "43 comparisons")
    assert tutorials.same("loss 0.02", "loss 0.03")
    assert not tutorials.same("loss 0.43", "loss 0.46")
    assert not tutorials.same("True", "False")
