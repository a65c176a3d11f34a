# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every gradient kernel compiles for every architecture without spilling; no GPU is needed.

As in test_variants, values of the axes are combined in pairs, not in full.
"""

import functools
import itertools
import math
import re

import pytest
import torch
from cases import ADD_NORM, ATTENTION, OPERATORS, declare, thorough
from test_variants import (
    ARCHS,
    COLUMNS,
    DTYPES,
    PLACES,
    STORAGES,
    covering,
    flagship_inputs,
    only_on_sm_90,
    parameters,
    tensor,
    values,
)

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import KEPT, bind
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan.saved_tensors import joining_name, saved_name
from fusedops.run.gradient import Gradient
from fusedops.schedule import backward as gradient_schedule
from fusedops.schedule import forward as schedule
from fusedops.schedule.architectures import GPUS
from fusedops.schedule.launch import LaunchConfig

PROCESSORS = 132


def choose(row, family, sums, clusters=16, storage=None):
    """The schedule of a backward pass on an H200, or on one with smaller clusters."""
    gpu = GPUS["sm_90"]._replace(cluster_limit=clusters, bulk_copies=clusters > 1)
    return gradient_schedule.choose_gradient(row, "sm_90", gpu, family, sums, storage)


def backward_of(op, x, operands, arch, storage=None, options=None):
    """What the backward pass of a call would run, with gradients of all that can have one."""
    floating = {
        name
        for name, value in operands.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }
    gradient = Gradient(op, frozenset({"x", *floating}), frozenset((*op.saves, *op.taps)))
    bound = bind(op, x, operands, options or {})._replace(keep=True)

    def output(name):
        return tensor(*bound.output_shape(name), dtype=bound.output_dtype(name))

    given = {KEPT: output(KEPT), "x": x, **{name: operands.get(name) for name in op.slots}}
    for name in (*op.saves, *op.taps):
        given[joining_name(name)] = output(name)
        if name in gradient.needed.streams:
            given[saved_name(name)] = output(name)
    target = Target.named(arch, PROCESSORS)
    if storage is None:
        return gradient.describe(output("y"), given, options or {}, target)
    with testing.force_schedule(storage):
        return gradient.describe(output("y"), given, options or {}, target)


def check_compiles(backward):
    """The kernels compile without a word of warning, in registers alone."""
    for variant in backward.variants:
        _, log = compile_cuda(variant.source, variant.arch, ["--ptxas-options=-v"])
        assert "warning" not in log, log
        usage = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
        assert re.findall(usage, log) == [("0", "0", "0")], log
        registers = int(re.search(r"Used (\d+) registers", log)[1])
        assert registers * variant.tile.threads_per_block <= 65536, log


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "operator", "storage", "size", "dtype", "aligned"),
    covering(2, ARCHS, OPERATORS, STORAGES, ["odd", "exact", "long"], DTYPES, [True, False]),
)
def test_every_operator_compiles(arch, operator, storage, size, dtype, aligned):
    if storage == "cluster" and GPUS[arch].cluster_limit == 1:
        pytest.skip(f"{arch} has no clusters")
    held = "cluster" if storage == "cluster" else "register"
    op, columns = declare(OPERATORS[operator]), COLUMNS[held][size]
    x = tensor(200, 300, columns, dtype=dtype, misaligned=not aligned) if columns < 999 else None
    x = tensor(20, 30, columns, dtype=dtype, misaligned=not aligned) if x is None else x
    check_compiles(backward_of(op, x, parameters(op, columns), arch, storage))


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(len(PLACES)), ids=list(PLACES))
def test_every_functor_compiles(number):
    arch, storage = list(ARCHS)[number % 4], STORAGES[number % 3]
    dtype = DTYPES[number // 4 % 4]
    side, chain, kinds = list(PLACES.values())[number]
    columns = COLUMNS["register"][["odd", "exact"][number % 2]]
    op = kinds[number % len(kinds)](**{side: chain})
    given = values(columns, dtype)
    operands = {operand.name: given[operand.name] for operand in op.operands}
    check_compiles(backward_of(op, tensor(2, 3, columns, dtype=dtype), operands, arch, storage))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "flagship", "columns", "dtype"),
    only_on_sm_90(
        covering(
            2,
            ARCHS,
            ["attention", "add_norm"],
            [256, 1000, 1024, 4096, 16384, 20001],
            [torch.float16, torch.float32],
        )
    ),
)
def test_the_flagships_compile(arch, flagship, columns, dtype):
    """On the schedules that they choose."""
    op = declare({"attention": ATTENTION, "add_norm": ADD_NORM}[flagship])
    check_compiles(backward_of(op, *flagship_inputs(op, 300, columns, dtype), arch))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "dtype", "rows"), covering(2, ARCHS, [torch.float16, torch.float64], [8, 5000])
)
def test_sums_of_any_targets_compile(arch, dtype, rows):
    """Each kind of target is a type of its own; together they keep to what a block gets."""
    op = fo.LayerNorm(
        load=[fo.Bias(f"b{i}") for i in range(4)], store=[fo.Affine("gamma", "beta"), fo.Scale("s")]
    )
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    given = {f"b{i}": tensor(1024, dtype=kind) for i, kind in enumerate(kinds)}
    given["gamma"] = tensor(1024, dtype=torch.float16, misaligned=True)
    given["beta"] = tensor(1024, 2, dtype=torch.float32)[:, 0]
    backward = backward_of(op, tensor(rows, 1024, dtype=dtype), {**given, "s": tensor()}, arch)
    assert len(set(backward.variants[1].members)) >= 6
    check_compiles(backward)


@pytest.mark.parametrize("clusters", [16, *thorough(1)])
@pytest.mark.parametrize("dropout", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize("declared", gradient_schedule.GRADIENT_VALUES)
@pytest.mark.parametrize("sums", [(), (1,), (1, 1, 1), (4096,)], ids=str)
@pytest.mark.parametrize(("element_bytes", "compute_bytes"), [(2, 4), (4, 4), (8, 8), (2, 8)])
def test_the_tiles_of_a_row_cover_it(
    element_bytes, compute_bytes, sums, declared, dropout, clusters
):
    uneven = (37632, 50176, 67200, 69120, 75264, 76800, 151936, 160000, 200064, 201088)
    some = (4095, 4096, 5000, 8192, 12289, 16384, 16385, 50257, 1 << 20)
    for columns in [*range(1, 2050), *some, *uneven]:
        limit = ARCHS["sm_90"]
        row = schedule.Row(columns, element_bytes, compute_bytes, dropout)
        tile = choose(row, declared, sums, clusters)
        chunk = tile.chunk
        short = dropout and columns <= 64  # no kernel for a single length
        at = f"{columns} columns: {tile}"
        assert tile.chunks == -(-columns // chunk), at
        assert not tile.exact or columns == max(tile.cluster, tile.chunks) * chunk, at
        assert tile.exact or tile.chunks > 1 or columns < chunk or short, at
        assert chunk <= tile.tile.capacity, at
        assert chunk % tile.width == 0, at
        assert chunk == tile.tile.capacity or (tile.chunks > 1 and not tile.exact), at
        assert tile.rows_per_block == 1 or tile.threads <= 32, at
        assert tile.threads_per_block <= 512, at
        of_last = columns - (max(tile.cluster, tile.chunks) - 1) * chunk
        assert tile.full * tile.threads * tile.width <= max(min(of_last, chunk), 0), at
        assert tile.threads_per_block % 32 == 0, at
        assert tile.width <= columns or dropout, at
        if tile.launch.sum_storage == "shared":
            elements = tile.threads_per_block * tile.packs * tile.width
            assert len(sums) * elements * compute_bytes <= limit, at


@pytest.mark.parametrize("clusters", [8, 16])
@pytest.mark.parametrize("declared", ["plain", "norm"])
def test_rows_that_a_cluster_can_hold_are_read_once(declared, clusters):
    for columns, element_bytes in itertools.product((12289, 32769, 50257, 65535, 65536), (2, 4)):
        row = schedule.Row(columns, element_bytes, 4)
        tile = choose(row, declared, (), clusters)
        assert tile.one_tile, f"{columns} columns: {tile}"


@pytest.mark.parametrize(
    ("columns", "element_bytes", "sums", "together"),
    [
        (1023, 2, 2, False),  # narrow packs: no registers for operands as well
        (257, 2, 1, False),
        (1023, 2, 1, True),
        (30522, 2, 2, False),
        (1024, 2, 2, True),
        (1023, 4, 2, False),
        (12289, 4, 2, True),
        (16384, 2, 0, False),
        (65536, 2, 0, True),
        (50257, 2, 0, False),
        (151936, 2, 0, True),
        (262144, 2, 0, False),  # read twice
    ],
)
def test_what_is_under_way_together(columns, element_bytes, sums, together):
    row = schedule.Row(columns, element_bytes, 4)
    declared = "norm" if sums else "plain"
    tile = choose(row, declared, (1,) * sums)
    assert tile.launch.eager_operands == together


@pytest.mark.parametrize(
    ("columns", "element_bytes", "blocks", "visits"),
    [
        (131072, 2, 3, False),
        (151936, 2, 2, True),
        (180000, 2, 2, False),
        (196608, 2, 2, False),
        (163840, 4, 2, False),
        (200000, 4, 2, False),
        (262144, 4, 1, False),
    ],
)
def test_how_many_blocks_of_a_long_softmax_find_room(columns, element_bytes, blocks, visits):
    row = schedule.Row(columns, element_bytes, 4)
    tile = choose(row, "plain", ())
    assert (tile.min_blocks_per_sm, tile.launch.persistent) == (blocks, visits)


def test_a_block_that_is_alone_visits_no_rows_that_share_nothing():
    row = schedule.Row(151936, 2, 4)
    tile = choose(row, "norm", ())
    assert (tile.min_blocks_per_sm, tile.launch.persistent) == (1, False)


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("op", "columns", "dtype", "block"),
    [
        ("layer_norm", 257, torch.bfloat16, 192),
        ("rms_norm", 511, torch.float16, 192),
        ("layer_norm", 128, torch.float16, 128),
        ("rms_norm", 64, torch.float32, 128),
        ("layer_norm", 32, torch.float16, 256),
        ("rms_norm", 24, torch.bfloat16, 256),
    ],
)
@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_80")])
def test_rows_that_share_a_block_leave_one_part(op, columns, dtype, block, arch):
    op = declare(OPERATORS[op])
    given = {name: g.to(dtype) for name, g in parameters(op, columns).items()}
    backward = backward_of(op, tensor(4096, columns, dtype=dtype), given, arch)
    assert backward.tile.threads_per_block == block
    rows = backward.tile.rows_per_block
    assert rows > 1
    for _, parts in backward.results.parts_of.values():
        assert parts * rows == backward.call.sums.slices.total
    check_compiles(backward)


@pytest.mark.thorough
@pytest.mark.parametrize("operator", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("columns", [48, 257, 1024])
def test_few_rows_leave_no_parts(operator, columns):
    """One block has all of them: what it has summed is the gradient, and no second kernel runs."""
    op = declare(OPERATORS[operator])
    given = {name: g.half() for name, g in parameters(op, columns).items()}

    def backward(rows):
        return backward_of(op, tensor(rows, columns, dtype=torch.float16), given, "sm_90")

    for rows in (2, 8):
        few = backward(rows)
        assert few.call.sums.slices.total == few.tile.rows_per_block >= rows
        assert len(few.launches) == 1
        assert not few.results.parts_of
    check_compiles(few)
    assert len(backward(100).launches) == 2
    assert backward(3).variant.key == few.variant.key


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(("columns", "fits"), [(32, True), (203, True), (1001, False)])
@pytest.mark.parametrize("lead", [(2, 4), (4, 1), (200, 64)])
def test_sums_over_all_rows_beside_sums_over_some(lead, columns, fits):
    """One block of few rows has whole groups of the bias in its slices, and all of gamma's rows."""
    op = fo.LayerNorm(load=[fo.Bias("pair")], store=[fo.Affine("g", "b")])
    vector = tensor(columns, dtype=torch.float16)
    given = {"pair": tensor(1, lead[1], columns, dtype=torch.float16), "g": vector, "b": vector}
    backward = backward_of(op, tensor(*lead, columns, dtype=torch.float16), given, "sm_90")
    pair = next(share for one, share in backward.call.sharing.items() if one.name == "pair")
    assert pair.group == lead[0]
    assert not pair.of_all
    rows = math.prod(lead)
    assert backward.call.sums.few == (fits and rows <= 8)
    if backward.call.sums.few:
        assert backward.call.sums.slices.total == backward.tile.rows_per_block
        assert backward.call.sums.slices.rows == (2 if lead == (2, 4) else 1)
    check_compiles(backward)


