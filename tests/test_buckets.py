# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""A new length, rank or batch size builds nothing: kernels are made for buckets, not for columns.

Nothing is compiled here: variants are counted as a process with these calls would build them.
"""

import math
import random

import pytest
import torch
from cases import exhaustive, randn

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.bind.geometry import Sharing
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.plan.planner import plan_loaded
from fusedops.run.forward import resolve
from fusedops.run.gradient import Gradient, described
from fusedops.schedule import forward as schedule
from fusedops.schedule.architectures import GPUS
from fusedops.schedule.backward import GRADIENT_VALUES, gradient_bucket
from fusedops.schedule.forward_tile import row_bucket
from fusedops.schedule.row_partition import cut_few
from fusedops.schedule.tiling import samples

#: The most kernels of an op and a pass: on a GPU four alignments of a row, ten of each; on a CPU
#: one for each of HOST_COLUMNS, and one for rows that are read twice.
MOST = {"sm_90": 40, "x86-64-v3": 6}
DTYPE = {"sm_90": torch.float16, "x86-64-v3": torch.float32}

LONGEST = 4096
SIZES = (1, 1, 2, 3, 5, 8, 16, 33, 128)


#: Reduces nothing.
EPILOGUE = fo.Map(load=[fo.Bias("b")])


def lengths(count):
    draw = random.Random(0)
    return [draw.randint(1, LONGEST) for _ in range(count)]


def shapes(count):
    draw = random.Random(1)
    for _ in range(count):
        rows = [draw.choice(SIZES) for _ in range(draw.randint(0, 3))]
        yield (*rows, draw.randint(1, LONGEST))


def attention(shape, dtype):
    """Scores with a bias that the batch shares and a padding mask for each of the batch."""
    *rows, columns = shape
    bias = (1, *rows[1:], columns) if rows else (columns,)
    mask = (rows[0], *[1] * (len(rows) - 1), columns) if rows else (columns,)
    return (
        ATTENTION,
        meta(*shape, dtype=dtype),
        {
            "scale": 0.125,
            "pair_bias": meta(*bias, dtype=dtype),
            "padding": meta(*mask, dtype=torch.bool),
            "p": 0.1,
        },
    )


def add_norm(shape, dtype):
    vector = meta(shape[-1], dtype=dtype)
    given = {"bias": vector, "p": 0.1, "residual": meta(*shape, dtype=dtype)}
    return ADD_NORM, meta(*shape, dtype=dtype), {**given, "gamma": vector, "beta": vector}


def map_case(*shape):
    return meta(*shape, dtype=torch.float16), {"b": meta(shape[-1], dtype=torch.float16)}


def meta(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta")


class Process:
    """The kernels that a process would have loaded, by pass."""

    def __init__(self, monkeypatch, arch):
        self.target = Target.named(arch)
        self.kernels = {"forward": set(), "gradient": set(), "few": set(), "sums": set()}
        self.loaded = set()
        self.monkeypatch = monkeypatch

    def call(self, op, x, operands):
        """Train and evaluate; return what the backward pass runs."""
        loaded = property(lambda one: one.key in self.loaded)
        self.monkeypatch.setattr(Variant, "loaded", loaded)
        bound = bind(op, x, operands, {})
        floating = {k for k, v in operands.items() if isinstance(v, torch.Tensor)} - {"padding"}
        gradient = Gradient(op, frozenset({"x", *floating}), frozenset(op.saves))
        told = plan_loaded(gradient.pass_of(*described(bound, gradient)), self.target)
        for one in (resolve(bound._replace(keep=True), self.target).variant, *told.variants):
            self.loaded.add(one.key)
            entry = "few" if one.entry == "gradient" and told.call.sums.few else one.entry
            self.kernels[entry].add(one.key)
        return told


@pytest.mark.thorough
@pytest.mark.parametrize("arch", MOST)
@pytest.mark.parametrize("case", [attention, add_norm], ids=lambda case: case.__name__)
def test_lengths_ranks_and_batches_share_few_kernels(case, arch, monkeypatch):
    process = Process(monkeypatch, arch)
    lead = (2, 4, 64) if case is attention else (4096,)
    for columns in lengths(1000):
        process.call(*case((*lead, columns), DTYPE[arch]))
    for shape in shapes(1000):
        process.call(*case(shape, DTYPE[arch]))
    counts = {entry: len(keys) for entry, keys in process.kernels.items()}
    assert max(counts.values()) <= MOST[arch], counts


@pytest.mark.thorough
@pytest.mark.parametrize("arch", MOST)
def test_all_lengths_of_a_plain_norm_share_a_hundred_kernels(arch, monkeypatch):
    """Without dropout packs are as wide as the columns divide, and buckets are finer."""
    process = Process(monkeypatch, arch)
    op = fo.LayerNorm(store=[fo.Affine("g", "b")])
    for columns in range(1, LONGEST + 1, 1 if arch == "sm_90" else 7):
        vector = meta(columns, dtype=DTYPE[arch])
        x = meta(100, columns, dtype=DTYPE[arch])
        process.call(op, x, {"g": vector, "b": vector})
    assert max(len(keys) for keys in process.kernels.values()) <= (100 if arch == "sm_90" else 6)


@pytest.mark.parametrize("rows", [1, 9, 400, 5000])
@pytest.mark.parametrize("arch", MOST)
def test_the_number_of_rows_builds_nothing(rows, arch, monkeypatch):
    process = Process(monkeypatch, arch)
    process.call(*add_norm((64, 400), DTYPE[arch]))
    before = set(process.loaded)
    process.call(*add_norm((rows, 400), DTYPE[arch]))
    process.call(*add_norm((rows, 1, 1, 400), DTYPE[arch]))
    process.call(*add_norm((400,), DTYPE[arch]))
    new = process.loaded - before
    # What adds up partial sums has a few forms, by how many there are.
    assert all(key[3] == "sums" for key in new), new


ROWS = (2, 3, 8, 9, 31, 33, 4096)


@pytest.mark.parametrize("columns", [24, 1000, 2000])
@pytest.mark.parametrize("op", ["add norm", "map"])
def test_few_rows_need_one_kernel_more_at_most(op, columns, monkeypatch):
    """One block has all of them where they fit (`in_one_block`), whatever was called before."""

    def call(process, *rows):
        if op == "add norm":
            return process.call(*add_norm((*rows, columns), torch.float16))
        return process.call(EPILOGUE, *map_case(*rows, columns))

    first, later = (Process(monkeypatch, "sm_90") for _ in range(2))
    call(later, 64)
    for process in (first, later):
        fitting = [rows for rows in ROWS if call(process, rows).call.sums.few]
        assert fitting == list(ROWS[: len(fitting)])
        assert not fitting or 8 in fitting
        for rows in ((1,), (1, 3), (2, 2, 2), ()):
            call(process, *rows)
        assert len(process.kernels["gradient"]) == 1
        assert len(process.kernels["few"]) == (1 if fitting else 0)
    # Only a single row may be read either way: it has no order of additions.
    assert first.kernels["few"] == later.kernels["few"]
    assert first.kernels["gradient"] == later.kernels["gradient"]


def test_sums_have_one_order_whatever_was_called_before(monkeypatch):
    """A larger batch shares the pair bias; one sum more may cut the rows elsewhere."""
    op = fo.LayerNorm(load=[fo.Bias("pair")], store=[fo.Bias("b")])
    first, later = (Process(monkeypatch, "sm_90") for _ in range(2))
    for columns in (400, 401, 1001, 2000, 12289, 30522):
        vector = meta(columns, dtype=torch.float16)
        pair = meta(1, 64, 40, columns, dtype=torch.float16)
        later.call(op, meta(2, 64, 40, columns, dtype=torch.float16), {"pair": pair, "b": vector})
        one, other = (
            process.call(op, pair, {"pair": pair, "b": vector}) for process in (first, later)
        )
        assert one.call.sums.slices == other.call.sums.slices, columns
        assert one.tile.rows_per_block == other.tile.rows_per_block, columns


@pytest.mark.parametrize(
    ("rows", "group"), [(8, 1), (8, 2), (8, 4), (8, 8), (6, 3), (5, 5), (7, 1), (1, 1)]
)
def test_few_rows_keep_their_groups_whole(rows, group):
    """Rows of one block: a slice that splits a group would add it to another one's sum."""
    of_all = Sharing("column", rows, 0, of_all=True)
    slices = cut_few(rows, [of_all, Sharing("column", group, 1)], 8)
    assert slices.total == slices.per_span == 8
    assert slices.rows * 8 >= rows == slices.span
    assert group == rows or slices.rows % group == 0


