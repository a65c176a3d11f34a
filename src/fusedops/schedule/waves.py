# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Which of two tilings of a product takes less time, by the waves of their tiles.

docs/explanation/products.md says what waves are, and why a full last one is worth smaller tiles.
"""

from __future__ import annotations

from fusedops.schedule.architectures import ProductTiling
from fusedops.schedule.features import ProductFeatures

__all__ = ["clocks", "quicker"]

#: What the tensor cores of a multiprocessor multiply and add in a clock, of 16 bits, on sm_90.
PRODUCTS = 2048

#: Clocks of a tile in which these wait: its sums are handed over, and a first stage has to come. A
#: bias and a GELU take 187 us in 4 waves of 64 steps (16384 x 1024 x 4096), and 200 us in 16 of 16
#: (16384 x 4096 x 1024, benchmarks/log/2026-11-26.md), so a tile takes 1.5 steps beside its own.
#: Of tiles in turns a warpgroup multiplies one while the other hands its own over: they wait once.
BETWEEN_TILES = 1500

#: What a tiling has to save, in percent, to be chosen in place of the one that was measured; and
#: where rows of a factor are no whole cache lines. Their copies read lines twice, and smaller tiles
#: copy more: 4 to 10 percent longer than the model says (benchmarks/log/2026-11-29.md, entry 59).
LEAST_GAIN, LEAST_GAIN_OF_CUT_LINES = 3, 12


def clocks(tiling: ProductTiling, features: ProductFeatures, multiprocessors: int) -> int:
    """The clocks of a product, if no stage is waited for and all functors are hidden."""
    tall = -(-features.rows // (tiling.cluster * tiling.rows))
    tiles = features.batches * tall * -(-features.columns // tiling.cols)
    waves = -(-tiles // max(1, multiprocessors // tiling.cluster))
    steps = -(-features.depth // tiling.stage_columns)
    step = tiling.rows * tiling.cols * tiling.stage_columns // PRODUCTS
    pauses = 1 if tiling.in_turns else waves
    return waves * steps * step + pauses * BETWEEN_TILES


def quicker(
    first: ProductTiling, rival: ProductTiling, features: ProductFeatures, multiprocessors: int
) -> ProductTiling:
    """The rival, if it runs such a product and saves enough, or else the first one."""
    if features.masked or ((features.grouped or features.gradient) and not rival.one_column):
        return first  # of masked products some tiles take no time
    if not all(one.covers(features.rows, features.columns) for one in (first, rival)):
        return first
    before, after = (clocks(one, features, multiprocessors) for one in (first, rival))
    cut = features.depth % first.stage_columns  # a stage has one line of a row
    least = LEAST_GAIN_OF_CUT_LINES if cut else LEAST_GAIN
    return rival if 100 * after <= (100 - least) * before else first