def test_few_rows_keep_a_launch_configuration_that_is_forced():
    op, x = declare(OPERATORS["layer_norm"]), tensor(8, 1024, dtype=torch.float16)
    given = {name: g.half() for name, g in parameters(op, 1024).items()}
    forced = backward_of(op, tensor(4096, 1024, dtype=torch.float16), given, "sm_90").tile.launch
    assert forced.rows_per_block == 4
    with testing.force_launch(backward=forced):
        assert backward_of(op, x, given, "sm_90").tile.launch == forced


def test_sums_in_registers_find_room_to_be_combined():
    """Over the rows of a block, in static shared memory; also where a schedule is forced."""
    declared, numbers = gradient_schedule.GRADIENT_VALUES, ((1,), (1, 1), (1, 1, 1))
    for columns, (element_bytes, compute_bytes), of, sums, forced in itertools.product(
        (*range(1, 1025, 7), 511, 1000, 1023, 1024),
        ((2, 4), (4, 4), (8, 8)),
        declared,
        numbers,
        (None, "register"),
    ):
        row = schedule.Row(columns, element_bytes, compute_bytes)
        tile = choose(row, of, sums, storage=forced)
        combined = tile.threads_per_block * tile.packs * tile.width * compute_bytes
        alone = tile.rows_per_block == 1 or tile.launch.sum_storage != "registers"
        assert alone or combined <= 48 << 10, (columns, tile)


