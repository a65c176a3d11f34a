# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which points of a grid of tests are in the default run: a pytest plugin of `conftest.py`.

A test with several parameters is run at every combination of their values. The default run keeps as
many of these as it takes for every value of every parameter to occur; the others are marked
`thorough`. So a value that is added to a grid is in the default run without a word.
"""

from __future__ import annotations

from collections import defaultdict

import pytest


def values(item: pytest.Function) -> set[tuple[str, int]]:
    """Each parameter with its value, which is the same object at all points of a grid."""
    return {(name, id(value)) for name, value in item.callspec.params.items()}


def covering(items: list[pytest.Function]) -> list[pytest.Function]:
    """Few of the items, chosen greedily, in which every value of every parameter occurs."""
    chosen = []
    left = set().union(*map(values, items))
    while left:
        best = max(items, key=lambda item: len(left & values(item)))
        chosen.append(best)
        left -= values(best)
    return chosen


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items):
    grids = defaultdict(list)
    for item in items:
        marked = item.get_closest_marker("gpu") or item.get_closest_marker("thorough")
        if hasattr(item, "callspec") and not marked:
            grids[item.parent, item.originalname].append(item)
    for grid in grids.values():
        kept = {*covering(grid)}
        for item in grid:
            if item not in kept:
                item.add_marker(pytest.mark.thorough)
