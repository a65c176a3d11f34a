# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which of two tilings a product has by the waves of their tiles, where a row names a rival."""

import json

import pytest
import torch
from products import HALF, HOPPER, OPS, forced
from test_product_kernels import chosen, chosen_between

import fusedops as fo
from fusedops.product.choice import features_of_sizes
from fusedops.schedule import lookup
from fusedops.schedule.architectures import GPUS, TILINGS
from fusedops.schedule.tuning_file import read
from fusedops.schedule.waves import LEAST_GAIN, LEAST_GAIN_OF_CUT_LINES, clocks, quicker

LARGE, SMALL = TILINGS["Together"], TILINGS["Together192"]
H200 = GPUS["sm_90"].multiprocessors


def features(rows, columns, depth, batches=1, **more):
    found = features_of_sizes(
        OPS["layer"].epilogue, (rows, columns, depth, batches), HALF, {}, HOPPER
    )
    return found._replace(**more)


@pytest.mark.parametrize(
    ("size", "large", "small"),
    [
        # Pairs of tiles down and across for 66 clusters, so that there are so many waves.
        ((10007, 3000, 1000), (40, 12, 8), (40, 16, 10)),
        ((2048, 3072, 4096), (8, 12, 2), (8, 16, 2)),
        ((16384, 1024, 1024), (64, 4, 4), (64, 6, 6)),
        ((256 * 66, 256, 64), (66, 1, 1), (66, 2, 2)),
        ((256 * 66 + 1, 256, 64), (67, 1, 2), (67, 2, 3)),
    ],
)
def test_a_wave_is_counted_whole(size, large, small):
    steps = -(-size[2] // 64)
    for tiling, (down, across, waves), step in ((LARGE, large, 1024), (SMALL, small, 768)):
        assert waves == -(-down * across // 66)
        between = clocks(tiling, features(*size), H200) / waves - steps * step
        assert 0 < between < 2 * 1024, "of the order of a step"


def test_tiles_in_turns_wait_once():
    """While a warpgroup hands its sums over, the other one multiplies."""
    turns = TILINGS["InTurns"]
    one, two, three = (
        clocks(turns, features(256 * count, 66 * 128, 1024), H200) for count in (1, 2, 3)
    )
    assert two - one == three - two == 16 * 512
    pause = clocks(LARGE, features(256, 66 * 256, 1024), H200) - 16 * 1024
    assert one - 16 * 512 == pause > 0


def test_the_rival_is_taken_where_it_saves_enough():
    for size in ((2048, 3072, 4096), (4096, 1536, 1024), (10007, 3000, 1024)):
        told = features(*size)
        gain = 100 - 100 * clocks(SMALL, told, H200) / clocks(LARGE, told, H200)
        assert gain >= LEAST_GAIN
        assert quicker(LARGE, SMALL, told, H200) is SMALL
    cut = features(10007, 3000, 1000)
    assert clocks(SMALL, cut, H200) == clocks(SMALL, told, H200)
    assert quicker(LARGE, SMALL, cut, H200) is LARGE, "rows that are no whole cache lines"
    cut = features(2048, 3072, 4000)
    gain = 100 - 100 * clocks(SMALL, cut, H200) / clocks(LARGE, cut, H200)
    assert gain >= LEAST_GAIN_OF_CUT_LINES
    assert quicker(LARGE, SMALL, cut, H200) is SMALL
    level = features(9000, 3072, 1024)
    gain = 100 - 100 * clocks(SMALL, level, H200) / clocks(LARGE, level, H200)
    assert 0 < gain < LEAST_GAIN
    for told in (level, features(16384, 1024, 1024), features(2048, 200, 4096)):
        assert quicker(LARGE, SMALL, told, H200) is LARGE
    told = features(2048, 3072, 4096)
    assert quicker(LARGE, SMALL, told, H200 // 2) is LARGE, "fewer multiprocessors, other waves"
    for more in ({"gradient": True}, {"grouped": True}, {"masked": True}):
        assert quicker(LARGE, SMALL, told._replace(**more), H200) is LARGE


@pytest.fixture
def with_rival(monkeypatch):
    """The package's file, of which each row for Together names a rival."""
    content = json.loads((lookup.FOLDER / "sm_90.json").read_text(encoding="utf-8"))
    for row in content["product"]:
        if row["set"]["implementation"] == "Together":
            row["set"]["rival"] = "Together192"
    file = read(json.dumps(content), "sm_90.json", total=True)
    monkeypatch.setattr(lookup, "builtin", lambda arch: file)
    lookup.forget()
    yield
    lookup.forget()


SIZES = (2048, 3072, 1024)


def test_a_row_of_the_package_names_one():
    assert chosen(OPS["layer"], *SIZES, b=(3072,))[0] == "Together192"


def test_a_row_that_names_one(with_rival):
    name, why = chosen(OPS["layer"], *SIZES, b=(3072,))
    assert name == "Together192"
    assert "Together192 in place of Together, since its waves take less time" in why
    assert "docs/explanation/products.md" in why
    assert chosen(OPS["layer"], 16384, 1024, 1024, b=(1024,))[0] == "Together"
    with forced("Together"):
        assert chosen(OPS["layer"], *SIZES, b=(3072,))[0] == "Together"
    known = {"columns": 3072, "depth": 1024, "dtype": "float16"}
    assert "Together192" in lookup.product_implementations("sm_90", HOPPER.gpu, **known)


def test_a_gradient_keeps_its_tiling(with_rival):
    """Whose tiles a lane adds up by columns, of which it has one."""
    op = fo.MLP(hidden=[fo.Bias("b1")])
    rows, columns, depth = SIZES
    own = {"b1": torch.empty(columns, dtype=HALF, device="meta")}
    assert chosen_between(op, rows, depth, columns, **own)[0] == "Together"
    with forced("Together192"):
        name, why = chosen_between(op, rows, depth, columns, **own)
    assert name is None
    assert "Together192 has no gradient" in why
