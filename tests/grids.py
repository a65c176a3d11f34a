# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which points of a grid of tests run when: a pytest plugin of `conftest.py`.

A test with several parameters is collected at every combination of their values. The default run
keeps as many of these as it takes for every value of every parameter to occur; the others are
marked `thorough`. CI keeps as many as it takes for every pair of values to occur (pairwise
testing); the others are marked `exhaustive` too. So a value that is added to a grid is in both
without a word. Of a test marked `grid(strength=1)` CI keeps no more points than it takes for every
value to occur: what is compiled and hardly computed, and groups of processes, where pairs cost
minutes. A test that needs a GPU has neither mark from here: there all points run.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest


def combinations(item: pytest.Function, strength: int) -> set[tuple[tuple[str, int], ...]]:
    """The combinations of values at a point; a value is the same object at all points of a grid."""
    values = sorted((name, id(value)) for name, value in item.callspec.params.items())
    return {*itertools.combinations(values, min(strength, len(values)))}


def cover(found):
    """Few of the keys, chosen greedily, whose sets have all that any of them has."""
    chosen = []
    left = set().union(*found.values())
    while left:
        best = max(found, key=lambda one: len(left & found[one]))
        chosen.append(best)
        left -= found[best]
    return chosen


def covering(items: list[pytest.Function], strength: int) -> set[pytest.Function]:
    """Few of the items, in which all combinations of so many values occur."""
    return {*cover({item: combinations(item, strength) for item in items})}


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items):
    grids = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("gpu"):
            grids[item.parent, item.originalname].append(item)
    for grid in grids.values():
        given = grid[0].get_closest_marker("grid")
        in_ci = covering(grid, given.kwargs["strength"] if given else 2)
        quick = [item for item in grid if not item.get_closest_marker("thorough")]
        values = covering(quick, 1) if quick else set()
        for item in grid:
            if item in values:
                continue
            item.add_marker(pytest.mark.thorough)
            if item not in in_ci:
                item.add_marker(pytest.mark.exhaustive)
