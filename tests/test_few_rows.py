# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products of few rows in one kernel, whose blocks share K: code, sizes, and values on a GPU."""

import dataclasses
import itertools

import pytest
import torch
from cases import randn, same_bits, thorough_points
from products import (
    HALF,
    HIDDEN,
    HOPPER,
    OFFSET,
    SCORES,
    SEED,
    STORES,
    allowed,
    apart,
    call,
    check_resources,
    forced,
    given,
    needs_hopper,
)

import fusedops as fo
from fusedops.generate.views import STORAGE
from fusedops.plan.planner import plan
from fusedops.product import choice as choices
from fusedops.product import product_backward
from fusedops.product.product_kernel import Product
from fusedops.schedule.architectures import TILINGS
from fusedops.testing import check, last_schedule

FEW = TILINGS["FewRows"]
HALVES = [HALF, torch.bfloat16]
SEEDED = {"generator": (SEED, OFFSET)}
SPLIT = (4096, 4096)  # columns and depth, of which two blocks share a tile
LAYERS = {name: fo.Linear(store) for name, store in STORES.items()}
#: What follows the product of two matrices, of which the second one may lie either way.
MATRICES = fo.Matmul([fo.Scale("s"), fo.Residual("b"), fo.Causal()])


def described(op, tensors, tiling, **options):
    """The one kernel of a call on a device that need not be there, or None."""
    (x, other), operands = apart(op, tensors)
    op, w = op.that_adds(other, operands), op.turned(other)
    bound = choices.bind_store(op.epilogue, x, w, {**operands, **options})
    return plan(Product(bound, x, w, dataclasses.replace(tiling, dtype=STORAGE[x.dtype])), HOPPER)


@pytest.mark.parametrize(
    ("store", "rows", "size", "dtype"),
    [
        ("gelu", 16, SPLIT, HALF),
        *thorough_points(
            ("saving", 128, (14336, 4096), torch.bfloat16),
            ("tap", 64, (2048, 4096), HALF),
            ("dropout", 128, (1024, 4096), HALF),
            ("keys", 16, SPLIT, torch.bfloat16),
            ("values", 128, SPLIT, HALF),
            ("saving", 32, SPLIT, HALF),
            ("tap", 192, SPLIT, torch.bfloat16),  # two tiles of 96 rows
            ("values", 96, (14336, 4096), HALF),  # 112 columns
            ("tap", 192, (14336, 4096), HALF),
            ("saving", 255, (14336, 4096), torch.bfloat16),
        ),
    ],
)
def test_registers_do_not_spill_and_products_are_not_serialized(store, rows, size, dtype):
    columns, depth = size
    if store in STORES:
        op, sizes = LAYERS[store], {"rows": (rows,), "n": 264, "k": 200}
    else:
        op, sizes = MATRICES, {"layout": store, "pair": ((rows, 200), (200, 264))}
    tiling = FEW.fitted(rows, columns, depth, HOPPER.multiprocessors)
    (variant,) = described(op, given(op, dtype, **sizes), tiling).variants
    assert ("kMN" in variant.source) == (store == "values")
    check_resources(variant)