def test_lengths_of_a_map_share_kernels(monkeypatch):
    process = Process(monkeypatch, "sm_90")
    for columns in lengths(400):
        process.call(EPILOGUE, *map_case(100, columns))
    assert max(map(len, process.kernels.values())) <= 100
    process.call(EPILOGUE, *map_case(100, 50257))
    before = set(process.loaded)
    process.call(EPILOGUE, *map_case(100, 50259))
    assert process.loaded == before


def rows_of(columns):
    for element_bytes, compute_bytes in ((2, 4), (4, 4), (8, 8)):
        for dropout, streams, centred in (
            (False, "none", False),
            (False, "columns", True),
            (True, "many", True),
        ):
            yield schedule.Row(columns, element_bytes, compute_bytes, dropout, streams, centred)
    for streams in ("columns", "many"):
        yield schedule.Row(columns, 2, 4, True, streams, narrow_result=True)


COLUMNS = sorted({*range(1, 700, 3), *(round(2 ** (k / 9)) for k in range(81, 162)), 12289, 50257})


@pytest.mark.thorough
@pytest.mark.parametrize("clusters", [1, 8, 16])
def test_the_lengths_of_a_bucket_agree_on_it(clusters):
    for columns in COLUMNS:
        for row in rows_of(columns):
            for bucket_of in (
                lambda row: row_bucket(row, clusters),
                *(
                    lambda row, family=family: gradient_bucket(row, clusters, family).bucket
                    for family in GRADIENT_VALUES
                ),
            ):
                bucket = bucket_of(row)
                at = f"{row}: {bucket}"
                assert bucket.low <= columns <= bucket.top, at
                assert not bucket.exact or bucket.low == bucket.top == columns, at
                # A neighbour of the same alignment that does not fill the tile.
                other = row._replace(columns=columns - 16)
                if other.columns >= bucket.low and row.cut == other.cut:
                    same = bucket_of(other)
                    if not bucket.exact and not same.exact:
                        assert (bucket.low, bucket.top, bucket.full) == (
                            same.low,
                            same.top,
                            same.full,
                        ), at
                        assert bucket.tile[:3] == same.tile[:3], at