RING = LaunchConfig(persistent=True, persistent_threads_per_sm=256, ring_stages=2, interleaved=True)


@pytest.mark.parametrize(
    "case",
    [
        ("rms_norm", 8192, torch.float16),
        ("layer_norm", 12289, torch.bfloat16),
        *thorough(
            ("rms_norm", 50257, torch.float16),
            ("layer_norm", 30522, torch.float16),
            ("layer_norm", 16384, torch.float16),
            ("layer_norm", 4096, torch.bfloat16),
            ("rms_norm", 12288, torch.bfloat16),
            ("rms_norm", 5120, torch.float32),
            ("layer_norm", 3000, torch.float16),
        ),
    ],
)
def test_rows_that_bulk_copies_bring_ahead(case):
    """The source asserts that the kernel uses the shared memory that is reserved."""
    operator, columns, dtype = case
    op = declare(OPERATORS[operator])
    given = {name: g.to(dtype) for name, g in parameters(op, columns).items()}
    leaves = columns * dtype.itemsize % 16 > 0
    with testing.force_launch(backward=RING._replace(smem_staged=leaves)):
        backward = backward_of(op, tensor(4096, columns, dtype=dtype), given, "sm_90")
    slices = backward.call.sums.slices
    assert (backward.tile.stages, backward.tile.leaves_in_words) == (2, leaves)
    assert backward.launches[0].shared == backward.tile.ring_bytes > 0
    turns = math.ceil(4096 / gradient_schedule.resident_rows(backward.tile, PROCESSORS))
    assert slices.total == slices.per_span == math.ceil(4096 / turns)
    check_compiles(backward)


