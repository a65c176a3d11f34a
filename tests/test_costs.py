# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How tests are ordered for workers that take tests from one another."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from costs import SECONDS_ON_A_GPU, deal

LONG = [*SECONDS_ON_A_GPU][:5]


def items(short, long):
    """So many short tests, and some of each of a few long ones, as they might be collected."""
    names = [f"{name}[{at}]" for name in LONG for at in range(long)]
    names += [f"test_waves.py::test_short[{at}]" for at in range(short)]
    return [SimpleNamespace(nodeid=f"tests/{name}") for name in names]


@pytest.mark.parametrize(
    ("short", "long", "workers"), [(100, 6, 7), (1, 2, 3), (0, 1, 8), (9, 0, 2)]
)
def test_each_share_begins_with_its_long_tests(short, long, workers):
    given = items(short, long)
    dealt = deal(given, workers)
    assert sorted(map(id, dealt)) == sorted(map(id, given))
    few = [one for one in dealt if "short" in one.nodeid]
    assert few == given[len(LONG) * long :]
    begin = 0
    for worker in range(workers):  # the shares of pytest-xdist
        share = dealt[begin : begin + (len(dealt) - begin) // (workers - worker)]
        begin += len(share)
        of_share = ["short" not in one.nodeid for one in share]
        assert of_share == sorted(of_share, reverse=True)
        if short >= len(LONG) * long:
            assert abs(sum(of_share) - len(LONG) * long / workers) < 1


def test_the_longest_of_a_share_is_the_first():
    found = [one.nodeid.partition("[")[0] for one in deal(items(50, 2), 5)]
    assert found[:2] == [f"tests/{LONG[0]}", f"tests/{LONG[2]}"]


def test_all_of_them_are_there():
    for name in SECONDS_ON_A_GPU:
        file, *_, test = name.split("::")
        assert f"def {test}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), name