class TestSizes:
    @pytest.mark.parametrize(
        ("columns", "depth", "split"),
        [
            (4096, 4096, 2),
            (4096, 14336, 2),
            (14336, 4096, 1),
            (2048, 8192, 2),  # not all multiprocessors can be in clusters of four
            (1024, 4096, 4),
            (256, 4096, 8),
            (8, 128, 2),  # no block without a stage
            (8, 8, 1),
        ],
    )
    def test_how_k_is_split_does_not_follow_from_the_rows(self, columns, depth, split):
        for rows in (1, 16, 17, 128, 1000):
            tiling = FEW.fitted(rows, columns, depth, 132)
            assert (1 if tiling.shares else tiling.cluster) == split
            assert tiling.grid(rows, columns, 132) % split == 0

    def test_columns_are_numbers_of_32_bits(self):
        x, w = (torch.empty(n, 8, dtype=HALF, device="meta") for n in (16, 2**31))
        with forced("FewRows"):
            choice = choices.chosen(LAYERS["gelu"].epilogue, x, w, {}, HOPPER)
        assert choice.tiling is None
        assert "counts from 1" in choice.why

    def test_tiles_hold_the_rows_and_have_as_many_each(self):
        """Of a tile the copies fill in as few rows as can be, none where one tile has all."""
        sizes = {(1, 4096): (16, 1), (17, 4096): (32, 17), (65, 4096): (96, 65)}
        sizes |= {(192, 4096): (192, 192), (192, 2048): (96, 96)}
        sizes |= {(255, 4096): (128, 128), (255, 14336): (256, 255)}
        for (rows, columns), tile in sizes.items():
            tiling = FEW.fitted(rows, columns, 4096, 132)
            assert (tiling.rows, tiling.tall) == tile
            assert tiling.boxes[0] * (2 if tiling.shares else 1) in range(tiling.tall, tile[0] + 1)
        assert not FEW.fitted(0, 4096, 4096, 132).covers(0, 4096)
        for rows, columns in itertools.product(range(1, 700), (264, 2048, 4096, 5120, 14336)):
            tiling = FEW.fitted(rows, columns, 4096, 132)
            across = -(-rows // tiling.rows)  # as `part_of` in few_rows.cuh counts them
            assert tiling.tall == -(-rows // across) <= min(tiling.rows, 256)
            assert 0 <= across * tiling.tall - rows < across

    def test_blocks_that_share_x_copy_whole_eights_of_rows(self):
        """Where the pattern of the swizzle begins; together they bring all rows of the tile."""
        for rows in range(129, 257):
            tiling = FEW.fitted(rows, 14336, 4096, 132)
            assert tiling.shares
            assert tiling.boxes[0] % 8 == 0
            assert tiling.tall <= 2 * tiling.boxes[0] <= tiling.rows
        odd = FEW.fitted(256, 14224, 4096, 132)  # of 127 tiles
        assert (odd.cols, odd.grid(256, 14224, 132)) == (112, 128)

    def test_all_tiles_fit_a_multiprocessor(self):
        """The sums of all warpgroups take the place of the stages, of which there are several."""
        for rows, columns in itertools.product(range(1, 700), (264, 2048, 4096, 5120, 14336)):
            tiling = FEW.fitted(rows, columns, 4096, 132)
            warpgroups = (tiling.threads - 32) // 128
            sums = warpgroups * tiling.rows * 68 * 4
            assert sums <= tiling.stages * tiling.stage_bytes
            assert tiling.shared_bytes <= HOPPER.gpu.shared_limit
            assert tiling.stages >= 4

    def test_a_multiprocessor_holds_two_blocks_where_there_are_more(self):
        for rows, columns in ((16, 4096), (16, 14336), (64, 14336), (64, 4096)):
            tiling = FEW.fitted(rows, columns, 4096, 132)
            fits = 2 * (tiling.shared_bytes + 1024) <= 228 * 1024
            assert fits is not (rows == 64 and tiling.grid(rows, columns, 132) <= 132)

    def test_about_as_many_blocks_as_multiprocessors(self):
        """With few rows two a multiprocessor, where memory alone is the limit."""
        sizes = {(16, 4096): 128, (128, 4096): 128, (256, 4096): 128, (128, 8192): 128}
        for size, blocks in (sizes | {(128, 14336): 128, (16, 14336): 224}).items():
            assert FEW.fitted(*size, 4096, 132).grid(*size, 132) == blocks

    def test_one_matrix_alone(self):
        """Of many products there is none, nor of a gradient."""
        op = fo.Matmul(SCORES["scores"])
        tensors = given(op, HALF, pair=((2, 13, 64), (2, 64, 256)))
        assert described(op, tensors, FEW) is None
        block = fo.MLP(HIDDEN["gelu"])
        dy, w = (randn(*size, dtype=HALF) for size in ((16, 64), (64, 256)))
        with forced("FewRows"):
            found = product_backward.chosen(
                block.epilogues[0], dy, w, {"b1": randn(256, dtype=HALF)}, HOPPER
            )
        assert found.tiling is None
        assert "FewRows has no gradient" in found.why


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.fixture(autouse=True)
    def hopper(self):
        needs_hopper()

    @pytest.mark.parametrize("dtype", HALVES, ids=str)
    @pytest.mark.parametrize("store", [*STORES, "keys", "values"])
    def test_against_float64(self, store, dtype):
        """Ragged sizes, fewer rows than a tile and several tiles, parts of K of unequal length."""
        for rows, n, k in (
            (1, 8, 8),
            (13, 264, 200),
            (50, 1000, 1032),
            (33, 520, 4096),
            (70, 14336, 136),
            (130, 520, 4096),
            (161, 14336, 136),
            (120, 8200, 136),
        ):
            if store in STORES:
                op = LAYERS[store]
                tensors = given(op, dtype, "cuda", rows=(rows,), n=n, k=k)
            else:
                op = MATRICES
                tensors = given(op, dtype, "cuda", store, pair=((rows, k), (k, n)))
            truth, bounds = allowed(op, tensors)
            with forced("FewRows"), torch.no_grad():
                found = call(op, tensors, **SEEDED)
                assert last_schedule() == "FewRows"
                again = call(op, tensors, **SEEDED)
            for got, once_more, want, bound in zip(found, again, truth, bounds, strict=True):
                assert torch.equal(got.isinf(), want.isinf())
                finite = want.isfinite()
                worst = ((got.double() - want).abs() / bound)[finite].amax()
                assert worst <= 1, (rows, n, k, worst)  # False for NaN
                assert same_bits(got, once_more)

    def test_rows_have_the_same_bits_in_each_batch(self):
        op = LAYERS["gelu"]
        for n, k in (SPLIT, (1000, 1032), (8200, 520), (14336, 264)):
            tensors = given(op, HALF, "cuda", rows=(300,), n=n, k=k)
            with forced("FewRows"), torch.no_grad():
                (whole,) = call(op, tensors)
                for rows in (1, 16, 17, 31, 32, 33, 64, 65, 95, 97, 128, 129, 192, 193, 255, 256):
                    (part,) = call(op, tensors | {"x": tensors["x"][:rows]})
                    assert same_bits(part, whole[:rows]), rows

    @pytest.mark.parametrize("rows", [1, 16, 64, 200])
    def test_chains_on_several_streams(self, rows):
        """A kernel may begin before the one that writes its x has ended."""
        op = LAYERS["gelu"]
        up = given(op, HALF, "cuda", rows=(rows,), n=1024, k=4096)
        down = given(op, HALF, "cuda", rows=(rows,), n=4096, k=1024)
        streams, found = [torch.cuda.Stream() for _ in range(3)], []
        with forced("FewRows"), torch.no_grad():
            want = call(op, down | {"x": call(op, up)[0]})[0]
            torch.cuda.synchronize()
            for i in range(30):
                with torch.cuda.stream(streams[i % 3]):
                    found.append(call(op, down | {"x": call(op, up)[0]})[0])
            torch.cuda.synchronize()
        assert all(same_bits(one, want) for one in found)

    def test_nan_stays_in_its_row(self):
        op = LAYERS["gelu"]
        tensors = given(op, HALF, "cuda", rows=(16,), n=264, k=1032)
        tensors["x"][3, 5] = torch.nan
        with forced("FewRows"), torch.no_grad():
            (y,) = call(op, tensors)
        wrong = y.isnan().all(1)
        assert wrong.nonzero().flatten().tolist() == [3]
        assert not y[~wrong].isnan().any()

    @pytest.mark.parametrize("rows", [3, 17, 33, 65, 100, 131, 250])
    def test_what_lies_beside_the_rows_changes_none(self, rows):
        """Memory of a tile that no copy fills holds NaN there, which the kernel before has left."""
        op = LAYERS["gelu"]
        for n, k in (SPLIT, (14336, 264)):
            tensors = given(op, HALF, "cuda", rows=(256,), n=n, k=k)
            nan = {name: torch.full_like(one, torch.nan) for name, one in tensors.items()}
            with forced("FewRows"), torch.no_grad():
                (whole,) = call(op, tensors)
                call(op, nan)
                (part,) = call(op, tensors | {"x": tensors["x"][:rows]})
            assert whole.isfinite().all()
            assert same_bits(part, whole[:rows])

    @pytest.mark.parametrize("store", ["gelu", "saving"])
    def test_gradients(self, store):
        op = LAYERS[store]
        factors, operands = apart(op, given(op, HALF, "cuda", rows=(24,), n=264, k=520))
        with forced("FewRows"):
            assert check(op, *factors, **operands).passed