def test_rows_that_bulk_copies_cannot_bring():
    """Where a LOAD reads them again, or packs are not aligned, and on a GPU without such copies."""
    vector, rows = tensor(4096, dtype=torch.float16), tensor(300, 4096, dtype=torch.float16)
    plain = fo.RMSNorm(store=[fo.Affine("g")])
    added = fo.RMSNorm(load=[fo.Residual("r")], store=[fo.Affine("g")])
    apart = tensor(300, 4100, dtype=torch.float16)[:, :4096]
    with testing.force_launch(backward=RING):
        assert backward_of(plain, rows, {"g": vector}, "sm_90").tile.stages == 2
        for op, x, given, arch in (
            (added, rows, {"r": rows, "g": vector}, "sm_90"),
            (plain, apart, {"g": vector}, "sm_90"),
            (plain, rows, {"g": vector}, "sm_80"),
        ):
            backward = backward_of(op, x, given, arch)
            assert (backward.tile.stages, backward.launches[0].shared) == (0, 0)
            assert not backward.tile.features.bulk_rows
        few = backward_of(plain, rows[:132], {"g": vector}, "sm_90")
        assert (few.tile.stages, few.call.sums.slices.rows) == (0, 1)


def test_rows_that_slices_take_in_turns():
    """As many slices as the last turn fills; groups of rows that share an operand stay whole."""
    given = {"g": tensor(8192, dtype=torch.float16)}
    op, x = fo.RMSNorm(store=[fo.Affine("g")]), tensor(300, 8192, dtype=torch.float16)
    with testing.force_launch(backward=RING):
        turns = backward_of(op, x, given, "sm_90")
        x, given = tensor(3, 100, 8192, dtype=torch.float16), {"g": tensor(3, 1, 8192).half()}
        groups = backward_of(op, x, given, "sm_90")
    slices = turns.call.sums.slices
    assert turns.tile.launch.interleaved
    assert (slices.rows, slices.per_span, slices.total) == (3, 100, 100)
    assert not groups.tile.launch.interleaved
    assert groups.call.sums.slices.rows * groups.call.sums.slices.per_span >= 100


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_100", "sm_120")])
def test_rows_that_are_asked_for_by_line(arch):
    op = declare(OPERATORS["layer_norm"])
    given = {name: g.half() for name, g in parameters(op, 8192).items()}
    backward = backward_of(op, tensor(8, 8192, dtype=torch.float16), given, arch)
    assert backward.tile.launch.prefetch == "per_line"
    assert "Prefetch::kPerLine, true" in backward.variant.source
    check_compiles(backward)


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("clusters", [8, 16])
def test_what_is_wanted_does_not_change_the_tile(clusters, element_bytes):
    """Else dx would depend on which other gradients are asked for."""
    for columns in (256, 257, 1023, 2048, 8192, 12289, 30522, 50257, 65536, 128256, 151936):
        row = schedule.Row(columns, element_bytes, 4)
        tiles = [choose(row, "norm", sums, clusters) for sums in ((), (1,), (1, 1))]
        cuts = {(t.threads, t.packs, t.width, t.chunks, t.chunk) for t in tiles}
        assert len(cuts) == 1, columns


