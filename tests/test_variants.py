# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every kernel compiles for every architecture without spilling registers; no GPU is needed.

Not the full product of the axes: a set in which each combination of values of any three axes (for
the functors: any two) occurs.
"""

import functools
import itertools
import re

import pytest
import torch
from cases import ADD_NORM, ATTENTION, OPERATORS, declare, thorough
from grids import cover

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.jit import compile_cuda
from fusedops.plan import forward as plan
from fusedops.schedule import forward as schedule
from fusedops.schedule.architectures import GPUS
from fusedops.schedule.tiling import longest

#: Shared memory that a block can opt in to, by architecture: A100, H100 and H200, B200, RTX 5090.
ARCHS = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}

STORAGES = ["register", "shared", "streaming", "cluster"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

#: By storage: columns that fill no pack, columns that fill every tile, and the most that every
#: device can hold of double.
COLUMNS = {
    "register": {"odd": 333, "exact": 1024, "long": 8192},
    "shared": {"odd": 1023, "exact": 4096, "long": 10240},
    "streaming": {"odd": 777, "exact": 4096, "long": 262145},
    "cluster": {"odd": 50257, "exact": 65536, "long": 200001},
}


def covering(strength, *axes):
    """Tuples of one value an axis; all combinations of values of any `strength` axes occur."""
    candidates = [tuple(enumerate(row)) for row in itertools.product(*axes)]
    rows = cover({row: set(itertools.combinations(row, strength)) for row in candidates})
    chosen = [tuple(value for _, value in row) for row in rows]
    return sorted(chosen, key=lambda row: [str(value) for value in row])


def only_on_sm_90(rows):
    """Rows that begin with an architecture: those of the others are for the thorough run."""
    return [
        row if row[0] == "sm_90" else pytest.param(*row, marks=pytest.mark.thorough) for row in rows
    ]


def choose(row, clusters=16):
    """The schedule of a forward pass on an H200, or on one with smaller clusters."""
    gpu = GPUS["sm_90"]._replace(cluster_limit=clusters, bulk_copies=clusters > 1)
    return schedule.choose(row, "sm_90", gpu)


def tensor(*shape, dtype=torch.float32, misaligned=False):
    """Memory without content: a kernel is generated from shapes, strides, dtypes and alignment."""
    count = torch.Size(shape).numel()
    return torch.empty(count + 1, dtype=dtype)[int(misaligned) :][:count].view(shape)


def described(op, x, operands, arch, storage=None):
    """What a call on a device of this architecture would run."""
    bound = bind(op, x, operands, {})
    target = Target.named(arch)
    if storage == "cluster" and GPUS[arch].cluster_limit == 1:
        with testing.force_schedule(storage), pytest.raises(ValueError, match="no cluster"):
            plan.describe(bound, target)
        pytest.skip(f"{arch} has no clusters")
    if storage is None:
        return plan.describe(bound, target)
    with testing.force_schedule(storage):
        return plan.describe(bound, target)


def check_compiles(info):
    """The variant compiles without a word of warning, in registers alone."""
    _, log = compile_cuda(info.variant.source, info.variant.arch, ["--ptxas-options=-v"])
    assert "warning" not in log, log
    usage = r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    assert re.findall(usage, log) == [("0", "0", "0")], log
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    assert registers * info.tile.threads_per_block <= 65536, log


def parameters(op, columns):
    """Values for the operands of a plain norm."""
    return {operand.name: tensor(columns) for operand in op.operands}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "operator", "storage", "size", "dtype", "aligned"),
    covering(3, ARCHS, OPERATORS, STORAGES, ["odd", "exact", "long"], DTYPES, [True, False]),
)
def test_every_operator_compiles(arch, operator, storage, size, dtype, aligned):
    op, columns = declare(OPERATORS[operator]), COLUMNS[storage][size]
    x = tensor(2, 3, columns, dtype=dtype, misaligned=not aligned)
    info = described(op, x, parameters(op, columns), arch, storage)
    assert info.call.storage == storage
    check_compiles(info)


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("columns", [16384, 32768, 131072, 262144])
@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_long_rows_have_the_room_that_was_asked_for(op, columns):
    """Two blocks at least: what a spill makes of it, one, costs a third of the speed."""
    chain = declare(OPERATORS[op])
    x = tensor(8, columns, dtype=torch.float16)
    info = described(chain, x, parameters(chain, columns), "sm_90")
    _, log = compile_cuda(info.variant.source, "sm_90", ["--ptxas-options=-v"])
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    assert 2 * registers * info.tile.threads_per_block <= 65536, log


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("arch", ["sm_90", *thorough("sm_100", "sm_120")])
@pytest.mark.parametrize(
    ("op", "columns"),
    [("layer_norm", 30522), ("layer_norm", 50257), ("layer_norm", 65536), ("rms_norm", 30522)],
)
def test_a_block_that_tells_its_cluster(op, columns, arch):
    """That all have begun, where gamma is worth keeping in the L1 cache."""
    chain = declare(OPERATORS[op])
    given = {name: g.half() for name, g in parameters(chain, columns).items()}
    info = described(chain, tensor(8, columns, dtype=torch.float16), given, arch)
    clusters = GPUS[arch].cluster_limit >= info.tile.chunks
    assert info.tile.launch.relay_handshake == (info.tile.cluster > 1)
    assert info.tile.launch.relay_handshake == clusters
    assert (", true>(a.op" in info.variant.source) == info.tile.launch.relay_handshake
    check_compiles(info)


@pytest.mark.parametrize(
    ("columns", "element_bytes", "streams", "centred"),
    [
        (32768, 2, "columns", True),
        (128256, 2, "columns", True),
        (16384, 2, "columns", False),
        (20480, 2, "columns", False),
        (151936, 2, "columns", False),
        (65536, 4, "columns", True),
        (65536, 2, "none", False),
        (65536, 2, "many", True),
    ],
)
def test_elsewhere_each_block_waits(columns, element_bytes, streams, centred):
    row = schedule.Row(columns, element_bytes, 4, streams=streams, centred=centred)
    assert not choose(row).launch.relay_handshake


def values(columns, dtype):
    """Operands of various dtypes and broadcast patterns, by the names that functors give them."""
    return {
        "number": 0.5,
        "p": 0.1,
        "count": 7,
        "scalar": tensor(dtype=torch.float32),
        "rows": tensor(2, 1, columns, dtype=torch.bfloat16),
        "row": tensor(2, 3, 1, dtype=torch.float64 if dtype is torch.float64 else torch.float32),
        "head": tensor(2, 1, 1),
        "like": tensor(2, 3, columns, dtype=dtype),
        "column": tensor(columns),
        "columns": tensor(columns, dtype=torch.float16),
        "flags": tensor(2, 1, columns, dtype=torch.bool),
        "counts": tensor(2, 1, 1, dtype=torch.int32),
    }


MASKS = {
    "mask": [fo.Mask("flags")],
    "keep": [fo.Mask("flags", keep=True)],
    "causal": [fo.Causal()],
    "causal-bottom-right": [fo.Causal(align="bottom-right", offset=1)],
    "window": [fo.Window(40, 3)],
    "window-bottom-right": [fo.Window(None, 3, align="bottom-right", offset=1)],
    "lengths": [fo.Lengths("counts")],
    "length": [fo.Lengths("count")],
}
POSITIONS = {
    "alibi": [fo.Alibi("row")],
    "alibi-number": [fo.Alibi("number", align="bottom-right")],
    "alibi-causal": [fo.Causal(), fo.Alibi("head")],
}
EITHER = {
    "scale-number": [fo.Scale("number")],
    "scale-scalar": [fo.Scale("scalar")],
    "bias": [fo.Bias("rows")],
    "bias-row": [fo.Bias("row")],
    "dropout": [fo.Dropout("p")],
    "residual": [fo.Residual("like", alpha="number")],
    "affine": [fo.Affine("column", "columns")],
    "gamma": [fo.Affine("columns")],
    "beta": [fo.Affine(beta="column")],
    "cast": [fo.Cast(torch.float16)],
}
SAVE = {"saved": [fo.Residual("like", save="stream")]}

SOFTMAXES = [fo.Softmax, fo.LogSoftmax]
ALL = [*SOFTMAXES, fo.LayerNorm, fo.RMSNorm]

#: Where each functor may stand, with the ops that allow it there.
PLACES = {
    **{f"load-{name}": ("load", chain, SOFTMAXES) for name, chain in (MASKS | POSITIONS).items()},
    **{f"load-{name}": ("load", chain, ALL) for name, chain in (EITHER | SAVE).items()},
    **{f"store-{name}": ("store", chain, ALL) for name, chain in EITHER.items()},
}


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "place", "storage", "dtype", "size"),
    [
        (*row, ["odd", "exact"][i % 2])
        for i, row in enumerate(covering(2, ARCHS, PLACES, STORAGES, DTYPES))
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
def test_every_functor_compiles(arch, place, storage, dtype, size):
    side, chain, kinds = PLACES[place]
    columns = COLUMNS[storage][size]
    op = kinds[list(PLACES).index(place) % len(kinds)](**{side: chain})
    given = values(columns, dtype)
    operands = {operand.name: given[operand.name] for operand in op.operands}
    check_compiles(described(op, tensor(2, 3, columns, dtype=dtype), operands, arch, storage))


def flagship_inputs(op, rows, columns, dtype):
    """X and the operands of a flagship chain."""
    like = tensor(2, rows, columns, dtype=dtype)
    operands = {
        "scale": 0.125,
        "pair_bias": tensor(1, rows, columns, dtype=dtype),
        "padding": tensor(2, 1, columns, dtype=torch.bool),
        "p": 0.1,
        "bias": tensor(columns, dtype=dtype),
        "residual": like,
        "gamma": tensor(columns),
        "beta": tensor(columns),
    }
    return like, {operand.name: operands[operand.name] for operand in op.operands}


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("arch", "flagship", "storage", "size", "dtype"),
    only_on_sm_90(
        covering(
            2,
            ARCHS,
            ["attention", "add_norm"],
            STORAGES,
            ["odd", "exact", "long"],
            [torch.float16, torch.float32],
        )
    ),
)
def test_the_flagships_compile(arch, flagship, storage, size, dtype):
    """All kinds of functors at once: what takes the most registers."""
    op, columns = (
        declare({"attention": ATTENTION, "add_norm": ADD_NORM}[flagship]),
        COLUMNS[storage][size],
    )
    check_compiles(described(op, *flagship_inputs(op, 3, columns, dtype), arch, storage))


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHS)
def test_statistics_compile(arch):
    x = tensor(2, 3, 1000, dtype=torch.bfloat16)
    for kind in (fo.LayerNorm, fo.RMSNorm):
        check_compiles(described(kind(stats=True), x, {}, arch))


def test_every_value_occurs_with_every_architecture():
    """What `covering` promises, for the set that matters most."""
    rows = covering(3, ARCHS, OPERATORS, STORAGES, ["odd", "exact", "long"], DTYPES, [True, False])
    for wanted in itertools.product(ARCHS, OPERATORS, STORAGES):
        assert any(row[:3] == wanted for row in rows)
    for wanted in itertools.product(ARCHS, STORAGES, DTYPES):
        assert any((row[0], row[2], row[4]) == wanted for row in rows)


# The choice of the schedule, from columns alone.

#: Every count up to a few tiles of a warp, then powers of two, their neighbours and some between.
COUNTS = sorted(
    {
        *range(1, 2050),
        *(power + step for power in (1 << k for k in range(11, 21)) for step in (-1, 0, 1)),
        *(round(2 ** (k / 7)) for k in range(77, 141)),
        12288,
        50257,
        *(134400, 151936, 153600, 160000, 200064, 245760, 320000),  # no power of two of chunks
        100003,
        1 << 20,
    }
)

#: Bytes of an element of x and of the compute type.
BYTES = [(2, 4), (4, 4), (8, 8), (2, 8)]

#: Registers of a thread that hold values: as many again are left for addresses and functors.
MOST_REGISTERS = 64


@pytest.mark.parametrize("clusters", [1, 8, 16])
@pytest.mark.parametrize("declared", ["plain", "dropout", "none", "columns", "centred"])
@pytest.mark.parametrize(("element_bytes", "compute_bytes"), BYTES)
def test_the_tiles_of_a_row_cover_it(element_bytes, compute_bytes, declared, clusters):
    streams = {"none": "none", "columns": "columns", "centred": "columns"}.get(declared, "many")
    for columns in COUNTS:
        row = schedule.Row(
            columns,
            element_bytes,
            compute_bytes,
            dropout=declared == "dropout",
            streams=streams,
            centred=declared == "centred",
        )
        tile = choose(row, clusters)
        chunk = tile.chunk
        short = declared == "dropout" and columns <= 64  # no kernel for a single length
        at = f"{columns} columns: {tile}"
        assert tile.chunks == -(-columns // chunk), at  # row_kernel counts them like this
        shared_by = max(tile.cluster, tile.chunks)  # tiles, those that stay empty included
        assert not tile.exact or columns == shared_by * chunk, at
        assert tile.exact or tile.chunks > 1 or columns < chunk or short, at
        assert chunk <= tile.tile.capacity, at
        assert chunk % tile.width == 0, at
        assert chunk == tile.tile.capacity or (tile.chunks > 1 and not tile.exact), at
        assert 1 <= tile.threads <= 512, at
        assert tile.threads % 32 == 0 or tile.threads in (1, 2, 4, 8, 16), at
        assert tile.rows_per_block == 1 or tile.threads <= 32, (
            at
        )  # several warps have the block to themselves
        assert tile.threads_per_block <= 512, at
        # What every thread surely has, in every block of a cluster.
        of_last = columns - (max(tile.cluster, tile.chunks) - 1) * chunk
        assert tile.full * tile.threads * tile.width <= max(min(of_last, chunk), 0), at
        assert tile.pieces == (columns % tile.width > 0), at
        assert tile.cluster in (1, 2, 4, 8, 16), at
        assert tile.cluster <= clusters, at
        assert tile.threads_per_block % 32 == 0, at  # every lane of a warp takes part in a shuffle
        assert tile.width & (tile.width - 1) == 0, at
        assert tile.width <= columns or declared == "dropout", at
        assert tile.packs * tile.width * compute_bytes <= 4 * MOST_REGISTERS, at
        assert tile.shared_bytes <= ARCHS["sm_90"], at
        # Some threads hold nothing where a power of two is called for; fewer than half of them in
        # the longest rows of a bucket.
        most = longest(columns, row.width, row.cut, row.dropout)
        assert tile.threads < 2 * -(-most // tile.width), at


@pytest.mark.parametrize("clusters", [8, 16])
@pytest.mark.parametrize("streams", ["none", "columns"])
def test_odd_and_centred_rows_stay_in_one_tile(streams, clusters):
    """Small blocks are for where enough of them share a row; else it would be read twice."""
    for columns, element_bytes in itertools.product((4097, 50257, 65537, 131071, 131072), (2, 4)):
        for centred in (False, True):
            row = schedule.Row(columns, element_bytes, 4, streams=streams, centred=centred)
            tile = choose(row, clusters)
            assert tile.one_tile, f"{columns} columns: {tile}"
            assert tile.chunk % tile.width == 0
            assert tile.full * tile.threads * tile.width <= tile.chunk
            assert tile.chunks == -(-columns // tile.chunk)


@pytest.mark.parametrize("arch", ARCHS)
def test_storage_follows_what_holds_the_row(arch):
    kinds = [
        schedule.choose(schedule.Row(columns, 2, 4), arch, GPUS[arch]).storage for columns in COUNTS
    ]
    order = [kind for kind, _ in itertools.groupby(kinds)]
    assert order == ["register", "shared" if arch == "sm_80" else "cluster", "streaming"]


@pytest.mark.parametrize("dropout", [False, True], ids=["plain", "dropout"])
@pytest.mark.parametrize("columns", [1, 7, 1000, 4096, 16384, 16385, 50257, 262144])
@pytest.mark.parametrize("clusters", [False, True], ids=["alone", "clusters"])
def test_the_tile_depends_on_columns_dtypes_and_dropout_alone(columns, dropout, clusters):
    op = fo.LayerNorm(store=[fo.Dropout("p")]) if dropout else fo.LayerNorm()
    operands = {"p": 0.1} if dropout else {}
    layouts = [
        tensor(1, columns, dtype=torch.float16),
        tensor(100, columns, dtype=torch.float16),
        tensor(2, 3, 1, columns, dtype=torch.float16),
        tensor(3, columns, dtype=torch.float16, misaligned=True),
        tensor(3, columns + 1, dtype=torch.float16)[:, :columns],
        tensor(columns, 3, dtype=torch.float16).t(),
        tensor(1, columns, dtype=torch.float16).expand(5, columns),
    ]
    tiles = set()
    archs = [arch for arch in ARCHS if (GPUS[arch].cluster_limit > 1) == clusters]
    for x, arch, storage in itertools.product(layouts, archs, [None, "streaming"]):
        tile = described(op, x, operands, arch, storage).tile
        tiles.add((tile.threads, tile.packs, tile.width, tile.rows_per_block, tile.chunks))
    assert len(tiles) == 1


def test_a_new_shape_of_a_pattern_is_the_same_variant():
    @functools.cache
    def source(*shape):
        return described(
            fo.Softmax(), tensor(*shape, dtype=torch.float16), {}, "sm_90"
        ).variant.source

    assert source(4, 1024) == source(1, 1024) == source(77777 // 1024, 1024) == source(2, 3, 1024)
    assert source(4, 1000) == source(9, 1000)
    assert source(4, 1000) != source(4, 1024)


@pytest.mark.parametrize("columns", [16385, 50257, 1 << 20])
def test_a_row_that_registers_cannot_hold_is_refused(columns):
    x = tensor(1, columns, dtype=torch.float16)
    with pytest.raises(ValueError, match=rf"{columns} columns"):
        described(fo.Softmax(), x, {}, "sm_90", "register")


@pytest.mark.parametrize(
    ("arch", "columns"), [("sm_120", 32768), ("sm_80", 50257), ("sm_90", 65536)]
)
def test_a_row_that_shared_memory_cannot_hold_is_refused(arch, columns):
    x = tensor(1, columns, dtype=torch.float16)
    with pytest.raises(ValueError, match=rf"{columns} columns.*{ARCHS[arch]}"):
        described(fo.Softmax(), x, {}, arch, "shared")
    chosen = described(fo.Softmax(), x, {}, arch).call.storage
    assert chosen == ("streaming" if arch == "sm_80" else "cluster")


def test_more_columns_than_32_bits_count_are_refused():
    x = torch.empty(2**31, dtype=torch.float16, device="meta")[None]
    with pytest.raises(fo.UnsupportedError, match=r"2147483648 columns.*op\.unfused"):
        described(fo.Softmax(), x, {}, "sm_90")
    described(fo.Softmax(), x[:, 1:], {}, "sm_90")


@pytest.mark.parametrize("columns", [1024, 16384])
def test_a_row_of_one_block_has_no_cluster(columns):
    with pytest.raises(ValueError, match=f"{columns} columns is one chunk"):
        described(fo.Softmax(), tensor(1, columns, dtype=torch.float16), {}, "sm_90", "cluster")


def test_schedules_of_another_device_are_refused():
    x = tensor(1, 8)
    with pytest.raises(ValueError, match="'host' is the schedule of a CPU"):
        described(fo.Softmax(), x, {}, "sm_90", "host")
    for storage in ("register", "shared", "cluster"):
        with (
            testing.force_schedule(storage),
            pytest.raises(ValueError, match=f"a CPU has no {storage}"),
        ):
            plan.describe(bind(fo.Softmax(), x, {}, {}))
    wide = tensor(1, schedule.HOST_BUFFERED + 1)
    with (
        testing.force_schedule("host"),
        pytest.raises(ValueError, match=f"{wide.shape[1]} columns"),
    ):
        plan.describe(bind(fo.Softmax(), wide, {}, {}))