def test_columns_of_one_bucket_are_words_of_one_kernel():
    gpu = GPUS["sm_90"]
    one, other = (
        schedule.choose(schedule.Row(columns, 2, 4, streams="none"), "sm_90", gpu)
        for columns in (50257, 50503)
    )
    assert one.chunk != other.chunk
    assert (one.cpp, one.launch, one.shared_bytes) == (other.cpp, other.launch, other.shared_bytes)


@pytest.mark.parametrize("columns", [(257, 300), (999, 1001), (4097, 4099)])
def test_a_row_has_its_bits_whatever_was_called_before(columns, device):
    """One length is one tree: other lengths of its bucket, and other ranks, change nothing."""
    op = fo.LayerNorm(store=[fo.Affine("g", "b")])
    first, second = columns
    x, g, b = randn(6, first, device=device), *(randn(first, device=device) for _ in "gb")
    before = op(x, g=g, b=b)
    op(
        randn(6, second, device=device),
        g=randn(second, device=device),
        b=randn(second, device=device),
    )
    assert torch.equal(op(x, g=g, b=b), before)
    assert torch.equal(op(x[2], g=g, b=b), before[2])
    assert torch.equal(op(x[None, :, None], g=g, b=b)[0, :, 0], before)


@pytest.mark.thorough
@pytest.mark.parametrize("case", [attention, add_norm], ids=lambda case: case.__name__)
def test_samples_stand_for_all_lengths(case, monkeypatch):
    """`fusedops build --lengths` builds what any length up to that needs."""
    process = Process(monkeypatch, "sm_90")
    lead = (2, 4, 64) if case is attention else (4096,)
    for columns in samples(1600):
        process.call(*case((*lead, columns), torch.float16))
    before = set(process.loaded)
    for columns in range(1, 1601):
        process.call(*case((*lead, columns), torch.float16))
    assert process.loaded == before


@pytest.mark.thorough
@pytest.mark.parametrize("clusters", [*exhaustive(1), 16])
def test_samples_stand_for_long_rows(clusters):
    """Rows in chunks, whose buckets end where every chunk has one full pack more."""
    most = 40000

    def needed(lengths):
        for columns in lengths:
            for kind, row in enumerate(rows_of(columns)):
                found = [row_bucket(row, clusters)]
                found += [
                    gradient_bucket(row, clusters, family).bucket for family in GRADIENT_VALUES
                ]
                for at, bucket in enumerate(found):
                    yield kind, at, math.gcd(columns, 16), bucket.low, bucket.top

    draw = random.Random(0)
    some = [draw.randint(4097, most) for _ in range(1500)]
    assert {*needed(some)} <= {*needed(samples(most))}


def test_draws_that_rows_share_need_no_rank_of_their_own(monkeypatch):
    """A batch of one or a sequence of one has the kernel of others (`Dropout(shared=...)`)."""
    op = fo.Softmax(store=[fo.Dropout("p", shared=(-2,))])
    process = Process(monkeypatch, "sm_90")
    for shape in ((1, 64, 400), (4, 1, 400), (4, 64, 400), (2, 3, 64, 400)):
        process.call(op, meta(*shape, dtype=torch.float16), {"p": 0.1})
    assert {entry: len(keys) for entry, keys in process.kernels.items()} == {
        "forward": 1,
        "gradient": 1,
        "few": 0,
        "sums": 0,
    }