def tile_of(op, x, operands, wanted=None):
    gradient = Gradient(op, frozenset(wanted or {"x", *operands}), frozenset())
    bound = bind(op, x, operands, {})._replace(keep=True)
    given = {KEPT: tensor(*bound.output_shape(KEPT)), "x": x, **operands}
    given |= {saved_name(name): x for name in op.saves}
    target = Target.named("sm_90", PROCESSORS)
    tile = gradient.describe(x, given, {}, target).tile
    return tile.threads, tile.packs, tile.width, tile.chunks


def test_the_tile_does_not_depend_on_what_is_wanted():
    """So that it changes no bit of a row's gradient."""
    op, columns = declare(ADD_NORM), 1024
    x = tensor(500, columns, dtype=torch.float16)
    v = tensor(columns, dtype=torch.float16)
    operands = {"bias": v, "p": 0.1, "residual": x, "gamma": v, "beta": v}
    wanted = ({"x"}, {"x", "gamma"}, {"bias"}, {"x", "bias", "residual", "gamma", "beta"})
    assert len({tile_of(op, x, operands, names) for names in wanted}) == 1


@pytest.mark.parametrize("columns", [32, 256, 512, 1024, 4096, 8192, 16384, 40000])
def test_the_tile_does_not_depend_on_rows(columns):
    norm = fo.LayerNorm(store=[fo.Affine("gamma", "beta")])
    biased = fo.Softmax(load=[fo.Bias("b")])
    half = functools.partial(tensor, dtype=torch.float16)
    tiles = set()
    for rows, shape in itertools.product((1, 2, 3, 5000), ((columns,), (1, columns))):
        operands = {"gamma": half(*shape), "beta": half(*shape)}
        tiles.add(tile_of(norm, half(rows, columns), operands))
    assert len(tiles) == 1
    tiles = set()
    for batch, queries in itertools.product((1, 2, 8), (1, 16, 128)):
        bias = half(1, 8, queries, columns)
        tiles.add(tile_of(biased, half(batch, 8, queries, columns), {"b": bias}))
    assert len(tiles) == 1
