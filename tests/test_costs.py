# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""How tests are ordered for workers that take tests from one another."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from costs import SECONDS_ON_A_GPU, TOGETHER, deal, seconds_on_a_gpu

LONG = [name for name in SECONDS_ON_A_GPU if name not in TOGETHER][:5]


def items(short, long, names=LONG):
    """So many short tests, and some of each of a few long ones, as they might be collected."""
    every = [f"{name}[{at}]" for name in names for at in range(long)]
    every += [f"test_waves.py::test_short[{at}]" for at in range(short)]
    return [SimpleNamespace(nodeid=f"tests/{name}") for name in every]


def shares(dealt, workers):
    """What each worker of pytest-xdist begins with."""
    for worker in range(workers):
        size = len(dealt) // (workers - worker)
        yield dealt[:size]
        dealt = dealt[size:]


@pytest.mark.parametrize(("short", "long", "workers"), [(100, 6, 7), (60, 3, 4), (9, 0, 2)])
def test_each_share_begins_with_its_long_tests(short, long, workers):
    given = items(short, long)
    dealt = deal(given, workers)
    assert sorted(map(id, dealt)) == sorted(map(id, given))
    assert [one for one in dealt if "short" in one.nodeid] == given[len(LONG) * long :]
    sums = []
    for share in shares(dealt, workers):
        seconds = [seconds_on_a_gpu(one) for one in share]
        assert seconds == sorted(seconds, reverse=True)
        sums.append(sum(seconds))
    assert max(sums) - min(sums) <= max(map(seconds_on_a_gpu, given))


@pytest.mark.parametrize("name", TOGETHER)
def test_neighbours_stay_together(name):
    size = TOGETHER[name]
    given = items(200, 3 * size, [name])
    found = []
    for share in shares(deal(given, 10), 10):
        places = [given.index(one) for one in share if seconds_on_a_gpu(one)]
        begin = places[0] if places else 0
        assert places == [*range(begin, begin + len(places))]
        found.append((begin, len(places)))
    assert sorted(found)[7:] == [(0, size), (size, size), (2 * size, size)]


def test_nothing_is_lost_where_there_are_few_tests():
    for short, long, workers in ((1, 2, 3), (0, 1, 8), (3, 0, 8)):
        given = items(short, long)
        assert sorted(map(id, deal(given, workers))) == sorted(map(id, given))


def test_all_of_them_are_there():
    for name in {**SECONDS_ON_A_GPU, **TOGETHER}:
        file, *_, test = name.split("::")
        assert f"def {test}(" in (Path(__file__).parent / file).read_text(encoding="utf-8"), name
